"""Some of the bench's tools in an application that loads by its name; and bundles of policies for it."""

import json
from decimal import Decimal
from pathlib import Path

from fencepost import App, Effect, Request
from fencepost.authority.bundle import Bundle, read_bundle
from fencepost.authority.vocabulary import vocabulary
from fencepost.money import Money
from tests.integration.ledger_app import Debit

app = App("bench")
wallet = app.dependency("wallet", "http://127.0.0.1:9")


@wallet.http("wallet.debit", effect=Effect.READ)
def debit(args: Debit) -> Request:
    return Request.get("/")


@wallet.http(
    "wallet.pay",
    effect=Effect.READ,
    acts_on=lambda a: ("order", a.order),
    amount=lambda a: Money.of("EUR", Decimal(a.minor) / 100),
)
def pay(args: Debit) -> Request:
    return Request.get("/")


@wallet.http("wallet.note", effect=Effect.READ)
def note(args: Debit) -> Request:
    return Request.get("/")


app.allow("*", tools=["wallet.*"])

APP = "tests.integration.policy_app:app"

DEBITS = '@id("debits") permit (principal, action == Action::"wallet.debit", resource);\n'
NOTES = '@id("notes") permit (principal, action == Action::"wallet.note", resource);\n'
LOOSE = DEBITS + NOTES


def expecting(decision: str, tool: str = "wallet.debit") -> str:
    """A file with one test."""
    request = {
        "tenant": "shop",
        "principal": "svc:checkout",
        "tool": tool,
        "arguments": {"order": "o", "minor": 100},
    }
    test = {"name": f"{tool} is a matter of {decision}", "request": request, "expect": {"decision": decision}}
    return json.dumps({"tests": [test]})


def folder(path: Path, policies: str, **files: str) -> str:
    """The folder of a bundle, written out."""
    texts = {"bundle.json": '{"name": "bench"}', "all.cedar": policies, "README.md": "for people"}
    texts |= {name.replace("__", "/").replace("_", "."): text for name, text in files.items()}
    for name, text in texts.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return str(path)


def bundle(policies: str) -> Bundle:
    words, _ = vocabulary(app.registry)
    made, problems = read_bundle({"bundle.json": '{"name": "bench"}', "all.cedar": policies}, words)
    assert made is not None, problems
    return made
