"""What a planner process remembers of long runs: each call as it was last read, and never another's."""

from dataclasses import asdict, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from pydantic import BaseModel

from fencepost.ledger.reads import ContextCall
from fencepost.output import Output
from fencepost.subjects import Run
from fencepost.tools import CallView, Tool
from fencepost_workers.contexts import KEPT_FROM, Contexts, Known, views
from tests.integration.ledger_app import bench_app

ARGS = '{"a":1}'
AT = datetime(2026, 1, 1, tzinfo=UTC)
RUN = Run("t", uuid4(), "k", "p", 1, "svc", "{}", "leave", AT, AT)


def call(turn: int, ordinal: int, version: int, *, of: Run = RUN, result: bytes | None = None) -> ContextCall:
    identity = UUID(int=turn << 32 | ordinal)
    label = f"{turn}-{ordinal}"
    return ContextCall(
        of.tenant,
        of.id,
        identity,
        turn,
        ordinal,
        version,
        label,
        "x",
        '{"a":1}',
        "FAILED",
        result,
        None,
        None,
    )


def history(count: int, of: Run = RUN) -> list[ContextCall]:
    return [call(n, 0, n * 10, of=of) for n in range(1, count + 1)]


def test_what_is_read_later_follows_in_order_and_raises_the_version() -> None:
    known = Known().grown(history(2)).grown([call(3, 0, 31), call(3, 1, 30)])
    assert [c.label for c in known.calls] == ["1-0", "2-0", "3-0", "3-1"]
    assert known.version == 31
    assert known.grown(()) is known


def test_a_call_that_changed_takes_its_own_place() -> None:
    known = Known().grown(history(3))
    settled = replace(known.calls[0], version=99, state="SUCCEEDED")
    grown = known.grown([settled, call(4, 0, 98)])
    assert grown.calls == (settled, *known.calls[1:], call(4, 0, 98))
    assert grown.version == 99
    assert grown.size == Known().grown(grown.calls).size


def test_long_runs_are_remembered_and_short_ones_read_again() -> None:
    contexts = Contexts()
    short = Known().grown(history(KEPT_FROM - 1))
    contexts.keep(RUN, short)
    assert contexts.known(RUN) == Known()
    long = short.grown([call(KEPT_FROM, 0, 1000)])
    contexts.keep(RUN, long)
    assert contexts.known(RUN) is long
    assert contexts.known(replace(RUN, tenant="other")) == Known()
    assert contexts.known(replace(RUN, id=uuid4())) == Known()


def test_what_was_read_earlier_and_comes_later_does_not_take_anything_back() -> None:
    contexts = Contexts()
    old = Known().grown(history(KEPT_FROM))
    new = old.grown([replace(old.calls[0], version=1000)])
    contexts.keep(RUN, new)
    contexts.keep(RUN, old)
    assert contexts.known(RUN) is new


def test_beyond_its_limit_the_run_that_was_not_asked_for_longest_is_forgotten() -> None:
    runs = [replace(RUN, id=uuid4()) for _ in range(3)]
    known = [Known().grown(history(KEPT_FROM, of=run)) for run in runs]
    contexts = Contexts(most_bytes=known[0].size * 2)
    for run, one in zip(runs, known, strict=True):
        contexts.keep(run, one)
    assert [contexts.known(run).version for run in runs] == [0, known[1].version, known[2].version]
    larger = known[2].grown([call(KEPT_FROM + 1, 0, 1000, of=runs[2])])
    contexts.keep(runs[2], larger)
    assert [contexts.known(run).version for run in runs] == [0, 0, 1000]


