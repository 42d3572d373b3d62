"""Retrieval: documents with their source's version and an as-of, and what becomes of stale ones. PURE.

    app.retrieval("docs", search=find, max_age=timedelta(days=30))

registers the READ tool `docs.search`, whose function finds `Document`s. Each says which version of its source
it is and as of when that was known to be the newest. With a `max_age` older ones are stale: they are named in
the result and, as `on_stale` says, withheld, marked, or reason enough to refuse the call.

Every document a planner is shown is recorded with the result as one of its `grounds` (source, id, version,
as of), so that which documents grounded an answer is one query: the view `fencepost.grounding`, and
`fencepost grounding RUN` with the runs below it. What does not fit is counted. Nobody vouches for
documents unless `untrusted=False` says so.

What a search function says of versions and moments is its own word; nothing here can check it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypedDict

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fencepost.canonical import sanitize
from fencepost.clock import parse_rfc3339, rfc3339
from fencepost.contracts import Effect
from fencepost.declarations import PythonTool, ToolOptions, argument_model
from fencepost.errors import NotApplied, UsageError
from fencepost.fields import Instant
from fencepost.services import Dependency, DependencyOptions
from fencepost.tools import Attempt
from fencepost.views import CallView, Context

MOST_DOCUMENTS: Final = 50
"""Of one result; what a search finds beyond them is left out and counted."""
MOST_CHARS: Final = 200
"""Of an id, a version or a source in the grounds of a result."""
_INLINE_BYTES: Final = 128 * 1024
_ROOM: Final = 96 * 1024  # characters of JSON for all documents: what is shown is shown whole


class Document(BaseModel):
    """One document as a search finds it. Subclass it for more fields; what they hold is shown as well.

    `version` is the source's own name for what was read, `as_of` when that was known to be the newest, with a
    time zone.
    """

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, max_length=MOST_CHARS)
    version: str = Field(min_length=1, max_length=MOST_CHARS)
    as_of: Instant
    text: str = ""
    score: float | None = None


class OnStale(StrEnum):
    """What becomes of a document that is older than `max_age`."""

    WITHHOLD = "withhold"
    """It is named in the result, and not shown."""
    MARK = "mark"
    """It is shown, marked `"stale": true`."""
    REFUSE = "refuse"
    """The call FAILS with the code stale_grounding, which names it; nothing is shown."""


class Retrieved(BaseModel):
    """What a planner is told of a search.

    `stale` names the documents that are older than `max_age_s` seconds, `stale_left_out` counts those beyond
    the first `MOST_DOCUMENTS` of them; `left_out` counts what would have been shown and had no room. `now` is
    the ledger's time by which ages were judged.
    """

    documents: list[dict[str, Any]]
    stale: list[dict[str, Any]] = Field(default_factory=list)
    stale_left_out: int = 0
    left_out: int = 0
    max_age_s: int | None = None
    now: str


class RetrievalOptions(DependencyOptions, total=False):
    """What else a retrieval may say; options of dependencies and of tools mean what they mean there.

    `max_age` None: nothing is ever stale. `returns` is `Document` or a subclass of it.
    """

    max_age: timedelta | None
    on_stale: OnStale
    returns: type[Document]
    version: int
    required: bool
    untrusted: bool
    check: Callable[[Any], object]
    acts_on: Callable[[Any], tuple[str, str]] | None
    egress: bool
    secrets: tuple[str, ...]


class ToolPart(TypedDict, total=False):
    """The options that are the tool's."""

    version: int
    required: bool
    check: Callable[[Any], object]
    acts_on: Callable[[Any], tuple[str, str]] | None
    egress: bool
    secrets: tuple[str, ...]


Search = Callable[[Any, Attempt], Any]
"""`def` or `async def` of validated arguments and the attempt, giving documents, best first."""


def home_options(said: RetrievalOptions) -> DependencyOptions:
    """The options of a retrieval that are its dependency's."""
    options: DependencyOptions = {}
    for name in DependencyOptions.__annotations__:
        if name in said:
            options[name] = said[name]  # type: ignore[literal-required]
    return options


def declare_retrieval(
    source: str, home: Dependency, search: Search, said: RetrievalOptions
) -> PythonTool[Any, Retrieved]:
    """Register `SOURCE.search` at its dependency; UsageError for what cannot be."""
    max_age, on_stale = said.get("max_age"), OnStale(said.get("on_stale", OnStale.WITHHOLD))
    if max_age is not None and max_age <= timedelta(0):
        raise UsageError(f"retrieval {source}: max_age must lie above zero, not {max_age}")
    if on_stale is not OnStale.WITHHOLD and max_age is None:
        raise UsageError(f"retrieval {source}: on_stale={on_stale} says nothing without a max_age")
    kind = said.get("returns", Document)
    if not issubclass(kind, Document):
        raise UsageError(f"retrieval {source}: returns is fencepost.retrieval.Document or a subclass of it")
    options: ToolOptions = {
        "untrusted": said.get("untrusted", True),
        "describe": inspect.getdoc(search) or f"Search {source} for documents.",
        "inline_bytes": _INLINE_BYTES,
        "grounds": lambda result: grounds_of(source, result),
        "acts_on": lambda _args: ("retrieval", source),
    }
    for name in ToolPart.__annotations__:
        if name in said:
            options[name] = said[name]  # type: ignore[literal-required]

    def judged(found: Any, attempt: Attempt) -> dict[str, Any]:
        now = attempt.deadline - timedelta(seconds=attempt.remaining())  # the ledger's, counted on
        return retrieved(_documents(source, kind, found), now=now, max_age=max_age, on_stale=on_stale)

    if inspect.iscoroutinefunction(search):

        async def function(args: Any, attempt: Attempt) -> Any:
            return judged(await search(args, attempt), attempt)
    else:

        def function(args: Any, attempt: Attempt) -> Any:  # type: ignore[misc]
            return judged(search(args, attempt), attempt)

    function.__annotations__["args"] = argument_model(search, parameters=2)
    return home.python(f"{source}.search", effect=Effect.READ, returns=Retrieved, **options)(function)


