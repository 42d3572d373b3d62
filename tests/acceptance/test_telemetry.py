"""One id through a run: every line, span and request of it in every process, and nobody else's."""

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from click.testing import CliRunner

from fencepost import Budget
from fencepost.telemetry.names import SCOPE
from fencepost_ops import cli
from fencepost_ops.sandbox.mcp_book import McpBook
from fencepost_ops.sandbox.provider_book import BOOK_FILE, ModelBook
from tests.acceptance import mcp_tools, spans_kept, traced_app
from tests.acceptance.stage import Stage, staged
from tests.awaiting import until
from tests.integration import api_process

PRODUCER = f"00-{'ab' * 16}-{'cd' * 8}-01"
WITHIN_S = 90  # a planner worker first reads the SDKs, which takes it seconds of work
ROLES = {"relay", "planner", "dispatcher"}
EVERYBODY = ROLES | {"reconciler", "compensator", "api"}
ASKED = "asked-over-http"
"""What the interface says of a request about a run, beside its path."""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp("telemetry")
    env = {
        "FENCEPOST_APP": "tests.acceptance.traced_app:app",
        "FENCEPOST_LOG": "json",
        "FENCEPOST_LOG_LEVEL": "debug",
        "FENCEPOST_METRICS_ADDRESS": ":0",
        "FENCEPOST_OTEL": "tests.acceptance.spans_kept:keep",
        "FENCEPOST_SWEEP_S": "1",
    }
    (folder / mcp_tools.FOLDER).mkdir()
    with staged(folder, env=env, api=True) as one:
        one.sandbox.post("/models/script", {"models": {traced_app.MODEL: traced_app.SCRIPT}})
        yield one
        assert one.verdict(whole=True) == []


@pytest.fixture(scope="module")
def undone(stage: Stage) -> UUID:
    """A run that is asked for over HTTP, loses an answer, and is stopped and offset; it has only begun."""
    order = f"o-{uuid4().hex[:8]}"
    stage.sandbox.fault("drop_after_commit", reference=order, service="wallet", nth=1)
    stage.sandbox.fault("refuse", reference=order, service="shipping", status=402)
    bearer = api_process.token(stage.fleet.database, stage.tenant, "svc:test", scopes=["runs:write"])
    headers = {"Authorization": f"Bearer {bearer}", "Idempotency-Key": order, "X-Request-Id": ASKED}
    asked = {"planner": "undone", "input": {"order": order}, "deadline": 90}
    done = httpx2.post(f"{stage.fleet.api_url}/v1/runs", json=asked, headers=headers, timeout=60)
    assert done.status_code == 201, done.text
    return UUID(done.json()["id"])


@pytest.fixture(scope="module")
def runs(stage: Stage, undone: UUID) -> dict[UUID, str]:
    """Two runs at the same time, and what they are about."""
    with stage.client("producer") as client:
        sent = {
            client.enqueue(
                "desk",
                {"reference": reference},
                run_key=reference,
                tenant=stage.tenant,
                principal="svc:test",
                deadline=timedelta(seconds=90),
                budget=Budget(turns=12, calls=12, attempts=40, children=2),
                traceparent=PRODUCER,
            ).run_id: reference
            for reference in (f"r-{uuid4().hex[:8]}", f"r-{uuid4().hex[:8]}")
        }
    ended = stage.ended(*sent, undone, within_s=WITHIN_S)
    assert ended == ["COMPLETED", "COMPLETED", "STOPPED"], [stage.told(run) for run in (*sent, undone)]
    return sent


def family(stage: Stage, run: UUID) -> set[UUID]:
    """A run and those below it."""
    with stage.reader() as reader:
        found = reader.execute("SELECT id FROM fencepost.runs WHERE root = %s", [run]).fetchall()
    return {run, *(child for (child,) in found)}


def names_in(stage: Stage, members: set[UUID]) -> set[str]:
    """Every id that belongs to these runs alone."""
    calls = {str(call.id) for run in members for call in stage.history(run).calls}
    return calls | set(map(str, members))


