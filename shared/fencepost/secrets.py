"""Secrets as arguments: a reference by name, never the value. PURE.

What is proposed, hashed, authorised, approved and stored is the name. The stored request holds a placeholder
where the value goes, and the fingerprint covers that. The value is asked for at the dispatch, after the
COMMIT, by `App.secrets`, for the run's own tenant; it is put on the wire or handed to the Python tool, and
hidden in all that comes back.

Nothing is recorded of a value, not even a keyed digest: it is first known after the claim's COMMIT, and a
digest recorded with the outcome would be missing exactly where it matters, after a lost attempt. So a repeat
may carry a later value of the same name; whoever must exclude that puts a version into the name.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from pydantic import GetCoreSchemaHandler
from pydantic_core import core_schema

from fencepost.canonical import digest
from fencepost.errors import UsageError
from fencepost.fields import refusal

MAX_NAME: Final = 200
CONTEXT: Final = "fencepost.arguments"
"""Under which validation is told what the arguments are that it reads."""
WIRE: Final = "fencepost.wire"
"""Under which serialization is told to write placeholders."""
PLACEHOLDER: Final = re.compile(r"fencepost-secret-[0-9a-f]{48}")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*(?:/[A-Za-z0-9][A-Za-z0-9_.@-]*)*", re.ASCII)
NAMES_A_SECRET: Final = "a secret, by its name"  # noqa: S105 - no password
"""How the JSON Schema of an argument says so."""
_SCHEMA: Final = {
    "type": "object",
    "description": NAMES_A_SECRET,
    "properties": {"secret": {"type": "string", "maxLength": MAX_NAME}},
    "required": ["secret"],
    "additionalProperties": False,
}

Resolver = Callable[[str, str], str | None]
"""From a tenant and a name to the value, or None where there is none. It may block; it is called in a thread,
at each attempt anew. What it raises is reported by its type only."""


def declared(tool: str, patterns: Sequence[str]) -> tuple[str, ...]:
    """What a tool's `secrets=` says, as a tuple; UsageError if it is no list of names or patterns."""
    if isinstance(patterns, str) or not all(patterns):
        raise UsageError(f"secrets= of tool {tool} is a list of names or patterns, such as ['mailbox/*']")
    return tuple(patterns)


class SecretRef:
    """An argument that names a secret: `{"secret": "mailbox/anna"}`.

    The tool has to be declared with `secrets=` patterns that cover the name, or step 4 refuses it. In a
    request `str(ref)` is the placeholder: for a header, a query, a field of a JSON or form body.
    """

    __slots__ = ("_of", "name")

    def __init__(self, name: str, *, of: str = "") -> None:
        if len(name) > MAX_NAME or not _NAME.fullmatch(name):
            raise ValueError(
                f"a secret's name is letters, digits and _.@-, in parts divided by /, {MAX_NAME} at most"
            )
        self.name = name
        self._of = of

    @property
    def placeholder(self) -> str:
        """What stands for the value in a stored request.

        It depends on the whole arguments, so that no text among them can be the placeholder of a secret.
        """
        return "fencepost-secret-" + digest("fencepost.placeholder.v1", [self._of, self.name])[:48]

    def __str__(self) -> str:
        return self.placeholder

    def __repr__(self) -> str:
        return f"SecretRef({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretRef) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: Any, _handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.with_info_plain_validator_function(
            _read,
            serialization=core_schema.plain_serializer_function_ser_schema(
                _written, info_arg=True, when_used="json"
            ),
            metadata={"pydantic_js_functions": [lambda *_: dict(_SCHEMA)]},
        )


def _read(value: object, info: core_schema.ValidationInfo) -> SecretRef:
    of = str((info.context or {}).get(CONTEXT, ""))
    name = value.name if isinstance(value, SecretRef) else None
    if isinstance(value, dict) and set(value) == {"secret"}:
        name = value["secret"]
    try:
        return SecretRef(name if isinstance(name, str) else "", of=of)
    except ValueError as error:  # never with the value: it may be the secret itself
        raise refusal("secret", f'a secret is given by its name, {{"secret": "name"}}: {error}') from None


def _written(ref: SecretRef, info: core_schema.SerializationInfo) -> object:
    return ref.placeholder if info.context == WIRE else {"secret": ref.name}


def placeheld(value: object) -> str:
    """For an encoder of JSON: a reference as its placeholder; TypeError for anything else."""
    if isinstance(value, SecretRef):
        return value.placeholder
    raise TypeError(f"{type(value).__name__} is not JSON")


class Secret:
    """A resolved value, as a Python tool is handed it: `attempt.secret(args.password).reveal()`.

    Neither its text nor its representation shows it, and it is not pickled, copied or written as JSON.
    """

    __slots__ = ("_value", "name")

    def __init__(self, name: str, value: str) -> None:
        self.name = name
        self._value = value

    def reveal(self) -> str:
        """The value itself: for the call that needs it, and nowhere else."""
        return self._value

    def __str__(self) -> str:
        return "***"

    def __repr__(self) -> str:
        return f"Secret({self.name!r}, ***)"

    def __format__(self, _spec: str) -> str:
        return "***"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(
            self._value.encode("utf-8", "surrogatepass"), other._value.encode("utf-8", "surrogatepass")
        )

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled or copied")
