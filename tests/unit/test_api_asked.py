"""From a request to what it asks for, or to the problem that says why not: tables."""

import json
from decimal import Decimal
from typing import Any

import pytest

from fencepost.ledger.tokens import Bearer, presented
from fencepost_ops.api import asked
from fencepost_ops.api.attempts import BURST, EVERY_S, Attempts
from fencepost_ops.api.problems import CODES, Problem, forbidden, unauthenticated

BEARER = Bearer("ab", "shop", ("svc:checkout", "svc:night"), frozenset({"runs:write"}))
GOOD: dict[str, Any] = {"planner": "p", "input": {}, "deadline": 60}


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ('"k-1"', "k-1"),
        ("k-1", "k-1"),
        ("  k-1 ", "k-1"),
        ('"with space"', "with space"),
        (r'"a\"b\\c"', 'a"b\\c'),
        ("x" * 200, "x" * 200),
        ("8e03978e-40d5-43e8-bc93-6894a57f9324", "8e03978e-40d5-43e8-bc93-6894a57f9324"),
    ],
)
def test_a_key_is_taken_quoted_and_raw(header: str, key: str) -> None:
    assert asked.idempotency_key([header]) == key


@pytest.mark.parametrize(
    "header",
    [
        "",
        '""',
        '"open',
        'k"',
        r'"a\n"',
        "two words",
        "ä",
        "x" * 201,
        '"k";q=1',
        '"a"b"',
        "k\x7f",
        "k;a=1",
        "k,l",
    ],
)
def test_what_is_no_key_is_refused(header: str) -> None:
    with pytest.raises(Problem) as caught:
        asked.idempotency_key([header])
    assert caught.value.code == "invalid_request"


def test_no_key_and_two_keys_are_refused_each_in_its_own_words() -> None:
    for values, code in (([], "idempotency_key_required"), (["a", "a"], "invalid_request")):
        with pytest.raises(Problem) as caught:
            asked.idempotency_key(values)
        assert caught.value.code == code


@pytest.mark.parametrize(
    ("data", "kind", "code", "says"),
    [
        (b"{}", None, "unsupported_media_type", "application/json"),
        (b"{}", "text/plain", "unsupported_media_type", "application/json"),
        (b"{}", "application/json; charset=latin-1", "unsupported_media_type", "UTF-8"),
        (b"", "application/json", "invalid_request", "not JSON"),
        (b'{"a":1,"a":2}', "application/json", "invalid_request", "'a' appears twice"),
        (b'{"a":NaN}', "application/json", "invalid_request", "NaN"),
        (b'{"a":Infinity}', "application/json", "invalid_request", "Infinity"),
        (b'{"a":"\xff"}', "application/json", "invalid_request", "not UTF-8"),
        (b"[1]", "application/json", "invalid_request", "one JSON object"),
        (b"[" * 100_000, "application/json", "invalid_request", "nested too deep"),
        (b'{"a":1e99999999999999999999}', "application/json", "invalid_request", "exponent"),
        (b'{"a":' + b"9" * 5000 + b"}", "application/json", "invalid_request", "digits"),
    ],
)
def test_bodies_are_read_strictly(data: bytes, kind: str | None, code: str, says: str) -> None:
    with pytest.raises(Problem, match=says) as caught:
        asked.json_body(data, kind)
    assert caught.value.code == code


def test_a_body_keeps_numbers_as_they_were_written() -> None:
    value = asked.json_body(b'{"a": 1.10, "b": 0.1000000000000000055}', 'application/json; charset="UTF-8"')
    assert value == {"a": 1.1, "b": Decimal("0.1000000000000000055")}


@pytest.mark.parametrize(
    ("change", "pointer", "says"),
    [
        ({"planner": ""}, "/planner", "not empty"),
        ({"planner": 3}, "/planner", "text"),
        ({"planner": "x" * 201}, "/planner", "200"),
        ({"version": 0}, "/version", "whole number"),
        ({"version": True}, "/version", "whole number"),
        ({"deadline": "60"}, "/deadline", "number of seconds"),
        ({"deadline": True}, "/deadline", "number of seconds"),
        ({"deadline": 0}, "/deadline", "past"),
        ({"deadline": -1}, "/deadline", "past"),
        ({"deadline": Decimal("1e400")}, "/deadline", "any clock"),
        ({"deadline": 3651 * 86400}, "/deadline", "days ahead"),
        ({"budget": 3}, "/budget", "object"),
        ({"budget": {"turn": 3}}, "/budget", "unknown turn"),
        ({"budget": {"turns": -1}}, "/budget", "turns"),
        ({"on_stop": "explode"}, "/on_stop", "compensate or compensate_at_once or leave"),
        ({"on_stop": []}, "/on_stop", "compensate or compensate_at_once or leave"),
        ({"tainted": 1}, "/tainted", "True or False"),
        ({"input": {"a": ["x", "\0"]}}, "/input", r"input\.a\[1\] holds a NUL"),
        ({"input": {"\ud800": 1}}, "/input", "half a character"),
        ({"input": "x" * 1024 * 1024}, "/input", "at most 1048576"),
        ({"run_key": "k-2"}, "/run_key", "another one"),
        ({"tenant": "bank"}, "/tenant", "unknown field tenant"),
        ({"a/b~": 1}, "/a~1b~0", "unknown field"),
        ({"\ud800": 1}, "/\\ud800", "unknown field"),
    ],
)
def test_what_cannot_be_a_run_is_refused_with_its_place(
    change: dict[str, Any], pointer: str, says: str
) -> None:
    with pytest.raises(Problem, match=says) as caught:
        asked.run_request({**GOOD, **change}, "k-1", BEARER, None)
    assert (caught.value.code, caught.value.pointer) == ("invalid_request", pointer)
    told = json.loads(caught.value.body("r-1"))
    assert told["errors"] == [{"pointer": pointer, "detail": told["detail"]}]


