"""What one call of an MCP server's tool puts on the wire: the call itself once, and never late."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from fencepost.clock import boottime
from fencepost.errors import FaultInjected
from fencepost.outcomes import NotSent
from fencepost.testing import fault
from fencepost.tools import Response
from fencepost_workers import forks
from fencepost_workers.tools.http import Kind

log = logging.getLogger(__name__)


class Held(Exception):
    """Nothing was sent, and why; the wire is as it was."""

    def __init__(self, why: NotSent) -> None:
        super().__init__(why.message)
        self.why = why


@dataclass
class Wire:
    """What one call has put on the wire, and the last look at the clock before it leaves.

    `closed`: nothing leaves any more. `bare` is an HTTP answer that is no JSON-RPC response.
    """

    until: float
    kind: Kind
    pid: int
    touched: int = 0
    others: int = 0
    closed: bool = False
    held_back: NotSent | None = None
    bare: Response | None = None
    oversize: bool = False
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    response: Response | None = None

    def leave(self) -> None:
        """Called just before a `tools/call` leaves; raises where it must not."""
        forks.ours(self.pid)
        if self.touched or self.closed:
            log.error("a second tools/call of one attempt was held back; something retries behind our back")
            raise Held(NotSent("held_back", "a call is sent once"))
        try:
            if self.kind == "effect":
                fault("dispatch.before_wire")
        except FaultInjected as error:
            self.held_back = NotSent("worker_error", f"nothing was sent: {error}")
            raise
        if boottime() >= self.until:
            self.held_back = NotSent("deadline_passed", "the attempt's time was over before a byte was sent")
            raise Held(self.held_back)
        self.touched += 1

    def arrived(self, response: Response) -> None:
        """The answer is here; what becomes of the session afterwards changes nothing of it."""
        self.response = response
        self.answered.set()
