"""Cedar text read statement by statement: where each policy stands, its `@id` and its other annotations.

Cedar itself reads any number of policies at once, says no line of a mistake, and calls a policy without `@id`
by its position, which shifts. So a policy here has an id of its own, a permit names its actions, and
annotations are those that mean something:

`@id("…")`          the policy's name in every decision; required, unique in its bundle
`@reason("…")`      what a caller is told when this forbids
`@within("2h")`     how long an approval that this policy asks for may take and then counts
`@unattended("…")`  on a permit: `irreversible`, `tainted` or both: what it allows needs no person for that
`@note("…")`        for whoever reads it
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import Any, Final

from fencepost.authority.nesting import too_deep
from fencepost.canonical import sanitize
from fencepost.errors import UsageError
from fencepost.names import named

ANNOTATIONS: Final = ("id", "reason", "within", "unattended", "note")
IRREVERSIBLE, TAINTED = "irreversible", "tainted"
APPROVE: Final = "approve"
"""The group of the actions of approving."""
OURS: Final = "fencepost."
"""How the ids of the built-in rules begin; no policy's may."""
MAX_POLICIES: Final = 500
"""Of a bundle. So many take up to 5 ms for a decision and 0.3 s to be compiled."""
MAX_TEXT: Final = 256 * 1024
"""Bytes of a bundle's policies together, without what stands between them."""

# A text that does not end goes on to the end of the file: else each of its quotes would be looked at anew.
_TOKEN: Final = re.compile(r'//[^\n]*|"(?:[^"\\]|\\.)*+"?|;', re.DOTALL)
_NAMED: Final = re.compile(r"[\w.:/ -]{1,100}", re.ASCII)
_SPAN: Final = re.compile(r"(?:\d+[smhd])+", re.ASCII)
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_LONGEST: Final = timedelta(days=365)


def cedar() -> ModuleType:
    """The engine's module; UsageError if it is not installed."""
    try:
        import cedarpy
    except ImportError:
        raise UsageError(
            "policies need the Cedar engine; install fencepost[fleet], or cedarpy>=4.12.2"
        ) from None
    return cedarpy


@dataclass(frozen=True)
class Statement:
    """One policy: where it stands, and what it says of itself. `permits` False: it forbids.

    `reads` are the attributes of `context` that it looks at; None: perhaps all of them.
    """

    file: str
    line: int
    text: str
    id: str
    permits: bool
    actions: tuple[str, ...]
    annotations: Mapping[str, str]
    reads: frozenset[str] | None = None

    @property
    def place(self) -> str:
        """File and line, for people."""
        return f"{self.file}:{self.line}"

    @property
    def approves(self) -> bool:
        """Whether it permits to approve something."""
        return self.permits and any(name.partition(" ")[0] == APPROVE for name in self.actions)

    @property
    def within(self) -> timedelta | None:
        """How long an approval it asks for may take, if it says so."""
        text = self.annotations.get("within")
        return None if text is None else parse_span(text)

    @property
    def unattended(self) -> frozenset[str]:
        """On which accounts what it permits needs no person."""
        return frozenset(_words(self.annotations.get("unattended", "")))


def _words(text: str) -> list[str]:
    return [word for word in re.split(r"[,\s]+", text) if word]


def parse_span(text: str) -> timedelta:
    """`90s`, `30m`, `4h`, `7d`, `1h30m`; ValueError for anything else, for zero and for more than a year."""
    if _SPAN.fullmatch(text) and len(text) <= 20:
        span = timedelta(seconds=sum(int(n) * _UNITS[u] for n, u in re.findall(r"(\d+)([smhd])", text)))
        if timedelta(0) < span <= _LONGEST:
            return span
    raise ValueError(f"{sanitize(text, 40)!r} is no span from 1s to 365d such as 30m, 4h or 1h30m")


def span_text(span: timedelta) -> str:
    """The span as `parse_span` reads it."""
    seconds, made = int(span.total_seconds()), ""
    for unit, size in reversed(_UNITS.items()):
        count, seconds = divmod(seconds, size)
        made += f"{count}{unit}" if count else ""
    return made or "0s"


def pieces(text: str) -> Iterator[tuple[int, str]]:
    """Each statement of a Cedar text, with the line of its first word; also what follows the last `;`."""
    begin = 0
    for match in _TOKEN.finditer(text):
        if match[0] == ";":
            yield from _piece(text, begin, match.end())
            begin = match.end()
    yield from _piece(text, begin, len(text))


def _piece(text: str, begin: int, end: int) -> Iterator[tuple[int, str]]:
    at = begin
    while at < end:  # past blanks and comments
        if text[at].isspace():
            at += 1
        elif text.startswith("//", at):
            at = _line_end(text, at, end)
        else:
            yield text.count("\n", 0, at) + 1, text[at:end]
            return


def _line_end(text: str, at: int, end: int) -> int:
    found = text.find("\n", at, end)
    return end if found < 0 else found


