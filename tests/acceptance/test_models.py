"""Agents on a live fleet, asked by the official SDKs over three wires: effects once, requests counted."""

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import redis

from fencepost.models import Wire
from fencepost_ops.sandbox.process import SandboxProcess
from fencepost_ops.sandbox.provider_book import BOOK_FILE, Asking, ModelBook
from fencepost_ops.sandbox.provider_shipped import SHIPPED
from fencepost_relay.publisher import Publisher
from tests.acceptance.conftest import HOSTILE, checked
from tests.acceptance.stage import Stage, staged
from tests.acceptance.weather import long_only
from tests.awaiting import until

KEYS = {"SUPPORT_OPENAI_KEY": "sk-openai-4c1f9e77", "SUPPORT_ANTHROPIC_KEY": "sk-ant-09b2d3a5"}
PLANTED = "planted-" * 8
CASES = 8
WITHIN_S = 90  # a planner worker first reads the SDKs, which takes it seconds of work
TURNS = 4  # of the shipped script: find, refund, write, done
WIRES = {
    "support": Wire.RESPONSES,
    "support-chat": Wire.CHAT,
    "support-messages": Wire.MESSAGES,
}


@dataclass
class Desk:
    """A support whose model provider is a process of its own, so that it can die alone."""

    stage: Stage
    provider: SandboxProcess
    paid: list[str] = field(default_factory=list)
    """Orders that are paid, and nobody's case yet."""

    def order(self, count: int) -> None:
        """Have so many orders fulfilled."""
        self.paid = [f"o-{uuid4().hex[:12]}" for _ in range(count)]
        placed = [self.stage.order(one) for one in self.paid]
        assert set(self.stage.ended(*placed, within_s=WITHIN_S)) == {"COMPLETED"}

    def open_case(self, agent: str = "support") -> tuple[UUID, str]:
        """A run that pays an order back; the run and the order."""
        reference = self.paid.pop()
        with self.stage.client("producer") as client:
            sent = client.enqueue(
                agent,
                {"order_id": reference, "to": "ann@example.com"},
                run_key=reference,
                tenant=self.stage.tenant,
                principal="svc:support",
                deadline=timedelta(seconds=60),
            )
        self.stage.sent.append(sent.run_id)
        return sent.run_id, reference

    def script(self, script: Any) -> None:
        """What the model says from now on."""
        self.provider.post("/models/script", {"models": {"support": script}})

    def asked(self, reference: str) -> list[Asking]:
        """The model requests of a case, in order."""
        book = ModelBook(self.provider.data / BOOK_FILE)
        return [one for one in book.requests() if reference in one.first]

    def settled(self, run: UUID, reference: str) -> None:
        """The case is done, and everything in it happened once."""
        assert self.stage.ended(run, within_s=WITHIN_S) == ["COMPLETED"]
        assert self.stage.effects(reference)[-3:] == ["shipment", "refund", "message"]
        assert {one.retries for one in self.asked(reference)} == {"0"}

    def spent(self, run: UUID) -> list[dict[str, Any]]:
        """What each answer used, or was charged for when it was lost."""
        ends = ("ModelResponseRecorded", "ModelOutcomeUnknown", "RunCompleted")
        return [e.data["spent"] for e in self.stage.events(run, *ends) if "spent" in e.data]

    def held(self, reference: str, at: str, turn: int) -> Asking:
        """Await that a request of a case is held in the provider's hands."""
        rule = {"kind": "hold", "at": at, "turn": turn, "contains": reference, "count": 1}
        self.provider.post("/models/faults", rule)

        def look() -> Asking | None:
            return next((one for one in self.asked(reference) if one.fault == "hold"), None)

        return until("a request that is held", look)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("models")
    with SandboxProcess(folder / "provider") as provider:
        env = {
            "FENCEPOST_APP": "fencepost_ops.examples.support:app",
            "SUPPORT_OPENAI_URL": f"{provider.url}/v1",
            "SUPPORT_ANTHROPIC_URL": provider.url,
            **KEYS,
            **HOSTILE,
        }
        with staged(folder / "fleet", env=env) as stage:
            desk = Desk(stage, provider)
            desk.order(CASES)
            yield desk
            assert stage.verdict(whole=True) == []
            nowhere_but_on_the_wire(stage, provider)


