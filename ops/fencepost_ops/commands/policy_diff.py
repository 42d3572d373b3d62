"""What differs between two bundles, file by file, and in the tools they were checked against."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass

from fencepost.allowances import counting_anew, read
from fencepost.authority.bundle import Bundle

_TOOLS = "tools"


@dataclass(frozen=True)
class Difference:
    """One file that differs, as the lines of a unified diff."""

    file: str
    lines: tuple[str, ...]


def differences(before: Bundle | None, after: Bundle) -> list[Difference]:
    """The files that differ; all of them where there was no bundle before."""
    old, new = ({} if before is None else _texts(before)), _texts(after)
    found = []
    for name in sorted({*old, *new}):
        lines = difflib.unified_diff(
            old.get(name, "").splitlines(), new.get(name, "").splitlines(), name, name, lineterm=""
        )
        if told := tuple(lines):
            found.append(Difference(name, told))
    return found


def anew(before: Bundle | None, after: Bundle) -> list[str]:
    """A sentence for each allowance that counts from nothing once the second is in force."""
    if before is None:
        return []
    return counting_anew(read(before.allowances), read(after.allowances))


def _texts(bundle: Bundle) -> dict[str, str]:
    tools = {
        name: "\n".join(f"{key}: {json.dumps(value, sort_keys=True)}" for key, value in word.items())
        for name, word in bundle.vocabulary.to_json().items()
    }
    texts = {f"{_TOOLS}/{name}": text for name, text in tools.items()}
    return {**{name: _ordered(name, text) for name, text in bundle.files().items()}, **texts}


def _ordered(name: str, text: str) -> str:
    """A file of JSON with its keys in one order: what was published has forgotten its own."""
    if not name.endswith(".json"):
        return text
    return json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False)
