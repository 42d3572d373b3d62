"""What a check says: how bad it is, what it means, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence of what is so and what it means; one of what to do, empty where nothing is."""

    area: str
    level: Level
    says: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """A fact that could not be had, and why."""

    why: str


@dataclass(frozen=True, slots=True)
class Area:
    """Makes the findings of one part."""

    name: str

    def ok(self, says: str) -> Finding:
        """All is well."""
        return Finding(self.name, Level.OK, says)

    def note(self, says: str, do: str = "") -> Finding:
        """Worth knowing."""
        return Finding(self.name, Level.NOTE, says, do)

    def warning(self, says: str, do: str) -> Finding:
        """Will hurt sooner or later."""
        return Finding(self.name, Level.WARNING, says, do)

    def problem(self, says: str, do: str) -> Finding:
        """Breaks the promise, or stops the work."""
        return Finding(self.name, Level.PROBLEM, says, do)

    def unread(self, what: str, fact: Unread) -> Finding:
        """A check that could not be made."""
        return self.note(f"{what}: not checked ({fact.why})", "ask again with a login that may look")
