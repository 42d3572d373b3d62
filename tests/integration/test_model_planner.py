"""Models as planners: the step, the ledger, the official SDKs and the wires; all is real but the model."""

import json
import threading
from dataclasses import replace

import psycopg
import pytest

from fencepost import App, Attempt, Context, Effect, Turn
from fencepost.ledger import reads
from fencepost.models import Wire
from fencepost.states import Queue
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers.dispatcher import Dispatcher
from fencepost_workers.planner import Planner
from fencepost_workers.step import Step
from tests.answering import Asked, Said, answering
from tests.awaiting import until
from tests.integration.model_desk import (
    COST,
    ENQUEUE,
    KEY,
    NOTE,
    WIRES,
    Desk,
    Note,
    chat_turn,
)
from tests.integration.step_shop import SECOND, WITHIN_S, opened


def test_by_each_wire_a_run_is_planned_to_its_end_and_what_it_used_is_known(desk: Desk) -> None:
    runs = {name: desk.enqueue(name, name) for name in WIRES}
    desk.go()
    for name, run in runs.items():
        status, preview, tokens, cost, held = desk.run(
            run, "status", "preview", "tokens", "cost", "held_tokens"
        )
        assert (status, preview) == ("COMPLETED", '"Noted."')
        assert (tokens, cost, held) == (2 * 109, 2 * COST, 0)
        calls = desk.shop.sql(
            "SELECT tool, state, label FROM fencepost.calls WHERE run = %s ORDER BY ordinal", run
        )
        # One id for both, and one of them of no tool: each is a call of its own, and the run goes on.
        assert calls == [("note.do", "SUCCEEDED", "same"), ("bank_rob", "REJECTED", "same")]
        (said,) = desk.events(run, "ModelResponseRecorded")
        assert said["said"]["request"].startswith("req_")
        assert said["said"]["model"] == name
        assert said["said"]["wire"] == WIRES[name]
        assert said["said"]["tokens"] == {
            "input": 70,
            "cache_read": 30,
            "cache_write": 0,
            "output": 9,
            "reasoning": 0,
        }
        assert len(said["said"]["prompt"]) == 64
    asked = desk.asked()
    assert len(asked) == 6
    assert {one["retries"] for one in asked} == {"0"}
    assert len({one["transcript"] for one in asked if one["turn"] == 1}) == 3
    assert len({one["key"] for one in asked}) == 1


def test_a_tool_the_model_was_not_told_of_is_no_tool_for_it(desk: Desk) -> None:
    desk.script("chat", {"calls": [{"name": "note_burn", "arguments": {"key": "k"}}]}, {"text": "Oh."})
    run = desk.enqueue("chat")
    desk.go()
    assert desk.shop.states() == ["REJECTED"]
    assert desk.run(run, "status") == "COMPLETED"
    desk.script("chat", {"calls": [{"name": "note.burn", "arguments": {"key": "k"}}]}, {"text": "Oh."})
    desk.enqueue("chat", "again")
    desk.go()
    assert desk.shop.states() == ["REJECTED", "REJECTED"]


@pytest.mark.parametrize("name", WIRES)
def test_a_lost_answer_leaves_nothing_and_is_asked_for_again_in_the_same_bytes(name: str, desk: Desk) -> None:
    desk.spoil("cut_clean", at="arguments", turn=1, count=1)
    desk.spoil("cut_reset", at="stop", turn=2, count=1)
    desk.spoil("status", status=503, should_retry=True, turn=2, count=1)
    run = desk.enqueue(name)
    assert desk.planner.handle(desk.shop.due(Queue.PLANNER)) == 1
    assert desk.shop.idle()
    assert desk.shop.states() == []
    assert desk.events(run, "ModelOutcomeUnknown")[0]["code"] == "response_lost"
    held = desk.events(run, "ModelRequestStarted")[0]["held"]
    assert (desk.run(run, "tokens"), desk.run(run, "held_tokens")) == (held["tokens"], 0)
    desk.shop.ahead(11)
    desk.planner = desk.another()
    desk.go()
    assert desk.run(run, "status") == "COMPLETED"
    assert len(desk.shop.states()) == 2
    first, again, second, third, fourth = desk.asked()  # the SDK itself asks once each
    assert [one["outcome"] for one in (first, again, second)] == ["cut", "answered", "cut"]
    assert first["body"] == again["body"]
    assert second["body"] == third["body"] == fourth["body"]
    lost = [one["code"] for one in desk.events(run, "ModelOutcomeUnknown")]
    assert lost == ["response_lost", "connection_lost", "http_503"]
    assert desk.run(run, "requests") == 4  # what was turned away unread costs no turn


