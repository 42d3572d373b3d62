import json
from datetime import timedelta
from typing import Any

import pytest

from fencepost.authority.bundle import Bundle, read_bundle
from fencepost.authority.cedar import CedarEngine
from fencepost.authority.compiled import Compiled, InvalidBundle
from fencepost.authority.policytests import PolicyTestFile, run_tests
from fencepost.authority.statements import parse_span, pieces, span_text
from fencepost.authority.vocabulary import vocabulary
from fencepost.contracts import Effect
from fencepost.tools import Request
from tests.unit.policies_app import WORDS, Look, app, bundle

ANY = '@id("x") permit (principal, action in Action::"tools", resource);'
SETTINGS = '{"name": "shop"}'


def problems(**files: str) -> list[str]:
    """What is wrong with a folder: its reading, or else its compiling."""
    named = {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
    made, found = read_bundle({"bundle.json": SETTINGS, "a.cedar": ANY, **named}, WORDS)
    if made is None:
        return found
    try:
        Compiled(made)
    except InvalidBundle as error:
        return list(error.problems)
    return []


WRONG: list[tuple[dict[str, str], str]] = [
    ({"a_cedar": "permit (principal, action, resource);"}, "a.cedar:1: the policy has no name"),
    ({"a_cedar": f"{ANY}\n// one\n\n  {ANY}"}, "a.cedar:4: the id x is taken by the policy at a.cedar:1"),
    ({"b_cedar": ANY}, "b.cedar:1: the id x is taken by the policy at a.cedar:1"),
    ({"a_cedar": f'{ANY}\n@id("y") permit (principal, action,\n resource)'}, "a.cedar:2: unexpected end"),
    ({"a_cedar": '\n@id("y") permit (principle, action, resource);'}, "a.cedar:2: found an invalid variable"),
    ({"a_cedar": '@id("y") permit (principal, action, resource);'}, "a.cedar:1: a permit names its actions"),
    (
        {"a_cedar": '@id("y") permit (principal == ?principal, action == Action::"wallet.look", resource);'},
        "a.cedar:1: a template",
    ),
    ({"a_cedar": '@id("fencepost.x") forbid (principal, action, resource);'}, "belong to the built-in rules"),
    ({"a_cedar": '@id("a;b") forbid (principal, action, resource);'}, "the id 'a;b' must be"),
    ({"a_cedar": '@id("y") @unatended("tainted") forbid (principal, action, resource);'}, "@unatended means"),
    ({"a_cedar": '@id("y") @within("soon") forbid (principal, action, resource);'}, "'soon' is no span"),
    ({"a_cedar": '@id("y") @within("0s") forbid (principal, action, resource);'}, "'0s' is no span"),
    ({"a_cedar": '@id("y") @unattended("tainted") forbid (principal, action, resource);'}, "on a permit"),
    ({"a_cedar": ANY.replace(")", ') @unattended("all")', 1)}, "@unattended names irreversible, tainted"),
    ({"a_cedar": ANY.replace("tools", "wallet.debti")}, "a.cedar:1: unrecognized action"),
    ({"a_cedar": ANY.replace(";", " when { context.arguments.memo == 1 };")}, "a.cedar:1: attribute"),
    ({"a_cedar": ANY.replace(";", " when { context.tenant == 1 };")}, "a.cedar:1: the types"),
    ({"schema_cedarschema": "entity Role;"}, "schema.cedarschema: error parsing schema: `Role` is declared"),
    ({"schema_cedarschema": "entity {"}, "schema.cedarschema: error parsing schema"),
    ({"bundle_json": "{}"}, "bundle.json:1: name: Field required"),
    ({"bundle_json": '{"name": "a b"}'}, "bundle.json:1: name: String should match"),
    ({"bundle_json": '{\n"name": "a",\n"colour": 1}'}, "bundle.json:3: colour: Extra inputs"),
    ({"bundle_json": '{"name": "a",\n"name": "b"}'}, "the key 'name' appears twice"),
    ({"bundle_json": '{"name": "a",\n]'}, "bundle.json:2: $: not JSON"),
    (
        {"bundle_json": '{"name": "a", "approval":\n {"within": "1y"}}'},
        "bundle.json:2: approval.within:",
    ),
    ({"bundle_json": '{"name": "a",\n "allowances": [{"id": "i"}]}'}, "bundle.json:2: allowance i cannot be"),
    ({"entities_json": "{}"}, "entities.json:1: it must be a list"),
    ({"entities_json": "[1]"}, "entity 1: an entity is"),
    ({"entities_json": '[{"uid": "Role::\\"a\\""}]'}, "entity 1: an entity is named as"),
    ({"entities_json": '[{"uid": {"type": "Resource", "id": "a"}}]'}, "made for each request"),
    ({"entities_json": '[{"uid": {"type": "Role", "id": "a"}, "attrs": {"b": 1}}]'}, "has no attributes"),
    (
        {"entities_json": '[{"uid": {"type": "Role", "id": "a"}, "parents": [{"type": "Box", "id": "b"}]}]'},
        "the parents of a Role are roles",
    ),
    ({"entities_json": '[{"uid": {"type": "Bx", "id": "a"}}]'}, "entities.json: error during entity"),
    (
        {
            "entities_json": '[{"uid": {"type": "Role", "id": "a"},'
            ' "parents": [{"type": "Role", "id": "b"}]},'
            ' {"uid": {"type": "Role", "id": "b"}, "parents": [{"type": "Role", "id": "a"}]}]'
        },
        "entities.json: transitive closure",
    ),
    (
        {"entities_json": json.dumps([{"uid": {"type": "Principal", "id": "a"}}] * 2)},
        "the principal a is there twice",
    ),
    ({"tests__a_json": "{}"}, "tests/a.json:1: tests: Field required"),
    (
        {
            "tests__a_json": '{"tests": [\n{"name": "n", "request":\n'
            '{"tenant": "t", "principal": "p", "tool": "x",\n'
            '"amount": {"currency": "EUR", "amount_minor": 1, "scale": 3}},'
            ' "expect": {"decision": "allow"}}]}'
        },
        "tests/a.json:4: tests.0.request.amount",
    ),
    ({"notes_txt": "x"}, "notes.txt: a bundle holds bundle.json"),
    ({"tests__deep__a_json": "{}"}, "tests/deep/a.json: a bundle holds"),
]


@pytest.mark.parametrize(("files", "says"), WRONG)
def test_what_is_wrong_is_said_with_file_and_line(files: dict[str, str], says: str) -> None:
    found = problems(**files)
    assert any(says in problem for problem in found), found
    assert all("\n" not in problem for problem in found)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found = problems(
        a_cedar="permit (principal, action, resource);\n"
        '@id("b") permit (principal, action in Action::"no", resource);',
        b_cedar='@id("c") forbid (principal, action, resource) when { context.tenant };',
    )
    assert [problem.split(":", 2)[:2] for problem in found][:2] == [["a.cedar", "1"], ["a.cedar", "2"]]
    assert found[-1].startswith("b.cedar:1: ")


def test_a_folder_without_policies_or_settings_is_none() -> None:
    assert any("there are no policies" in one for one in read_bundle({"bundle.json": SETTINGS}, WORDS)[1])
    assert any("bundle.json is missing" in one for one in read_bundle({"a.cedar": ANY}, WORDS)[1])


def test_a_sound_folder_has_no_problems() -> None:
    assert problems() == []


def test_statements_end_at_their_own_semicolons() -> None:
    text = '// a; b\n@id("a;b") permit (x) when { "\\";" == ";" }; // c;\n\n  forbid (y)\n;\n// end'
    assert list(pieces(text)) == [
        (2, '@id("a;b") permit (x) when { "\\";" == ";" };'),
        (4, "forbid (y)\n;"),
    ]


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("1h30m", 5400), ("7d", 604800), ("24h", 86400)])
def test_spans(text: str, seconds: int) -> None:
    assert parse_span(text) == timedelta(seconds=seconds)
    assert parse_span(span_text(parse_span(text))) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "1", "h", "1w", "-1h", "1.5h", "366d", "0h", "1h 30m", "9" * 30 + "d"])
