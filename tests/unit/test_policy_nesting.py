import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from fencepost.authority.bundle import Bundle
from fencepost.authority.cedar import CedarEngine
from fencepost.authority.inforce import Engines, Unusable, compiled
from fencepost.authority.nesting import BRACKETS, TERMS, measured, too_deep
from fencepost.authority.statements import statements
from tests.unit.policies_app import WORDS

T = TypeVar("T")
HEAD = 'permit (principal, action in Action::"tools", resource) when { '
NAMED = '@id("a") ' + HEAD


def ored(count: int) -> str:
    return " || ".join(f'principal == Principal::"svc:{number}"' for number in range(count))


def bundle(condition: str) -> Bundle:
    return Bundle("deep", {"all.cedar": "\n" + NAMED + condition + " };"}, WORDS)


@pytest.mark.parametrize(
    ("condition", "brackets", "operators"),
    [
        ("true", 1, 0),
        ("((true))", 3, 2),
        ("a || b || c", 1, 2),
        ("a == b || c == d && !e", 1, 3),
        ("if a then b else if c then d else e", 1, 2),
        ("x.y.z.contains([1, 2, [3]])", 4, 6),
        ("{a: 1 + 1, b: 2 + 2 + 2}.a == 1", 2, 4),
        (r'"((((" == "\"(((("', 1, 1),
        ("true // (((( || ||\n && true", 1, 1),
        ("true // a comment ends here\r && ((true))", 3, 3),
        ("( ] ( ] (", 4, 3),
        ('"no end ((((', 1, 0),
    ],
)
def test_how_deep_a_condition_is_told_to_be(condition: str, brackets: int, operators: int) -> None:
    found = measured("when { " + condition + " }")
    assert found == (brackets, operators + 1)  # `when`


def test_a_policy_too_deep_is_named_by_file_and_line_and_what_is_alike_may_be_a_set() -> None:
    assert too_deep(HEAD + "(" * (BRACKETS - 1) + "true" + ")" * (BRACKETS - 1) + " }") is None
    (deep,) = statements({"all.cedar": "\n" + NAMED + "(" * 1000 + "true" + ")" * 1000 + " };"})[1]
    assert deep == f"all.cedar:2: more than {BRACKETS} brackets stand within each other; take some out"
    (long,) = statements({"all.cedar": NAMED + ored(300) + " };"})[1]
    assert long.startswith("all.cedar:1: an expression is 303 operators deep")
    assert f"at most {TERMS} may be" in long
    many = ", ".join(f'Principal::"svc:{number}"' for number in range(300))
    assert not statements({"all.cedar": f"{NAMED}principal in [{many}] }};"})[1]


def under(frames: int, work: Callable[[], T]) -> T:
    return work() if frames == 0 else under(frames - 1, work)


@pytest.mark.parametrize("frames", [0, 300])
def test_what_checks_also_compiles_deep_in_a_workers_stack(frames: int) -> None:
    text = bundle(ored(TERMS - 5)).pack()
    compiled.cache_clear()
    assert isinstance(under(frames, lambda: Engines().add(1, text)), CedarEngine)


@pytest.mark.parametrize(
    "made",
    [
        bundle("(" * 20_000 + "true" + ")" * 20_000),
        bundle("[" * 20_000 + "1" + "]" * 20_000 + " == [1]"),
        bundle("true // \r && " + "(" * 20_000 + "true" + ")" * 20_000),
        replace(bundle("true"), schema="type X = " + "Set<" * 20_000 + "Long" + ">" * 20_000 + ";"),
        replace(bundle("true"), schema="type X = " + "{a: " * 20_000 + "Long" + "}" * 20_000 + ";"),
    ],
    ids=["parentheses", "sets", "behind a comment", "a schema of sets", "a schema of records"],
)
def test_what_was_published_by_other_means_denies_and_ends_no_process(made: Bundle) -> None:
    program = (
        "import sys; from fencepost.authority.inforce import Engines;"
        " print(Engines().add(1, sys.stdin.read()).why)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        input=made.pack(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f"more than {BRACKETS} brackets" in ran.stdout
    assert isinstance(Engines().add(1, made.pack()), Unusable)


def test_a_text_that_does_not_end_is_read_once() -> None:
    text = '"' + '\\"' * 400_000
    assert measured(text) == (0, 0)
    assert statements({"all.cedar": text})[1]