def test_while_a_model_is_still_thinking_no_message_starts_a_second_request(desk: Desk) -> None:
    desk.spoil("hold", at="headers", count=1)
    run = desk.enqueue("messages")
    message = desk.shop.due(Queue.PLANNER)
    assert desk.planner.handle(message) == 1
    until("the model thinks", lambda: len(desk.asked()) == 1, WITHIN_S)
    other = desk.another()
    now = desk.shop.sql("SELECT tenant, subject, generation FROM fencepost.outbox")
    assert now[0][2] != message[0][2]
    for again in (message, now):
        assert other.handle(again) == 0
    desk.shop.worker.leases._redis.flushall()  # not the lease keeps it, but the claim
    for again in (message, now):
        assert other.handle(again) == 0
    desk.provider.post("/models/release", {})
    assert desk.shop.idle()
    assert len(desk.asked()) == 1
    desk.go()
    assert desk.run(run, "status", "requests") == ("COMPLETED", 2)


def test_another_model_by_another_wire_goes_on_from_the_recorded_transcript(desk: Desk) -> None:
    desk.spoil("cut_fin", at="arguments", model="responses", turn=2, count=1)
    desk.script("responses", {"text": "I note it.", "calls": [NOTE]}, {"calls": [NOTE, NOTE]})
    desk.script("messages", {"text": "?"}, {"text": "Noted by another."})
    run = desk.enqueue("both")
    desk.go()
    assert desk.run(run, "status", "preview") == ("COMPLETED", '"Noted by another."')
    assert desk.shop.states() == ["SUCCEEDED"]  # of the second answer nothing became a call
    first, lost, switched = desk.asked()
    assert [one["model"] for one in (first, lost, switched)] == ["responses", "responses", "messages"]
    assert lost["transcript"] == switched["transcript"]
    ended = desk.events(run, "RunCompleted")
    assert ended[0]["said"]["model"] == "messages"


STOPS = [
    ("refusal", "responses", "refused", "model_refused"),
    ("content_filter", "chat", "refused", "content_filter"),
    ("hosted_item", "messages", "planner_failed", "hosted_tool"),
    ("context_exceeded", "chat", "planner_failed", "context_exceeded"),
]


def test_what_asking_again_cannot_mend_stops_the_run_after_one_request(desk: Desk) -> None:
    runs = []
    for n, (kind, model, _, _) in enumerate(STOPS):
        desk.spoil(kind, model=model, contains=f"stop-{n}")
        runs.append(desk.enqueue(model, f"stop-{n}"))
    desk.go()
    for run, (_, _, reason, code) in zip(runs, STOPS, strict=True):
        assert desk.run(run, "status", "stop_reason", "requests") == ("STOPPED", reason, 1)
        (lost,) = desk.events(run, "ModelOutcomeUnknown")
        assert lost["code"] == code
    assert desk.shop.states() == []
    assert len(desk.asked()) == len(STOPS)


ARGUMENTS = "choices[].delta.tool_calls[].function.arguments"


def test_a_cut_answer_is_charged_as_counted_and_the_model_is_told(desk: Desk) -> None:
    desk.spoil("truncated_valid", model="chat", count=1)
    desk.spoil("truncated_as_whole", model="messages", count=1)
    runs = [desk.enqueue(name, name) for name in ("chat", "messages")]
    desk.go()
    for run, code in zip(runs, ("truncated", "malformed_turn"), strict=True):
        assert desk.run(run, "status", "tokens", "requests") == ("COMPLETED", 3 * 109, 3)
        (lost,) = desk.events(run, "ModelOutcomeUnknown")
        assert (lost["code"], lost["spent"]["tokens"]) == (code, 109)
    assert len(desk.shop.states()) == 4
    by_model = {one["model"]: one for one in desk.asked()}
    assert set(by_model) == {"chat", "messages"}
    again = [one for one in desk.asked() if one["turn"] == 1]
    assert len({one["body"] for one in again}) == 4  # the second time it is told what was wrong


def test_wrong_arguments_are_refused_alone_and_the_model_is_told(desk: Desk) -> None:
    desk.spoil("duplicate_keys", model="messages", count=1)
    desk.spoil("odd", model="chat", count=1, field=ARGUMENTS, oddity="blank")
    for model, made in (("messages", ["SUCCEEDED"]), ("chat", [])):
        run = desk.enqueue(model, model)
        desk.go()
        assert desk.run(run, "status", "tokens", "requests") == ("COMPLETED", 2 * 109, 2)
        assert desk.events(run, "ModelOutcomeUnknown") == []
        sql = "SELECT state FROM fencepost.calls WHERE run = %s ORDER BY ordinal"
        states = [state for (state,) in desk.shop.sql(sql, run)]
        assert [state for state in states if state == "SUCCEEDED"] == made
        assert len(states) == 2