def test_what_is_no_span(text: str) -> None:
    with pytest.raises(ValueError, match="is no span"):
        parse_span(text)


FULL: dict[str, str] = {
    "bundle_json": '{"name": "shop", "approval": {"within": "48h"}, "allowances": [{"id": "a", "count": 3}]}',
    "schema_cedarschema": "entity Box { size: Long };",
    "entities_json": '[{"uid": {"type": "Box", "id": "b"}, "attrs": {"size": 2}, "parents": []}]',
    "tests__first_json": json.dumps(
        {
            "tests": [
                {
                    "name": "n",
                    "request": {
                        "tenant": "t",
                        "principal": "p",
                        "tool": "wallet.debit",
                        "arguments": {"order_id": "o", "account": "a"},
                        "amount": {"currency": "EUR", "amount_minor": 1, "scale": 2},
                        "at": "2026-01-05T13:00:00+01:00",
                    },
                    "expect": {"decision": "allow", "deciding": ["x"]},
                }
            ]
        }
    ),
}


def test_a_bundle_is_the_same_after_publishing_and_after_its_folder_is_written_out() -> None:
    made = bundle(ANY, **FULL)
    again = Bundle.unpack(made.pack())
    assert (again.pack(), again.digest) == (made.pack(), made.digest)
    assert again.within == timedelta(hours=48)
    written, found = read_bundle(again.files(), WORDS)
    assert found == []
    assert written is not None
    assert written.digest == made.digest
    spaced = {**FULL, "bundle_json": FULL["bundle_json"].replace(",", " ,\n")}
    assert bundle(ANY, **spaced).digest == made.digest, "how JSON is written is no difference"


