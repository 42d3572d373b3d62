"""The storm itself: orders and strikes, each when the plan says, and a look at everything in between."""

from __future__ import annotations

import time
from collections import deque
from typing import Final

from fencepost_ops.chaos_plan import ChaosPlan, Strike
from fencepost_ops.chaos_screen import ChaosScreen
from fencepost_ops.chaos_strikes import Strikes
from fencepost_ops.trial import LOOK_EVERY_S, Trial

OVERTIME_S: Final = 60.0  # how long strikes may go on that found nobody to strike in time


class Storm:
    """One plan on a fleet that is up."""

    def __init__(self, plan: ChaosPlan, trial: Trial, strikes: Strikes, screen: ChaosScreen) -> None:
        self._plan = plan
        self._trial = trial
        self._strikes = strikes
        self._screen = screen
        self._calm = True
        trial.look_on = self._look

    def run(self) -> None:
        """Send every order and strike every strike; when the last is over, wait until all is settled."""
        plan, began = self._plan, time.monotonic()
        orders, to_come = deque(plan.arrivals), deque(plan.strikes)
        due: list[tuple[float, Strike]] = []
        self._trial.seed(plan.poor, plan.scarce)
        while orders or to_come or due or not self._calm:
            now = time.monotonic() - began
            wave = [orders.popleft()[1] for _ in range(sum(at <= now for at, _ in orders))]
            if wave:
                self._trial.enqueue(wave)
            while to_come and to_come[0][0] <= now:
                due.append(to_come.popleft())
            self._strike_one(due, now)
            self._trial.look()
            self._screen.progress(
                now, plan.seconds, self._trial.enqueued, len(plan.arrivals), self._strikes.injected
            )
            if now > plan.seconds + OVERTIME_S:
                break
            time.sleep(LOOK_EVERY_S)
        self._strikes.calm()
        self._screen.say("no more orders, no more strikes: waiting until everything is settled")
        self._trial.settle()

    def _strike_one(self, due: list[tuple[float, Strike]], now: float) -> None:
        """Strike the first that can be: only one, so that whom the last one killed is seen to be dead."""
        for one in due:
            at, strike = one
            if self._strikes.strike(strike, waited_s=now - at):
                due.remove(one)
                return

    def _look(self) -> bool:
        self._strikes.takeovers.look()
        self._calm = self._strikes.look()
        return self._calm
