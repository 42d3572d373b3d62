"""What is asserted of each class of tool, what is noted, and whose an effect is: values in, verdicts out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from fencepost.books import BookedEffect
from fencepost.canonical import sanitize
from fencepost.contracts.carriers import KeyCarrier
from fencepost_ops.checker import AllBooks, BookedBooks, BookEffect, BookRequest, Origin, ToolTerms
from fencepost_ops.checker.booked import booked_effect
from fencepost_ops.checker.books import Books
from fencepost_ops.checker.effects import check_effects
from fencepost_ops.checker.facts import CallRow, OperationRow, Tables
from fencepost_ops.checker.ledgered import Ledgered, Owners, Started
from fencepost_ops.checker.report import Findings, Verdict
from fencepost_ops.checker.wire import check_wire

S = timedelta(seconds=1)
T0 = datetime(2026, 1, 1, tzinfo=UTC)
KEY = "ab" * 32
CALL, RUN = UUID(int=1), UUID(int=2)


def call(state: str, **changes: Any) -> CallRow:
    return replace(
        CallRow(
            tenant="shop",
            id=CALL,
            run=RUN,
            label="debit",
            tool="wallet.debit",
            tool_version=1,
            effect="reversible",
            operation=KEY,
            scope="wallet/default",
            compensates=None,
            state=state,
            doubt=False,
            attempts=2,
            fence=9,
            receipt=None,
            reused=False,
            request=None,
            arguments=json.dumps({"order": "o-1", "lines": [{"sku": 7}], "gift": True}),
            arguments_hash="",
        ),
        **changes,
    )


def attempt(number: int, **changes: Any) -> Started:
    """The first at the beginning, the second ten seconds later; each may take two seconds."""
    at = T0 + (number - 1) * 10 * S
    return replace(Started("shop", RUN, CALL, number, at, 5, at + 2 * S), **changes)


def effect(number: int, after: float, **changes: Any) -> BookEffect:
    made = BookEffect("wallet", f"r-{number}", KEY, "", T0 + after * S, Origin(CALL, number, 5))
    return replace(made, **changes)


def held(
    calls: Sequence[CallRow],
    attempts: Sequence[Started],
    effects: Sequence[BookEffect],
    known: ToolTerms | None = None,
    people: dict[UUID, str] | None = None,
    *,
    whole: bool = True,
    keys: Sequence[OperationRow] = (),
    absent: Sequence[UUID] = (),
    since: Sequence[BookEffect] = (),
) -> dict[str, Verdict]:
    """The verdicts on these effects, in the book before the ledger was read; others came `since`."""
    rows = {(c.tenant, c.id): c for c in calls}
    tables = Tables({}, rows, [], 0, (), {(k.tenant, k.key): k for k in keys}, whole)
    ledger, findings = Ledgered(tables, attempts, people or {}, absent), Findings()
    books = Books(frozenset({"wallet", *(e.service for e in effects)}), tuple(effects), ())
    books = Owners(calls, books.effects).own(books)
    after = replace(books, effects=(*books.effects, *since))
    terms = {} if known is None else {("wallet.debit", 1): known}
    check_effects(findings, ledger, after, books, terms, S, whole=whole)
    return {v.invariant: v for v in findings.verdicts()}


@dataclass(frozen=True)
class Scenario:
    """A class, the two attempts, and when their effects happened, in seconds from the first."""

    known: ToolTerms | None
    happened: tuple[float, float] = (1, 11)
    person: bool = False
    absent: bool = False
    read: bool = False
    repeat: bool = False

    def verdict(self, state: str, number: int) -> str:
        row = call(state, effect="read", operation=None) if self.read else call(state)
        found = [effect(n, after) for n, after in enumerate(self.happened[:number], start=1)]
        if self.read:
            found = [replace(e, key=None) for e in found]
        second = attempt(2, proved_absent=self.absent, decided=self.person, first=not self.repeat)
        people = {CALL: "ann"} if self.person else {}
        absent = [CALL] if self.absent else []
        verdict = held([row], [attempt(1), second], found, self.known, people, absent=absent)["I1"]
        return "violated" if verdict.violations else "noted" if verdict.notes else "holds"


DEDUPES = ToolTerms("dedupes", window=timedelta(hours=1), settle=S)
LOOKUP = ToolTerms("lookup_only", settle=S)
NEITHER = ToolTerms("neither")
SCENARIOS = {
    "dedupes": Scenario(DEDUPES),
    "dedupes, after its window": Scenario(replace(DEDUPES, window=5 * S)),
    "dedupes, repeated after its window": Scenario(replace(DEDUPES, window=5 * S), repeat=True),
    "dedupes, repeated in time and landed after": Scenario(
        replace(DEDUPES, window=15 * S), (1, 17), repeat=True
    ),
    "dedupes, a person after its window": Scenario(replace(DEDUPES, window=5 * S), person=True, repeat=True),
    "dedupes, a person": Scenario(DEDUPES, person=True),
    "lookup only": Scenario(LOOKUP, absent=True),
    "lookup only, the first settles": Scenario(LOOKUP, (2.5, 11), absent=True),
    "lookup only, the first lands late": Scenario(LOOKUP, (9, 11), absent=True),
    "lookup only, both land late": Scenario(LOOKUP, (9, 19), absent=True),
    "lookup only, repeated blindly": Scenario(LOOKUP, (9, 11)),
    "lookup only, a person": Scenario(LOOKUP, (9, 11), person=True),
    "neither": Scenario(NEITHER),
    "neither, late": Scenario(NEITHER, (9, 11)),
    "neither, a person": Scenario(NEITHER, person=True),
    "sets": Scenario(ToolTerms("neither", sets=True)),
    "read": Scenario(ToolTerms("read"), read=True),
    "not known": Scenario(None, (9, 11), absent=True, person=True),
}
# Of no, one and two effects: h it holds, n it is noted, V it is violated.
#                                      SUCCEEDED  open or accepted  FAILED  never sent
EXPECTED = {
    "dedupes": ("V h V", "h h V", "h V V", "h V V"),
    "dedupes, after its window": ("V h V", "h h V", "h V V", "h V V"),
    "dedupes, repeated after its window": ("V h V", "h h V", "h V V", "h V V"),
    "dedupes, repeated in time and landed after": ("V h n", "h h n", "h V V", "h V V"),
    "dedupes, a person after its window": ("V h n", "h h n", "h V V", "h V V"),
    "dedupes, a person": ("V h V", "h h V", "h V V", "h V V"),
    "lookup only": ("V h V", "h h V", "h V V", "h V V"),
    "lookup only, the first settles": ("V h V", "h h V", "h V V", "h V V"),
    "lookup only, the first lands late": ("V h n", "h h n", "h n V", "h V V"),
    "lookup only, both land late": ("V h n", "h h n", "h n n", "h V V"),
    "lookup only, repeated blindly": ("V h V", "h h V", "h V V", "h V V"),
    "lookup only, a person": ("V h V", "h h V", "h n V", "h V V"),
    "neither": ("V h V", "h h V", "h V V", "h V V"),
    "neither, late": ("V h V", "h h V", "h V V", "h V V"),
    "neither, a person": ("n h n", "h h n", "h n n", "h V V"),
    "sets": ("n h n", "h h n", "h V V", "h V V"),
    "read": ("h V V", "h V V", "h V V", "h V V"),
    "not known": ("V h V", "h h V", "h V V", "h V V"),
}
STATES = (
    ("SUCCEEDED",),
    ("DISPATCHING", "UNKNOWN", "NEEDS_REPAIR", "ACCEPTED_UNKNOWN"),
    ("FAILED",),
    ("REJECTED", "CANCELLED"),
)


@pytest.mark.parametrize("name", SCENARIOS)
def test_each_class_is_held_to_what_it_promises_and_to_no_more(name: str) -> None:
    for states, expected in zip(STATES, EXPECTED[name], strict=True):
        for state in states:
            said = " ".join(SCENARIOS[name].verdict(state, number)[0] for number in (0, 1, 2))
            assert said.replace("v", "V") == expected, (name, state)


def test_one_key_for_two_tenants_or_two_scopes_is_against_every_class() -> None:
    mine = call("SUCCEEDED", receipt="r-1")
    same = replace(mine, id=UUID(int=7), reused=True)
    for theirs in (replace(same, tenant="other"), replace(same, scope="wallet/second")):
        said = held([mine, theirs], [attempt(1)], [effect(1, 1)], DEDUPES)["I1"].violations
        assert [v.message for v in said if "one key for the intents of tenant " in v.message]
    assert not held([mine, same], [attempt(1)], [effect(1, 1)], DEDUPES)["I1"].violations


def test_one_attempt_with_two_effects_is_against_every_class() -> None:
    late = [effect(2, 19), effect(2, 29, receipt="r-3")]
    attempts = [attempt(1), attempt(2, proved_absent=True)]
    for known in (DEDUPES, LOOKUP, NEITHER):
        assert held([call("SUCCEEDED")], attempts, late, known)["I1"].violations


def test_where_a_book_does_not_say_whose_they_are_all_must_have_been_too_late() -> None:
    """The first attempt's time is over after two seconds, and its request may land a second later."""
    attempts = [attempt(1), attempt(2, proved_absent=True)]

    def verdict(*after: float) -> Verdict:
        found = [effect(n, at, origin=Origin()) for n, at in enumerate(after)]
        return held([call("SUCCEEDED")], attempts, found, LOOKUP)["I1"]

    assert verdict(9, 11).notes
    assert not verdict(9, 11).violations
    assert verdict(2, 11).violations
    assert verdict(9, 11, 12).violations  # more than there were attempts


