"""Every entry of the catalogue against an imitation that was written down without looking at the entry.

What an entry claims must be what the imitation does, by its answers and by the effects in its book; what the
entry leaves undocumented the imitation does in the worst way, and nothing here leans on it.
"""

import asyncio
import ssl
from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from fencepost.clock import boottime
from fencepost.contracts import ZERO, Dedupes, FirstFailure, Mismatch, Never
from fencepost.contracts.carriers import Place
from fencepost.contracts.catalogue import ENTRIES
from fencepost.contracts.entries import Entry
from fencepost.outcomes import Answered, Lost, Sent
from fencepost.tools import Request, Response, StoredRequest, operation_key
from fencepost_ops.sandbox.behaviours import BEHAVIOURS
from fencepost_ops.sandbox.process import SandboxProcess
from fencepost_workers.tools.http import HttpEngine
from tests.awaiting import until
from tests.integration.http_sending import CORRELATION, DEADLINE, at

_numbers = count(1)
A_SECOND = timedelta(seconds=1)
BUSY = [name for name, entry in ENTRIES.items() if getattr(entry.contract.repeat, "in_progress", ())]
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Loads no certificates, which would take most of the time here."""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxProcess]:
    with SandboxProcess(tmp_path_factory.mktemp("imitations")) as sandbox:
        yield sandbox


class Buyer:
    """One intent at one imitation: sends what a tool would have stored, and reads the book there."""

    def __init__(self, sandbox: SandboxProcess, entry: Entry) -> None:
        self.sandbox, self.entry = sandbox, entry
        self.reference = f"order-{next(_numbers)}"
        self.key = operation_key("t", entry.name, "make", (self.reference,))
        self.base = f"{sandbox.url}/imitations/{entry.name}"

    def stored(self, minor: int = 100) -> StoredRequest:
        """The request, the key in its place. A name is one of an object that must not exist yet."""
        body: dict[str, Any] = {"reference": self.reference, "amount_minor": minor}
        key = self.entry.key
        if key is not None and key.place is Place.PATH:
            request = Request.put("/objects/{key}", json=body, headers={"If-None-Match": "*"})
        else:
            request = Request.post("/make", json=body)
        bound = request.bind(self.base)
        return bound if key is None else key.put(bound, self.key)

    async def send(self, engine: HttpEngine, stored: StoredRequest) -> Sent:
        return await engine.send(
            stored,
            allowed=at(stored.target),
            key=self.key,
            deadline=DEADLINE,
            until=boottime() + 30,
            correlation=CORRELATION,
        )

    def sent(self, stored: StoredRequest) -> Sent:
        async def once() -> Sent:
            async with HttpEngine(verify=NO_TLS) as engine:
                return await self.send(engine, stored)

        return asyncio.run(once())

    def answer(self, minor: int = 100) -> Response:
        sent = self.sent(self.stored(minor))
        assert isinstance(sent, Answered), sent
        return sent.response

    def ask(self, value: str | None = None) -> int:
        """The status of the lookup that the entry's contract speaks of."""
        lookup, key = self.entry.contract.lookup, self.entry.key
        assert lookup is not None
        assert key is not None
        known = {"reference": self.reference, "key": key.spell(self.key)}
        question = Request.get("/found", query={lookup.by: value or known[lookup.by]})
        sent = self.sent(question.bind(self.base))
        assert isinstance(sent, Answered), sent
        return sent.response.status

    def book(self, what: str) -> list[dict[str, Any]]:
        rows = self.sandbox.get(f"/imitations/{self.entry.name}/book")[what]
        return [row for row in rows if row["reference"] == self.reference]

    @property
    def effects(self) -> int:
        return len(self.book("effects"))

    @property
    def repeat(self) -> Dedupes | None:
        """What the contract says of equal keys, where it says that any are recognised."""
        repeat = self.entry.contract.repeat
        return repeat if isinstance(repeat, Dedupes) and repeat.window > ZERO else None

    @property
    def named(self) -> bool:
        """Whether the key is the name of what is made, so that a repeat finds it taken."""
        return self.entry.name in {"s3.put-if-absent", "kubernetes.create"}


@pytest.fixture(params=ENTRIES.values(), ids=list(ENTRIES))
def buyer(request: pytest.FixtureRequest, sandbox: SandboxProcess) -> Buyer:
    sandbox.clear_faults()
    sandbox.move_clock(0)
    return Buyer(sandbox, request.param)


def marked(buyer: Buyer, answer: Response) -> bool:
    marker = None if buyer.repeat is None else buyer.repeat.replay_marker
    return marker is not None and answer.headers.get(marker[0]) == marker[1]


def test_every_entry_has_an_imitation_and_every_imitation_an_entry() -> None:
    assert set(BEHAVIOURS) == set(ENTRIES)


def test_the_key_arrives_where_the_interface_looks_for_it(buyer: Buyer) -> None:
    assert buyer.answer().status == 201
    (asked,) = buyer.book("requests")
    key = buyer.entry.key
    assert asked["key"] == (None if key is None else key.spell(buyer.key))
    assert asked["headers"]["fencepost-run"] == CORRELATION["run"]
    if key is not None:
        bare = Request.post("/make", json={"reference": buyer.reference}).bind(buyer.base)
        refused = buyer.sent(bare) if key.name.lower() != "idempotency-key" else None
        assert refused is None or (isinstance(refused, Answered) and refused.response.status == 400)


