"""A worker is killed after the effect of an MCP server's tool: it is looked up, and there is one effect."""

import json
from pathlib import Path

import pytest

from fencepost_ops.sandbox.mcp_book import FAULTS, McpBook
from tests.acceptance.mcp_tools import FOLDER
from tests.acceptance.stage import Stage, step
from tests.awaiting import until

WITHIN_S = 120.0


@pytest.mark.timeout(300)  # two servers and their client are started, of a second's work each
def test_a_killed_worker_leaves_one_effect_which_is_looked_up(stage: Stage) -> None:
    folder = stage.folder / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / FAULTS).write_text(json.dumps({"write_note": {"do": "slow_after:600", "times": 1}}))
    book = McpBook(folder)
    run = stage.send([step("diary.write", "note", ref="r-1", text="hello")], deadline_s=300)
    until("the note is written", lambda: book.lines("effect"), WITHIN_S)
    (called,) = book.lines("call")
    stage.kill_holder(run, "note")
    assert stage.ended(run, within_s=WITHIN_S) == ["COMPLETED"]
    call = stage.calls(run)["note"]
    assert (call.state, call.attempts, call.receipt) == ("SUCCEEDED", 1, "note_1")
    (effect,) = book.lines("effect")
    assert effect["key"] == call.operation
    first, *asked = [line["name"] for line in book.lines("call")]
    assert (first, set(asked)) == ("write_note", {"find_note"})
    assert called["meta"]["dev.fencepost/call"] == str(call.id)
    assert stage.events(run, "ToolEffectReconciled")
    until(
        "the server has ended with its worker", lambda: not Path(f"/proc/{called['pid']}").exists(), WITHIN_S
    )