@pytest.mark.parametrize(("kind", "asserted"), [("reversible", True), ("read", False)])
def test_that_nobody_answered_a_read_in_time_is_recorded_as_its_failure_and_so_only_noted(
    kind: str, asserted: bool
) -> None:
    row = call("FAILED", effect=kind)
    ledger = Ledgered(Tables({}, {("shop", CALL): row}, [], 0), [attempt(1, answered=True)], {})
    late = BookRequest("wallet", "1", KEY, T0 + 9 * S, None, Origin(CALL, 1, 5))
    findings = Findings()
    check_wire(findings, ledger, Books(frozenset({"wallet"}), (), (late,)), {}, S, whole=True)
    verdict = {v.invariant: v for v in findings.verdicts()}["I10"]
    assert (bool(verdict.violations), bool(verdict.notes)) == (asserted, not asserted)


# -- whose an effect is --

BARE = {"key": None, "origin": Origin()}
OTHER = call("SUCCEEDED", id=UUID(int=3), operation="cd" * 32, receipt="r-2", arguments='{"order":"o-2"}')


def owners(effects: Sequence[BookEffect], *calls: CallRow) -> list[str | None]:
    books = Books(frozenset({"wallet"}), tuple(effects), ())
    return [e.key for e in Owners(calls, effects).own(books).effects]


