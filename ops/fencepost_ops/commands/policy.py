"""`fencepost policy`: check, test, publish and compare the policies that decide who may have what done."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from fencepost.authority.bundle import Bundle
from fencepost.authority.cedar import CedarEngine
from fencepost.authority.policytests import Outcome, PolicyTestFile
from fencepost.authority.vocabulary import vocabulary
from fencepost.canonical import reveal, sanitize
from fencepost.errors import UsageError
from fencepost_ops.commands.output import plain, print_json
from fencepost_ops.commands.policy_folder import FOLDER, Checked, checked
from fencepost_ops.commands.policy_versions import diff, history, publish, show
from fencepost_ops.commands.sayings import cut
from fencepost_ops.commands.session import Session, app_option, json_option, pass_session

_LINE: Final = 600  # characters of one problem


@click.group()
def policy() -> None:
    """Check, test, publish and compare policies.

    A bundle is a folder of bundle.json and *.cedar, and optionally schema.cedarschema, entities.json and
    tests/*.json. Once one is published for a tenant it decides there, in place of the application's grants.
    """


for _command in (publish, diff, history, show):
    policy.add_command(_command)


@policy.command()
@click.argument("folder", type=FOLDER)
@app_option
@json_option
@pass_session
def check(session: Session, folder: Path, as_json: bool) -> None:
    """Read a bundle and hold it against the application's tools.

    Every problem is one line with file and line. Exit code 1 if there is one. Notes are not problems: they
    say what policies cannot see, and what the bundle leaves undone.
    """
    found = checked(folder, session.need_app())
    if as_json:
        print_json(_described(found))
    else:
        for problem in found.problems:
            click.echo(reveal(sanitize(problem, _LINE)))
        for note in found.notes:
            click.echo(f"note: {reveal(sanitize(note, _LINE))}")
        if found.engine is not None and found.bundle is not None:
            click.echo(_summary(found.bundle, found.engine))
    click.get_current_context().exit(1 if found.problems else 0)


def _summary(bundle: Bundle, engine: CedarEngine) -> str:
    tests = sum(map(len, bundle.tests.values()))
    counts = (
        f"{len(engine.compiled.statements)} policies, {tests} tests, {len(bundle.vocabulary.words)} tools"
    )
    return f"{bundle.name}: {counts}, digest {bundle.digest[:16]}"


def _described(found: Checked) -> dict[str, Any]:
    return {
        "name": found.bundle.name if found.bundle is not None else None,
        "digest": found.bundle.digest if found.bundle is not None else None,
        "policies": sorted(found.engine.compiled.statements) if found.engine is not None else [],
        "tests": sum(map(len, found.bundle.tests.values())) if found.bundle is not None else 0,
        "problems": list(found.problems),
        "notes": list(found.notes),
    }


@policy.command()
@click.argument("folder", type=FOLDER)
@app_option
@json_option
@pass_session
def test(session: Session, folder: Path, as_json: bool) -> None:
    """Ask a bundle's own tests, without a ledger.

    Exit code 1 if one fails, or if there is none.
    """
    found = checked(folder, session.need_app())
    found.usable()
    outcomes = found.tests()
    failed = [outcome for outcome in outcomes if not outcome.passed]
    if as_json:
        print_json([_outcome(one) for one in outcomes])
    else:
        for outcome in failed:
            click.echo(f"{outcome.file}: {cut(outcome.name)}: {'; '.join(outcome.differences)}")
        told = f"{len(outcomes) - len(failed)} of {len(outcomes)} tests pass"
        click.echo(told if outcomes else "there are no tests; write some into tests/*.json")
    click.get_current_context().exit(1 if failed or not outcomes else 0)


def _outcome(outcome: Outcome) -> dict[str, Any]:
    decision = asdict(outcome.decision)
    return {
        "file": outcome.file,
        "name": outcome.name,
        "passed": outcome.passed,
        "differences": list(outcome.differences),
        "decision": plain(decision),
    }


@policy.command()
@click.option("--tests", is_flag=True, help="The JSON Schema of tests/*.json instead.")
@app_option
@pass_session
def schema(session: Session, tests: bool) -> None:
    """Print the Cedar schema that policies for this application are written against."""
    if tests:
        print_json(PolicyTestFile.model_json_schema())
        return
    words, problems = vocabulary(session.need_app().registry)
    if problems:
        raise UsageError("; ".join(problems))
    click.echo(words.schema(), nl=False)
