"""How deep a Cedar text nests, told from its words alone, before Cedar parses it. PURE.

Cedar's parser takes stack for every bracket and has no limit of its own: some hundred brackets within each
other end the process. So a text is measured first. What is told is never less than the tree that Cedar makes
of it, and where a text is no Cedar at all it is counted as if it were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

BRACKETS: Final = 50
"""How deep parentheses, brackets and braces may stand within each other; Cedar takes stack for each."""
TERMS: Final = 200
"""How many operators deep an expression may be; each is two levels of JSON, of Python's 1000 in all."""

# As Cedar's own lexer reads them: a comment ends at either kind of line end, an escape is no line end. A text
# that does not end is taken to where it breaks off, and Cedar gives up, so that each character is read once.
_WORD: Final = re.compile(
    r'//[^\n\r]*|"(?:[^"\\]|\\[^\n])*+"?|\|\||&&|[=!<>]=|::|[()\[\]{},.<>=!+*-]|[A-Za-z_][A-Za-z0-9_]*'
)
_OPENING: Final = {"(": ")", "[": "]", "{": "}"}
_CLOSING: Final = frozenset(_OPENING.values())
_WHOLE: Final = frozenset({"if", "when", "unless"})
_INNER: Final = frozenset("+-*!.<>([") | {"==", "!=", "<=", ">=", "has", "like", "in", "is"}


@dataclass(slots=True)
class _Level:
    """What stands between two brackets: operators by how loosely they bind, and the deepest under each."""

    closes: str
    wholes: int = 0
    ors: int = 0
    ands: int = 0
    inner: int = 0
    of_ands: int = 0
    of_ors: int = 0
    deepest: int = 0

    def _end_and(self) -> None:
        self.of_ands, self.inner = max(self.of_ands, self.inner), 0

    def _end_or(self) -> None:
        self._end_and()
        self.of_ors, self.ands, self.of_ands = max(self.of_ors, self.ands + self.of_ands), 0, 0

    def _end(self) -> None:
        self._end_or()
        self.deepest = max(self.deepest, self.wholes + self.ors + self.of_ors)
        self.wholes, self.ors, self.of_ors = 0, 0, 0

    def read(self, word: str) -> None:
        """Count a word that is no closing bracket."""
        if word == ",":
            self._end()
        elif word == "||":
            self._end_or()
            self.ors += 1
        elif word == "&&":
            self._end_and()
            self.ands += 1
        elif word in _WHOLE:
            self.wholes += 1
        elif word in _INNER:
            self.inner += 1

    def total(self, inside: int = 0) -> int:
        """How deep it is, when the deepest of its brackets is so deep."""
        self._end()
        return self.deepest + inside


def measured(text: str) -> tuple[int, int]:
    """How many brackets deep, and at most how many operators deep, a Cedar text is.

    It ends at the first bracket that is one too deep.
    """
    stack = [(_Level(""), 0)]
    brackets = 0
    for word in _words(text):
        level, inside = stack[-1]
        if word in _CLOSING:
            if word == level.closes:  # one that closes nothing makes nothing less deep
                stack.pop()
                above, deepest = stack[-1]
                stack[-1] = above, max(deepest, level.total(inside))
            continue
        level.read(word)
        if word in _OPENING:
            stack.append((_Level(_OPENING[word]), 0))
            brackets = max(brackets, len(stack) - 1)
            if brackets > BRACKETS:
                break
    found = 0
    for level, inside in reversed(stack):
        found = level.total(max(inside, found))
    return brackets, found


def nested_types(schema: str) -> str | None:
    """Why a Cedar schema is not parsed, None if it may be. `Set<…>` nests as brackets do."""
    found = measured(schema.replace("<", "(").replace(">", ")"))[0]
    return _BRACKETS if found > BRACKETS else None


def _words(text: str) -> Iterator[str]:
    for match in _WORD.finditer(text):
        if not match[0].startswith(("//", '"')):
            yield match[0]


_BRACKETS: Final = f"more than {BRACKETS} brackets stand within each other; take some out"


def too_deep(text: str) -> str | None:
    """Why a Cedar text is not parsed, None if it may be."""
    brackets, terms = measured(text)
    if brackets > BRACKETS:
        return _BRACKETS
    if terms > TERMS:
        return (
            f"an expression is {terms} operators deep, and at most {TERMS} may be; name what is alike in a"
            " set (in […]), or write several policies"
        )
    return None