@pytest.mark.parametrize(
    "carrier",
    [KeyCarrier(), KeyCarrier(form="uuid"), KeyCarrier(max_length=32), KeyCarrier(max_length=40)],
)
def test_a_key_is_known_in_the_form_its_service_was_told_it_in(carrier: KeyCarrier) -> None:
    told = [effect(1, 1, key=carrier.spell(KEY)), effect(2, 1, key="f" * len(carrier.spell(KEY)))]
    assert owners(told, call("SUCCEEDED"), OTHER) == [KEY, told[1].key]


def test_without_a_key_the_receipt_says_whose_it_is_and_else_the_reference() -> None:
    rows = call("SUCCEEDED", receipt="r-1"), OTHER
    assert owners([effect(1, 1, **BARE), effect(2, 1, **BARE)], *rows) == [KEY, OTHER.operation]
    for reference, key in (("o-1", KEY), ("o-2", OTHER.operation), ("7", KEY), ("True", None), ("x", None)):
        assert owners([effect(1, 1, receipt="", reference=reference, **BARE)], *rows) == [key], reference


def test_what_could_be_two_calls_is_nobodys() -> None:
    twin = replace(OTHER, receipt="r-1", arguments=call("SUCCEEDED").arguments)
    rows = call("SUCCEEDED", receipt="r-1"), twin
    assert owners([effect(1, 1, reference="o-1", **BARE)], *rows) == [None]
    named = replace(twin, tool="wallet.refund")
    assert owners([effect(1, 1, tool="wallet.refund", **BARE)], rows[0], named) == [OTHER.operation]
    elsewhere = replace(twin, scope="mail/default")
    assert owners([effect(1, 1, **BARE)], rows[0], elsewhere) == [KEY]
    # A result that another run took over is the same effect under the same key.
    again = replace(rows[0], id=UUID(int=4), reused=True)
    assert owners([effect(1, 1, **BARE)], rows[0], again) == [KEY]


def test_an_effect_that_names_its_call_and_no_key_was_asked_for_without_one() -> None:
    rows = [call("SUCCEEDED", receipt="r-1")]
    found = held(rows, [attempt(1)], [effect(1, 1, key=None)])
    assert "was asked for without a key" in found["I2"].violations[0].message
    assert "no effect in the book" in found["I1"].violations[0].message