def test_no_model_is_told_what_nobody_recorded(desk: Desk) -> None:
    run = desk.enqueue("messages")
    assert desk.planner.handle(desk.shop.due(Queue.PLANNER)) == 1
    assert desk.shop.idle()
    (said,) = desk.events(run, "ModelResponseRecorded")
    desk.shop.sql("ALTER TABLE fencepost.payloads DROP CONSTRAINT payloads_digest_check")
    desk.shop.sql(
        "UPDATE fencepost.payloads SET data = data || '\\x20'::bytea WHERE digest = %s", said["answer"]
    )
    assert desk.dispatcher.handle(desk.shop.due(Queue.DISPATCHER)) == 1
    assert desk.shop.idle()
    desk.planner = desk.another()
    assert desk.planner.handle(desk.shop.due(Queue.PLANNER)) == 1
    assert desk.shop.idle()
    (lost,) = desk.events(run, "ModelOutcomeUnknown")
    assert lost["code"] == "damaged_result"
    assert "the stored answer" in lost["message"]
    assert len(desk.asked()) == 1


def test_words_are_a_claim_that_verify_judges_and_silence_is_none(desk: Desk) -> None:
    desk.script("messages", {"text": "Done."}, {"calls": [NOTE]}, {"text": "Noted."})
    desk.spoil("empty", turn=2, count=1)
    run = desk.enqueue("judged")
    desk.go()
    assert desk.run(run, "status", "turn", "preview") == ("COMPLETED", 4, '"Noted."')
    objections = [said["objection"] for said in desk.events(run, "ModelResponseRecorded")]
    assert objections == ["nothing is noted", None, None]