@pytest.fixture
def desk(fleet: Desk) -> Iterator[Desk]:
    for _ in checked(fleet.stage):
        yield fleet
        fleet.provider.clear_faults()
        fleet.provider.post("/models/release", {})
        fleet.script(SHIPPED["support"])


def nowhere_but_on_the_wire(stage: Stage, provider: SandboxProcess) -> None:
    """The keys reached the provider, and nothing of them stayed anywhere else."""
    digests = {hashlib.sha256(key.encode()).hexdigest() for key in KEYS.values()}
    sent = {one.key for one in ModelBook(provider.data / BOOK_FILE).requests()}
    assert sent
    assert sent <= digests
    with stage.fleet.connect("owner") as connection:
        tables = [t for (t,) in connection.execute("SELECT relname FROM pg_stat_user_tables")]
        dump = io.BytesIO()
        for table in sorted(set(tables)):
            with connection.cursor().copy(f'COPY fencepost."{table}" TO STDOUT') as rows:
                for row in rows:
                    dump.write(bytes(row))
    with redis.Redis.from_url(stage.fleet.valkey.url()) as broker:
        broker.config_set("rdbcompression", "no")  # compressed, a text would not be found again
        broker.set("planted", PLANTED)
        held = b"".join(broker.dump(name) or b"" for name in broker.scan_iter())
        broker.delete("planted")
    logs = b"".join(path.read_bytes() for path in stage.folder.rglob("*") if path.is_file())
    assert b"support" in dump.getvalue(), "the tables were read"
    assert PLANTED.encode() in held, "what is kept there would be found"
    for key in KEYS.values():
        for place in (dump.getvalue(), held, logs):
            assert key.encode() not in place
            assert key.encode().hex().encode() not in place  # as a column of bytes is written


@pytest.mark.parametrize("agent", list(WIRES))
def test_what_a_model_proposes_happens_once_over_each_wire(desk: Desk, agent: str) -> None:
    run, reference = desk.open_case(agent)
    desk.settled(run, reference)
    asked = desk.asked(reference)
    assert [one.turn for one in asked] == [1, 2, 3, 4]
    assert {one.wire for one in asked} == {WIRES[agent]}
    assert all(spent["tokens"] > 0 and spent["cost"] > 0 for spent in desk.spent(run))


def test_a_provider_killed_in_mid_stream_is_asked_again_and_its_answer_charged(desk: Desk) -> None:
    run, reference = desk.open_case()
    held = desk.held(reference, "arguments", 2)
    desk.provider.kill()
    desk.provider.restart()
    desk.settled(run, reference)
    lost, *unsent = desk.stage.events(run, "ModelOutcomeUnknown")
    assert lost.data["code"] == "connection_lost"
    assert {e.data["code"] for e in unsent} <= {"connect_failed"}, "while it was not there nothing was sent"
    assert {e.data["spent"]["tokens"] for e in unsent} <= {0}
    reserved = [e.data["held"] for e in desk.stage.events(run, "ModelRequestStarted")][1]
    assert {name: lost.data["spent"][name] for name in reserved} == reserved
    same = [one for one in desk.asked(reference) if one.transcript == held.transcript]
    assert [one.outcome for one in same] == [None, "answered"]


def test_another_model_on_another_wire_is_told_the_same_transcript(desk: Desk) -> None:
    desk.provider.post("/models/faults", {"kind": "cut_clean", "turn": 2, "wire": Wire.RESPONSES, "count": 2})
    run, reference = desk.open_case()
    desk.settled(run, reference)
    second = [one for one in desk.asked(reference) if one.turn == 2]
    assert [one.wire for one in second] == [Wire.RESPONSES, Wire.RESPONSES, Wire.MESSAGES]
    assert len({one.transcript for one in second}) == 1
    assert [e.data["code"] for e in desk.stage.events(run, "ModelOutcomeUnknown")] == ["response_lost"] * 2


def test_neither_an_empty_turn_nor_a_claim_is_the_end_of_a_case(desk: Desk) -> None:
    desk.provider.post("/models/faults", {"kind": "empty", "turn": 2, "count": 1})
    find, refund, write = SHIPPED["support"]["turns"]
    desk.script([find, refund, {"text": "All is done."}, write])
    run, reference = desk.open_case("support-chat")
    desk.settled(run, reference)
    objections = [e.data.get("objection") for e in desk.stage.events(run, "ModelResponseRecorded")]
    assert "not done: mail.send" in objections
    assert desk.stage.events(run, "ModelOutcomeUnknown") == []