@pytest.mark.parametrize("name", [*FULL, "policies", "tools"])
def test_the_digest_changes_with_every_part(name: str) -> None:
    made = bundle(ANY, **FULL)
    if name == "policies":
        assert bundle(ANY + " ", **FULL).digest != made.digest
    elif name == "tools":
        words, _ = vocabulary({key: tool for key, tool in app.registry.items() if key[0] != "mail.send"})
        fewer, _ = read_bundle(made.files(), words)
        assert fewer is not None
        assert fewer.digest != made.digest
    else:
        rest = {key: text for key, text in FULL.items() if key != name}
        assert bundle(ANY, **rest).digest != made.digest


def test_a_tool_cannot_have_the_name_of_a_group() -> None:
    from fencepost import App

    other = App("other")
    wallet = other.dependency("wallet", "http://127.0.0.1:9")

    @wallet.http("approve", effect=Effect.READ)
    def approve(args: Look) -> Request:
        return Request.get("/")

    _, found = vocabulary(other.registry)
    assert found == ["tool approve: policies need this name for a group of actions; give the tool another"]


def outcomes(**expect: Any) -> list[str]:
    request = {"tenant": "t", "principal": "p", "tool": "wallet.refund", "arguments": {"debit": "d"}}
    file = {"tests": [{"name": "n", "request": request, "expect": expect}]}
    made = bundle(ANY, tests__a_json=json.dumps(file))
    (outcome,) = run_tests(made.tests, CedarEngine(Compiled(made)))
    assert outcome.passed == (not outcome.differences)
    return list(outcome.differences)


def test_a_policy_test_says_what_differs() -> None:
    right = {
        "decision": "approval",
        "deciding": ["fencepost.irreversible"],
        "code": "approval_required",
        "persons": 1,
        "within": "24h",
    }
    assert outcomes(**right) == []
    assert outcomes(decision="approval") == []
    for name, wrong, says in [
        ("decision", "allow", "decision approval, expected allow"),
        ("deciding", ["x"], "decided by fencepost.irreversible, expected x"),
        ("code", "policy_denied", "code approval_required, expected policy_denied"),
        ("persons", 2, "persons 1, expected 2"),
        ("within", "1h", "within 1d, expected 1h"),
    ]:
        (difference,) = outcomes(**{**right, name: wrong})
        assert says in difference


def test_a_policy_test_may_ask_who_may_approve() -> None:
    request = {"tenant": "t", "principal": "p", "tool": "wallet.refund", "arguments": {"debit": "d"}}
    tests = [
        {"name": name, "request": {**request, "approver": approver}, "expect": {"decision": decision}}
        for name, approver, decision in [
            ("a controller", {"principal": "ann", "roles": ["controller"]}, "allow"),
            ("a clerk", {"principal": "carl", "roles": ["clerk"]}, "deny"),
            ("who asks for it", {"principal": "p", "roles": ["controller"]}, "deny"),
        ]
    ]
    policies = '@id("c") permit (principal in Role::"controller", action in Action::"approve", resource);'
    made = bundle(policies, tests__a_json=json.dumps({"tests": tests}))
    assert [one.differences for one in run_tests(made.tests, CedarEngine(Compiled(made)))] == [(), (), ()]


def test_the_form_of_tests_is_published_as_a_json_schema() -> None:
    schema = PolicyTestFile.model_json_schema()
    assert schema["required"] == ["tests"]
    assert schema["additionalProperties"] is False
