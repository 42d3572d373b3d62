"""What came of a demo: numbers, verdicts, and whether they are what they must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from fencepost_ops.check import print_report
from fencepost_ops.checker import Report
from fencepost_ops.commands.output import print_table


@dataclass(frozen=True, slots=True)
class DemoResult:
    """One demo. `effects` and `faults` are from the services themselves, all else from the ledger.

    `fenced_writes` counts outcomes that a worker brought after its term had passed on, from the fleet's log;
    `evidence` those of them that were real answers and are kept. `repaired`: settled by a person.
    """

    seed: int
    runs: int
    settled: bool
    killed: int
    frozen: int
    fenced_writes: int
    repaired: int
    seconds: float
    reasons: Mapping[str, int]
    effects: Mapping[str, int]
    faults: Mapping[str, int]
    missing_faults: tuple[str, ...]
    expected: tuple[int, int]  # kills and freezes
    report: Report

    @property
    def problems(self) -> list[str]:
        """Why the demo has failed, one sentence each; empty when it has not."""
        totals, found = self.report.totals, []
        if not self.settled:
            found.append("not everything settled in time")
        if self.report.violated:
            found.append(f"violated: {', '.join(self.report.violated)}")
        if totals.runs != self.runs or totals.completed + totals.stopped != self.runs:
            ended = totals.completed + totals.stopped
            found.append(f"{self.runs} runs were enqueued, {totals.runs} are there, {ended} have ended")
        if (self.killed, self.frozen) != self.expected:
            kills, freezes = self.expected
            found.append(f"{self.killed} of {kills} kills and {self.frozen} of {freezes} freezes took place")
        if self.missing_faults:
            found.append(f"no order met the faults {', '.join(self.missing_faults)}")
        return found

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        totals, told = self.report.totals, self.report.to_json()
        return {
            "ok": not self.problems,
            "problems": self.problems,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "runs": totals.runs,
            "completed": totals.completed,
            "stopped": totals.stopped,
            "stop_reasons": dict(self.reasons),
            "calls": totals.calls,
            "attempts": totals.attempts,
            "events": totals.events,
            "effects": totals.effects,
            "effects_by_kind": dict(self.effects),
            "killed": self.killed,
            "frozen": self.frozen,
            "fenced_writes": self.fenced_writes,
            "evidence": totals.evidence,
            "repaired": self.repaired,
            "settled": self.settled,
            "faults": dict(self.faults),
            "invariants": told["invariants"],
            "waiting": told["waiting"],
        }


def print_result(result: DemoResult) -> None:
    """The numbers, then the verdicts, then whether all is well."""
    totals = result.report.totals
    stopped = f" ({_counted(result.reasons)})" if result.reasons else ""
    rows = [
        ("orders", f"{totals.runs}: {totals.completed} completed, {totals.stopped} stopped{stopped}"),
        ("calls", f"{totals.calls}, in {totals.attempts} attempts"),
        ("effects", f"{totals.effects}: {_counted(result.effects)}"),
        ("faults met", f"{sum(result.faults.values())}, of {len(result.faults)} kinds"),
        ("havoc", f"{result.killed} processes killed, {result.frozen} frozen past their takeover"),
        ("fenced out", f"{result.fenced_writes} late writes, {totals.evidence} of them filed as evidence"),
    ]
    if result.repaired:
        rows.append(("repaired", f"{result.repaired} calls, by a person who looked into the services' books"))
    rows.append(("seed", f"{result.seed}, {result.seconds:.1f} s"))
    click.echo()
    print_table(["what!", "how many"], rows)
    click.echo()
    print_report(result.report)
    click.echo()
    for problem in result.problems:
        click.echo(f"FAILED: {problem}")
    if not result.problems:
        click.echo("Every order is settled, every invariant holds.")


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
