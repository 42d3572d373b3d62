"""How much of a tool's output is kept, and what of it a planner is shown. PURE.

Output is data that somebody else wrote. All of it that fits is kept as it came, under its hash, for operators
and for what offsets the effect; a planner is shown the declared fields of it (`promote`), up to a size, and
of what is longer the start, with the hash it is kept under. What a planner is shown follows from the stored
bytes and the tool's declaration alone, so that every rebuild of a context gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

from fencepost.canonical import sanitize
from fencepost.errors import UsageError

MAX_OUTPUT_BYTES: Final = 1024 * 1024
"""Of one result, as kept; transports read no more of an answer either."""
INLINE_BYTES: Final = 16 * 1024
KEPT_OF_CUT: Final = 64 * 1024
"""Of a result that is too long to be kept, its first bytes at most."""
_DEPTH: Final = 16


@dataclass(frozen=True, slots=True)
class Output:
    """What becomes of a tool's output. Sizes count its JSON text in UTF-8.

    `promote` names the fields a planner is shown, `a.b` within objects and within every item of a list; None:
    all of it. UsageError for sizes that cannot be, and for a path that is none.
    """

    max_bytes: int = MAX_OUTPUT_BYTES
    inline_bytes: int = INLINE_BYTES
    promote: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name, value, most in (
            ("max_output_bytes", self.max_bytes, MAX_OUTPUT_BYTES),
            ("inline_bytes", self.inline_bytes, MAX_OUTPUT_BYTES),
        ):
            if type(value) is not int or not 1024 <= value <= most:
                raise UsageError(
                    f"{name} is a whole number from 1024 to {most}, not {sanitize(repr(value), 40)}"
                )
        if isinstance(self.promote, str):
            raise UsageError(f"promote is a tuple of paths; write promote=({self.promote!r},)")
        for path in self.promote or ():
            if not all(path.split(".")) or path.count(".") >= _DEPTH:
                raise UsageError(f"promote names fields such as 'status' or 'order.id', not {path!r:.60}")

    def row(self) -> dict[str, Any]:
        """All of it, for the digest of a tool's definition."""
        promote = None if self.promote is None else list(self.promote)
        return {"max_bytes": self.max_bytes, "inline_bytes": self.inline_bytes, "promote": promote}


USUAL: Final = Output()


def bounded(text: str, most: int = MAX_OUTPUT_BYTES, *, whole: bool = True) -> str:
    """`text`, or if it is longer than `most` bytes an object with its start that says so.

    `whole` False: it is the beginning of an answer of which the rest was not read.
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if whole and size <= most:
        return text
    start = _start(text, min(KEPT_OF_CUT, most // 2))
    return json.dumps({"truncated": True, "bytes": size if whole else None, "start": start})


def _start(text: str, room: int) -> str:
    """The longest beginning that takes no more than `room` bytes as a JSON string."""
    kept = text[:room]
    while (over := len(json.dumps(kept)) - room) > 0:
        kept = kept[: len(kept) - max(1, over // 6)]
    return kept


def shown(data: bytes, output: Output) -> Any:
    """What a planner is shown of a kept result: a JSON value, made anew from the same bytes each time.

    What cannot be read as JSON is one text, of which no field can be declared.
    """
    value: Any = None
    if output.promote is not None:
        value = promoted(_loaded(data), output.promote)
        data = json.dumps(value).encode()
    if len(data) > output.inline_bytes:
        text = data.decode("utf-8", "surrogatepass")
        start = _start(text, output.inline_bytes // 2)
        kept = hashlib.sha256(data).hexdigest() if output.promote is None else None
        return {"truncated": True, "bytes": len(data), "start": start, "kept_under": kept}
    return _loaded(data) if output.promote is None else value


def withheld(data: bytes) -> Any:
    """What a planner is shown of a result where nobody says what of it may be shown."""
    return {"withheld": True, "bytes": len(data), "kept_under": hashlib.sha256(data).hexdigest()}


def told_error(error: str | None, output: Output, *, ours: bool) -> str | None:
    """What a planner is told of a failure. With declared fields only, none of the downstream's own words."""
    if error is None or ours or output.promote is None:
        return error
    return "it failed; what its downstream said is kept for operators"


def told_receipt(receipt: str | None, output: Output, field: object) -> str | None:
    """A receipt is a field of the result like any other: shown if `field`, its name, is declared."""
    declared = output.promote is None or (isinstance(field, str) and field in output.promote)
    return receipt if declared else None


def promoted(value: Any, paths: tuple[str, ...]) -> Any:
    """The declared fields of a value and nothing else; of a list, those of each item. None where none is."""
    names: dict[str, list[str]] = {}
    for path in paths:
        name, _, rest = path.partition(".")
        names.setdefault(name, []).append(rest)
    return _picked(value, names, 0)


def _picked(value: Any, names: dict[str, list[str]], depth: int) -> Any:
    if isinstance(value, list) and depth < _DEPTH:
        return [_picked(item, names, depth + 1) for item in value]
    if not isinstance(value, dict):
        return None
    picked: dict[str, Any] = {}
    for name, rests in names.items():
        if name in value:
            below = tuple(rest for rest in rests if rest)
            picked[name] = value[name] if "" in rests else promoted(value[name], below)
    return picked


def _loaded(data: bytes) -> Any:
    text = data.decode("utf-8", "surrogatepass")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
