"""Memory on a fleet whose workers die: one version whatever happens, no read older than what was written."""

import itertools
import json
from typing import Any
from uuid import UUID

from tests.acceptance.stage import Stage, step

_numbers = itertools.count(1)
VERSIONS = "SELECT json_agg(value ORDER BY version) FROM fencepost.memory WHERE tenant = %s AND key = %s"
PAYLOAD = (
    "SELECT p.data FROM fencepost.calls c JOIN fencepost.payloads p ON p.digest = c.result"
    " AND p.tenant = c.tenant WHERE c.run = %s AND c.label = %s"
)


def write(key: str, value: Any, expected: int, space: str = "notes") -> dict[str, Any]:
    return step(f"{space}.write", "write", key=key, value=value, expected=expected)


def versions(stage: Stage, key: str) -> list[str]:
    found = stage.value(VERSIONS, stage.tenant, key)
    return list(found or [])


def result(stage: Stage, run: UUID, label: str) -> Any:
    return json.loads(bytes(stage.value(PAYLOAD, run, label)))


def test_a_dispatcher_killed_between_the_commit_of_a_write_and_its_record_leaves_one_version(
    stage: Stage,
) -> None:
    armed = stage.arm("dispatcher", "dispatch.after_effect=crash@1")
    run = stage.send([write("plan", "v1", 0)], [step("notes.read", "read", key="plan")])
    assert stage.ended(run) == ["COMPLETED"]
    assert armed.fired
    kinds = [event.type for event in stage.events(run) if event.call == stage.calls(run)["write"].id]
    assert kinds[-4:] == [
        "ToolOutcomeMarkedUnknown",
        "LeaseAcquired",
        "ToolLookupRecorded",
        "ToolEffectReconciled",
    ]
    assert stage.calls(run)["write"].attempts == 1
    assert versions(stage, "plan") == ['"v1"']
    assert result(stage, run, "read")["value"] == "v1"


def test_of_writers_in_many_sessions_exactly_one_wins(stage: Stage) -> None:
    runs = [stage.send([write("race", n, 0)], key=f"race-{n}") for n in range(12)]
    assert set(stage.ended(*runs)) == {"COMPLETED"}
    states = sorted(stage.calls(run)["write"].state for run in runs)
    assert states == ["FAILED"] * 11 + ["SUCCEEDED"]
    assert len(versions(stage, "race")) == 1


def test_a_read_waits_for_a_replica_until_it_knows_what_the_run_wrote(stage: Stage) -> None:
    key = f"lag-{next(_numbers)}"
    behind = stage.folder / f"replica-{key}"
    behind.write_text("1")
    run = stage.send(
        [write(key, "v1", 0, "afar")],
        [step("afar.write", "again", key=key, value="v2", expected=1)],
        [step("afar.read", "read", key=key)],
    )
    stage.until_state(run, "read", "DISPATCHING")
    behind.unlink()
    assert stage.ended(run) == ["COMPLETED"]
    said = result(stage, run, "read")
    assert (said["version"], said["value"]) == (2, "v2")


def test_the_documents_that_grounded_a_run_are_one_query_and_stale_ones_are_not_among_them(
    stage: Stage,
) -> None:
    run = stage.send([step("docs.search", "search", query="leave")])
    assert stage.ended(run) == ["COMPLETED"]
    grounding = (
        "SELECT json_agg(source || ':' || id || '@' || version) FROM fencepost.grounding WHERE run = %s"
    )
    assert stage.value(grounding, run) == ["docs:handbook@r7"]
    assert [one["id"] for one in result(stage, run, "search")["stale"]] == ["old-handbook"]
    assert stage.history(run).run.tainted is not None
