"""What is declared is tried when it is declared."""

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    computed_field,
    field_serializer,
    field_validator,
)

from fencepost import App, Attempt, Contract, Effect, Lookup, Proposal, Request
from fencepost.fields import DecimalText, Instant, TenantId, Unordered
from fencepost.money import Money
from fencepost.samples import NoSample, samples
from fencepost.secrets import SecretRef


class Args(BaseModel):
    order: str
    amount: Annotated[int, Field(gt=5, lt=9)] = 7


BLANK = Args(order="a b")


class Receipt(BaseModel):
    id: str


def app_of(
    *,
    arguments: type[BaseModel] = Args,
    returns: type[BaseModel] | None = Receipt,
    request: Callable[[Any], Request] = lambda a: Request.post("/x", json=a),
    lookup: Callable[[Any, str], Request] = lambda a, key: Request.get(f"/x/{key}"),
    compensate: Callable[[Any, Any], Any] = lambda a, r: Proposal("undo", {"order": "o"}),
    **options: Any,
) -> App:
    made = App("tried")
    made.allow("*", ["*", "t", "undo"])
    home = made.dependency("w", "env:NOT_SET_ANYWHERE")

    def send(args: Any) -> Request:
        return request(args)

    send.__annotations__ = {"args": arguments}
    given: dict[str, Any] = {
        "returns": returns,
        "intent": lambda a: ("t", *dict(a).values()),
        "contract": Contract(lookup=Lookup(strong=True)),
    }
    given |= options
    tool = home.http("t", effect=Effect.REVERSIBLE, **given)(send)
    tool.lookup(lookup)
    tool.compensate(compensate)

    @home.python(
        "undo",
        effect=Effect.IRREVERSIBLE,
        returns=Receipt,
        intent=lambda a: (a.order,),
        contract=Contract(lookup=Lookup(strong=True)),
    )
    def undo(args: Args, attempt: Attempt) -> None:
        raise AssertionError("a Python tool is never run by a trial")

    @undo.lookup
    def done(args: Args, attempt: Attempt) -> None:
        raise AssertionError("nor does it ask")

    return made


def test_what_can_be_built_has_neither_problems_nor_notes() -> None:
    made = app_of()
    assert made.check() == []
    assert made.notes() == []


class Aliased(BaseModel):
    id: str = Field(validation_alias="transactionId")


class Computed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: str

    @computed_field
    def twice(self) -> str:
        return self.id * 2


class LastFour(BaseModel):
    id: str

    @field_serializer("id")
    def _last(self, value: str) -> str:
        return f"**{value[-4:]}"


class Unlikely(BaseModel):
    id: str

    @field_validator("id")
    @classmethod
    def _checked(cls, value: str) -> str:
        if value != "the only one":
            raise ValueError("it is another")
        return value

    @field_serializer("id")
    def _last(self, value: str) -> str:
        return f"**{value[-4:]}"


class Masked(BaseModel):
    id: SecretStr
    plain: str


class Excluded(BaseModel):
    id: str | None = Field(default=None, exclude=True)
    plain: str


class Stars(BaseModel):
    inner: list[Masked]


class Priced(BaseModel):
    price: float


def back(field: str) -> Callable[[Any, Any], Proposal]:
    return lambda _args, result: Proposal("undo", {"order": getattr(result, field)})


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"returns": Aliased}, "does not read back from what is stored of it: transactionId.*use alias="),
        ({"returns": Computed}, "does not read back from what is stored of it: twice"),
        ({"returns": LastFour}, r"id was 'sample' and is '\*\*mple'"),
        ({"returns": Unlikely}, r"serializers of its own, not proved.*Field\(examples="),
        ({"returns": Masked, "compensate": back("id")}, "reads id of its result, which is not kept"),
        ({"returns": Excluded, "compensate": back("id")}, "reads id of its result, which is not kept"),
        ({"arguments": Masked}, "argument id is masked.*SecretRef"),
        ({"arguments": Stars}, "argument id is masked.*SecretRef"),
        ({"arguments": Excluded}, "argument id is excluded"),
        ({"lookup": lambda a, key: Request.get(f"/x?key={key}")}, "lookup: .*hold no '\\?'"),
        ({"lookup": lambda a, key: Request.get(f"/x/\n{key}")}, "lookup: .*white space"),
        (
            {"lookup": lambda a, key: Request.get(f"https://other.test/{key}")},
            "lookup: .*not among the hosts",
        ),
        ({"request": lambda a: Request.post("https://other.test/x")}, "request: .*not among the hosts"),
        ({"request": lambda a: Request.post("/x", json={"at": Decimal(1)})}, "request: TypeError: Decimal"),
        ({"intent": lambda a: ("t", a.amount / 2)}, "intent: .*float.*minor units"),
        ({"intent": lambda a: a.order}, "intent: .*must give a tuple"),
        ({"compensate": lambda a, r: Proposal("undone", {})}, "proposes undone, which is no tool"),
        (
            {"compensate": lambda a, r: Proposal("undo", {"ordr": "o"})},
            "that it does not take: ord",
        ),
        ({"compensate": lambda a, r: None}, "gives NoneType, not a Proposal"),
        ({"examples": [{"order": 5}]}, r"examples\[0\] is no argument of it: order"),
        (
            {"examples": [Args(order="a b")], "lookup": lambda a, key: Request.get(f"/x/{a.order}")},
            "lookup: .*'/x/a b'",
        ),
        (
            {"examples": [Args(order="x")], "intent": lambda a: (int(a.order),)},
            "intent: ValueError: invalid literal",
        ),
        (
            {"examples": [Args(order="x")], "check": lambda a: a.order == "y"},
            "check: .*refuses these arguments",
        ),
    ],
)
def test_what_a_run_would_fail_at_is_found_when_it_is_declared(declared: dict[str, Any], said: str) -> None:
    (problem,) = app_of(**declared).check()
    assert re.search(said, problem), problem
    assert "(test_rehearsal.py:" in problem


