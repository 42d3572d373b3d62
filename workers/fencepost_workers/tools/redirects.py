"""Follows the redirects of a reading tool, each of them as a request of its own that has to be allowed.

Only where the dependency says so (`redirects=N`), only GET and HEAD of READ tools: what has an effect is sent
to where its stored request says, and nowhere else. To another origin nothing goes along but the URL: neither
the stored headers, nor the dependency's own, nor a capability, which is for one URL anyway. From there on the
dependency's `hosts` alone are open, not its base_url: whoever redirects must not choose what is read there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import urldefrag, urljoin

from fencepost.contracts import Effect
from fencepost.outbound import Outbound, OutboundRefused, parse
from fencepost.outcomes import Answered, Sent
from fencepost.tools import StoredRequest, Tool
from fencepost_workers.parts import Sends

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_READING: Final = frozenset({"GET", "HEAD"})


async def send(
    engine: Sends,
    tool: Tool,
    stored: StoredRequest,
    *,
    allowed: Outbound,
    headers: Sequence[tuple[str, str]],
    **how: Any,
) -> Sent:
    """`engine.send`, and for a tool that reads what it is redirected to; the last one's answer.

    A redirect beyond the dependency's number, or to what is no URL, is the answer; one to where the
    dependency may not go is refused. Its hops count as one request: none of them is sent twice.
    """
    sent = await engine.send(stored, allowed=allowed, headers=headers, **how)
    left = tool.dependency.redirects if tool.effect is Effect.READ else 0
    while left > 0 and (further := _further(stored, sent)) is not None:
        if not _same_origin(stored.target, further.target):
            allowed, headers = replace(allowed, base=None), ()
        stored, left = further, left - 1
        alone = how | {"capability": None, "key": None}
        hop = await engine.send(stored, allowed=allowed, headers=headers, **alone)
        sent = replace(hop, requests=1)
    return sent


def _further(stored: StoredRequest, sent: Sent) -> StoredRequest | None:
    """The request that an answer asks for instead; None if it asks for none, or for what is no URL."""
    if not isinstance(sent, Answered) or sent.response.status not in _REDIRECTS:
        return None
    location = sent.response.headers.get("location")
    if location is None or stored.method not in _READING:
        return None
    try:
        url = urldefrag(urljoin(stored.target, location)).url
        parse(url)
    except OutboundRefused:
        return StoredRequest(stored.method, location)  # whoever sends it says why not
    except ValueError:
        return None
    return StoredRequest(stored.method, url, stored.headers if _same_origin(stored.target, url) else ())


def _same_origin(one: str, other: str) -> bool:
    try:
        return parse(one).origin == parse(other).origin
    except OutboundRefused:
        return False
