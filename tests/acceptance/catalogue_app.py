"""The acceptance application and one tool per entry of the catalogue, sent to the sandbox's imitation of it.

Only workers import this. Each tool says what its entry says and nothing else; its dependency is its own, so
that none waits for another.
"""

from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from fencepost import Effect, Request
from fencepost.contracts.carriers import PATH_MARK, Place
from fencepost.contracts.catalogue import ENTRIES
from fencepost.contracts.entries import Entry
from tests.acceptance.apps import SECOND, app

__all__ = ["app"]


class Order(BaseModel):
    reference: str
    amount_minor: int = 100


class Made(BaseModel):
    id: str


def declare(entry: Entry) -> None:
    """A tool `published.NAME` with the entry's contract, key and, where the contract has one, lookup."""
    name = f"published.{entry.name}"
    at = f"/imitations/{entry.name}"
    dependency = app.dependency(
        name,
        "env:FENCEPOST_SANDBOX_URL",
        per_attempt=2 * SECOND,
        grace=SECOND,
        reserve=SECOND,
        margin=SECOND,
        backoff=timedelta(milliseconds=50),
        backoff_cap=timedelta(milliseconds=500),
        reconcile_for=30 * SECOND,
    )

    def send(args: Order) -> Request:
        body = {"reference": args.reference, "amount_minor": args.amount_minor}
        if entry.key is not None and entry.key.place is Place.PATH:
            return Request.put(f"{at}/objects/{PATH_MARK}", json=body, headers={"If-None-Match": "*"})
        return Request.post(f"{at}/make", json=body)

    def find(args: Order, key: str) -> Request:
        assert entry.contract.lookup is not None
        by: dict[str, Any] = {"reference": args.reference, "key": key}
        return Request.get(f"{at}/found", query={entry.contract.lookup.by: by[entry.contract.lookup.by]})

    tool = dependency.http(
        name,
        effect=Effect.IRREVERSIBLE,
        returns=Made,
        intent=lambda a: ("order", a.reference),
        contract=entry.contract,
        key=entry.key,
    )(send)
    if entry.contract.lookup is not None:
        tool.lookup(find)


for _entry in ENTRIES.values():
    declare(_entry)