def statements(files: Mapping[str, str]) -> tuple[list[Statement], list[str]]:
    """The policies of these texts in the order of their names, and what is wrong, `file:line: sentence`.

    Of more than may be judged none is looked into: every process would have to, and be held up.
    """
    found: list[Statement] = []
    problems: list[str] = []
    places: dict[str, str] = {}
    texts = [(file, line, piece) for file, text in sorted(files.items()) for line, piece in pieces(text)]
    if (why := _too_much([piece for _, _, piece in texts])) is not None:
        return [], [why]
    for file, line, piece in texts:
        try:
            one = _statement(file, line, piece)
        except (ValueError, UsageError) as error:
            problems.append(f"{file}:{line}: {sanitize(error, 300)}")
            continue
        if one.id in places:
            problems.append(f"{one.place}: the id {one.id} is taken by the policy at {places[one.id]}")
            continue
        places[one.id] = one.place
        found.append(one)
    return found, problems


def _too_much(texts: list[str]) -> str | None:
    size = sum(len(text.encode()) for text in texts)
    if len(texts) <= MAX_POLICIES and size <= MAX_TEXT:
        return None
    return (
        f"there are {len(texts)} policies of {size} bytes, and a bundle holds at most {MAX_POLICIES} of "
        f"{MAX_TEXT}: each call is judged by all of them; let one policy speak of a role or an attribute, "
        "not of each principal"
    )


def _statement(file: str, line: int, text: str) -> Statement:
    if (why := too_deep(text)) is not None:
        raise ValueError(why)
    parsed = json.loads(cedar().policies_to_json_str(text))
    if parsed["templates"]:
        raise ValueError("a template (?principal, ?resource) cannot be linked here; write a policy")
    policies: list[dict[str, Any]] = list(parsed["staticPolicies"].values())
    if len(policies) != 1:
        raise ValueError(f"{len(policies)} policies where one was expected")
    policy = policies[0]
    annotations = {name: value or "" for name, value in policy.get("annotations", {}).items()}
    permits = policy["effect"] == "permit"
    _check_annotations(annotations, permits)
    action = policy["action"]
    if permits and action["op"] == "All":
        raise ValueError(
            'a permit names its actions: write action in Action::"tools" for every tool (approving is apart)'
        )
    chosen = action.get("entities", [action["entity"]] if "entity" in action else [])
    actions = tuple(str(one["id"]) for one in chosen)
    for name in _principals(policy):
        named("principal", name)
    reads = context_reads(policy["conditions"])
    return Statement(file, line, text, annotations["id"], permits, actions, annotations, reads)


_CONTEXT: Final = {"Var": "context"}


def context_reads(node: Any) -> frozenset[str] | None:
    """The attributes of `context` named in Cedar's own JSON of an expression; None where it stands alone."""
    found: set[str] = set()
    waiting = [node]
    while waiting:  # not by recursion: a worker has used up part of Python's stack already
        one = waiting.pop()
        if one == _CONTEXT:
            return None
        if not isinstance(one, dict):
            waiting.extend(one if isinstance(one, list) else ())
            continue
        access = one.get(".", one.get("has"))
        if len(one) == 1 and isinstance(access, dict) and access.get("left") == _CONTEXT:
            found.add(access["attr"])
        else:
            waiting.extend(one.values())
    return frozenset(found)


def _principals(node: Any) -> Iterator[str]:
    """The principals that a policy names: a forbid of one that nobody is called would forbid nothing."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            if set(one) == {"type", "id"} and one["type"] == "Principal":
                yield str(one["id"])
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)


def union_of(reads: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    """All that any of them reads; None if one may read everything."""
    found: set[str] = set()
    for one in reads:
        if one is None:
            return None
        found |= one
    return frozenset(found)


def _check_annotations(annotations: Mapping[str, str], permits: bool) -> None:
    for name in annotations:
        if name not in ANNOTATIONS:
            raise ValueError(f"@{name} means nothing; known are {', '.join('@' + a for a in ANNOTATIONS)}")
    name = annotations.get("id", "")
    if not name:
        raise ValueError('the policy has no name; put @id("…") in front of it')
    if not _NAMED.fullmatch(name) or name != name.strip():
        raise ValueError(
            f"the id {sanitize(name, 60)!r} must be 1 to 100 of letters, digits, blanks and '_.:/-'"
        )
    if name.startswith(OURS):
        raise ValueError(f"ids that begin with {OURS} belong to the built-in rules; rename {name}")
    if "within" in annotations:
        parse_span(annotations["within"])
    if "unattended" in annotations:
        if not permits:
            raise ValueError(
                "@unattended belongs on a permit; a forbid says in `unless` when it does not hold"
            )
        words = _words(annotations["unattended"])
        if not words or not set(words) <= {IRREVERSIBLE, TAINTED}:
            raise ValueError(f"@unattended names {IRREVERSIBLE}, {TAINTED} or both")