def test_the_same_key_twice_is_one_effect_where_it_is_claimed(buyer: Buyer) -> None:
    first, second = buyer.answer(), buyer.answer()
    assert first.status == 201
    if buyer.repeat is None:
        assert buyer.effects == 2, "nothing claimed: this is why it is never repeated blindly"
        return
    assert buyer.effects == 1
    if buyer.named:
        assert 400 <= second.status < 500
        assert second.status not in buyer.entry.contract.not_applied, (
            "taken, perhaps by our own first request"
        )
        assert buyer.ask() == 200
    else:
        assert (second.status, second.json()) == (first.status, first.json())
    assert not marked(buyer, first)
    assert marked(buyer, second) is (buyer.repeat.replay_marker is not None)


def test_the_same_key_with_another_body_is_refused_or_answered_as_the_first(buyer: Buyer) -> None:
    first, other = buyer.answer(100), buyer.answer(999)
    if buyer.repeat is None:
        return
    assert buyer.effects == 1
    if buyer.repeat.mismatch is Mismatch.REJECTED:
        assert 400 <= other.status < 500
    else:
        assert other.json() == first.json(), "so whoever repeats has to compare"


def test_a_first_failure_is_replayed_released_or_taken_up_again(buyer: Buyer) -> None:
    buyer.sandbox.fault("error_500_before", reference=buyer.reference, count=1)
    first, second = buyer.answer(), buyer.answer()
    assert first.status == 500
    assert 500 not in buyer.entry.contract.not_applied
    repeat = buyer.entry.contract.repeat
    if not isinstance(repeat, Dedupes):
        return
    match repeat.first_failure:
        case FirstFailure.REPLAYED:
            assert (second.status, marked(buyer, second), buyer.effects) == (500, True, 0)
        case FirstFailure.RELEASED | FirstFailure.REEXECUTED:
            assert (second.status, buyer.effects) == (201, 1)
        case FirstFailure.UNKNOWN:
            assert not buyer.entry.contract.repeats_by_key


def test_of_two_at_once_one_takes_effect(buyer: Buyer) -> None:
    buyer.sandbox.fault("delay_before", reference=buyer.reference, count=1, delay_s=0.05)

    async def both() -> list[Sent]:
        async with HttpEngine(verify=NO_TLS) as engine:
            return await asyncio.gather(*(buyer.send(engine, buyer.stored()) for _ in range(2)))

    statuses = sorted(sent.response.status for sent in asyncio.run(both()) if isinstance(sent, Answered))
    assert statuses[0] == 201
    if buyer.repeat is not None:
        assert buyer.effects == 1
        assert statuses[1] not in buyer.entry.contract.not_applied


@pytest.mark.parametrize(
    "name", [n for n, e in ENTRIES.items() if getattr(e.contract.repeat, "in_progress", ())]
)
def test_while_the_first_runs_an_equal_request_is_answered_as_the_entry_says(
    sandbox: SandboxProcess, name: str
) -> None:
    buyer = Buyer(sandbox, ENTRIES[name])
    assert buyer.repeat is not None
    sandbox.fault("delay_before", reference=buyer.reference, count=1, delay_s=3600)

    async def second() -> Sent:
        async with HttpEngine(verify=NO_TLS) as engine:
            first = asyncio.create_task(buyer.send(engine, buyer.stored()))
            await asyncio.to_thread(until, "the first at work", lambda: buyer.book("requests"))
            answer = await buyer.send(engine, buyer.stored())
            first.cancel()
            return answer

    sent = asyncio.run(second())
    assert isinstance(sent, Answered)
    assert sent.response.status in buyer.repeat.in_progress
    assert sent.response.status not in buyer.entry.contract.not_applied
    assert buyer.effects == 0, "the first still runs, and nothing else did"


def test_a_key_is_remembered_for_the_whole_window_and_not_for_ever(buyer: Buyer) -> None:
    if buyer.repeat is None:
        assert not buyer.entry.contract.repeats_by_key
        return
    buyer.answer()
    buyer.sandbox.move_clock((buyer.repeat.window - A_SECOND * 30).total_seconds())
    buyer.answer()
    assert buyer.effects == 1, "the interface forgets sooner than the entry says"
    buyer.sandbox.move_clock((buyer.repeat.window + A_SECOND).total_seconds())
    buyer.answer()
    assert buyer.effects == (1 if buyer.named else 2), "a name is taken as long as it exists"


def test_a_lookup_finds_at_once_what_it_is_said_to_and_nothing_is_read_into_its_silence(buyer: Buyer) -> None:
    lookup = buyer.entry.contract.lookup
    if lookup is None:
        question = Request.get("/found", query={"reference": buyer.reference}).bind(buyer.base)
        sent = buyer.sent(question)
        assert isinstance(sent, Answered)
        assert sent.response.status == 501
        return
    assert buyer.ask() == 404
    buyer.answer()
    if lookup.strong:
        assert buyer.ask() == 200
        return
    assert buyer.ask() == 404, "an absence right after the effect: the entry may not call this a proof"
    assert not buyer.entry.contract.absence_provable
    buyer.sandbox.move_clock(timedelta(days=1).total_seconds())
    assert buyer.ask() == 200


def test_an_answer_can_be_lost_after_the_effect(buyer: Buyer) -> None:
    buyer.sandbox.fault("drop_after_commit", reference=buyer.reference, count=1)
    assert isinstance(buyer.sent(buyer.stored()), Lost)
    assert buyer.effects == 1
    if isinstance(buyer.entry.contract.repeat, Never):
        assert buyer.answer().status == 201
        assert buyer.effects == 2, "a repeat would be a second effect"


def test_without_its_header_a_name_is_written_over(sandbox: SandboxProcess) -> None:
    buyer = Buyer(sandbox, ENTRIES["s3.put-if-absent"])
    bare = Request.put("/objects/{key}", json={"reference": buyer.reference}).bind(buyer.base)
    assert buyer.entry.key is not None
    for _ in range(2):
        buyer.sent(buyer.entry.key.put(bare, buyer.key))
    assert buyer.effects == 2
