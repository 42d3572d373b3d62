"""The policies that ship with the example hold, and each of them is there for a reason that a test knows."""

from dataclasses import replace
from pathlib import Path

import fencepost_ops.examples
from fencepost.authority.cedar import CedarEngine
from fencepost.authority.compiled import Compiled
from fencepost.authority.policytests import run_tests
from fencepost_ops.commands.policy_folder import checked
from fencepost_ops.examples.orders import app

FOLDER = Path(fencepost_ops.examples.__file__).parent / "orders_policy"


def test_the_example_is_sound_and_its_tests_pass() -> None:
    found = checked(FOLDER, app)
    assert (found.problems, found.notes) == ((), ())
    assert [outcome.differences for outcome in found.tests()] == [()] * 17


def test_without_any_one_of_its_policies_a_test_fails() -> None:
    engine = checked(FOLDER, app).usable()
    bundle, (name,) = engine.compiled.bundle, engine.compiled.bundle.policies
    assert len(engine.compiled.statements) == 7
    for statement in engine.compiled.statements.values():
        left = {name: bundle.policies[name].replace(statement.text, "")}
        less = CedarEngine(Compiled(replace(bundle, policies=left)))
        assert statement.id not in less.compiled.statements
        assert not all(one.passed for one in run_tests(bundle.tests, less)), statement.id
