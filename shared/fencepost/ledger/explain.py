"""What Postgres refuses a client, as one sentence of ours."""

from __future__ import annotations

from typing import Final

import psycopg

from fencepost.errors import FencepostError, Unreachable, UsageError
from fencepost.ledger.connect import translate
from fencepost.settings import redact

TRY_AGAIN_STATES: Final = ("40P01", "40001", "55P03")  # deadlock, serialisation, lock timeout
_REFUSED: Final = "FP422"


def explained(error: psycopg.Error | Unreachable, dsn: str) -> Exception:
    """A refusal of the ledger's own as the error it stands for; otherwise what `translate` makes of it."""
    if isinstance(error, Unreachable):
        return error
    if error.sqlstate == _REFUSED:
        return UsageError(error.diag.message_primary or str(error))
    if error.sqlstate in TRY_AGAIN_STATES:
        return Unreachable(
            f"Postgres at {redact(dsn)}: another transaction held on to the same rows for too long"
        )
    found = translate(error, dsn)
    if isinstance(found, psycopg.Error):
        return FencepostError(f"Postgres at {redact(dsn)} says: {redact(str(error).splitlines()[0])}")
    return found
