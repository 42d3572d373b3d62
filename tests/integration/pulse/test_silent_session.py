"""A pulse's session whose server says nothing any more, and does not end it either."""

import os
import signal

from fencepost_workers.pulse import Pulse
from tests.awaiting import until
from tests.integration.pulse.bench import TTL
from tests.integration.rows import Sql, value

SESSION = "SELECT pid FROM pg_stat_activity WHERE application_name = 'fencepost pulse'"
IDLE = "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = %s"
SEEN = "SELECT last_seen FROM fencepost.workers WHERE token = %s"


def test_a_session_that_falls_silent_is_given_up_for_another(sql: Sql, dsn: str) -> None:
    with Pulse(dsn, "planner", TTL) as pulse:
        backend, token = value(sql, SESSION), pulse.token

        def silenced() -> bool:
            """Not in the middle of a stamp, whose lock would hold up every other session too."""
            os.kill(backend, signal.SIGSTOP)
            if not (idle := bool(value(sql, IDLE, backend))):
                os.kill(backend, signal.SIGCONT)
            return idle

        until("a silent session that holds no lock", silenced)
        try:
            before = value(sql, SEEN, token)
            until("a stamp by another session", lambda: value(sql, SEEN, token) > before, within_s=20)
        finally:
            os.kill(backend, signal.SIGCONT)
        assert (pulse.alive(), pulse.token) == (True, token)
