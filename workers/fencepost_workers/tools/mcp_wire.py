"""What one call of an MCP server's tool puts on the wire, once and never late, and what answers it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

from fencepost.clock import boottime
from fencepost.errors import FaultInjected
from fencepost.mcpmessages import FIRST_ID, Doubt, Reply, judged
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

    `closed`: nothing leaves any more; `late`: bytes of the call left after `until`. `bare` is
    an HTTP answer that is no JSON-RPC response. `asked` are the
    ids of other requests; `reply` is the call's answer as it came, `doubt` why none proves anything.
    """

    until: float
    kind: Kind
    pid: int
    touched: int = 0
    others: int = 0
    closed: bool = False
    late: bool = False
    held_back: NotSent | None = None
    bare: Response | None = None
    oversize: bool = False
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    response: Response | None = None
    asked: set[object] = field(default_factory=set)
    call: int | None = None
    reply: Reply | None = None
    doubt: str = ""

    def other(self, ident: object) -> None:
        """Another message leaves: a request of this id, or without one a notification."""
        self.others += 1
        if ident is not None:
            self.asked.add(ident)

    def leave(self, ident: object) -> None:
        """Called just before a `tools/call` of this id leaves; raises where it must not."""
        forks.ours(self.pid)
        if self.touched or self.closed:
            log.error("a second tools/call of one attempt was held back; something retries behind our back")
            raise Held(NotSent("held_back", "a call is sent once"))
        if self.doubt:
            raise Held(NotSent("no_session", self.doubt))
        if not isinstance(ident, int) or ident < FIRST_ID:
            self.held_back = NotSent("worker_error", "nothing was sent: its id could be guessed")
            raise Held(self.held_back)
        try:
            if self.kind == "effect":
                fault("dispatch.before_wire")
        except FaultInjected as error:
            self.held_back = NotSent("worker_error", f"nothing was sent: {error}")
            raise
        if boottime() >= self.until:
            self.held_back = NotSent("deadline_passed", "the attempt's time was over before a byte was sent")
            raise Held(self.held_back)
        self.call = ident
        self.touched += 1

    def go_on(self) -> None:
        """Called between the head and the body of the call: half of it may not be completed late."""
        if boottime() >= self.until:
            raise Held(NotSent("deadline_passed", "the attempt's time was over"))

    def left(self) -> None:
        """Called when the bytes of the call have left: the process may have stood still before they did."""
        self.late = self.late or boottime() >= self.until

    def heard(self, raw: str | bytes, *, alone: bool = False) -> Reply | None:
        """Called for each message that comes, before the SDK sees it. The answer to the call, if so."""
        said = judged(raw, self.call, self.asked, alone=alone)
        if isinstance(said, Doubt):
            self.doubts(said.why)
        elif said is not None:
            if self.reply is not None and self.reply != said:
                self.doubts("two answers came that are not the same")
            self.reply = said
            return said
        return None

    def doubts(self, why: str) -> None:
        """Nothing that came or comes is proof any more."""
        self.doubt = self.doubt or why
        self.answered.set()

    def arrived(self, response: Response) -> None:
        """The answer is here; what becomes of the session afterwards changes nothing of it."""
        self.response = response
        self.answered.set()
