"""What came of a chaos: numbers, verdicts, and whether they are what they must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from fencepost_ops.chaos_figures import Figures
from fencepost_ops.chaos_plan import ChaosPlan
from fencepost_ops.chaos_takeovers import spread, told
from fencepost_ops.check import print_report
from fencepost_ops.checker import TOLERANCE, Report
from fencepost_ops.commands.output import print_table
from fencepost_ops.trial import Outcome

RECOVERED: Mapping[str, str] = {
    "kill": "kill -9",
    "host-death": "the death of a host",
    "freeze": "a freeze",
}
"""The faults after which somebody else has to go on."""
_WIDE = "{:g} s between the clocks of the ledger, which jumps, and of the services, for every effect"


@dataclass(frozen=True, slots=True)
class ChaosResult:
    """One chaos. `outcome` judges its runs and books, `others` the whole ledger of a fleet that was found.

    Of the fault points `injected` counts those that fired. A planned one is armed, and whether anybody passes
    it is chance: half of the `armed` must fire.

    `waits` are seconds from enqueueing to the end, run by run; `takeovers` from a strike to the next claim of
    each thing its victim held, by fault, and `in_calm` those of them beside no outage or foul weather. Of
    what victims held `never_claimed` still waits, and `ended_unclaimed` had its run or call end first.
    `in_hand` counts the strikes at a process that held work. `tolerance_s` is by how much an effect may
    seem too early, for the services' clock stays behind while the ledger's jumps.
    """

    plan: ChaosPlan
    found: bool
    figures: Figures
    outcome: Outcome
    others: Report | None
    settled: bool
    settle_within_s: float
    repaired: int
    fenced_writes: int | None
    injected: Mapping[str, int]
    armed: int
    in_hand: Mapping[str, int]
    fired: tuple[str, ...]
    waits: tuple[float, ...]
    takeovers: Mapping[str, list[float]]
    in_calm: Mapping[str, list[float]]
    never_claimed: int
    ended_unclaimed: int
    tolerance_s: float
    seconds: float

    @property
    def problems(self) -> list[str]:
        """Why it has failed, one sentence each; empty when it has not."""
        return list(self._problems())

    def _problems(self) -> Iterator[str]:
        figures, orders = self.figures, len(self.plan.arrivals)
        if not self.settled:
            yield f"not everything settled within {self.settle_within_s:g} s of the last strike"
        if violated := self.outcome.report.violated:
            yield f"violated: {', '.join(violated)}"
        if self.others is not None and self.others.violated:
            yield f"violated, by whatever is in this ledger: {', '.join(self.others.violated)}"
        ended = figures.completed + figures.stopped
        if figures.runs != orders or ended != orders:
            yield f"{orders} runs were enqueued, {figures.runs} are there, {ended} have ended"
        if figures.duplicates:
            yield f"{figures.duplicates} effects too many in the services' own books"
        if figures.lost:
            yield f"{figures.lost} effects or runs are lost"
        for fault, planned in self.plan.counts.items():
            done = self.armed if fault == "fault-point" else self.injected.get(fault, 0)
            if done < planned:
                yield f"{fault} could be injected {done} times of {planned}"
        if self.never_claimed:
            yield f"{self.never_claimed} things that a struck process held were never claimed again"
        if len(self.fired) < self.armed // 2:
            yield f"only {len(self.fired)} of {self.armed} fault points that were armed have fired"

    def to_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        figures, said = self.figures, self.outcome.report.to_json()
        unknowns = figures.unknowns
        return {
            "seed": self.plan.seed,
            "ok": not self.problems,
            "problems": self.problems,
            "fleet": "found" if self.found else "own",
            "seconds": self.plan.seconds,
            "took_seconds": round(self.seconds, 1),
            "faults": list(self.plan.faults),
            "planned": self.plan.counts,
            "injected": {fault: self.injected.get(fault, 0) for fault in self.plan.faults},
            "injected_with_work": self.with_work,
            "fault_points_armed": self.armed,
            "fault_points_fired": list(self.fired),
            "service_faults": dict(self.outcome.faults),
            "settled": self.settled,
            "runs": figures.runs,
            "completed": figures.completed,
            "stopped": figures.stopped,
            "stop_reasons": dict(self.outcome.reasons),
            "calls": figures.calls,
            "attempts": figures.attempts,
            "effects": figures.effects,
            "duplicates": figures.duplicates,
            "lost": figures.lost,
            "unknown": {
                "calls": unknowns.calls,
                "marks": unknowns.marks,
                "automatically": unknowns.automatically,
                "by_person": unknowns.by_person,
                "open": unknowns.open,
            },
            "repaired": self.repaired,
            "fenced_writes": self.fenced_writes,
            "evidence": self.outcome.report.totals.evidence,
            "settle_seconds": spread(self.waits),
            "recovery_seconds": self._recovery(self.takeovers),
            "recovery_seconds_in_calm": self._recovery(self.in_calm),
            "never_claimed": self.never_claimed,
            "ended_unclaimed": self.ended_unclaimed,
            "tolerance_seconds": self.tolerance_s,
            "invariants": said["invariants"],
            "invariants_of_all": None if self.others is None else self.others.to_json()["invariants"],
            "waiting": said["waiting"],
        }

    @property
    def with_work(self) -> dict[str, int]:
        """Of the strikes at a process, by fault, how many were at one that held work."""
        return {fault: self.in_hand.get(fault, 0) for fault in RECOVERED if fault in self.plan.faults}

    def _recovery(self, found: Mapping[str, list[float]]) -> dict[str, Any]:
        return {fault: spread(found.get(fault, [])) for fault in RECOVERED if fault in self.plan.faults}

    def rows(self) -> list[tuple[str, str]]:
        """The numbers in words."""
        figures, unknowns = self.figures, self.figures.unknowns
        resolved = f"{unknowns.automatically} resolved automatically, {unknowns.by_person} by a person"
        fenced = "" if self.fenced_writes is None else f"{self.fenced_writes} late writes, "
        found = [
            ("seed", f"{self.plan.seed}; {self.plan.seconds:g} s of strikes, {self.seconds:.0f} s in all"),
            ("faults injected", _counted(self.injected)),
            ("with work in hand", _counted(self.with_work)),
            ("fault points fired", f"{len(self.fired)} of {self.armed} armed"),
            ("services failed", _counted(self.outcome.faults)),
            ("runs", f"{figures.runs}: {figures.completed} completed, {figures.stopped} stopped"),
            ("stopped for", _counted(self.outcome.reasons)),
            ("calls", f"{figures.calls}, in {figures.attempts} attempts"),
            ("effects", str(figures.effects)),
            ("duplicates", str(figures.duplicates)),
            ("lost", str(figures.lost)),
            ("unknown", f"{unknowns.calls} calls, {unknowns.marks} times; {resolved}, {unknowns.open} open"),
            ("fenced out", f"{fenced}{self.outcome.report.totals.evidence} filed as evidence"),
            ("time to settle", told(self.waits)),
        ]
        for fault, name in RECOVERED.items():
            if fault in self.plan.faults:
                found.append((f"recovery after {name}", told(self.takeovers.get(fault, []))))
                found.append(("  beside no outage", told(self.in_calm.get(fault, []))))
        found.append(("never claimed", f"{self.never_claimed}; {self.ended_unclaimed} had ended by then"))
        if self.tolerance_s > TOLERANCE.total_seconds():
            found.append(("tolerance", _WIDE.format(self.tolerance_s)))
        return found

    def to_markdown(self) -> str:
        """The whole report as a document."""
        verdict = "failed" if self.problems else "passed"
        rows = [*self.rows(), ("verdict", "; ".join(self.problems) or "every invariant holds")]
        lines = [f"# Chaos, seed {self.plan.seed}: {verdict}", "", *_table(("what", "how many"), rows), ""]
        faults = [(f, str(self.plan.counts[f]), str(self.injected.get(f, 0))) for f in self.plan.faults]
        lines += ["## Faults", "", *_table(("fault", "planned", "injected"), faults), ""]
        verdicts = [
            (v.invariant, v.verdict, str(v.count), str(len(v.violations)), v.promise)
            for v in self.outcome.report.verdicts
        ]
        head = ("invariant", "verdict", "looked at", "violations", "it says that")
        lines += ["## Invariants", "", *_table(head, verdicts), ""]
        for v in self.outcome.report.verdicts:
            lines += [f"- {v.invariant} is violated: {one.message}" for one in v.violations]
        return "\n".join(lines).rstrip() + "\n"


def print_result(result: ChaosResult) -> None:
    """The numbers, then the verdicts, then what is wrong."""
    click.echo()
    print_table(["what!", "how many"], result.rows())
    click.echo()
    print_report(result.outcome.report)
    if result.others is not None:
        click.echo("\nOf everything in this ledger, as far as it can be said of a fleet that works:")
        print_report(result.others)
    click.echo()
    for problem in result.problems:
        click.echo(f"FAILED: {problem}")
    if not result.problems:
        click.echo("Every strike of the plan was made, every run is settled, every invariant holds.")


def _table(head: tuple[str, ...], rows: list[Any]) -> list[str]:
    def line(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |"

    return [line(head), line(("---",) * len(head)), *map(line, rows)]


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
