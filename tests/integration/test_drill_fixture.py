"""The fixture as users meet it: fakes of every kind, and mistakes in setting it up."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from fencepost import App, Attempt, BookedEffect, Context, Contract, Effect, Lookup, Request, Turn, UsageError
from fencepost_ops.drill.protocol import Protocol
from fencepost_ops.drill.users import downstream
from fencepost_ops.drill.users.engine import UserDrill
from fencepost_ops.examples import wrong_tools as tools
from tests.answering import Asked, Said, answering

ARGS = {"order": "o-1"}
ENV = {"TILL_TOKEN": "a-secret"}
LOST = '{"version": 1, "name": "lost", "faults": [{"at": "dispatch.response_lost", "do": "lost"}]}'
QUIET = '{"version": 1, "name": "quiet"}'


def wrong(drill: UserDrill, *args: Any, **given: Any) -> str:
    with pytest.raises(UsageError) as refused:
        drill(*args, **given)
    return str(refused.value)


# -- Fakes of every kind ----------------------------------------------------------------------------------


class Real:
    """A till that is really asked over HTTP."""

    url = ""

    def __init__(self) -> None:
        self.charges: list[dict[str, Any]] = []

    def answer(self, asked: Asked) -> Said:
        if asked.method == "POST":
            self.charges.append({"key": asked.headers["Idempotency-Key"]})
            return Said(b'{"id": "r-1"}', 201)
        found = any(asked.path.endswith(one["key"]) for one in self.charges)
        return Said(b'{"id": "r-1"}', 200 if found else 404)


@pytest.fixture
def real() -> Iterator[Real]:
    made = Real()
    with answering(made.answer) as made.url:
        yield made


def shop(base_url: str) -> App:
    app = App("shop")
    service = app.dependency("till", base_url)
    contract = Contract(lookup=Lookup(strong=True), settle=tools.SETTLE)

    @service.http(
        "shop.charge", effect=Effect.IRREVERSIBLE, returns=tools.Receipt, intent=_intent, contract=contract
    )
    def charge(args: tools.Order) -> Request:
        return Request.post("/charges", json={"reference": args.order})

    @charge.lookup
    def find(_args: tools.Order, key: str) -> Request:
        return Request.get(f"/by-key/{key}")

    return app


def _intent(args: tools.Order) -> tuple[str, str]:
    return "order", args.order


def test_a_real_fake_on_loopback_is_really_asked(fencepost_drill: UserDrill, real: Real) -> None:
    app = shop(real.url)
    result = fencepost_drill(
        app, "shop.charge", ARGS, book=real.charges, fresh=real.charges.clear, protocol=LOST
    ).assert_one_effect()
    (played,) = result.played
    assert [one.kind for one in played.log] == ["effect", "lookup"]
    assert played.calls[0].state == "SUCCEEDED"
    assert [one["key"] for one in real.charges] == [played.calls[0].operation]


def test_requests_to_other_machines_are_refused(fencepost_drill: UserDrill) -> None:
    said = wrong(fencepost_drill, shop("https://api.example.com"), "shop.charge", ARGS, book=[])
    assert said.startswith("requests would really go to api.example.com: give service=")


def test_a_fake_made_anew_is_the_service_and_has_the_book(fencepost_drill: UserDrill) -> None:
    app = shop("https://till.invalid")
    made: list[tools.Till] = []

    def fresh() -> tools.Till:
        made.append(tools.Till(fencepost_drill.now))
        return made[-1]

    for _ in range(2):
        fencepost_drill(app, "shop.charge", ARGS, fresh=fresh, protocol=LOST).assert_one_effect()
    assert len(made) == 2
    assert all(len(one.effects) == 1 for one in made)


def test_a_book_of_the_app_is_read_as_an_audit_reads_it(fencepost_drill: UserDrill) -> None:
    app = shop("https://till.invalid")
    till = tools.Till(fencepost_drill.now)

    def book(since: datetime, until: datetime) -> Iterator[BookedEffect]:
        for one in till.effects:
            if since <= one["at"] < until:
                yield BookedEffect(one["id"], one["at"], key=one["key"])

    app.books["till/default"] = book
    given: dict[str, Any] = {"service": till.__call__, "protocol": LOST}
    result = fencepost_drill(app, "shop.charge", ARGS, **given).assert_one_effect()
    assert [entry.receipt for entry in result.played[0].entries] == ["t-1"]


def test_a_planner_of_the_app_is_drilled_with_all_its_calls(fencepost_drill: UserDrill) -> None:
    app, till = shop("https://till.invalid"), tools.Till(fencepost_drill.now)

    @app.planner("both")
    def both(context: Context) -> Turn:
        if context.call("one") is None:
            orders = [context.input["order"], f"{context.input['order']}-gift"]
            tool = app.tool("shop.charge").name
            return Turn(
                [_proposal(tool, order, label) for order, label in zip(orders, ("one", "two"), strict=True)]
            )
        return Turn(finish={})

    result = fencepost_drill(
        app, planner="both", run={"input": ARGS}, service={"till": till}, book=till.book, protocol=LOST
    ).assert_one_effect()
    assert [call.state for call in result.played[0].calls] == ["SUCCEEDED", "SUCCEEDED"]
    assert len(result.played[0].entries) == 2


def _proposal(tool: str, order: str, label: str) -> Any:
    from fencepost import Proposal

    return Proposal(tool, {"order": order}, label)


def test_what_the_class_cannot_promise_is_listed_and_does_not_fail(fencepost_drill: UserDrill) -> None:
    app, till = App("shop"), tools.Till(fencepost_drill.now)
    service = app.dependency("till", "https://till.invalid")

    @service.http("shop.mail", effect=Effect.IRREVERSIBLE, returns=tools.Receipt, intent=_intent)
    def mail(args: tools.Order) -> Request:
        return Request.post("/charges", json={"reference": args.order})

    result = fencepost_drill(app, "shop.mail", ARGS, service=till, protocol=LOST).assert_one_effect()
    (left,) = result.unresolved
    assert (left.state, left.effects) == ("NEEDS_REPAIR", 1)
    assert "neither a proof of absence nor a safe repeat" in left.why
    assert "1 histories end with a person" in result.summary()


@pytest.mark.parametrize("said", [[], None, {}, {"found": False}, {"data": []}])
def test_a_lookup_that_names_no_effect_ends_with_a_person(fencepost_drill: UserDrill, said: Any) -> None:
    def forgetful(request: Any) -> tuple[int, Any]:
        return (201, {"id": "r-1"}) if request.method == "POST" else (200, said)

    sweep = fencepost_drill(
        tools.app, "right.lookup", ARGS, service=forgetful, book=dict, env=ENV, protocol=LOST
    )
    (left,) = sweep.unresolved
    assert (left.state, left.effects) == ("NEEDS_REPAIR", 0)


class Ping(BaseModel):
    order: str


def test_a_line_is_lost_and_late_in_a_history_and_a_function_outside_of_one(
    fencepost_drill: UserDrill,
) -> None:
    app, done, asked = App("shop"), [], []

    async def send(order: str, key: str) -> str:
        asked.append(order)
        if key not in done:
            done.append(key)
        return key

    line = fencepost_drill.line(send, ConnectionError)

    @app.python("shop.ping", effect=Effect.IRREVERSIBLE, intent=_intent, contract=tools.DEDUPES)
    async def ping(args: Ping, attempt: Any) -> dict[str, str]:
        return {"id": await line(args.order, attempt.operation_key)}

    given: dict[str, Any] = {"book": done, "fresh": done.clear, "only": (), "again": False, "most": 1}
    result = fencepost_drill(app, "shop.ping", ARGS, **given).assert_one_effect()
    heard = {one.heard.partition(":")[0] for played in result.played for one in played.log}
    assert {"nothing", "nothing in time"} <= heard
    late = next(one for one in result.played if one.protocol.name.endswith("network.late"))
    assert [entry.text for entry in late.entries] == [repr(late.calls[0].operation)]
    with pytest.raises(StopIteration) as ended:
        line("o-2", "a-key").send(None)
    assert ended.value.value == "a-key"
    assert fencepost_drill.now() <= datetime.now(UTC)


def test_a_wire_that_really_waits_lands_late_all_the_same(fencepost_drill: UserDrill) -> None:
    app, done = App("shop"), []

    async def send(key: str) -> str:
        await asyncio.sleep(0)
        await asyncio.wait_for(asyncio.sleep(0.001), 5)
        done.append(key)
        return key

    line = fencepost_drill.line(send)

    @app.python("shop.ping", effect=Effect.IRREVERSIBLE, intent=_intent)
    async def ping(args: Ping, attempt: Any) -> dict[str, str]:
        return {"id": await line(attempt.operation_key)}

    late = LOST.replace("response_lost", "before_wire").replace('"do": "lost"', '"do": "delay", "for_s": 60')
    result = fencepost_drill(app, "shop.ping", ARGS, book=done, protocol=late).assert_one_effect()
    ((call,), (one,)) = result.played[0].calls, result.played[0].log
    assert one.landed_s == pytest.approx(one.at_s + 60)
    assert one.heard == "nothing in time"
    assert done == [call.operation]


def test_a_wire_that_never_ends_is_the_test_s_own_error(
    fencepost_drill: UserDrill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downstream, "MOST_S", 0.05)
    stuck, given_up = threading.Event(), []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            given_up.append("waits")

    async def blocks() -> None:
        stuck.wait()

    monkeypatch.setattr(downstream, "GRACE_S", 0.05)
    try:
        for coroutine in (waits(), blocks()):
            with pytest.raises(downstream.Endless):
                downstream.finished(coroutine)
        assert given_up == ["waits"]
    finally:
        stuck.set()


def test_what_a_killed_tool_still_tries_goes_nowhere_by_a_wire(fencepost_drill: UserDrill) -> None:
    app, seen = App("shop"), []
    done: list[str] = []
    send, undo = fencepost_drill.line(done.append), fencepost_drill.line(done.clear)

    @app.python("shop.ping", effect=Effect.IRREVERSIBLE, intent=_intent)
    def ping(args: Ping, attempt: Any) -> None:
        try:
            send(attempt.operation_key)
        except BaseException as error:
            seen.append(type(error).__name__)
            undo()
            raise

    killed = LOST.replace('"do": "lost"', '"do": "crash"')
    result = fencepost_drill(app, "shop.ping", ARGS, book=done, protocol=killed).assert_one_effect()
    assert seen == ["Killed"]  # which no SIGKILL would let it see
    assert len(done) == len(result.played[0].entries) == 1


# -- A book that does not tell everything -----------------------------------------------------------------

Books = dict[str, Callable[[tools.Till], Any]]
HIDING: Books = {
    "overwritten": lambda till: {one["key"]: one["id"] for one in till.effects},
    "the last one": lambda till: till.effects[-1:],
    "told by what it says": lambda till: [f"charged at {one['at']}" for one in till.effects[-1:]],
}


@pytest.mark.parametrize("name", HIDING)
def test_a_book_that_overwrites_an_effect_hides_none(fencepost_drill: UserDrill, name: str) -> None:
    till = tools.Till(fencepost_drill.now)  # which executes every request
    given: dict[str, Any] = {"fresh": till.reset, "env": ENV, "protocol": LOST}
    result = fencepost_drill(
        tools.app, "right.dedupes", ARGS, service=till, book=lambda: HIDING[name](till), **given
    )
    with pytest.raises(AssertionError) as failed:
        result.assert_never_twice()
    assert "two effects for one intent" in str(failed.value)
    assert "(in the book in the place of " in str(failed.value)


def test_a_book_that_loses_an_effect_is_refused(fencepost_drill: UserDrill) -> None:
    till = tools.Till(fencepost_drill.now)
    given: dict[str, Any] = {"fresh": till.reset, "env": ENV, "protocol": LOST, "service": till}
    for book in (
        lambda: till.effects[:1] if len(till.effects) < 2 else [],
        lambda: 1 if len(till.effects) == 1 else 0,
    ):
        said = wrong(fencepost_drill, tools.app, "right.dedupes", ARGS, book=book, **given)
        assert re.match(r"book= must only grow: .* is no longer in it after POST /v1/charges\.", said)


def test_two_receipts_are_two_effects_whatever_the_book_shows(fencepost_drill: UserDrill) -> None:
    till = tools.Till(fencepost_drill.now)
    frozen = LOST.replace("response_lost", "after_effect").replace(
        '"do": "lost"', '"do": "pause", "for_s": 90'
    )
    given: dict[str, Any] = {"fresh": till.reset, "env": ENV, "protocol": frozen, "service": till}
    result = fencepost_drill(tools.app, "right.dedupes", ARGS, book=lambda: till.effects[:1], **given)
    with pytest.raises(AssertionError, match=r"two receipts .*; book= shows 1 of them"):
        result.assert_never_twice()


# -- A test that is set up wrongly ------------------------------------------------------------------------


def test_effects_of_an_earlier_history_are_named(fencepost_drill: UserDrill) -> None:
    effects: list[Any] = []

    def fake(request: Any) -> tuple[int, Any]:
        effects.append({"key": request.key})
        return 201, {"id": "x"}

    said = wrong(
        fencepost_drill, shop("https://till.invalid"), "shop.charge", ARGS, service=fake, book=effects
    )
    assert (
        "before history shop.charge.lost.dispatch.before_wire began, the book already held 1 effect" in said
    )
    assert "Give fresh=" in said


def test_what_is_wrong_with_a_test_is_said_in_a_sentence(fencepost_drill: UserDrill) -> None:
    till = tools.Till(fencepost_drill.now)
    app = shop("env:FENCEPOST_NO_SUCH_URL")

    def said(*args: Any, **given: Any) -> str:
        return wrong(fencepost_drill, *args, **{"book": till.book, "protocol": QUIET} | given)

    assert "env={'NAME': 'value'}" in said(app, "shop.charge", ARGS, service=till)
    assert "args are none of shop.charge" in said(app, "shop.charge", {"no": 1}, service=till)
    assert "say what to drill" in said(app, service=till)
    app = shop("https://till.invalid")
    assert "book=" in said(app, "shop.charge", ARGS, service=lambda _: (201, {}), book=None)
    assert "has to be callable" in said(app, "shop.charge", ARGS, service=3)
    assert "has to answer (status, value)" in said(app, "shop.charge", ARGS, service=lambda _: "yes")
    assert "no dependency of shop" in said(app, "shop.charge", ARGS, service={"mail": till})
    with pytest.raises(TypeError, match="fencepost_drill has no option 'boook'; it has version, planner"):
        said(app, "shop.charge", ARGS, boook=till.book)
    assert "most=0: say" in said(app, "shop.charge", ARGS, service=till, most=0)
    assert "only='dispach.*' matches no fault point; did you mean 'dispatch." in said(
        app, "shop.charge", ARGS, service=till, only=("relay.*", "dispach.*")
    )
    assert "only= matches no fault point that shop.charge passes without a fault" in said(
        app, "shop.charge", ARGS, service=till, only="compensate.*", protocol=None
    )
    seventh = LOST.replace('"do"', '"nth": 7, "do"')
    assert "proves nothing: its fault never struck (lost at dispatch.response_lost, passage 7)" in said(
        app, "shop.charge", ARGS, service=till, protocol=seventh
    )
    given: dict[str, Any] = {"service": lambda _: (409, {"error": "closed"}), "protocol": None}
    assert "without any fault shop.charge ends" in (no := said(app, "shop.charge", ARGS, **given))
    assert '409 {"error": "closed"}' in no
    assert "is no function of" in said(
        tools.app, "right.python", ARGS, service=tools.bank, through=["no_such"]
    )


def test_what_a_python_tool_raises_is_shown_with_the_way_to_its_wires(
    fencepost_drill: UserDrill,
) -> None:
    app = App("wires")

    @app.python("pay", effect=Effect.IRREVERSIBLE, intent=lambda a: ("pay", a.order))
    def pay(args: tools.Order, attempt: Attempt) -> None:
        raise ConnectionError("no route to the bank")

    app.allow("*", ["pay"])
    told = wrong(fencepost_drill, app, "pay", ARGS, service=lambda _: (201, {}), book=[])
    assert "ConnectionError: no route to the bank" in told
    assert "through=[(client, 'post')]" in told


def test_a_fault_that_a_history_no_longer_passes_is_noted(fencepost_drill: UserDrill) -> None:
    lost = {"at": "dispatch.response_lost", "do": "lost"}
    both = Protocol.model_validate({"name": "both", "faults": [lost, lost | {"nth": 7}]})
    till = tools.Till(fencepost_drill.now, remembers=tools.DAY)
    given: dict[str, Any] = {"service": till, "env": ENV, "protocol": both}
    result = fencepost_drill(tools.app, "right.dedupes", ARGS, **given).assert_one_effect()
    (note,) = result.notes
    assert note.startswith("never struck: lost at dispatch.response_lost, passage 7;")
    assert note in result.summary()


def test_what_a_fake_raises_is_the_test_s_own_error(fencepost_drill: UserDrill) -> None:
    def fake(_request: Any) -> tuple[int, Any]:
        raise LookupError("a bug of the fake")

    with pytest.raises(LookupError, match="a bug of the fake"):
        fencepost_drill(shop("https://till.invalid"), "shop.charge", ARGS, service=fake, book=[])


# -- A test run of theirs ---------------------------------------------------------------------------------
