"""What the doctor says of dependencies that are left alone and of requests sent more than once."""

from fencepost_ops.doctor.dependencies import judge_dependencies
from fencepost_ops.doctor.facts import Dependency, Retries
from fencepost_ops.doctor.findings import Level, Unread

OPEN = Dependency("bank/default", "open", "http_429, Retry-After 60 s", 90.0, 45.0, 12)


def said(found: Retries | Unread) -> list[tuple[Level, str]]:
    return [(finding.level, finding.says) for finding in judge_dependencies(found)]


def test_all_is_well() -> None:
    assert [level for level, _ in said(Retries())] == [Level.OK, Level.OK]


def test_a_closed_dependency_is_a_warning_with_its_reason() -> None:
    (level, says), _ = said(Retries((OPEN,)))
    assert level is Level.WARNING
    assert says == (
        "bank/default is left alone for 1 m 30 s, 45 s more at least (http_429, Retry-After 60 s); "
        "12 calls may wait for it"
    )


def test_a_dependency_that_is_being_tried_says_so() -> None:
    tried = Dependency("bank/default", "half_open", "timeout, tried again", 30.0, 0.0, 1)
    (_, says), _ = said(Retries((tried,)))
    assert says == (
        "bank/default is being tried again for 30 s (timeout, tried again); 1 call may wait for it"
    )


def test_a_hidden_retry_is_a_problem() -> None:
    _, (level, says) = said(Retries(hidden=1))
    assert level is Level.PROBLEM
    assert says.startswith("1 attempt of the last day sent a request more than once")


def test_what_the_login_may_not_see_is_a_note() -> None:
    assert said(Unread("permission denied")) == [
        (Level.NOTE, "dependencies: not checked (permission denied)")
    ]
