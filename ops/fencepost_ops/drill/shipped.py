"""The protocols that come with the package, by name: each shows one failure and what becomes of it."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from fencepost.errors import UsageError
from fencepost_ops.drill.protocol import Protocol, parse_protocol, read_protocol

FOLDER: Final[Traversable] = files("fencepost_ops.drill") / "protocols"
_SUFFIX: Final = ".json"


def shipped_names() -> list[str]:
    """The names of all shipped protocols, sorted."""
    return sorted(one.name.removesuffix(_SUFFIX) for one in FOLDER.iterdir() if one.name.endswith(_SUFFIX))


def shipped_protocol(name: str) -> Protocol:
    """The shipped protocol of this name. UsageError for a name that none has."""
    if name not in shipped_names():
        raise UsageError(f"no protocol is called {name!r}; `fencepost drill --list` shows those there are")
    return parse_protocol((FOLDER / f"{name}{_SUFFIX}").read_text("utf-8"), name)


def find_protocol(place: str) -> Protocol:
    """The protocol in a file, or the shipped one of that name; a file goes first. UsageError for neither."""
    path = Path(place)
    if path.is_file():
        return read_protocol(path)
    if path.suffix == _SUFFIX or "/" in place:
        raise UsageError(
            f"there is no file {place}; `fencepost drill --list` shows the protocols that come along"
        )
    return shipped_protocol(place)