def lines(stage: Stage) -> list[dict[str, Any]]:
    """What the processes of the fleet have said, as they said it."""
    said = (stage.folder / "fleet.log").read_text().splitlines()
    return [json.loads(text[text.index("{") :]) for text in said if '{"' in text]


def test_every_line_of_a_run_in_every_process_has_its_trace_and_no_other_line_does(
    stage: Stage, runs: dict[UUID, str], undone: UUID
) -> None:
    assert stage.effects(stage.history(undone).run.run_key) == ["debit", "refund"]
    for run in (*runs, undone):
        ids = names_in(stage, family(stage, run))

        def told(ids: set[str] = ids) -> list[dict[str, Any]]:
            return [line for line in lines(stage) if any(one in json.dumps(line) for one in ids)]

        wanted = EVERYBODY if run == undone else ROLES
        until("lines of all roles", lambda: {one["role"] for one in told()} >= wanted)  # noqa: B023 - at once
        assert {line.get("trace_id") for line in told()} == {run.hex}
        ours = [line for line in lines(stage) if line.get("trace_id") == run.hex]
        assert all(any(one in json.dumps(line) for one in ids) for line in ours)
        if run != undone:
            assert any(line["message"] == "noted" for line in ours)  # by the application, in a thread
            assert len({line["run"] for line in ours}) == 2
        recorded = [line for line in ours if "is recorded" in line["message"]]
        for name in ("tenant", "span_id", "root", "run", "fence", "worker"):
            assert all(line[name] for line in recorded)
    (asked,) = [line for line in lines(stage) if ASKED in line["message"]]
    assert (asked["role"], asked["trace_id"], asked["run"]) == ("api", undone.hex, str(undone))
    assert {line["role"] for line in lines(stage) if "trace_id" not in line} >= {"relay", "reconciler"}


def test_every_span_of_a_run_is_in_its_trace_under_the_names_of_the_convention(
    stage: Stage, runs: dict[UUID, str], undone: UUID
) -> None:
    for run in runs:
        members = set(map(str, family(stage, run)))

        def ours(run: UUID = run) -> list[dict[str, Any]]:
            return [one for one in spans_kept.read(stage.folder) if one["trace_id"] == run.hex]

        wanted = {
            "invoke_agent desk": 3,
            "chat traced": 3,
            "execute_tool notes.write": 1,
            "execute_tool docs.search": 1,
            "execute_tool steps.note": 1,
            "execute_tool mail.send": 2,
            "invoke_agent member": 2,
        }

        def counted() -> dict[str, int]:
            found = [one["name"] for one in ours()]
            return {name: found.count(name) for name in set(found)}

        until(f"spans {wanted}", lambda: counted() == wanted)  # noqa: B023 - it is called at once
        assert {one["attributes"]["fencepost.run"] for one in ours()} == members
        asked = [one for one in ours() if one["name"] == "invoke_agent desk"]
        assert sorted(one["links"] for one in asked) == [[], [], ["ab" * 16]]
        by_id = {one["span_id"]: one["name"] for one in ours()}
        chats = [one for one in ours() if one["name"] == "chat traced"]
        assert {by_id.get(one["parent_id"]) for one in chats} == {"invoke_agent desk"}
        assert all(one["attributes"]["gen_ai.usage.output_tokens"] > 0 for one in chats)
    known = {run.hex for run in (*runs, undone)}
    mine = [one for one in spans_kept.read(stage.folder) if one["scope"] == SCOPE]  # libraries have their own
    others = [one for one in mine if one["trace_id"] not in known]
    assert others == []


def test_what_runs_are_about_is_in_no_line_and_no_span(stage: Stage, runs: dict[UUID, str]) -> None:
    told = json.dumps(lines(stage)) + json.dumps(spans_kept.read(stage.folder))
    about = (*runs.values(), "ann@example.com", "what is known", "Remember, search", "svc:test")
    assert [one for one in about if one in told] == []


