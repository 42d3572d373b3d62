"""What scripted models answer: known from the request alone, on whichever wire it comes."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from fencepost_ops.sandbox import provider_faults as faults
from fencepost_ops.sandbox.provider_faults import Facts, Fault, Rules
from fencepost_ops.sandbox.provider_messages import readable
from fencepost_ops.sandbox.provider_replies import Reply, fragments
from fencepost_ops.sandbox.provider_scripts import Unscripted, Wait, parse, reply
from fencepost_ops.sandbox.provider_transcript import (
    CHAT,
    MESSAGES,
    RESPONSES,
    WIRES,
    Asked,
    Malformed,
    read,
)

GIVEN = json.dumps({"order": "o-1", "turns": [[{"tool": "wallet.debit", "arguments": {"a": 1}}]]})
HEADERS = {"anthropic-version": "2026-10-21"}
CALLS = (("wallet_find", {"order": "o-1"}), ("mail_send", {"to": "ann", "b": 2}))
RESULTS = ('{"state": "SUCCEEDED", "result": {"debit": {"id": "d_7"}}, "receipt": "r_9"}', '"sent"')
TOOLS = ("wallet_find", "mail_send", "wallet_debit", "mail_send_2")


def request(wire: str, *, results: int = 2, calls: int = 2, prefix: str = "call") -> dict[str, Any]:
    """One turn of two calls and their results, and what is asked next."""
    ids = [f"{prefix}_{place}" for place in range(2)]
    if wire == RESPONSES:
        made = [
            {"type": "function_call", "call_id": i, "name": n, "arguments": json.dumps(a)}
            for i, (n, a) in zip(ids, CALLS, strict=True)
        ][:calls]
        told = [
            {"type": "function_call_output", "call_id": i, "output": t}
            for i, t in zip(ids, RESULTS, strict=True)
        ][:results]
        said = [{"role": "assistant", "content": "I look."}] if calls else []
        items = [{"role": "user", "content": GIVEN}, *said, *made, *told]
        return {"model": "m", "instructions": "Be good.", "input": items}
    if wire == CHAT:
        of_chat: list[dict[str, Any]] = [
            {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a, indent=1)}}
            for i, (n, a) in zip(ids, CALLS, strict=True)
        ][:calls]
        of_tools = [
            {"role": "tool", "tool_call_id": i, "content": t} for i, t in zip(ids, RESULTS, strict=True)
        ][:results]
        turn = [{"role": "assistant", "content": "I look.", "tool_calls": of_chat}] if calls else []
        first = [{"role": "system", "content": "Be good."}, {"role": "user", "content": GIVEN}]
        return {"model": "m", "messages": [*first, *turn, *of_tools]}
    blocks = [
        {"type": "tool_use", "id": i, "name": n, "input": a} for i, (n, a) in zip(ids, CALLS, strict=True)
    ][:calls]
    answers = [
        {"type": "tool_result", "tool_use_id": i, "content": t} for i, t in zip(ids, RESULTS, strict=True)
    ][:results]
    turn = [{"role": "assistant", "content": [{"type": "text", "text": "I look."}, *blocks]}] if calls else []
    last = [{"role": "user", "content": answers}] if answers else []
    messages: list[dict[str, Any]] = [{"role": "user", "content": GIVEN}, *turn, *last]
    return {"model": "m", "system": "Be good.", "max_tokens": 100, "messages": messages}


def asked(wire: str, **how: Any) -> Asked:
    body = request(wire, **how)
    tools: list[Mapping[str, Any]] = [{"name": name} for name in TOOLS]
    body["tools"] = [{"type": "function", "function": one} for one in tools] if wire == CHAT else tools
    return read(wire, body, HEADERS)


def test_a_transcript_has_one_digest_on_all_wires_whatever_its_ids_are() -> None:
    digests = {asked(wire, prefix=prefix).digest for wire in WIRES for prefix in ("call", "toolu")}
    assert len(digests) == 1
    assert asked(CHAT, calls=0, results=0).digest not in digests


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"results": 1}, "no result was found for the calls call_1"),
        ({"calls": 1}, "there is a result for 'call_1'"),
        ({"results": 0}, "no result was found for the calls call_0, call_1"),
    ],
)
def test_a_transcript_whose_calls_and_results_do_not_pair_is_refused(
    wire: str, how: dict[str, int], why: str
) -> None:
    with pytest.raises(Malformed, match=why):
        asked(wire, **how)


@pytest.mark.parametrize("wire", WIRES)
def test_two_calls_of_one_id_are_refused(wire: str) -> None:
    text = json.dumps(request(wire)).replace("call_1", "call_0")
    with pytest.raises(Malformed, match="two calls have the id"):
        read(wire, json.loads(text), HEADERS)


@pytest.mark.parametrize(
    ("wire", "change", "why"),
    [
        (MESSAGES, {"temperature": 1}, "temperature"),
        (MESSAGES, {"max_tokens": None}, "max_tokens"),
        (CHAT, {"stream_options": {"include_usage": True}}, "stream_options"),
        (RESPONSES, {"model": None}, "model"),
        (RESPONSES, {"tools": [{"type": "function", "name": "mail.send"}]}, "does not match"),
        (CHAT, {"messages": [{"role": "wizard", "content": "x"}]}, "unknown role"),
    ],
)
def test_what_a_provider_refuses_is_refused(wire: str, change: dict[str, Any], why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read(wire, {**request(wire), **change}, HEADERS)


SCRIPT = parse(
    "m",
    [
        [{"name": "wallet.find", "id": "look", "arguments": {"order": {"$input": "order"}}}],
        {
            "text": "I pay.",
            "calls": [
                {
                    "tool": "wallet.debit",
                    "arguments": {
                        "found": {"$result": "look", "path": "debit.id"},
                        "receipt": {"$result": "look", "path": "receipt"},
                    },
                },
                {"name": "mail.send", "arguments": '{"to": 1, "to": 2}'},
            ],
        },
        {"finish": {"order": {"$input": "order"}}},
    ],
)


@pytest.mark.parametrize("wire", WIRES)
def test_turn_and_references_follow_from_the_request(wire: str) -> None:
    first = reply(SCRIPT, asked(wire, calls=0, results=0), 1)
    assert [(c.name, c.arguments) for c in first.calls] == [("wallet_find", '{"order": "o-1"}')]
    assert first.stop == "tool"
    second = reply(SCRIPT, asked(wire), 2)
    assert second.text == "I pay."
    assert json.loads(second.calls[0].arguments) == {"found": "d_7", "receipt": "r_9"}
    assert second.calls[1].arguments == '{"to": 1, "to": 2}'


def test_a_turn_asked_again_is_the_same_under_other_ids() -> None:
    once, again = (reply(SCRIPT, asked(CHAT), number) for number in (5, 6))
    assert [c.arguments for c in once.calls] == [c.arguments for c in again.calls]
    assert {c.id for c in once.calls}.isdisjoint(c.id for c in again.calls)


def test_turns_can_stand_in_the_input_and_the_last_words_follow() -> None:
    script = parse("m", {"turns_from": "turns", "last": "That is all."})
    first = reply(script, asked(CHAT, calls=0, results=0), 1)
    assert [(c.name, c.arguments) for c in first.calls] == [("wallet_debit", '{"a": 1}')]
    last = reply(script, asked(CHAT), 2)
    assert (last.calls, last.text, last.stop) == ((), "That is all.", "end")


def test_a_reference_that_leads_nowhere_says_so() -> None:
    script = parse("m", [[{"name": "x", "arguments": {"$input": "nothing.there"}}]])
    with pytest.raises(Unscripted, match=r"the input has nothing at 'nothing\.there'"):
        reply(script, asked(CHAT, calls=0, results=0), 1)


@pytest.mark.parametrize(
    "wire",
    [
        {"turns": {}},
        {"turn": []},
        [{"says": "x"}],
        [[{"arguments": {}}]],
        {"latency": {"first": 1}},
        {"latency": 3},
        {"limits": {"concurrency": 3}},
        {"limits": {"per_s": "many"}},
        {"usage": {"inputs": 3}},
        [{"usage": {"output": None}}],
        {"latency": {"first_s": {"p50": 4, "p99": 1}}},
    ],
)
def test_a_script_that_cannot_be_meant_is_refused(wire: Any) -> None:
    with pytest.raises(ValueError, match="the script of m"):
        parse("m", wire)


def test_a_wait_keeps_its_median_and_its_tail() -> None:
    wait = Wait(0.8, 4.0)
    waits = sorted(wait.seconds((n + 0.5) / 1000) for n in range(1000))
    assert waits[500] == pytest.approx(0.8, rel=0.01)
    assert waits[990] == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("cut", [None, 0, 5, 16, 17, 40])
def test_fragments_make_up_the_text_and_one_ends_where_it_is_to_be_cut(cut: int | None) -> None:
    text = "".join(chr(97 + n % 26) for n in range(40))
    pieces = fragments(text, cut)
    assert "".join(pieces) == text
    ends = {len("".join(pieces[: n + 1])) for n in range(len(pieces))}
    assert cut in {None, 0} or cut in ends


def facts(wire: str = CHAT, turn: int = 1, digest: str = "d", number: int = 1, nth: int = 1) -> Facts:
    return Facts(wire, "m", turn, digest, number, nth, GIVEN)


def test_a_counted_fault_is_met_by_exactly_one_request_and_only_where_its_wire_has_it() -> None:
    rules = Rules()
    rules.add(faults.parse({"kind": "late_id", "count": 1}))
    assert rules.meet(facts(MESSAGES)) is None  # no such thing there
    assert rules.meet(facts(CHAT)) is not None
    assert rules.meet(facts(CHAT)) is None


def test_chance_depends_on_the_request_and_not_on_the_order_of_arrival() -> None:
    def met(digests: list[str]) -> set[str]:
        rules = Rules()
        rules.add(faults.parse({"kind": "cut_fin", "probability": 0.3, "seed": 7}))
        return {digest for digest in digests if rules.meet(facts(digest=digest)) is not None}

    names = [f"d{n}" for n in range(200)]
    assert met(names) == met(names[::-1])
    assert 30 < len(met(names)) < 90


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"kind": "no"},
        {"kind": "cut_fin", "at": "moon"},
        {"kind": "status", "status": 200},
        {"kind": "nan", "x": 1},
    ],
)
def test_a_fault_that_cannot_be_meant_is_refused(wire: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="fault"):
        faults.parse(wire)


SPOILED = {
    Fault.TRUNCATED: '{"to": "acct", "amount_minor": 120',
    Fault.TRUNCATED_VALID: '{"to": "acct"}',
    Fault.TRUNCATED_AS_WHOLE: '{"to": "acct", "amount_minor": 120',
    Fault.DUPLICATE_KEYS: '{"to": "acct", "to": "acct", "amount_minor": 120000}',
    Fault.NAN: '{"nothing": NaN, "to": "acct", "amount_minor": 120000}',
    Fault.TRAILING: '{"to": "acct", "amount_minor": 120000} {}',
}


@pytest.mark.parametrize("kind", list(SPOILED))
def test_faults_spoil_the_last_arguments(kind: Fault) -> None:
    script = parse("m", [[{"name": "pay", "arguments": {"to": "acct", "amount_minor": 120000}}]])
    whole: Reply = reply(script, asked(CHAT, calls=0, results=0), 1)
    spoiled = faults.spoiled(whole, faults.parse({"kind": kind, "after": "120"}))
    assert spoiled.calls[-1].arguments == SPOILED[kind]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", {}),
        ('{"a": 120', {"a": 120}),
        ('{"a": "x', {"a": "x"}),
        ('{"a": {"b": 1', {}),
        ('{"a": 1} {}', {"a": 1}),
    ],
)
def test_a_whole_answer_holds_cut_arguments_as_its_provider_closes_them(text: str, kept: Any) -> None:
    assert json.loads(readable(text)) == kept
