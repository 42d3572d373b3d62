"""Every fault of a model provider on every wire, by the official SDKs: the table holds, and is complete."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from fencepost.models import Wire
from fencepost.states import StopReason
from fencepost_ops.cli import main
from fencepost_ops.drill import model_table as table
from fencepost_ops.drill.model_table import MATRIX, TABLE, Outcome
from fencepost_ops.drill.model_trial import Found, show
from fencepost_ops.sandbox.provider_faults import ONLY_ON, Fault
from fencepost_workers.models.agent import PAUSES

ELSEWHERE = {Fault.STATUS, Fault.SLOW, Fault.HOLD}
"""Statuses have rows of their own; the others only delay."""


def test_the_table_has_every_fault_on_every_wire_that_has_it() -> None:
    told = {(row.kind, str(wire)) for row in (*TABLE, *MATRIX) for wire in row.on}
    every = {
        (str(kind), str(wire))
        for kind in set(Fault) - ELSEWHERE
        for wire in Wire
        if str(wire) in ONLY_ON.get(kind, {str(wire)})
    }
    assert every <= told
    assert len({row.name for row in (*TABLE, *MATRIX)}) == len(TABLE) + len(MATRIX)


def test_every_fault_comes_to_what_the_table_says_by_as_many_requests() -> None:
    done = CliRunner().invoke(main, ["drill", "--models", "--json"])
    shown = json.loads(done.output)
    wrong = [cell for cell in shown["cells"] if cell["wrong"]]
    assert (wrong, shown["ok"], done.exit_code) == ([], True, 0)
    assert len(shown["cells"]) == sum(len(row.on) for row in (*TABLE, *MATRIX))
    assert table.PAUSES == PAUSES


FINE = Found(TABLE[0], Wire.CHAT, Outcome(table.CALLS, table.USED), 1, 0)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (replace(FINE, asked=3, retries=2), "3 requests, 2 of them hidden"),
        (replace(FINE, outcome=Outcome(table.CALLS, table.RESERVED)), "expected 2 calls"),
        (
            replace(FINE, outcome=Outcome("model_refused", table.USED, StopReason.REFUSED)),
            "expected 2 calls",
        ),
    ],
)
def test_what_is_not_as_the_table_says_is_told(
    found: Found, wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert FINE.wrong == ""
    assert found.wrong == wrong
    assert show([FINE], as_json=False)
    assert not show([FINE, found], as_json=False)
    assert f"{wrong}\n\n2 answers" in capsys.readouterr().out


@pytest.mark.parametrize("other", [["--list"], ["--hostile"], ["receipt_check"], ["--seed", "3"]])
def test_the_table_goes_with_nothing_else(other: list[str]) -> None:
    assert CliRunner().invoke(main, ["drill", "--models", *other]).exit_code == 2
