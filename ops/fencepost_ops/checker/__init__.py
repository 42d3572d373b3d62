"""The checker: holds a ledger and the services' own books against the invariants.

It shares no code with what decides and writes: it reads the tables by SQL of its own, folds the events with
rules of its own and hashes them anew (`replayed.py` excepted, whose verdict is reported apart). An operator
runs it as `fencepost check`; drills, the demo and acceptance tests call `check`.
"""

from fencepost_ops.checker.booked import AllBooks, BookedBooks
from fencepost_ops.checker.books import (
    SANDBOX_SERVICES,
    BookEffect,
    BookReader,
    BookRequest,
    Origin,
    SandboxBooks,
)
from fencepost_ops.checker.report import PROMISES, Report, Totals, Verdict, Violation
from fencepost_ops.checker.terms import Terms, ToolTerms
from fencepost_ops.checker.verdict import TOLERANCE, check

__all__ = [
    "PROMISES",
    "SANDBOX_SERVICES",
    "TOLERANCE",
    "AllBooks",
    "BookEffect",
    "BookReader",
    "BookRequest",
    "BookedBooks",
    "Origin",
    "Report",
    "SandboxBooks",
    "Terms",
    "ToolTerms",
    "Totals",
    "Verdict",
    "Violation",
    "check",
]
