"""The argument models of the golden vectors; run, it hashes the vectors in a process of its own.

The vectors are data: `golden.json` holds for each model a text a planner may write, its canonical text and
its hash. Whoever changes one of the latter changes HASH_VERSION, and keeps the old rule for old hashes.
"""

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from fencepost.canonical import HASH_VERSION
from fencepost.contracts import Contract, Effect
from fencepost.dependencies import DependencySpec
from fencepost.fields import DecimalText, Instant, TenantId, Unordered
from fencepost.money import Money
from fencepost.proposals import Rejected, Validated, validate
from fencepost.secrets import SecretRef
from fencepost.tools import Proposal, Tool

VECTORS = Path(__file__).with_name("golden.json")


class Free(BaseModel):
    """Any JSON value."""

    value: Any


class Carrier(StrEnum):
    SEA = "sea"
    AIR = "air"


class Line(BaseModel):
    model_config = ConfigDict(frozen=True)

    sku: str
    quantity: int = 1


class Payment(BaseModel):
    order: TenantId[Literal["order"]]
    amount: Money
    due: Instant
    rate: DecimalText
    note: str = ""


class Shipment(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    id: UUID
    carrier: Carrier = Carrier.SEA
    lines: Unordered[Line]
    windows: Unordered[Instant] = frozenset()
    tags: set[str] = set()
    insured: Unordered[Money] = frozenset()
    to: dict[str, TenantId[Literal["address"]]] = Field(alias="sendTo")


class Login(BaseModel):
    user: str
    password: SecretRef


MODELS: dict[str, type[BaseModel]] = {model.__name__: model for model in (Free, Payment, Shipment, Login)}


def tool(model: type[BaseModel]) -> Tool:
    return Tool(
        name=model.__name__.lower(),
        version=1,
        kind="http",
        effect=Effect.READ,
        dependency=DependencySpec("golden"),
        contract=Contract(),
        arguments=model,
        secrets=("mailbox/*",),
    )


def checked(model: str, given: str) -> Validated | Rejected:
    made = tool(MODELS[model])
    proposal = Proposal(made.name, given)
    return validate(proposal, tools={made.name: made}, tenant="shop", run_id="r", turn=1, ordinal=0)


def main() -> None:
    for vector in json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]:
        found = checked(vector["model"], vector["given"])
        assert isinstance(found, Validated), (vector["given"], found)
        line = json.dumps([found.arguments, found.arguments_hash, hash("seed"), HASH_VERSION])
        sys.stdout.buffer.write(line.encode() + b"\n")


if __name__ == "__main__":
    main()