@pytest.mark.parametrize("missing", ["planner", "input", "deadline"])
def test_what_is_missing_is_named(missing: str) -> None:
    with pytest.raises(Problem, match=f"{missing} is missing"):
        asked.run_request({name: v for name, v in GOOD.items() if name != missing}, "k", BEARER, None)


def test_input_nested_as_deep_as_may_be_is_taken_and_one_deeper_is_not() -> None:
    value: Any = 1
    for _ in range(64):
        value = [value]
    assert asked.run_request({**GOOD, "input": value}, "k", BEARER, None).input == value
    with pytest.raises(Problem, match="nested deeper than 64"):
        asked.run_request({**GOOD, "input": [value]}, "k", BEARER, None)


def test_tenant_and_principal_are_the_tokens_and_only_one_it_may_name_is_named() -> None:
    usual = asked.run_request(GOOD, "k", BEARER, None)
    assert (usual.tenant, usual.principal, usual.run_key) == ("shop", "svc:checkout", "k")
    named = asked.run_request({**GOOD, "principal": "svc:night"}, "k", BEARER, None)
    assert named.principal == "svc:night"
    with pytest.raises(Problem) as caught:
        asked.run_request({**GOOD, "principal": "svc:root"}, "k", BEARER, None)
    assert (caught.value.status, caught.value.pointer) == (403, "/principal")


TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([TRACE], TRACE),
        ([], None),
        ([TRACE, TRACE], None),
        ([TRACE.upper()], None),
        ([TRACE + "-more"], None),
        (["01" + TRACE[2:] + "-more"], "01" + TRACE[2:] + "-more"),
        (["ff" + TRACE[2:]], None),
        (["00-" + "0" * 32 + TRACE[35:]], None),
        ([TRACE[:36] + "0" * 16 + "-01"], None),
        (["nonsense"], None),
    ],
)
def test_only_a_trace_of_w3c_is_kept_and_another_one_refuses_nothing(
    values: list[str], kept: str | None
) -> None:
    assert asked.traceparent(values) == kept


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ([("x", "1")], "unknown parameter x"),
        ([("limit", "0")], "from 1 to"),
        ([("limit", "201")], "from 1 to"),
        ([("limit", "٣")], "from 1 to"),
        ([("limit", "9" * 30)], "from 1 to"),
        ([("limit", "1"), ("limit", "1")], "twice"),
        ([("status", "QUEUED,NONE")], "no status NONE"),
        ([("status", "")], "no status"),
        ([("cursor", "x")], "cursor"),
        ([("run_key", "a\0")], "NUL"),
    ],
)
def test_unknown_filters_are_refused(query: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(Problem, match=says):
        asked.list_request(query)


def test_a_stream_goes_on_after_the_last_event_its_reader_names_whatever_its_address_says() -> None:
    assert asked.stream_request([("after", "3")], []) == (3, False)
    assert asked.stream_request([("after", "3")], ["7"]) == (7, True)
    assert asked.stream_request([], [""]) == (0, False)
    with pytest.raises(Problem, match="Last-Event-ID"):
        asked.stream_request([], ["x"])


def test_a_token_has_one_form_and_its_digest_covers_all_of_it() -> None:
    text = "fpt_0123456789abcdef_" + "A" * 43
    said = presented(text)
    assert said is not None
    assert said.id == "0123456789abcdef"
    other = presented(text[:-1] + "B")
    assert other is not None
    assert other.digest != said.digest
    for wrong in (text + "A", text[:-1], text.upper(), " " + text, text + "\n", "", "fpt_"):
        assert presented(wrong) is None, wrong


def test_an_address_with_many_wrong_tokens_waits_and_is_forgiven_in_time() -> None:
    attempts, now = Attempts(), 100.0
    for _ in range(BURST):
        assert attempts.wrong("10.0.0.1", now) == 0
    for _ in range(3):  # and however many more come, it waits no longer
        assert attempts.wrong("10.0.0.1", now) == pytest.approx(EVERY_S)
    assert attempts.wrong("::ffff:10.0.0.1", now) > 0
    assert attempts.wrong("10.0.0.2", now) == 0
    assert attempts.wrong("10.0.0.1", now + EVERY_S) == 0


def test_neighbours_of_one_network_of_ipv6_count_as_one() -> None:
    attempts = Attempts()
    for n in range(BURST):
        attempts.wrong(f"2001:db8::{n + 1:x}", 0.0)
    assert attempts.wrong("2001:db8::ffff", 0.0) > 0
    assert attempts.wrong("2001:db8:0:1::1", 0.0) == 0


def test_what_is_remembered_of_addresses_is_bounded() -> None:
    attempts = Attempts()
    for n in range(10_050):
        attempts.wrong(f"10.{n // 65536}.{n // 256 % 256}.{n % 256}", 0.0)
    assert len(attempts._spent) == 10_000


def test_every_problem_is_told_in_one_form() -> None:
    for code, status in CODES.items():
        told = json.loads(Problem(code, "a\u202e sentence\0").body("r-1"))
        assert (told["status"], told["code"], told["request_id"]) == (status, code, "r-1")
        assert "\u202e" not in told["detail"]
    assert unauthenticated("x", presented=False).headers["WWW-Authenticate"] == 'Bearer realm="fencepost"'
    assert 'scope="runs:read"' in forbidden("runs:read").headers["WWW-Authenticate"]
