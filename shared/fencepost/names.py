"""One rule for the names that authority hangs on: of tenants, of principals, and of whoever decides. Pure.

A name has one spelling: letters a to z, digits and `. _ - : @ / + = |`, the first a letter or a digit. So two
names are one person exactly where their texts are equal, and none can be made to look like another by case,
blanks, composed or invisible characters, or letters of another script. Postgres refuses the same (`CHECK`s of
the tables, the functions of producers). Other things' names, such as run keys, are compared as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from fencepost.errors import UsageError

NAME: Final = "[a-z0-9][a-z0-9._:@/+=|-]*"
"""As a regular expression, for Python and for Postgres."""
SPELLING: Final = "names have one spelling: a to z, 0 to 9 and . _ - : @ / + = |, first a letter or digit"
LONGEST: Final = {"tenant": 100, "by": 300}
"""Characters at most; of all others 200. Who decides over HTTP is a principal and its token."""
_LONGEST: Final = 200
_NAME: Final = re.compile(NAME)
_PATTERN: Final = re.compile("[a-z0-9._:@/+=|*-]+")
_SHOWN: Final = 80


def fits(kind: str, text: str) -> bool:
    """Whether this is a name that a tenant, a principal or whoever decides can have."""
    return len(text) <= LONGEST.get(kind, _LONGEST) and _NAME.fullmatch(text) is not None


def named(kind: str, value: Any) -> str:
    """The name as it was given; UsageError, saying what to write, for what is none."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{kind} is a name, not {ascii(value)[:_SHOWN]}: say who; {SPELLING}")
    if not fits(kind, value):
        raise UsageError(f"{kind} {ascii(value)[:_SHOWN]} {_why(kind, value)}")
    return value


def pattern(kind: str, text: str) -> str:
    """A pattern of names, in which `*` stands for any text; UsageError for one that no name can fit."""
    if _PATTERN.fullmatch(text) is None:
        raise UsageError(f"{kind} {ascii(text)[:_SHOWN]} fits no name: {SPELLING} (* stands for any text)")
    return text


def patterns(kind: str, texts: Iterable[str]) -> None:
    """UsageError unless each of these is a pattern of names, or a role, as `role:NAME`."""
    for text in texts:
        if not text.startswith("role:"):
            pattern(kind, text)


def _why(kind: str, text: str) -> str:
    if len(text) > (most := LONGEST.get(kind, _LONGEST)):
        return f"has {len(text)} characters, at most {most} are taken"
    small = text.strip().lower()
    return f"is no name{f', write {small!r}' if fits(kind, small) else ''}: {SPELLING}"


def sql(expression: str, kind: str = "principal") -> str:
    """The same rule as a condition of Postgres."""
    return f"({expression} ~ '^{NAME}$' AND length({expression}) <= {LONGEST.get(kind, _LONGEST)})"