def test_every_request_to_a_tool_or_a_model_carries_it(stage: Stage, runs: dict[UUID, str]) -> None:
    spans = {one["span_id"]: one for one in spans_kept.read(stage.folder)}
    for run, reference in runs.items():
        asked = [
            one.headers["traceparent"]
            for one in ModelBook(stage.sandbox.data / BOOK_FILE).requests()
            if reference in one.first
        ]
        sent = [
            one.headers["traceparent"]
            for one in stage.book.requests()
            if one.reference in {reference, f"child-{reference}"}
        ]
        assert (len(asked), len(sent)) == (3, 2)
        for header in (*asked, *sent):
            version, trace, span, flags = header.split("-")
            assert (version, trace, flags) == ("00", run.hex, "01")
            assert spans[span]["name"] == ("chat traced" if header in asked else "execute_tool mail.send")


def test_a_server_of_a_protocol_of_its_own_is_told_it_too(
    stage: Stage, runs: dict[UUID, str], undone: UUID
) -> None:
    (called,) = McpBook(stage.folder / mcp_tools.FOLDER).lines("call")
    version, trace, span, _ = called["meta"]["traceparent"].split("-")
    spans = {one["span_id"]: one for one in spans_kept.read(stage.folder)}
    around = spans[spans[span]["parent_id"]]  # the SDK has a span of its own inside ours
    assert (version, trace, around["name"]) == ("00", undone.hex, "execute_tool diary.write")


def test_figures_of_every_process_name_no_tenant_and_no_run(stage: Stage, runs: dict[UUID, str]) -> None:
    where = {
        found[1]: line["role"]
        for line in lines(stage)
        if (found := re.search(r"figures at (http://\S+)", line["message"]))
    }
    assert {*where.values()} >= {"relay", "planner", "dispatcher", "reconciler", "compensator"}

    def read() -> str:
        return "".join(httpx2.get(url, timeout=10, trust_env=False).text for url in where)

    text = read()
    for wanted in (
        'fencepost_effects_total{outcome="applied",tool="mail.send"} 4.0',
        'fencepost_attempts_total{first="true",tool="mail.send"} 4.0',
        'fencepost_model_requests_total{model="traced",outcome="finished"} 2.0',
        'fencepost_model_tokens_total{kind="output",model="traced"}',
        *(f'fencepost_hop_seconds_count{{hop="{hop}"}}' for hop in ("queue", "model", "tool", "memory")),
        *(f'fencepost_hop_seconds_count{{hop="{hop}"}}' for hop in ("retrieval", "child")),
    ):
        assert wanted in text
    kept = (f'"{stage.tenant}"', "svc:test", *runs.values(), *map(str, runs))
    assert [one for one in kept if one in text] == []
    until("figures of the ledger", lambda: re.search(r"fencepost_unknown_calls 0\.0", read()))


def asked(stage: Stage, *words: str) -> Any:
    """What a command for readers answers as JSON."""
    dsn = stage.fleet.database.dsns["reader"]
    done = CliRunner().invoke(cli.main, [*words, "--dsn", dsn, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_what_a_run_cost_and_where_its_time_went_is_told_by_run_and_by_planner(
    stage: Stage, runs: dict[UUID, str]
) -> None:
    spent = 0
    for run in runs:
        told = asked(stage, "show", str(run))
        answers = [e.data["spent"] for e in stage.events(run) if "spent" in e.data]
        assert told["used"]["tokens"] == sum(one["tokens"] for one in answers) > 0
        assert told["used"]["cost"] == sum(one["cost"] for one in answers) > 0
        assert told["used"]["below_tokens"] == 0  # whoever was asked is no model
        assert {one["name"]: one["count"] for one in told["hops"]} | {"queue": 0} == {
            "queue": 0,
            "model": 3,
            "tool": 4,
            "child": 1,
        }
        spent += told["used"]["cost"]
    found = {one["planner"]: one for one in asked(stage, "stats")["spending"]}
    assert (found["desk"]["completed"], found["desk"]["cost"]) == (2, spent)
    assert found["desk"]["cost_per_completed"] == round(spent / 2)
    assert (found["member"]["completed"], found["member"]["cost_per_completed"]) == (2, 0)
