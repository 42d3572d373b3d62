"""Whether workers may find the secrets that arguments name. No value is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from fencepost.app import App
from fencepost.settings import SECRET_PREFIX
from fencepost_ops.doctor.findings import Area, Finding

_AREA = Area("secrets")


def judge_secrets(folder: str, app: App) -> Iterator[Finding]:
    """Where secrets come from, as this login and machine see it; nothing where no tool may name any."""
    asking = sorted({tool.name for tool in app.registry.values() if tool.secrets})
    if not asking:
        return
    whose = asking[0] if len(asking) == 1 else f"{asking[0]} and {len(asking) - 1} more"
    if app.resolver is not None:
        yield _AREA.note(f"{whose} may name secrets; the application resolves them itself")
        return
    if not folder:
        yield _AREA.note(
            f"{whose} may name secrets; they come from the workers' environment, as {SECRET_PREFIX}*",
            "or set FENCEPOST_SECRETS_DIR to a folder of files TENANT/NAME",
        )
        return
    why = _unreadable(Path(folder))
    if why:
        yield _AREA.problem(
            f"{whose} may name secrets, and their folder {folder} {why}",
            "mend the folder, or name another in FENCEPOST_SECRETS_DIR",
        )
    else:
        yield _AREA.ok(f"{whose} may name secrets; they are read from {folder}, then as {SECRET_PREFIX}*")


def _unreadable(folder: Path) -> str:
    if not folder.is_dir():
        return "does not exist, or is no folder"
    return "" if os.access(folder, os.R_OK | os.X_OK) else "cannot be read by this login"
