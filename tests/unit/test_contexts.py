"""What a planner process remembers of long runs: each call as it was last read, and never another's."""

from dataclasses import asdict, replace
from datetime import UTC, datetime
from uuid import UUID, uuid4

from fencepost.ledger.reads import ContextCall
from fencepost.subjects import Run
from fencepost.tools import CallView
from fencepost_workers.contexts import KEPT_FROM, Contexts, Known, views

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
    first = views(stored)
    assert [asdict(view) for view in first] == [
        asdict(CallView("1-0", "x", {"a": 1}, "FAILED", {"items": [1]})),
        asdict(CallView("1-1", "x", {"a": 1}, "FAILED", "no json")),
        asdict(CallView("1-2", "x", {"a": 1}, "FAILED", None)),
    ]
    first[0].result["items"].append(2)
    assert first[0].result == {"items": [1, 2]}
    assert views(stored)[0].result == {"items": [1]}
