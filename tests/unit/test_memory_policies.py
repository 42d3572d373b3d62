"""Policies speak of memory and of sources as resources: who may write which keys, and after what."""

from dataclasses import replace
from typing import Any

import pytest

from fencepost import App
from fencepost.authority.bundle import read_bundle
from fencepost.authority.cedar import CedarEngine
from fencepost.authority.compiled import Compiled
from fencepost.authority.vocabulary import vocabulary
from fencepost.contracts import Effect
from fencepost.memory import Write
from fencepost.retrieval import Document
from fencepost.tools import Attempt
from tests.unit.policy_questions import REQUEST
from tests.unit.test_retrieval import Query

POLICIES = """
@id("all") permit (principal, action in Action::"tools", resource);
@id("rules are ours") forbid (principal, action in Action::"reversible", resource)
when { resource.kind == "memory" && resource.name like "notes/rules-*" };
@id("one key")
forbid (principal, action == Action::"notes.write", resource == Resource::"memory/notes/frozen");
@id("no poison") forbid (principal, action in Action::"reversible", resource)
when { resource.kind == "memory" && context.tainted };
@id("no gossip") forbid (principal, action, resource == Resource::"retrieval/gossip");
"""


def remembering() -> App:
    app = App("remembering")
    app.memory("notes")

    def search(args: Query, attempt: Attempt) -> list[Document]:
        return []

    app.retrieval("docs", search=search)
    app.retrieval("gossip", search=search)
    return app


APP = remembering()


@pytest.mark.parametrize(
    ("tool", "key", "tainted", "allowed"),
    [
        ("notes.write", "plan", False, True),
        ("notes.read", "plan", True, True),
        ("notes.write", "plan", True, False),
        ("notes.restore", "plan", True, False),
        ("notes.write", "rules-1", False, False),
        ("notes.read", "rules-1", False, True),
        ("notes.write", "frozen", False, False),
        ("notes.write", "frozen/2", False, True),
        ("docs.search", "", False, True),
        ("gossip.search", "", False, False),
    ],
)
def test_who_may_remember_what(tool: str, key: str, tainted: bool, allowed: bool) -> None:
    words, problems = vocabulary(APP.registry)
    files = {"bundle.json": '{"name": "remembering"}', "all.cedar": POLICIES}
    bundle, wrong = read_bundle(files, words)
    assert (problems, wrong) == ([], [])
    assert bundle is not None
    known = APP.tool(tool)
    assert known.acts_on is not None
    args = Write(key=key, value=1, expected=0) if key else Query(query="q")
    named: dict[str, dict[str, Any]] = {
        "notes.write": {"key": key, "expected": 0},
        "notes.restore": {"key": key, "to": 0, "expected": 1},
        "notes.read": {"key": key},
    }
    request = replace(
        REQUEST,
        tool=tool,
        tool_version=1,
        effect=Effect(known.effect),
        arguments=named.get(tool, {"query": "q"}),
        amount=None,
        resource=known.acts_on(args),
        tainted=tainted,
    )
    assert CedarEngine(Compiled(bundle), "1").decide(request).allowed is allowed
