"""`Ledger.apply(commands) -> answers`: the one write path, for batches of any size, in five steps.

Lock in a fixed order; read in new statements; fold the commands in order, so that two changes of one run both
count; drop the losers with a typed answer and number and hash what survives; write. N commands cost one
transaction and a constant number of statements. A refused write splits the batch in halves, so that one bad
command does not take its neighbours down; a deadlock or lock timeout reruns it. A batch that takes too long
to be judged is split as well; one command that does so by itself is answered Broken.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import psycopg

from fencepost import commands as c
from fencepost.authority import Authority
from fencepost.breaker import Health, State
from fencepost.clock import rfc3339
from fencepost.decide.fold import Known
from fencepost.errors import Unreachable
from fencepost.ledger import allowances, health
from fencepost.ledger.connect import Connection, Pipeline, Pool
from fencepost.ledger.folding import Folding
from fencepost.ledger.load import Loaded, load
from fencepost.ledger.standing import READ_BUNDLES, authorises
from fencepost.ledger.stopwatch import Stopwatch, TooSlowError
from fencepost.ledger.write import CountMismatchError, write
from fencepost.testing import fault

log = logging.getLogger(__name__)

RERUNS = 5
_RERUN_AFTER_S = 0.05  # times a random number: two that deadlocked do not meet again
_RERUN_STATES = ("40P01", "40001", "55P03")  # deadlock, serialisation, lock timeout
_REFUSED_STATES = ("22", "23", "54", "FP")  # values, constraints, limits, guards


class Ledger:
    """The write side of the ledger for one process: its pool, what it knows, whom it tells after a commit."""

    def __init__(
        self,
        pool: Pool,
        known: Known,
        *,
        worker_ttl: timedelta = timedelta(seconds=10),
        ring: Callable[[], object] = lambda: None,
        confirmed: Callable[[str, UUID, datetime], object] = lambda _tenant, _event, _at: None,
    ) -> None:
        self._pool = pool
        self._known = known
        self._worker_ttl = worker_ttl
        self._ring = ring
        self._confirmed = confirmed
        self._ill: frozenset[str] = frozenset()
        """Dependencies last seen failing or not closed: their rows are locked at once."""

    def apply(self, commands: Sequence[c.Command]) -> list[c.Answer]:
        """Decide and record a batch; one answer per command, in order.

        Raises `Unreachable` when Postgres cannot be reached: then nothing is known of the batch, and applying
        the same commands again is safe (each returns its first outcome if it was recorded).
        """
        if not commands:
            return []
        answers = self._apply(list(commands), RERUNS)
        self._ring()
        return answers

    def _apply(self, batch: list[c.Command], reruns: int) -> list[c.Answer]:
        try:
            return self._once(batch)
        except TooSlowError as slow:
            return self._beside(batch, slow, reruns)
        except (psycopg.Error, CountMismatchError) as error:
            state = getattr(error, "sqlstate", None) or ""
            if state in _RERUN_STATES and not reruns:
                raise Unreachable(
                    f"Postgres stayed busy through {RERUNS + 1} tries: {_first_line(error)}"
                ) from error
            if not (
                isinstance(error, CountMismatchError) or state.startswith((*_RERUN_STATES, *_REFUSED_STATES))
            ):
                raise
            problem = error
        if state in _RERUN_STATES:
            time.sleep(_RERUN_AFTER_S * random.random())
            return self._apply(batch, reruns - 1)
        if len(batch) == 1:
            log.error("Postgres refused %s: %s", type(batch[0]).__name__, problem)
            return [c.Broken(_first_line(problem))]
        return self._halves(batch)

    def _halves(self, batch: list[c.Command]) -> list[c.Answer]:
        half = len(batch) // 2
        return self._apply(batch[:half], RERUNS) + self._apply(batch[half:], RERUNS)

    def _beside(self, batch: list[c.Command], slow: TooSlowError, reruns: int) -> list[c.Answer]:
        """Answer a batch that took too long to be judged: without whoever did so by itself, or in halves.

        What judges nobody has no code of the application's in it: then it was this process that stood still.
        """
        at = next(n for n, command in enumerate(batch) if command is slow.command)
        if slow.alone and authorises([slow.command]):
            log.error("%s of run %s: %s", type(slow.command).__name__, slow.command.run, slow)
            before, after = batch[:at], batch[at + 1 :]
            rest = self._apply(before + after, RERUNS) if before or after else []
            return [*rest[:at], c.Broken(str(slow)), *rest[at:]]
        if len(batch) > 1:
            return self._halves(batch)
        if not reruns:
            raise Unreachable(f"this process stood still in each of {RERUNS + 1} tries")
        return self._apply(batch, reruns - 1)

    def _once(self, batch: list[c.Command]) -> list[c.Answer]:
        with self._pool.connection() as connection, connection.pipeline() as pipeline:
            watch = Stopwatch()
            loaded = self._load(connection, pipeline, batch, watch)
            before = dict(loaded.dependencies)
            folding = Folding(loaded, self._known)
            answers: list[c.Answer] = []
            watch.begin()
            for command in batch:
                answers.append(folding.command(command))
                watch.judged(command)
            fault("ledger.in_transaction")
            if folding.writing.anything:
                write(connection, folding.writing, loaded.now)
                if folding.writing.events:
                    last = folding.writing.events[-1]
                    self._confirmed(last.tenant, last.id, last.recorded_at)
                _tell(before, folding.writing.dependencies)
            else:
                connection.rollback()
            return answers

    def _load(
        self, connection: Connection, pipeline: Pipeline, batch: Sequence[c.Command], watch: Stopwatch
    ) -> Loaded:
        """Load a batch; twice, as a rule, when a dependency has fallen ill since this process last looked."""
        watched = (self._known.limited | self._ill) & health.hinted(batch)
        learnt: dict[int, Authority | None] = {}
        while True:
            loaded = load(connection, pipeline, batch, self._worker_ttl, watched, self._known.providers)
            ill = {scope for scope, held in loaded.dependencies.items() if not held.well}
            if ill != self._ill & loaded.dependencies.keys():
                self._ill = (self._ill - loaded.dependencies.keys()) | ill
            unlocked = loaded.unlocked(batch, self._known)
            strange = self._hold(loaded, learnt) - learnt.keys()  # what is not to be had denies, once
            ready = not unlocked and not strange
            if ready and allowances.lock(connection, pipeline, batch, loaded, self._known, watch):
                return loaded
            watched |= unlocked
            connection.rollback()
            if strange:
                learnt |= dict.fromkeys(strange) | self._learn(connection, strange)

    def _hold(self, loaded: Loaded, learnt: Mapping[int, Authority | None]) -> set[int]:
        """Hold the engines of the policies in force for this batch; the versions not compiled here yet.

        Other batches may have this process forget one at any moment, so each is looked for once.
        """
        engines, versions = self._known.engines, set(loaded.standing.policies.values())
        if engines is None or not versions:
            return set()
        found = {version: learnt.get(version) or engines.engine(version) for version in versions}
        held = {version: engine for version, engine in found.items() if engine is not None}
        loaded.standing = replace(loaded.standing, engines=held)
        return versions - held.keys()

    def _learn(self, connection: Connection, versions: set[int]) -> dict[int, Authority]:
        """Compile policies beside any transaction: that may take a while, and holds up nobody."""
        engines = self._known.engines
        assert engines is not None
        bundles = connection.execute(READ_BUNDLES, [sorted(versions)]).fetchall()
        connection.rollback()
        return {version: engines.add(version, bundle) for version, bundle in bundles}


def _tell(before: Mapping[str, Health], after: Mapping[str, Health]) -> None:
    """One line, from the process whose change it was, when a dependency is left alone or used again."""
    for scope, held in after.items():
        was = before[scope].state if scope in before else State.CLOSED
        if held.state == was:
            continue
        if held.state == State.OPEN and held.closed_until is not None:
            log.warning(
                "dependency %s is left alone until %s: %s", scope, rfc3339(held.closed_until), held.reason
            )
        else:
            log.warning("dependency %s: its breaker is %s, after %s", scope, held.state, was)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