def test_an_effect_of_an_applications_book_is_held_to_i1_and_i2() -> None:
    row = call("SUCCEEDED", receipt="r-1", scope="wallet/eu")
    book = BookedEffect("r-1", T0 + S)
    other = BookedEffect("r-9", T0 + S)

    def verdicts(*booked: BookedEffect) -> dict[str, Verdict]:
        effects = [booked_effect("wallet/eu", one) for one in booked]
        return held([row], [attempt(1)], effects, DEDUPES)

    assert not verdicts(book)["I1"].violations
    assert not verdicts(book)["I2"].violations
    assert "no effect in the book of wallet" in verdicts(other)["I1"].violations[0].message
    assert "no call here is known by its receipt" in verdicts(book, other)["I2"].violations[0].message
    assert "2 effects of one intent" in verdicts(book, replace(book, key=KEY))["I1"].violations[0].message
    early = verdicts(replace(book, at=T0 - 5 * S))["I2"].violations[0]
    assert "before its attempt was recorded" in early.message
    assert (early.run, early.call, early.attempt) == (RUN, CALL, 1)


def test_a_book_that_does_not_say_its_receipts_contradicts_none() -> None:
    rows = [call("SUCCEEDED", receipt="r-1")]
    booked = booked_effect("wallet", BookedEffect(None, T0 + S, key=KEY))
    assert not held(rows, [attempt(1)], [booked])["I1"].violations
    assert "carries receipt r-1" in held(rows, [attempt(1)], [effect(2, 1)])["I1"].violations[0].message


@pytest.mark.parametrize("origin", [Origin(UUID(int=9), 1, 5), Origin()])
def test_of_some_runs_nothing_is_said_of_an_effect_that_another_run_had_under_their_key(
    origin: Origin,
) -> None:
    theirs = effect(1, 1, origin=origin)
    waited = [call("CANCELLED", attempts=0)]  # for the key, which the other run's call had
    sent = OperationRow("shop", KEY, "completed", False, UUID(int=9), "r-1", T0, False)
    for rows in (waited, [call("SUCCEEDED", attempts=0, reused=True, receipt="r-1")]):
        found = held(rows, [], [theirs], DEDUPES, whole=False, keys=[sent])
        assert not found["I1"].violations
        assert not found["I2"].violations
        assert "1 effects under these keys are of attempts of other runs" in found["I2"].notes[0]
    assert held(waited, [], [theirs], DEDUPES)["I1"].violations
    twice = [theirs, replace(theirs, receipt="r-2")]
    seen = held(waited, [], twice, DEDUPES, whole=False, keys=[sent])["I1"].violations
    assert "2 effects" in seen[0].message


@pytest.mark.parametrize(
    "receipt", ["r-1", "a\0b", "tab\tand\nline", "\u202egnp", "\ud800", "C:\\users", "\\\0", "\\u0041"]
)
def test_a_receipt_is_known_in_the_form_the_ledger_keeps_it_in(receipt: str) -> None:
    rows = [call("SUCCEEDED", receipt=sanitize(receipt, 500))]
    assert not held(rows, [attempt(1)], [effect(1, 1, receipt=receipt)])["I1"].violations
    assert not held(rows, [attempt(1)], [effect(1, 1, receipt=receipt, **BARE)])["I2"].violations
    other = [effect(1, 1, receipt=f"{receipt}x")]
    assert held(rows, [attempt(1)], other)["I1"].violations


class Paper:
    """A book of one service."""

    def __init__(self, *services: str) -> None:
        self._services = services

    def services(self) -> Sequence[str]:
        return self._services

    def effects(self, service: str) -> Sequence[BookEffect]:
        return [effect(1, 1, service=service)]

    def requests(self, service: str) -> Sequence[BookRequest]:
        return [BookRequest(service, "1", KEY, T0, None, Origin())]


def test_several_readers_are_one_and_each_service_is_read_once() -> None:
    asked = []

    def read(since: datetime, until: datetime) -> list[BookedEffect]:
        asked.append((since, until))
        return [BookedEffect("r-1", T0, reference="o-1", digest="d", tool="wallet.debit")]

    booked = BookedBooks({"wallet/default": read, "bank/eu": read}, T0 - S, T0 + S)
    both = AllBooks(Paper("wallet", "mail"), booked)
    assert set(both.services()) == {"wallet", "mail", "bank/eu"}
    assert [e.service for e in both.effects("wallet")] == ["wallet"]
    (found,) = both.effects("bank/eu")
    assert (found.receipt, found.key, found.digest) == ("r-1", None, "d")
    assert (found.reference, found.tool, found.origin) == ("o-1", "wallet.debit", Origin())
    assert asked == [(T0 - S, T0 + S)]
    assert len(both.requests("wallet")) == 1
    assert not both.requests("bank/eu")