def test_a_message_redelivered_while_the_model_thinks_starts_no_second_request(desk: Desk) -> None:
    desk.provider.post("/models/faults", {"kind": "hold", "at": "headers", "turn": 1, "count": 1})
    run, reference = desk.open_case("support-messages")
    until("a request that is held", lambda: [one for one in desk.asked(reference) if one.fault == "hold"])
    row = "SELECT generation FROM fencepost.outbox WHERE subject = %s"
    generation = int(desk.stage.value(row, run))
    publisher = Publisher(desk.stage.fleet.valkey.url())
    try:
        for one in (generation, generation - 1, generation, generation + 1):
            publisher.publish("planner", [(desk.stage.tenant, str(run), one)] * 3)
        until("an empty queue", lambda: publisher.lengths()["planner"] == 0)
    finally:
        publisher.close()
    other, another = desk.open_case("support-messages")
    desk.settled(other, another)  # what came behind them in the queue is done: they have been looked at
    assert len(desk.asked(reference)) == 1
    desk.provider.post("/models/release", {})
    desk.settled(run, reference)
    assert [one.turn for one in desk.asked(reference)] == [1, 2, 3, 4]
    assert len(desk.stage.events(run, "ModelRequestStarted")) == TURNS


THREE = [
    [{"name": "payments.find", "id": "paid", "arguments": {"order_id": {"$input": "order_id"}}}],
    [
        {"name": "payments.find", "id": "again", "arguments": {"order_id": {"$input": "order_id"}}},
        {"name": "bank.rob", "id": "rob", "arguments": {}},
        {
            "name": "wallet.refund",
            "id": "refund",
            "arguments": {"order_id": {"$input": "order_id"}, "debit": {"$result": "paid", "path": "id"}},
        },
    ],
    SHIPPED["support"]["turns"][2],
]


@long_only
def test_a_worker_that_dies_between_effect_and_result_leaves_a_transcript_that_pairs(desk: Desk) -> None:
    """Three calls in one turn, one of no tool: the provider refuses a transcript that does not pair."""
    desk.script(THREE)
    desk.provider.post("/models/faults", {"kind": "cut_clean", "turn": 3, "count": 2})
    desk.order(1)
    armed = desk.stage.arm("dispatcher", "dispatch.after_effect=crash@2")  # after the first of turn 2
    run, reference = desk.open_case("support-messages")
    desk.settled(run, reference)
    assert armed.fired
    calls = {label: call.state for label, call in desk.stage.calls(run).items()}
    assert calls["rob"] == "REJECTED"
    assert calls["refund"] == "SUCCEEDED"
    third = [one for one in desk.asked(reference) if one.turn == 3]
    assert [one.outcome for one in third] == ["cut", "cut", "answered"]
    assert len({one.body for one in third}) == 1, "the same bytes each time"


RANDOM: tuple[str, ...] = (
    "cut_fin",
    "cut_reset",
    "cut_clean",
    "cut_half_event",
    "error_event",
    "truncated",
    "truncated_as_whole",
)
RANDOM += (
    "same_ids",
    "empty_ids",
    "index_zero",
    "usage_missing",
    "empty",
    "reset_before_headers",
)


@long_only
def test_many_cases_under_every_fault_at_random_have_each_effect_once(desk: Desk) -> None:
    desk.order(45)
    faults = [{"kind": kind, "probability": 0.03} for kind in RANDOM]
    faults += [{"kind": "status", "status": n, "probability": 0.03} for n in (429, 500, 503, 529)]
    desk.provider.post("/models/faults", {"seed": 20261130, "faults": faults})
    cases = [desk.open_case(agent) for agent in WIRES for _ in range(15)]
    ends = desk.stage.ended(*(run for run, _ in cases), within_s=WITHIN_S)
    fired = desk.provider.get("/models/faults")["fired"]
    assert sum(fired.values()) > 20, fired
    assert ends.count("COMPLETED") > 30
    for run, reference in cases:
        effects = desk.stage.effects(reference)
        assert max(effects.count("refund"), effects.count("message")) <= 1
        if desk.stage.status(run) == "COMPLETED":
            assert effects[-2:] == ["refund", "message"]
        asked = desk.asked(reference)
        assert {one.retries for one in asked} == {"0"}
        assert len(asked) == len(desk.stage.events(run, "ModelRequestStarted"))