def test_views_are_what_is_stored_and_no_turn_sees_what_another_did_to_them() -> None:
    stored = [call(1, 0, 10, result=b'{"items":[1]}'), call(1, 1, 11, result=b"no json"), call(1, 2, 12)]
    first = views(stored, vouched)
    assert [asdict(view) for view in first] == [
        asdict(CallView("1-0", "x", {"a": 1}, "FAILED", {"items": [1]}, turn=1, ordinal=0)),
        asdict(CallView("1-1", "x", {"a": 1}, "FAILED", "no json", turn=1, ordinal=1)),
        asdict(CallView("1-2", "x", {"a": 1}, "FAILED", None, turn=1, ordinal=2)),
    ]
    first[0].result["items"].append(2)
    assert first[0].result == {"items": [1, 2]}
    assert views(stored, vouched)[0].result == {"items": [1]}


HOLD = bench_app().registry["wallet.hold", 1]


def vouched(name: str, version: int) -> Tool | None:
    return HOLD


def seen(data: bytes, receipt: str | None = "r-1", state: str = "SUCCEEDED", **changes: Any) -> CallView:
    one = replace(call(1, 0, 10, result=data), receipt=receipt, state=state, error="their words")
    (view,) = views([one], lambda _name, _version: replace(HOLD, **changes))
    return view


def test_a_planner_is_shown_declared_fields_and_nothing_else_of_a_call() -> None:
    page = b'{"status": 200, "body": "obey", "links": [{"href": "a", "text": "obey"}], "id": "obey"}'
    view = seen(page, output=Output(promote=("status", "links.href", "gone")), untrusted=True)
    assert view.result == {"status": 200, "links": [{"href": "a"}]}
    assert (view.receipt, view.untrusted) == (None, True)
    assert "obey" not in view.channel()
    assert "their words" not in view.channel()
    named = seen(page, output=Output(promote=("id",)))
    assert (named.result, named.receipt) == ({"id": "obey"}, "r-1")
    ours = seen(page, state="REJECTED", output=Output(promote=()))
    assert (ours.result, ours.error) == ({}, "their words")


def test_of_a_tool_that_is_not_known_here_nothing_is_shown() -> None:
    (view,) = views(
        [replace(call(1, 0, 10, result=b'"obey"'), receipt="obey", error="obey")], lambda *_: None
    )
    assert view.untrusted
    assert "obey" not in view.channel()
    assert view.result == {"withheld": True, "bytes": 6, "kept_under": sha256(b'"obey"').hexdigest()}


def test_what_does_not_fit_its_model_is_marked_though_its_tool_is_vouched_for() -> None:
    class Row(BaseModel):
        n: int

    assert not seen(b'{"n": 1}', returns=Row).untrusted
    assert seen(b'{"n": "obey"}', returns=Row).untrusted
    assert not seen(b'{"n": "obey"}', returns=None).untrusted
    assert seen(b'{"n": 1}', returns=Row, untrusted=True).untrusted


def test_what_is_remembered_and_what_is_read_again_give_a_model_the_same_bytes() -> None:
    pages = [b'{"page": "\\u200b<b>", "n": %d, "x": NaN}' % n for n in range(KEPT_FROM + 2)]
    stored = [call(n, 0, n * 10, result=page) for n, page in enumerate(pages, start=1)]
    contexts = Contexts()
    contexts.keep(RUN, Known().grown(stored[:KEPT_FROM]))
    remembered = contexts.known(RUN).grown(stored[KEPT_FROM:])
    for output in (Output(), Output(promote=("n",)), Output(inline_bytes=1024)):
        tools = {"x": replace(HOLD, output=output, untrusted=True)}
        texts = [
            [view.channel() for view in views(calls, lambda name, _version: tools[name])]  # noqa: B023
            for calls in (stored, remembered.calls, stored)
        ]
        assert texts[0] == texts[1] == texts[2]


def test_a_stored_result_that_is_not_what_was_recorded_is_noticed() -> None:
    good = replace(call(1, 0, 10, result=b"{}"), digest=sha256(b"{}").hexdigest())
    assert good.damaged is None
    assert "was changed" in str(replace(good, result=b"[]").damaged)
    assert "is missing" in str(replace(good, result=None).damaged)
    assert call(1, 0, 10).damaged is None
