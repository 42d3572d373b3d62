"""When a backlog counts as drained, and when as a storm."""

from dataclasses import replace

from fencepost_ops.bench_backlog import Backlog

DRAINED = Backlog(
    rows=1000,
    enqueue_s=1.0,
    waited_s=120.0,
    drained_s=9.0,
    published_waiting=1000,
    published=3080,
    beyond=80,
    left=0,
    longest_pass_ms=20,
    samples=(),
)


def test_a_backlog_is_judged_by_what_is_left_and_by_what_nobody_needed() -> None:
    assert DRAINED.problems == []
    assert replace(DRAINED, left=7).problems == ["7 runs were not done in 9 s"]
    assert replace(DRAINED, beyond=101).problems == ["101 publications more than needed, for 1000 runs"]
