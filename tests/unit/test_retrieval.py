"""Retrieval's pure parts: which documents are stale, what is shown of them, what they are grounds of."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from fencepost import App, NotApplied, UsageError
from fencepost.outcomes import Applied
from fencepost.retrieval import Document, OnStale, Retrieved, ground, grounds_of, retrieved, stale_calls
from fencepost.tools import Attempt, CallView, Context
from fencepost_workers.tools.retrieval import grounded

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)


class Query(BaseModel):
    query: str


class Page(Document):
    url: str


def document(name: str, age: timedelta, text: str = "text") -> Document:
    return Document(id=name, version="r1", as_of=NOW - age, text=text)


OLD, EVEN, NEW, AHEAD = (
    document("old", DAY + timedelta(microseconds=1)),
    document("even", DAY),
    document("new", timedelta(0)),
    document("ahead", -DAY),
)


@pytest.mark.parametrize(
    ("on_stale", "max_age", "shown", "stale"),
    [
        (OnStale.WITHHOLD, None, ["old", "even", "new", "ahead"], []),
        (OnStale.WITHHOLD, DAY, ["even", "new", "ahead"], ["old"]),
        (OnStale.MARK, DAY, ["old", "even", "new", "ahead"], ["old"]),
        (OnStale.WITHHOLD, timedelta(seconds=1), ["new", "ahead"], ["old", "even"]),
    ],
)
def test_what_is_older_than_max_age_is_stale_to_the_microsecond(
    on_stale: OnStale, max_age: timedelta | None, shown: list[str], stale: list[str]
) -> None:
    said = retrieved([OLD, EVEN, NEW, AHEAD], now=NOW, max_age=max_age, on_stale=on_stale)
    Retrieved.model_validate(said)
    assert [one["id"] for one in said["documents"]] == shown
    assert [one["id"] for one in said["stale"]] == stale
    marked = [one["id"] for one in said["documents"] if one.get("stale")]
    assert marked == (stale if on_stale is OnStale.MARK else [])


def test_stale_documents_refuse_the_call_where_that_is_declared() -> None:
    with pytest.raises(NotApplied) as refused:
        retrieved([OLD, NEW], now=NOW, max_age=DAY, on_stale=OnStale.REFUSE)
    assert (refused.value.code, refused.value.retryable) == ("stale_grounding", False)
    assert "1 of 2 documents are stale: old@r1 as of 2026-04-30" in refused.value.message
    assert retrieved([NEW], now=NOW, max_age=DAY, on_stale=OnStale.REFUSE)["stale"] == []


def test_what_has_no_room_is_counted_and_no_document_is_cut() -> None:
    many = retrieved([document(str(n), DAY) for n in range(60)], now=NOW, max_age=None)
    assert (len(many["documents"]), many["left_out"]) == (50, 10)
    old = retrieved([document(str(n), 2 * DAY) for n in range(60)], now=NOW, max_age=DAY)
    assert (len(old["stale"]), old["stale_left_out"], old["left_out"]) == (50, 10, 0)
    assert told(view("s", "docs.search", {}, old))[-1] == "docs.search (s): 10 more documents are stale"
    large = retrieved([document("large", DAY, "x" * 100_000), NEW], now=NOW, max_age=None)
    assert ([one["id"] for one in large["documents"]], large["left_out"]) == (["new"], 1)


def test_grounds_are_the_documents_that_are_shown_as_bounded_text() -> None:
    said = retrieved([OLD, NEW], now=NOW, max_age=DAY, on_stale=OnStale.MARK)
    assert list(grounds_of("docs", said)) == [
        {
            "source": "docs",
            "id": "old",
            "version": "r1",
            "as_of": "2026-04-30T11:59:59.999999Z",
            "stale": True,
        },
        {"source": "docs", "id": "new", "version": "r1", "as_of": "2026-05-01T12:00:00.000000Z"},
    ]
    assert len(ground("s" * 500, "i", "v", None)["source"]) <= 200


@pytest.mark.parametrize(
    ("grounds", "listed", "missing"),
    [
        (lambda found: found["documents"], 2, None),
        (lambda found: found["documents"] * 60, 100, {"left_out": 20}),
        (lambda found: found["pages"], 0, {"unread": "KeyError: 'pages'"}),
        (lambda _found: ["a word"], 0, {"unread": None}),
    ],
)
def test_grounds_that_are_too_many_or_cannot_be_told_are_recorded_as_such(
    grounds: Callable[[Any], Any], listed: int, missing: dict[str, Any] | None
) -> None:
    tool = replace(searching([]).tool("docs.search"), grounds=grounds)
    text = json.dumps(retrieved([OLD, NEW], now=NOW, max_age=None))
    _, found = grounded(tool, Applied(text, None))
    assert len(found.listed) == listed
    if missing == {"unread": None}:
        assert found.missing is not None
        assert "unread" in found.missing
    else:
        assert found.missing == missing


def attempt() -> Attempt:
    return Attempt("r", "c", 1, "", NOW + timedelta(seconds=9), lambda: 9.0, tenant="shop")


def searching(found: Any, **said: Any) -> App:
    app = App("library")

    def search(args: Query, attempt: Attempt) -> Any:
        return found

    app.retrieval("docs", search=search, **said)
    app.allow("svc:*", ["docs.*"])
    assert app.check() == []
    return app


def test_a_search_is_a_read_tool_of_its_own_dependency_for_which_nobody_vouches_unless_it_is_said() -> None:
    app = searching([NEW], max_age=DAY, per_attempt=timedelta(seconds=3))
    tool = app.tool("docs.search")
    assert (tool.scope, tool.taints, tool.dependency.per_attempt) == (
        "docs/default",
        True,
        timedelta(seconds=3),
    )
    assert not searching([], untrusted=False).tool("docs.search").taints
    assert tool.acts_on is not None
    assert tool.acts_on(Query(query="q")) == ("retrieval", "docs")
    assert tool.function is not None
    said = tool.function(Query(query="q"), attempt())
    assert (said["now"], said["max_age_s"]) == ("2026-05-01T12:00:00.000000Z", 86_400)


def test_a_search_may_be_a_coroutine_and_its_documents_have_fields_of_their_own() -> None:
    app = App("library")

    async def search(args: Query, attempt: Attempt) -> Sequence[dict[str, Any]]:
        return [
            {"id": "a", "version": "1", "as_of": "2026-05-01T12:00:00Z", "url": "https://a", "score": 0.5}
        ]

    tool = app.retrieval("docs", search=search, returns=Page).tool
    assert tool.function is not None
    said = asyncio.run(tool.function(Query(query="q"), attempt()))
    assert (said["documents"][0]["url"], said["documents"][0]["score"]) == ("https://a", 0.5)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ("text", "must give a list of documents, not str"),
        ({"id": "a"}, "must give a list of documents, not dict"),
        ([{"id": "a"}], "gave what is no document: version: Field required"),
        ([{"id": "a", "version": "1", "as_of": "2026-05-01T12:00:00"}], "as_of"),
        ([{"id": "", "version": "1", "as_of": "2026-05-01T12:00:00Z"}], "id"),
    ],
)
def test_a_search_that_gives_no_documents_fails_and_says_why(found: Any, why: str) -> None:
    function = searching(found).tool("docs.search").function
    assert function is not None
    with pytest.raises(UsageError, match=why):
        function(Query(query="q"), attempt())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"max_age": timedelta(0)}, "max_age must lie above zero"),
        ({"on_stale": OnStale.MARK}, "says nothing without a max_age"),
        ({"returns": BaseModel}, "returns= takes Document or a subclass"),
    ],
)
def test_a_retrieval_that_cannot_be_is_refused(said: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        searching([], **said)


def view(label: str, tool: str, arguments: Any, result: Any, state: str = "SUCCEEDED") -> CallView:
    return CallView(label, tool, arguments, state, result)


def told(*calls: CallView, max_age: timedelta | None = None) -> list[str]:
    return stale_calls(Context("r", "t", "p", {}, 2, calls), max_age)


def test_verify_can_refuse_what_is_stale() -> None:
    found = retrieved([OLD, NEW], now=NOW, max_age=DAY)
    search = view("s", "docs.search", {"query": "q"}, found)
    lagging = view("r", "notes.read", {"key": "k"}, {"stale": True, "have": 3, "need": 5})
    assert told(search, lagging) == [
        "docs.search (s): document old is as of 2026-04-30T11:59:59.999999Z",
        "notes.read (r): version 3 was known, 5 was written",
    ]
    fresh = view("s", "docs.search", {"query": "q"}, retrieved([EVEN], now=NOW, max_age=DAY))
    assert told(search, fresh) == []  # the same search has put it right
    assert told(fresh, max_age=timedelta(hours=1)) == [
        "docs.search (s): document even is as of 2026-04-30T12:00:00.000000Z"
    ]
    assert told(view("c", "docs.search", {}, {"truncated": True})) == [
        "docs.search (c): its result is not shown whole"
    ]
    assert told(view("f", "docs.search", {}, None, "FAILED"), view("o", "other", {}, ["x"])) == []
