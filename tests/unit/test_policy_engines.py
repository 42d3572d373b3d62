import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from fencepost.authority import (
    Approver,
    AuthorizationDecision,
    AuthorizationRequest,
    approve_safely,
    decide_safely,
)
from fencepost.authority.cedar import engine_of
from fencepost.authority.inforce import Engines, compiled
from fencepost.authority.statements import statements
from tests.unit.policies_app import bundle, engine
from tests.unit.policy_questions import (
    ANN,
    ANY,
    ASKED,
    ENGINE,
    POLICIES,
    REQUEST,
    money,
)


def test_the_digests_name_what_was_judged() -> None:
    digests = ENGINE.decide(REQUEST).digests
    assert ENGINE.decide(replace(REQUEST)).digests == digests

    def changed(**changes: Any) -> set[str]:
        now = ENGINE.decide(replace(REQUEST, **changes)).digests
        return {name for name in digests if now[name] != digests[name]}

    assert changed(attempt=2) == {"request"}
    assert changed(amount=money(1)) == {"request"}
    assert changed(roles=("clerk",)) == {"entities"}
    assert changed(tenant="other") == {"entities", "request"}
    assert changed(run="another", call="another") == set(), "which call it is no policy sees"
    other = engine(POLICIES + "// a remark").decide(REQUEST).digests
    assert other["schema"] == digests["schema"]


def test_a_published_text_decides_alike_in_another_process() -> None:
    text = ENGINE.compiled.bundle.pack()
    again = engine_of(text, "7")
    assert again.digest == ENGINE.digest
    assert again.compiled.bundle.pack() == text
    for request in ASKED:
        assert again.decide(request) == ENGINE.decide(request)


class Limits:
    """A second engine: a function of the request, in plain Python."""

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        if request.tool == "wallet.broken":
            raise LookupError("no limit for it")
        amount = request.amount
        fine = amount is not None and amount.amount_minor <= {"EUR": 5000}[amount.currency]
        return AuthorizationDecision(fine, "within limits" if fine else "too much", "limits-1", ("limits",))


@pytest.mark.parametrize("authority", [ENGINE, Limits()])
def test_two_engines_stand_behind_one_port(authority: Any) -> None:
    assert decide_safely(authority, REQUEST).allowed
    above = decide_safely(authority, replace(REQUEST, amount=money(5001)))
    assert (above.allowed, above.code) == (False, "policy_denied")
    assert not decide_safely(authority, replace(REQUEST, amount=money(1, "JPY"))).allowed
    assert not decide_safely(authority, replace(REQUEST, tool="wallet.broken")).allowed
    assert not approve_safely(authority, REQUEST, Approver("nobody")).allowed


def test_engines_are_kept_by_version_and_forgotten_when_there_are_too_many() -> None:
    engines = Engines(kept=2)
    text = ENGINE.compiled.bundle.pack()
    assert engines.engine(1) is None
    for version in (1, 2):
        engines.add(version, text)
    one, two = engines.engine(1), engines.engine(2)
    assert one is not None
    assert two is not None
    assert (one.decide(REQUEST).policy_version, two.decide(REQUEST).policy_version) == ("1", "2")
    assert one.compiled is two.compiled, "one text is compiled once"  # type: ignore[attr-defined]
    assert engines.engine(1) is one
    engines.add(3, text)
    assert engines.engine(2) is None, "the one asked for longest ago is gone"
    assert engines.engine(1) is one
    assert compiled(text) is one.compiled  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ('{"format": 2}', "format 1"),
        ('{"format": 1}', "KeyError"),
        (
            bundle(f"{ANY};").pack().replace("permit", "premit"),
            "invalid policy effect",
        ),
        (
            bundle(f"{ANY};").pack().replace("egress", "eggress"),
            "not described as policies keep it",
        ),
    ],
)
def test_a_version_that_cannot_be_used_denies_everything(text: str, says: str) -> None:
    engines = Engines()
    engines.add(4, text)
    unusable = engines.engine(4)
    assert unusable is not None
    decision = decide_safely(unusable, REQUEST)
    assert (decision.allowed, decision.code, decision.policy_version) == (False, "policy_error", "4")
    assert "policy 4 cannot be used" in decision.reason
    assert says in decision.reason
    assert not approve_safely(unusable, REQUEST, ANN).allowed


def test_without_cedar_the_kernel_loads_and_a_policy_denies_in_one_sentence() -> None:
    program = """
import sys
sys.modules["cedarpy"] = None
import fencepost
from fencepost.authority.inforce import Engines
engines = Engines()
engines.add(1, sys.stdin.read())
print(engines.engine(1).why)
"""
    text = ENGINE.compiled.bundle.pack()
    done = subprocess.run(
        [sys.executable, "-c", program], input=text, capture_output=True, text=True, check=True, timeout=60
    )
    assert (
        done.stdout.strip() == "policies need the Cedar engine; install fencepost[fleet], or cedarpy>=4.12.2"
    )


@pytest.mark.parametrize(
    ("condition", "reads"),
    [
        ('context.tenant == "a" && context has amount && context.amount.minor < 3', {"tenant", "amount"}),
        ('context["now"] < datetime("2026-01-01")', {"now"}),
        ('context.arguments has memo && context.arguments.memo like "*"', {"arguments"}),
        ('if principal.name == "context" then context.tainted else !context.egress', {"tainted", "egress"}),
        ('[context.tool, "b"].contains(context.effect)', {"tool", "effect"}),
        ("context has amount.minor && context.amount.minor > 1", {"amount"}),
        ("true", set()),
        ("[context].isEmpty()", None),
        ("context == context", None),
    ],
)
def test_what_a_policy_reads_of_its_context(condition: str, reads: set[str] | None) -> None:
    text = f"{ANY} when {{ {condition} }} unless {{ 1 == 2 }};"
    (found,), problems = statements({"a.cedar": text})
    assert problems == []
    assert found.reads == reads


def test_what_no_policy_reads_is_kept_from_cedar_and_changes_no_decision() -> None:
    whole = engine(POLICIES, entities_json=json.dumps(ENGINE.compiled.bundle.value["entities"]))
    assert whole.compiled._seen is not None
    assert "definition" not in whole.compiled._seen
    whole.compiled._seen, whole.compiled._asked_by = None, whole.compiled._schema
    for request in ASKED:
        for approvals in range(4):
            one = replace(request, approvals=approvals)
            assert whole.decide(one) == ENGINE.decide(one)
            assert whole.may_approve(one, ANN) == ENGINE.may_approve(one, ANN)


def test_policies_that_count_no_approvals_are_asked_once() -> None:
    plain = engine(f'{ANY} unless {{ context.tenant == "shop" }};')
    asked: list[int] = []
    ask = plain.compiled._ask

    def counting(questions: list[Any], *rest: Any) -> Any:
        asked.append(len(questions))
        return ask(questions, *rest)

    plain.compiled._ask = counting
    assert plain.decide(REQUEST).code == "policy_denied"
    assert asked == [1, 1]


def test_where_the_validator_finds_that_more_is_read_everything_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fencepost.authority.compiled.union_of", lambda _reads: frozenset({"tool"}))
    wrong = engine(POLICIES, entities_json=json.dumps(ENGINE.compiled.bundle.value["entities"]))
    assert wrong.compiled._seen is None
    for request in ASKED:
        assert wrong.decide(request) == ENGINE.decide(request)
