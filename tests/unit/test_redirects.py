"""What goes along to where a reading tool is redirected: the URL; to the same origin, the stored headers."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from fencepost.contracts import Effect
from fencepost.outbound import OutboundRefused, outbound
from fencepost.outcomes import Answered, Lost, Sent
from fencepost.tools import Response, StoredRequest, Tool
from fencepost_workers.tools import redirects
from tests.typing.user_code import debit

HERE = "https://a.example/x/y?q=1"
RULES = outbound("https://a.example", ("b.example", "c.example"), ())
OWN = (("Authorization", "Bearer geheim"),)
TOLD: dict[str, Any] = {
    "allowed": RULES,
    "headers": OWN,
    "capability": ("Fencepost-Capability", "token"),
    "key": "key-1",
    "kind": "effect",
}


class Wire:
    """Answers each sending with the next answer, and remembers what it was given."""

    def __init__(self, *answers: Sent) -> None:
        self.answers = list(answers)
        self.sent: list[tuple[StoredRequest, dict[str, Any]]] = []

    async def send(self, stored: StoredRequest, **how: Any) -> Sent:
        self.sent.append((stored, how))
        return self.answers.pop(0)


def to(location: str | None, status: int = 302) -> Answered:
    return Answered(Response(status, {} if location is None else {"location": location}))


def reading(hops: int = 3) -> Tool:
    return replace(debit.tool, effect=Effect.READ, dependency=replace(debit.tool.dependency, redirects=hops))


def followed(*answers: Sent, tool: Tool | None = None, method: str = "GET") -> tuple[Sent, Wire]:
    wire = Wire(*answers)
    stored = StoredRequest(method, HERE, (("X-Reader", "stored"),))
    return asyncio.run(redirects.send(wire, tool or reading(), stored, **TOLD)), wire


OK = Answered(Response(200))


def test_to_another_origin_goes_the_url_alone() -> None:
    sent, wire = followed(to("https://b.example/z"), OK)
    assert sent == OK
    assert wire.sent[0][1] == TOLD
    stored, how = wire.sent[1]
    assert stored == StoredRequest("GET", "https://b.example/z")
    assert how == {
        "allowed": outbound(None, ("b.example", "c.example"), ()),
        "headers": (),
        "capability": None,
        "key": None,
        "kind": "effect",
    }


def test_back_from_another_origin_nothing_goes_along_and_the_base_url_stays_closed() -> None:
    _, wire = followed(to("https://b.example/z"), to("https://a.example/admin"), OK)
    stored, how = wire.sent[2]
    assert (stored, how["headers"]) == (StoredRequest("GET", "https://a.example/admin"), ())
    with pytest.raises(OutboundRefused, match="not among the hosts"):
        how["allowed"].admit(stored.target)


def test_to_the_same_origin_the_dependencys_own_headers_may_go_along() -> None:
    _, wire = followed(to("/z"), OK)
    assert (wire.sent[1][1]["headers"], wire.sent[1][1]["allowed"]) == (OWN, RULES)


def test_to_the_same_origin_the_stored_headers_go_along() -> None:
    for location, target in (
        ("z", "https://a.example/x/z"),
        ("/z#part", "https://a.example/z"),
        ("//a.example/z", "https://a.example/z"),
        ("https://A.example:443/z", "https://A.example:443/z"),
    ):
        _, wire = followed(to(location), OK)
        assert wire.sent[1][0] == StoredRequest("GET", target, (("X-Reader", "stored"),))
        assert wire.sent[1][1]["capability"] is None


def test_another_scheme_or_port_is_another_origin() -> None:
    for location in ("http://a.example/x", "https://a.example:8443/x", "https://b.example/x"):
        _, wire = followed(to(location), OK)
        assert wire.sent[1][0].headers == ()


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "https://u:p@b.example/", "https://b.example\\@a.example/"]
)
def test_what_is_no_url_of_ours_is_left_to_the_engine_to_refuse(location: str) -> None:
    lost = Lost("any", "answer")
    sent, wire = followed(to(location), lost)
    assert sent == lost
    assert wire.sent[1][0] == StoredRequest("GET", location)


def test_no_more_hops_than_are_declared_and_each_counts_as_none() -> None:
    sent, wire = followed(*[to("/z")] * 4, tool=reading(2))
    assert sent == to("/z")
    assert len(wire.sent) == 3


@pytest.mark.parametrize(
    ("answer", "changed"),
    [
        (to(None), {}),
        (to("/z", 300), {}),
        (to("/z", 304), {}),
        (to("/z", 200), {}),
        (to("https://[::1"), {}),
        (Lost("timeout", "no answer"), {}),
        (to("/z"), {"method": "POST"}),
        (to("/z", 307), {"method": "DELETE"}),
        (to("/z"), {"tool": reading(0)}),
        (to("/z"), {"tool": replace(reading(), effect=Effect.IRREVERSIBLE)}),
    ],
)
def test_what_is_not_followed_is_the_answer(answer: Sent, changed: dict[str, Any]) -> None:
    sent, wire = followed(answer, OK, **changed)
    assert sent == answer
    assert len(wire.sent) == 1
