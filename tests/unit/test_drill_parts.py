"""What a drill is made of: threads of which one runs, time that stands still, services with books."""

import json
from datetime import timedelta
from uuid import UUID

import pytest

from fencepost.clock import boottime, driven, token, uuid7
from fencepost.errors import UsageError
from fencepost.testing import FAULTS, fault
from fencepost_ops.drill.baton import Execution, Killed
from fencepost_ops.drill.services import Manners, Services, Wire
from fencepost_ops.drill.virtual import VirtualClock

HOUR = timedelta(hours=1)


def test_a_step_is_held_where_it_says_and_goes_on_when_it_may() -> None:
    seen: list[str] = []

    def work() -> None:
        here = Execution.here()
        assert here is not None
        for point in ("first", "second"):
            seen.append(point)
            here.hold(point)
        seen.append("end")

    step = Execution("worker/1", work)
    for expected, point in ((["first"], "first"), (["first", "second"], "second")):
        step.go_on()
        assert (seen, step.point, step.ended) == (expected, point, False)
    step.go_on()
    assert (seen[-1], step.point, step.ended) == ("end", None, True)
    assert Execution.here() is None


def test_a_dead_step_unwinds_and_no_code_of_the_fleet_catches_it() -> None:
    seen: list[str] = []

    def work() -> None:
        here = Execution.here()
        assert here is not None
        try:
            here.hold("inside")
        except Exception:  # noqa: BLE001 - as the fleet's code does
            seen.append("caught")
        finally:
            seen.append("unwound")

    step = Execution("worker/1", work)
    step.go_on()
    step.end()
    assert (seen, step.ended, step.error) == (["unwound"], True, None)
    assert not issubclass(Killed, Exception)


def test_what_a_step_raises_belongs_to_whoever_drives_it() -> None:
    def work() -> None:
        raise ValueError("a bug")

    step = Execution("worker/1", work)
    step.go_on()
    assert isinstance(step.error, ValueError)


def test_the_same_seed_gives_the_same_ids_and_the_machine_s_own_come_back() -> None:
    def some(seed: int) -> list[object]:
        clock = VirtualClock(seed)
        with driven(clock):
            made: list[object] = [uuid7(), token(), uuid7(), boottime()]
            clock.passed += HOUR
            return [*made, uuid7(), boottime()]

    before = boottime()
    assert some(7) == some(7) != some(8)
    first, _, _, began, later, ended = some(7)
    assert isinstance(first, UUID)
    assert isinstance(later, UUID)
    assert first < later
    assert (began, ended) == (1000.0, 4600.0)
    assert boottime() >= before
    assert uuid7() != uuid7()


def test_whoever_drives_the_fault_points_hears_of_every_passage_and_nothing_else_is_armed() -> None:
    heard: list[str] = []
    FAULTS.drive(heard.append)
    try:
        fault("relay.after_take")
        with pytest.raises(UsageError, match="unknown fault point"):
            fault("nowhere")
    finally:
        FAULTS.drive(None)
    fault("relay.after_take")
    assert heard == ["relay.after_take"]
    assert not FAULTS.armed


def post(service: str, key: str | None, body: str = "{}", path: str = "/effects") -> Wire:
    headers = {"fencepost-attempt": "1"} | ({"idempotency-key": key} if key else {})
    return Wire(service, "POST", path, headers, body.encode())


def answered(services: Services, wire: Wire) -> tuple[int, str | None]:
    answer = services.answer(wire)
    return answer.status, json.loads(answer.body).get("id")


def test_a_service_deduplicates_equal_keys_while_it_remembers_them() -> None:
    clock = VirtualClock(1)
    services = Services({"pay": Manners(dedupes_for=HOUR)}, clock)
    assert answered(services, post("pay", "k")) == (201, "pay-1")
    assert answered(services, post("pay", "k")) == (200, "pay-1")
    assert answered(services, post("pay", "k", '{"other":1}'))[0] == 422
    clock.passed += HOUR
    assert answered(services, post("pay", "k")) == (201, "pay-2")
    assert [effect.receipt for effect in services.effects("pay")] == ["pay-1", "pay-2"]
    assert [request.status for request in services.requests("pay")] == [201, 200, 422, 201]


def test_a_service_that_knows_no_keys_does_it_again() -> None:
    services = Services({"mail": Manners()}, VirtualClock(1))
    assert [answered(services, post("mail", "k"))[1] for _ in range(2)] == ["mail-1", "mail-2"]


def test_a_lookup_that_lags_sees_an_effect_only_later_and_asking_leaves_no_request_behind() -> None:
    clock = VirtualClock(1)
    services = Services({"mail": Manners(lag=3 * timedelta(seconds=1))}, clock)
    ask = Wire("mail", "GET", "/by-key/k", {}, b"")
    answered(services, post("mail", "k"))
    assert answered(services, ask) == (404, None)
    clock.passed += timedelta(seconds=3)
    assert answered(services, ask) == (200, "mail-1")
    assert len(services.requests("mail")) == 1


def test_a_request_under_way_happens_when_it_lands_and_not_before() -> None:
    clock = VirtualClock(1)
    services = Services({"mail": Manners()}, clock)
    services.send_later(post("mail", "k"), clock.now + HOUR)
    assert (services.land(), services.effects("mail")) == (0, [])
    clock.passed += HOUR
    assert services.lands_next == clock.now
    assert services.land() == 1
    assert services.effects("mail")[0].at == clock.now
    assert services.lands_next is None


def test_setting_the_same_thing_twice_is_one_effect() -> None:
    services = Services({"page": Manners()}, VirtualClock(1))
    put = [Wire("page", "PUT", "/settings/a", {}, text) for text in (b"1", b"1", b"2", b"1")]
    assert [answered(services, wire)[1] for wire in put] == ["page-1", "page-1", "page-2", "page-3"]