def _documents(source: str, kind: type[Document], found: Any) -> list[Document]:
    """What a search gave, as documents; UsageError for what is none, so that the call fails and says why."""
    if isinstance(found, str | bytes | Mapping) or not isinstance(found, Sequence):
        raise UsageError(f"the search of {source} must give a list of documents, not {type(found).__name__}")
    try:
        return [one if isinstance(one, kind) else kind.model_validate(_read(one)) for one in found]
    except ValidationError as error:
        told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
        raise UsageError(f"the search of {source} gave what is no document: {told}") from None


def _read(one: Any) -> Any:
    return one.model_dump() if isinstance(one, BaseModel) else one


def retrieved(
    documents: Sequence[Document],
    *,
    now: datetime,
    max_age: timedelta | None,
    on_stale: OnStale = OnStale.WITHHOLD,
) -> dict[str, Any]:
    """The result of a search at this moment, as `Retrieved` has it. NotApplied where stale ones refuse it.

    A document of a moment that has not come is as old as one of now.
    """
    shown: list[dict[str, Any]] = []
    stale: list[dict[str, Any]] = []
    room, left_out = _ROOM, 0
    for document in documents:
        told = document.model_dump(mode="json", exclude_none=True)
        late = max_age is not None and now - document.as_of > max_age
        if late:
            age = int((now - document.as_of).total_seconds())
            stale.append(
                {"id": document.id, "version": document.version, "as_of": told["as_of"], "age_s": age}
            )
        if late and on_stale is not OnStale.MARK:
            continue
        size = len(json.dumps(told))
        if len(shown) >= MOST_DOCUMENTS or size > room:
            left_out += 1
            continue
        room -= size
        shown.append(told | {"stale": True} if late else told)
    if stale and on_stale is OnStale.REFUSE:
        named = ", ".join(f"{one['id']}@{one['version']} as of {one['as_of']}" for one in stale[:5])
        said = f"stale_grounding: {len(stale)} of {len(documents)} documents are stale: {named}"
        raise NotApplied("stale_grounding", said)
    seconds = None if max_age is None else int(max_age.total_seconds())
    return Retrieved(
        documents=shown,
        stale=stale[:MOST_DOCUMENTS],
        stale_left_out=max(len(stale) - MOST_DOCUMENTS, 0),
        left_out=left_out,
        max_age_s=seconds,
        now=rfc3339(now),
    ).model_dump(mode="json", exclude_none=True)


def grounds_of(source: str, result: Any) -> Iterator[dict[str, Any]]:
    """The grounds of a search's result: every document that is in it."""
    for one in result["documents"]:
        yield ground(source, one["id"], one["version"], one["as_of"], stale=bool(one.get("stale")))


def ground(source: str, name: str, version: str, as_of: str | None, *, stale: bool = False) -> dict[str, Any]:
    """One ground as events hold it: bounded text, no number that could be a float."""
    said = {"source": source, "id": name, "version": version, "as_of": as_of or ""}
    told: dict[str, Any] = {key: sanitize(value, MOST_CHARS) for key, value in said.items()}
    return told | {"stale": True} if stale else told


def stale_calls(context: Context, max_age: timedelta | None = None) -> list[str]:
    """For a `verify` function: what of a run's retrieval and memory is stale, one sentence each.

    Searches that were marked stale or had documents withheld, reads of memory that did not see the run's own
    writes; with a `max_age` also documents that were older than it when they were found. A result that is not
    shown whole counts as stale: nobody can tell. What a later search, or read, of the same arguments has put
    right is not named.
    """
    newest: dict[str, CallView] = {}
    for call in context.calls:
        if call.succeeded:
            newest[json.dumps([call.tool, call.arguments], sort_keys=True, default=str)] = call
    return [why for call in newest.values() for why in _stale(call, max_age)]


def _stale(call: CallView, max_age: timedelta | None) -> Iterator[str]:
    result = call.result
    if not isinstance(result, dict):
        return
    if result.get("truncated") or result.get("withheld"):
        yield f"{call.tool} ({call.call_id}): its result is not shown whole"
    elif result.get("stale") is True:
        have, need = result.get("have"), result.get("need")
        yield f"{call.tool} ({call.call_id}): version {have} was known, {need} was written"
    elif isinstance(found := result.get("documents"), list):
        named = {str(one["id"]): str(one["as_of"]) for one in result.get("stale", [])}
        now = parse_rfc3339(result["now"])
        for one in found:
            if max_age is not None and now - parse_rfc3339(one["as_of"]) > max_age:
                named[str(one["id"])] = str(one["as_of"])
        for name, as_of in named.items():
            yield f"{call.tool} ({call.call_id}): document {sanitize(name, 100)} is as of {as_of}"
        if more := result.get("stale_left_out"):
            yield f"{call.tool} ({call.call_id}): {more} more documents are stale"
