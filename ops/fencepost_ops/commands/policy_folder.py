"""A policy bundle's folder, read and held against an application's tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
from pydantic import ValidationError

from fencepost.app import App
from fencepost.authority.bundle import SETTINGS, Bundle, read_bundle
from fencepost.authority.cedar import CedarEngine
from fencepost.authority.compiled import Compiled, InvalidBundle
from fencepost.authority.policytests import Outcome, PolicyTest, TestedResource, run_tests
from fencepost.authority.statements import APPROVE
from fencepost.authority.vocabulary import vocabulary
from fencepost.canonical import encode, sanitize
from fencepost.errors import FencepostError, UsageError
from fencepost.misfits import misfits
from fencepost.proposals import canonical_value

FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
"""The parameter that names one."""
_LARGEST: Final = 4 * 1024 * 1024  # bytes of one file; a published bundle is far smaller


def files_of(folder: Path) -> dict[str, str]:
    """The texts of a folder and of its `tests`, by relative name; UsageError for what cannot be read.

    Names that begin with a point, and those that end in `.md`, are left out. Nothing is read of a folder
    without `bundle.json`, which is no bundle.
    """
    if not (folder / SETTINGS).is_file():
        raise UsageError(f'{folder} is no bundle: {SETTINGS} is missing; write {{"name": "…"}} into it')
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
            more = len(self.problems) - 1
            rest = f" (and {more} more; fencepost policy check lists them)" if more > 0 else ""
            raise FencepostError(f"the policies cannot be used: {self.problems[0]}{rest}")
        return self.engine


def checked(folder: Path, app: App) -> Checked:
    """Read a folder and compile it against the application's tools."""
    words, problems = vocabulary(app.registry)
    bundle, found = read_bundle(files_of(folder), words)
    problems, wrong = [*problems, *found], list[str]()
    if bundle is not None:
        tests, wrong = _completed(bundle.tests, app)
        bundle = replace(bundle, tests=tests)
    engine = None
    if bundle is not None:
        try:
            engine = CedarEngine(Compiled(bundle))
        except InvalidBundle as error:
            problems += error.problems
    problems += wrong  # a test often fails for what is wrong with a policy
    notes = [f"policies cannot read {entry}" for entry in words.left_out]
    if engine is not None and not engine.compiled.approves:
        notes.append(f'no policy permits Action::"{APPROVE}", so what needs an approval can never be done')
    return Checked(bundle, None if problems else engine, tuple(problems), tuple(notes))


def _completed(
    tests: Mapping[str, tuple[PolicyTest, ...]], app: App
) -> tuple[dict[str, tuple[PolicyTest, ...]], list[str]]:
    """The tests with what a real request would have: arguments with their defaults, and what the tool says
    they act on and move, where the test does not say so itself. And those whose arguments the tool refuses.
    """
    problems: list[str] = []
    made: dict[str, tuple[PolicyTest, ...]] = {}
    for file, listed in tests.items():
        done = []
        for test in listed:
            try:
                done.append(_complete(test, app))
            except Exception as error:  # noqa: BLE001 - models and functions of the application may raise anything
                why = sanitize(_why(error).replace("\n", " "), 200)
                problems.append(
                    f"{file}: test {sanitize(test.name, 80)}: {test.request.tool} would not take this: {why}"
                )
        made[file] = tuple(done)
    return made, problems


def _why(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(one.told() for one in misfits(error))


def _complete(test: PolicyTest, app: App) -> PolicyTest:
    asked = test.request
    newest = app.tools.get(asked.tool)
    tool = app.registry.get((asked.tool, asked.version)) if asked.version else newest
    if tool is None:  # a test may ask about what there is not
        return test
    args = tool.read_arguments(encode(asked.arguments).decode())
    more: dict[str, Any] = {"arguments": canonical_value(args)}
    if asked.amount is None and tool.amount is not None:
        more["amount"] = tool.amount(args)
    if asked.resource is None and tool.acts_on is not None:
        kind, name = tool.acts_on(args)
        more["resource"] = TestedResource(type=kind, id=name)
    return test.model_copy(update={"request": asked.model_copy(update=more)})
