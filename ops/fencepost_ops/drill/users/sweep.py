"""One sweep of a user's tool or planner: the histories, one after the other, until enough have failed."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from fencepost.app import App
from fencepost.errors import UsageError
from fencepost.tools import Tool
from fencepost_ops.drill.protocol import WIRES, Protocol
from fencepost_ops.drill.users import application, plan, probe
from fencepost_ops.drill.users.judge import Finding, findings
from fencepost_ops.drill.users.played import Played
from fencepost_ops.drill.users.result import Result
from fencepost_ops.drill.users.world import Given

_CAME_BACK: Final = re.compile(r"ToolOutcomeMarkedUnknown|ToolAttemptFailed")

Play = Callable[[Given, App, Protocol], Played]


class Sweep:
    """One sweep."""

    def __init__(self, play: Play, app: App, given: Given, case: plan.Case, most: int) -> None:
        self._play_one = play
        self._app = app
        self._given = given
        self._case = case
        self._most = most
        self._impure: list[str] = []
        self._failed = 0
        self.result = Result(case.name, given.tool)

    def run(self, only: Sequence[str], *, pairs: bool, protocol: Protocol | None) -> Result:
        """All of it."""
        began = time.monotonic()
        self._probe()
        if protocol is not None:
            self._one(protocol)
        else:
            self._swept(only, pairs=pairs)
        self.result.took_s = time.monotonic() - began
        return self.result

    def _one(self, protocol: Protocol) -> None:
        played = self._play(protocol)
        never, often = played.outcome.never, "this run does not pass that point so often"
        if never and not played.outcome.struck and not self._failed:
            raise UsageError(
                f"the protocol {protocol.name} proves nothing: its fault never struck ({never[0].named}), as "
                f"{often}"
            )
        self.result.notes += [f"never struck: {fault.named}; {often}" for fault in never]

    def _swept(self, only: Sequence[str], *, pairs: bool) -> None:
        quiet = self._play(self._case.protocol("no-fault"))
        if self._failed:
            return
        self._usual(quiet)
        passages = quiet.outcome.passages
        if only and not pairs and not any(plan.matched(point, only) for point in passages):
            raise UsageError(
                f"only= matches no fault point that {self._case.name} passes without a fault; it passes "
                f"{', '.join(sorted(passages))} (pairs=True sweeps what is passed after another fault)"
            )
        planned = deque(plan.invited(self._case, passages))
        planned += map(self._case.struck, plan.singles(passages, only))
        firsts: list[Played] = []
        asked = 0
        while planned:
            if self._enough(len(planned)):
                return
            played = self._play(planned.popleft())
            faults = played.protocol.faults
            if plan.asks(played.protocol, played.outcome.passages):
                asked = max(asked, played.outcome.passages[WIRES[1]])
                planned.extendleft(reversed([*plan.questions(self._case, played.protocol, asked)]))
            if len(faults) == 1 and plan.paired(faults[0].at) and faults[0].do != "error":
                firsts.append(played)
        if pairs:
            self._paired(firsts, only)

    def _paired(self, firsts: Sequence[Played], only: Sequence[str]) -> None:
        planned = [
            one.protocol.model_copy(
                update={
                    "faults": [*one.protocol.faults, second],
                    "name": self._case.struck(*one.protocol.faults, second).name,
                }
            )
            for one in firsts
            for second in plan.seconds(one.outcome.before, one.outcome.passages, only)
        ]
        for number, protocol in enumerate(planned):
            if self._enough(len(planned) - number):
                return
            self._play(protocol)

    def _enough(self, left: int) -> bool:
        if self._failed < self._most:
            return False
        self.result.left_out += left
        return True

    def _play(self, protocol: Protocol) -> Played:
        played = self._play_one(self._given, self._app, protocol)
        found = findings(self._given.tool, played, self._impure)
        self.result.played.append(played)
        self.result.findings += found
        self._failed += bool(found)
        return played

    def _usual(self, quiet: Played) -> None:
        """UsageError where the tool does not even succeed without faults: then the test is set up wrongly."""
        ended = {call.state for call in quiet.calls}
        if self._given.tool is not None and ended != {"SUCCEEDED"}:
            said = "; ".join(owed.why for owed in quiet.outcome.owed)
            wire = "; ".join(f"{one.what} → {one.heard}" for one in quiet.log)
            last = " / ".join(line.strip() for line in quiet.outcome.timeline[-4:])
            raised = [line.strip() for line in quiet.outcome.timeline if _CAME_BACK.search(line)]
            raise UsageError(
                f"without any fault {self._case.name} ends {', '.join(sorted(ended)) or 'never called'}: "
                f"{said or last}; on the wire: {wire or 'nothing'}; it came back as: "
                f"{' / '.join(raised) or 'nothing'}{_unwired(self._given.tool, quiet)}"
            )
        if unwired := _unwired(self._given.tool, quiet):
            self.result.notes.append(f"not swept: what the network does to this Python tool{unwired}")

    def _probe(self) -> None:
        tool = self._given.tool
        if tool is None:
            return
        args = tool.arguments.model_validate(self._case.run.input["arguments"])
        for line in probe.unlike_intents(tool, args):
            mistake = f"intent= must name the same thing each time it is asked; {line}"
            self.result.findings.append(Finding("impure", "the intent, asked twice, differs", mistake))
        if tool.kind == "http":
            application.base_url(tool.dependency)
            self._impure = probe.unlike_requests(tool, args, "0" * 64)
        for line in self._impure:
            mistake = (
                "the request must be a function of the arguments: what a repeat or a lookup is known "
                f"by comes from them or from the operation key, never from a clock or chance; {line}"
            )
            self.result.findings.append(Finding("impure", "the request, built twice, differs", mistake))


def _unwired(tool: Tool | None, quiet: Played) -> str:
    """What to add where a Python tool reached its service by nothing that is known here."""
    if tool is None or tool.kind != "python":
        return ""
    if any(one.kind == "call" and one.what != tool.name for one in quiet.log):
        return ""
    return (
        ". Name the functions by which it reaches its service, through=[(client, 'post')], or wrap them with "
        "fencepost_drill.line"
    )
