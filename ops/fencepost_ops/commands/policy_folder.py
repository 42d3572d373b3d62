"""A policy bundle's folder, read and held against an application's tools."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from fencepost.app import App
from fencepost.authority.bundle import Bundle, read_bundle
from fencepost.authority.cedar import CedarEngine
from fencepost.authority.compiled import Compiled, InvalidBundle
from fencepost.authority.policytests import Outcome, run_tests
from fencepost.authority.statements import APPROVE
from fencepost.authority.vocabulary import vocabulary
from fencepost.errors import FencepostError, UsageError

FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
"""The parameter that names one."""
_LARGEST: Final = 4 * 1024 * 1024  # bytes of one file; a published bundle is far smaller


def files_of(folder: Path) -> dict[str, str]:
    """The texts of a folder and of its `tests`, by relative name; UsageError for what cannot be read.

    Names that begin with a point, and those that end in `.md`, are left out.
    """
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if any(part.startswith(".") for part in name.split("/")) or name.endswith(".md") or path.is_dir():
            continue
        try:
            if path.stat().st_size > _LARGEST:
                raise UsageError(f"{path} is too large to be part of a policy")
            found[name] = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            raise UsageError(f"{path} is not UTF-8 at byte {error.start}") from None
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    return found


@dataclass(frozen=True)
class Checked:
    """A folder as it was read: the bundle, if it reads, its engine, if it compiles, and what is wrong."""

    bundle: Bundle | None
    engine: CedarEngine | None
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def tests(self) -> list[Outcome]:
        """What became of its tests."""
        if self.bundle is None or self.engine is None:
            return []
        return list(run_tests(self.bundle.tests, self.engine))

    def usable(self) -> CedarEngine:
        """Its engine; FencepostError naming what is wrong."""
        if self.engine is None:
            raise FencepostError("the policies cannot be used: " + "; ".join(self.problems))
        return self.engine


def checked(folder: Path, app: App) -> Checked:
    """Read a folder and compile it against the application's tools."""
    words, problems = vocabulary(app.registry)
    bundle, found = read_bundle(files_of(folder), words)
    problems += found
    engine = None
    if bundle is not None:
        try:
            engine = CedarEngine(Compiled(bundle))
        except InvalidBundle as error:
            problems += error.problems
    notes = [f"policies cannot read {entry}" for entry in words.left_out]
    if engine is not None and not engine.compiled.approves:
        notes.append(f'no policy permits Action::"{APPROVE}", so what needs an approval can never be done')
    return Checked(bundle, None if problems else engine, tuple(problems), tuple(notes))