def test_masked_and_excluded_fields_may_be_there_where_nobody_reads_them() -> None:
    assert app_of(returns=Masked, compensate=back("plain")).check() == []
    assert app_of(returns=Excluded, compensate=back("plain")).check() == []


@pytest.mark.parametrize(
    "part", [Decimal("1.5"), timedelta(hours=1), b"x", Path("a"), [Decimal(1)], {"a": frozenset({b"x"})}]
)
def test_an_intent_takes_whatever_has_one_text(part: object) -> None:
    assert app_of(intent=lambda a: ("t", part)).check() == []


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"intent": lambda a: (a.order.split("-")[1],)}, "its intent was not tried: .*IndexError"),
        ({"intent": lambda a: (int(a.order),)}, "its intent was not tried: .*ValueError"),
        (
            {"compensate": lambda a, r: Proposal("undo", {"order": int(r.id)})},
            "its compensation was not tried",
        ),
        ({"compensate": lambda a, r: Proposal("undo", {"order": r.id, "amount": 1})}, "of a made-up result"),
        ({"arguments": Unlikely}, r"was not tried: no arguments.*add examples=\[Unlikely\(id=...\)\]"),
    ],
)
def test_what_made_up_values_cannot_show_is_a_note_and_stops_nothing(
    declared: dict[str, Any], said: str
) -> None:
    made = app_of(**declared)
    assert made.check() == []
    (note,) = made.notes()
    assert re.search(said, note), note


@pytest.mark.parametrize("declared", ["request", "compensate"])
def test_a_function_that_ends_its_process_is_a_note(declared: str) -> None:
    ending: dict[str, Any] = {declared: lambda *_given: sys.exit(0)}
    made = app_of(**ending)
    assert made.check() == []
    (note,) = made.notes()
    assert "SystemExit" in note


def test_what_a_function_prints_is_no_output_of_ours(capfd: pytest.CaptureFixture[str]) -> None:
    def request(args: Any) -> Request:
        sys.stdout.write(f"building {args.order}\n")
        return Request.post("/x")

    assert app_of(request=request).check() == []
    said = capfd.readouterr()
    assert said.out == ""
    assert "building sample" in said.err


def test_a_process_that_a_function_forks_ends_with_the_trial(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    program = (
        "import os\n"
        "from tests.unit.test_rehearsal import Request, app_of\n"
        "def request(args):\n"
        "    os.fork()\n"
        "    return Request.post('/x')\n"
        "assert app_of(request=request).check() == []\n"
        f"os.write(os.open({str(trace)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND), b'.')\n"
    )
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=root, stdout=subprocess.PIPE, check=True, timeout=60
    )
    assert ended.stdout == b"", "and all of them have ended, for nobody holds the pipe any more"
    assert trace.read_text() == "."


def test_an_example_takes_the_place_of_what_is_made_up() -> None:
    made = app_of(intent=lambda a: (a.order.split("-")[1],), examples=[Args(order="o-1"), {"order": "o-2"}])
    assert made.check() == made.notes() == []


def test_free_text_that_is_a_path_or_a_url_is_tried_as_one() -> None:
    assert app_of(request=lambda a: Request.post(a.order)).check() == []


class Every(BaseModel):
    money: Money
    order: TenantId[Literal["order"]]
    exact: DecimalText
    at: Instant
    tags: Unordered[str]
    secret: SecretRef
    code: str = Field(pattern=r"^ord_[0-9a-f]{8}(-x|y)?$")
    few: list[Receipt] = Field(min_length=1)
    span: timedelta
    word: Literal["p", "q"]
    told: str = Field(examples=["told"], pattern="^told$")
    short: str = Field(max_length=3)
    step: int = Field(ge=10, multiple_of=4)


def test_samples_are_made_of_all_field_types() -> None:
    full, least = samples(Every, strict=True)
    for text in (full, least):
        made = Every.model_validate_json(text, strict=True)
        assert (made.short, made.step, made.told, made.code) == ("sam", 12, "told", "ord_aaaaaaaa")
    with pytest.raises(NoSample, match="it is another"):
        samples(Unlikely)