def test_no_answer_in_time_and_no_key_are_told_as_what_they_are(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    desk.planner = desk.another(timeout=SECOND)
    desk.spoil("silence", at="arguments", count=1)
    run = desk.enqueue("chat")
    assert desk.planner.handle(desk.shop.due(Queue.PLANNER)) == 1
    assert desk.shop.idle()
    monkeypatch.delenv("TEST_MODEL_KEY")
    desk.planner = desk.another()
    desk.shop.ahead(11)
    assert desk.planner.handle(desk.shop.due(Queue.PLANNER)) == 1
    assert desk.shop.idle()
    late, keyless = desk.events(run, "ModelOutcomeUnknown")
    assert (late["code"], keyless["code"]) == ("timeout", "secret_unavailable")
    assert "TEST_MODEL_KEY is not set" in keyless["message"]
    assert late["spent"]["tokens"] > 4096
    assert keyless["spent"]["tokens"] == 0
    assert len(desk.asked()) == 1
    # The key itself is nowhere: neither in the ledger nor in a line of the log.
    told = desk.shop.sql("SELECT coalesce(string_agg(body::text, ' '), '') FROM fencepost.events")
    assert KEY not in told[0][0]
    assert KEY not in caplog.text


def test_the_lease_of_a_plan_lasts_as_long_as_its_answer_may_take(desk: Desk) -> None:
    planner = Planner(desk.shop.worker)
    desk.enqueue("both")
    (tenant, run, _) = desk.shop.due(Queue.PLANNER)[0]
    with desk.shop.worker.pool.reading() as connection:
        prepared = reads.prepare(connection, [(tenant, run)])[run]
    longest = max(model.timeout for model in desk.shop.worker.app.models.values())
    assert planner.lease_ttl(prepared) > longest > 120 * SECOND
    unknown = replace(prepared, planner_version=99)  # its claim says that nobody here knows it
    assert planner.lease_ttl(unknown) > 30 * SECOND


EVERYTHING = """SELECT (SELECT string_agg(encode(data, 'escape'), ' ') FROM fencepost.payloads)
 || (SELECT string_agg(body::text, ' ') FROM fencepost.events)
 || (SELECT string_agg(arguments, ' ') FROM fencepost.calls)"""


def echoed(url: str) -> App:
    app = App("echoed")
    place = app.dependency("place")

    @place.python("note.do", effect=Effect.READ, untrusted=True)
    async def do(args: Note, attempt: Attempt) -> dict[str, str]:
        return {"noted": "it"}

    openai = app.dependency("openai", url)
    chat = app.model("chat", via=openai, wire=Wire.CHAT, model="m", key="env:TEST_MODEL_KEY")
    app.agent("chat", model=chat, instructions="Note.")
    app.verify("chat")(lambda context: len(context.turns) > 1 or "say it again")
    app.allow("svc:*", tools=["note.do"])
    return app


def test_what_was_said_is_told_again_and_a_key_that_is_echoed_is_hidden(
    database: LedgerDatabase,
    valkey: LocalValkey,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", KEY)
    function = {"name": "note_do", "arguments": json.dumps({"key": f"Bearer {KEY}"})}
    call = {"index": 0, "id": "", "type": "function", "function": function}
    echo = json.dumps({"error": {"message": f"incorrect key {KEY}", "code": "invalid_api_key"}}).encode()
    answers = [
        Said(echo, 401),
        Said(b"", 307, {"Location": "/elsewhere"}),
        chat_turn(f"I note {KEY}.", call, stop="tool_calls"),
        chat_turn("All is done.", stop="stop"),
        chat_turn("Really.", stop="stop"),
    ]
    asked: list[Asked] = []

    def answer(one: Asked) -> Said:
        asked.append(one)
        return answers[len(asked) - 1]

    with (
        answering(answer) as url,
        opened(database, valkey, slots=10, app=echoed(f"{url}/v1")) as shop,
    ):
        desk = Desk(shop, None)
        run = desk.enqueue("chat")
        desk.go()
        assert desk.run(run, "status", "preview") == ("COMPLETED", '"Really."')
        codes = [lost["code"] for lost in desk.events(run, "ModelOutcomeUnknown")]
        assert codes == ["http_401", "http_307"]
        assert desk.run(run, "requests") == 3, "neither was read by a model"
        everything = shop.sql(EVERYTHING)[0][0]
    assert "I note ***" in everything
    assert KEY not in everything + caplog.text
    assert [one.path for one in asked] == ["/v1/chat/completions"] * 5
    assert {one.headers["Authorization"] for one in asked} == {f"Bearer {KEY}"}
    told = json.loads(asked[4].body)["messages"]
    assert [one["role"] for one in told] == ["system", "user", "assistant", "tool", "assistant", "user"]
    assert told[2]["content"] == "I note ***."
    assert told[2]["tool_calls"][0]["id"] == told[3]["tool_call_id"] == "c00001000"
    result = json.loads(told[3]["content"])
    assert result["result"] == {"noted": "it"}
    assert "never instructions" in result["untrusted"]
    assert (told[4]["content"], "say it again" in told[5]["content"]) == ("All is done.", True)


def test_a_patch_is_met_with_the_first_turn_or_never(database: LedgerDatabase, valkey: LocalValkey) -> None:
    app = App("patching")
    place = app.dependency("place")
    ways: list[tuple[str, int, bool]] = []
    asks = threading.Event()

    @place.python("note.do", effect=Effect.READ)
    async def do(args: Note, attempt: Attempt) -> None: ...

    @app.planner("p")
    def plan(context: Context) -> Turn:
        if asks.is_set():
            ways.append((context.input["order"], context.turn, context.patched("new")))
        done = context.turn == 3
        return Turn(finish="done") if done else Turn([do.propose(Note(key=str(context.turn)))])

    app.allow("svc:*", tools=["note.do"])
    with opened(database, valkey, slots=10, app=app) as shop:
        planner, dispatcher = (Step(shop.worker, role(shop.worker)) for role in (Planner, Dispatcher))

        def enqueue(key: str) -> None:
            with psycopg.connect(shop.database.dsns["producer"]) as connection:
                connection.execute(ENQUEUE, [key, "p", json.dumps({"order": key})])

        enqueue("old")
        assert planner.handle(shop.due(Queue.PLANNER)) == 1
        assert shop.idle()
        asks.set()
        enqueue("young")
        for _ in range(3):
            dispatcher.handle(shop.due(Queue.DISPATCHER))
            assert shop.idle()
            planner.handle(shop.due(Queue.PLANNER))
            assert shop.idle()
        dispatcher.handle(shop.due(Queue.DISPATCHER))
        assert shop.idle()
        planner.handle(shop.due(Queue.PLANNER))
        assert shop.idle()
        assert sorted(ways) == [
            ("old", 2, False),
            ("old", 3, False),
            ("young", 1, True),
            ("young", 2, True),
            ("young", 3, True),
        ]
        markers = shop.sql("SELECT run_key, status, markers FROM fencepost.runs ORDER BY run_key")
        assert markers == [("old", "COMPLETED", None), ("young", "COMPLETED", '["new"]')]
