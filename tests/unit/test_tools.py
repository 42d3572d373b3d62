import dataclasses
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import StrEnum
from ipaddress import ip_address
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr, computed_field, field_serializer

from fencepost.canonical import CanonicalError
from fencepost.contracts import Contract, Effect, Natural
from fencepost.dependencies import DependencySpec
from fencepost.errors import NotApplied, UsageError
from fencepost.outcomes import result_text
from fencepost.tools import (
    PER_PROPOSAL,
    CallView,
    Context,
    Proposal,
    Request,
    Response,
    StoredRequest,
    Tool,
    Turn,
    compensation_key,
    load_result,
    operation_key,
)
from tests.typing.user_code import Debit, DebitReceipt, debit, level

visible = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)
headers = st.lists(st.tuples(st.sampled_from(["X-A", "X-B", "Accept"]), visible), max_size=3).map(tuple)


@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE"]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20),
    headers,
    st.binary(max_size=50),
)
def test_a_stored_request_survives_its_text(
    method: str, path: str, pairs: tuple[tuple[str, str], ...], body: bytes
) -> None:
    stored = StoredRequest(method, "http://x/" + path, pairs, body)
    again = StoredRequest.from_text(stored.to_text())
    assert (again, again.digest, again.to_text()) == (stored, stored.digest, stored.to_text())


def test_every_part_of_a_stored_request_is_in_its_digest() -> None:
    base = StoredRequest("POST", "http://x/a", (("X-A", "1"),), b"1")
    others = [
        StoredRequest("PUT", "http://x/a", (("X-A", "1"),), b"1"),
        StoredRequest("POST", "http://x/b", (("X-A", "1"),), b"1"),
        StoredRequest("POST", "http://x/a", (("X-A", "2"),), b"1"),
        StoredRequest("POST", "http://x/a", (("X-A", "1"),), b"2"),
        StoredRequest("POST", "http://x/a", (), b"1"),
    ]
    assert len({base.digest, *(other.digest for other in others)}) == 6


@pytest.mark.parametrize("text", ["", "null", "{}", '{"body":"?","headers":[],"method":"GET","target":"x"}'])
def test_what_is_no_stored_request_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a stored request"):
        StoredRequest.from_text(text)


def test_a_request_is_bound_to_its_base_url() -> None:
    request = Request.post("/débits/a%2Fb", json={"ö": 1}, query={"q": "x y&z", "n": 3}, headers={"X-A": "b"})
    stored = request.bind("https://wallet.test:8443/v1/")
    assert stored.target == "https://wallet.test:8443/v1/d%C3%A9bits/a%2Fb?q=x%20y%26z&n=3"
    assert stored.body == '{"ö":1}'.encode()
    assert stored.headers == (("X-A", "b"), ("Content-Type", "application/json"))


def test_a_model_is_a_body_and_a_content_type_may_be_given() -> None:
    made = Request.put(
        "/x", json=Debit(order_id="o", amount=2), headers={"content-type": "application/x+json"}
    )
    assert json.loads(made.body) == {"order_id": "o", "amount": 2, "currency": "EUR"}
    assert made.headers == (("content-type", "application/x+json"),)
    assert Request.post("/x").body == Request.delete("/x").body == b""


def test_a_response_reads_its_body() -> None:
    assert Response(200, {}, b'{"a": NaN}').json()["a"] != 0
    assert Response(200, {}, b"\xff").text == "�"
    with pytest.raises(ValueError, match="Expecting"):
        Response(200, {}, b"").json()


def test_a_proposal_takes_a_model_a_mapping_or_text() -> None:
    by_model = Proposal("wallet.debit", Debit(order_id="o", amount=2), call_id="d")
    assert by_model.arguments == {"order_id": "o", "amount": 2, "currency": "EUR"}
    assert Proposal("t").arguments == {}
    assert Proposal("t", "{}").arguments == "{}"


def test_a_turn_does_not_propose_and_finish_at_once() -> None:
    assert Turn([Proposal("a")]).proposals == (Proposal("a"),)
    assert Turn().finish is None
    with pytest.raises(ValueError, match="not both"):
        Turn([Proposal("a")], finish={})


def test_a_context_finds_the_latest_call_of_a_label() -> None:
    calls = (
        CallView("a", "x", {}, "FAILED"),
        CallView("b", "y", {}, "SUCCEEDED", 1),
        CallView("a", "x", {}, "SUCCEEDED", 2),
    )
    context = Context("r", "t", "p", None, 3, calls)
    assert context.call("a") == calls[2]
    assert context.call("c") is None
    assert context.by_tool("x") == (calls[0], calls[2])
    assert [call.succeeded for call in calls] == [False, True, True]


def test_not_applied_carries_what_it_says_and_survives_pickling() -> None:
    import pickle

    said = NotApplied("declined", "no funds", retryable=True, retry_after=timedelta(seconds=3))
    again = pickle.loads(pickle.dumps(said))  # noqa: S301
    assert str(again) == "declined: no funds"
    assert (again.code, again.retryable, again.retry_after) == ("declined", True, timedelta(seconds=3))
    assert str(NotApplied()) == "not_applied"


# Operation keys


class Colour(StrEnum):
    RED = "red"


def test_an_operation_key_is_the_same_for_the_same_intent_only() -> None:
    key = operation_key("shop", "wallet/default", "wallet.debit", ("order", "o-1"))
    assert key == operation_key("shop", "wallet/default", "wallet.debit", ["order", "o-1"])
    others = [
        operation_key("other", "wallet/default", "wallet.debit", ("order", "o-1")),
        operation_key("shop", "wallet/second", "wallet.debit", ("order", "o-1")),
        operation_key("shop", "wallet/default", "wallet.credit", ("order", "o-1")),
        operation_key("shop", "wallet/default", "wallet.debit", ("order", "o-2")),
        operation_key("shop", "wallet/default", "wallet.debit", ("ordero", "-1")),
        operation_key("shop", "wallet/default", "wallet.debit", (("order", "o-1"),)),
        compensation_key(key),
    ]
    assert len({key, *others}) == 8
    assert {len(k) for k in others} == {64}


def test_an_operation_key_tells_numbers_from_text_and_takes_common_types() -> None:
    assert operation_key("t", "s", "n", (1,)) != operation_key("t", "s", "n", ("1",))
    common: list[tuple[Any, Any]] = [
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00.000000Z"),
        (date(2026, 1, 2), "2026-01-02"),
        (Colour.RED, "red"),
    ]
    for value, text in common:
        assert operation_key("t", "s", "n", (value,)) == operation_key("t", "s", "n", (text,))


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [
        (Decimal("12.50"), Decimal("12.5"), Decimal("12.51")),
        (timedelta(hours=24), timedelta(days=1), timedelta(days=1, microseconds=1)),
        (b"x", b"x", b"y"),
        (PurePosixPath("a/b"), PurePosixPath("a//b"), PurePosixPath("a/c")),
        (time(8, 30), time(8, 30), time(8, 30, 1)),
        (ip_address("::1"), ip_address("0:0::1"), ip_address("::2")),
        (frozenset({"b", "a"}), {"a", "b"}, {"a"}),
        ({"at": date(2026, 1, 2), 1: Colour.RED}, {1: "red", "at": "2026-01-02"}, {1: "red"}),
        ((Decimal("1.0"), [UUID(int=5)]), [Decimal(1), (UUID(int=5),)], [Decimal(1)]),
    ],
)
def test_a_part_is_what_it_means(one: object, same: object, other: object) -> None:
    key = operation_key("t", "s", "n", (one,))
    assert key == operation_key("t", "s", "n", (same,)) != operation_key("t", "s", "n", (other,))


class Hidden(BaseModel):
    id: SecretStr


@pytest.mark.parametrize(
    ("part", "cure"),
    [
        (1.5, "minor units"),
        ([{"x": 1.5}], "minor units"),
        (Decimal("nan"), "NaN has no one text"),
        (object(), "turn it into text"),
        (float("nan"), "minor units"),
        ("\ud800", "half a character"),
        (2**60, "not exact"),
        (Debit(order_id="o", amount=1), "name its fields"),
        (SecretStr("x"), "SecretRef"),
    ],
)
def test_a_part_without_an_exact_text_is_refused(part: object, cure: str) -> None:
    with pytest.raises(CanonicalError, match=cure):
        operation_key("t", "s", "n", (part,))


def test_the_operation_key_leaves_the_version_out() -> None:
    args = Debit(order_id="o-1", amount=5)
    second = dataclasses.replace(debit.tool, version=2)
    assert _key(debit.tool, args) == _key(second, args) == _key(second, args, turn=7)
    assert _key(debit.tool, args) == operation_key("shop", "wallet/default", "wallet.debit", ("order", "o-1"))


def test_per_proposal_makes_every_proposal_an_intent_of_its_own() -> None:
    tool = dataclasses.replace(debit.tool, intent=PER_PROPOSAL)
    args = Debit(order_id="o-1", amount=5)
    keys = {
        _key(tool, args),
        _key(tool, args, run="s"),
        _key(tool, args, turn=2),
        _key(tool, args, ordinal=1),
    }
    assert len(keys) == 4
    assert _key(tool, args) == _key(tool, args)


def test_a_read_has_no_operation() -> None:
    assert level.tool.operation("shop", level.tool.arguments(sku="x"), run="r", turn=1, ordinal=0) is None


@pytest.mark.parametrize("parts", ["order", (), None, {"a": 1}, {"order"}])
def test_an_intent_that_names_nothing_in_order_is_refused(parts: Any) -> None:
    tool = dataclasses.replace(debit.tool, intent=lambda _args: parts)
    with pytest.raises(TypeError, match="tuple"):
        _key(tool, Debit(order_id="o", amount=1))


def _key(tool: Tool, args: BaseModel, *, run: str = "r", turn: int = 1, ordinal: int = 0) -> str | None:
    return tool.operation("shop", args, run=run, turn=turn, ordinal=ordinal)


# Tools and dependencies


def test_the_definition_digest_changes_with_what_is_approved() -> None:
    class Other(BaseModel):
        order_id: str

    base = debit.tool
    variants = [
        dataclasses.replace(base, name="wallet.debit2"),
        dataclasses.replace(base, version=2),
        dataclasses.replace(base, effect=Effect.IRREVERSIBLE),
        dataclasses.replace(base, contract=Contract(repeat=Natural())),
        dataclasses.replace(base, arguments=Other),
        dataclasses.replace(base, dependency=DependencySpec("wallet", account="second")),
        dataclasses.replace(base, poller=True),
    ]
    assert len({base.definition_digest, *(v.definition_digest for v in variants)}) == 8
    assert dataclasses.replace(base, parse=None).definition_digest == base.definition_digest


def test_a_compensation_is_planned_from_the_result_or_else_from_the_receipt() -> None:
    args = Debit(order_id="o-1", amount=5)
    full = debit.tool.compensation(args, DebitReceipt(id="d-1", amount=5).model_dump_json(), "d-1")
    assert (full.tool, full.arguments, full.call_id) == ("wallet.refund", {"debit_id": "d-1"}, "refund o-1")
    assert debit.tool.compensation(args, None, "d-1") == full
    assert debit.tool.compensation(args, "null", "d-1") == full
    with pytest.raises(UsageError, match="cannot be rebuilt"):
        debit.tool.compensation(args, None, None)
    with pytest.raises(UsageError, match="has no compensation"):
        level.tool.compensation(level.tool.arguments(sku="x"), None, None)


def test_a_compensation_without_a_result_model_gets_plain_json() -> None:
    seen: list[object] = []

    def compensate(_args: object, result: object) -> Proposal:
        seen.append(result)
        return Proposal("x")

    tool = dataclasses.replace(debit.tool, returns=None, compensate=compensate)
    args = Debit(order_id="o-1", amount=5)
    tool.compensation(args, '{"a": 1}', "r")
    tool.compensation(args, None, "r")
    assert seen == [{"a": 1}, {"id": "r"}]


def test_a_stored_result_that_is_no_json_comes_back_as_text() -> None:
    assert load_result('{"a": [1]}') == {"a": [1]}
    assert load_result("oops") == "oops"
    assert load_result("[" * 100_000) == "[" * 100_000


def test_requests_and_lookups_are_bound_to_the_dependency() -> None:
    args = Debit(order_id="o-1", amount=5)
    assert debit.tool.stored_request(args).target == "http://wallet.test/v1/debits"
    assert debit.tool.lookup_request(args, "k").target == "http://wallet.test/v1/debits?key=k&order=o-1"
    with pytest.raises(UsageError, match="has no lookup"):
        level.tool.lookup_request(args, "k")


def test_an_env_setting_is_read_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = DependencySpec("w", "env:WALLET_URL", headers=(("Authorization", "env:WALLET_TOKEN"),))
    monkeypatch.delenv("WALLET_URL", raising=False)
    with pytest.raises(UsageError, match="WALLET_URL is not set"):
        spec.url()
    monkeypatch.setenv("WALLET_URL", "http://localhost:1/")
    monkeypatch.setenv("WALLET_TOKEN", "Bearer x")
    assert spec.url() == "http://localhost:1"
    assert spec.sent_headers() == (("Authorization", "Bearer x"),)
    monkeypatch.setenv("WALLET_URL", "localhost")
    monkeypatch.setenv("WALLET_TOKEN", "a\nb")
    with pytest.raises(UsageError, match="dependency w: base_url"):
        spec.url()
    with pytest.raises(UsageError, match="does not allow"):
        spec.sent_headers()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "a", "account": "b c"}, "account"),
        ({"name": "a", "attempts": 0}, "at least one attempt"),
        ({"name": "a", "per_attempt": timedelta(0)}, "per_attempt"),
        ({"name": "a", "grace": timedelta(seconds=-1)}, "grace"),
        ({"name": "a", "base_url": "x"}, "base_url"),
        ({"name": "a", "headers": (("Host", "x"),)}, "Host"),
        ({"name": "a", "hosts": "a.example"}, "hosts= takes a tuple"),
        ({"name": "a", "hosts": ("*.com",)}, "covers too much"),
        ({"name": "a", "hosts": ("*",), "private": True}, "name the networks"),
        ({"name": "a", "private": "10.0.0.0/8"}, "private= takes True or False or a tuple"),
        ({"name": "a", "private": ("inside",)}, "must hold networks"),
        ({"name": "a", "capability": "Host"}, "Host"),
        ({"name": "a", "capability": "X Y"}, "does not allow"),
    ],
)
def test_a_dependency_that_could_not_work_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        DependencySpec(**arguments)


def test_a_scope_is_a_service_and_an_account() -> None:
    assert DependencySpec("wallet", account="eu").scope == "wallet/eu"
    assert debit.tool.scope == "wallet/default"


# What is not written as it is


class Kept(BaseModel):
    id: str
    bank: SecretStr | None = None
    inner: list[Hidden] = []
    left_out: str | None = Field(default=None, exclude=True)
    optional: str | None = None


def _offset(reads: str, kept: Kept, *, text: str | None = "stored") -> Proposal:
    tool = dataclasses.replace(
        debit.tool,
        returns=Kept,
        compensate=lambda _args, result: Proposal("back", {"id": eval(f"result.{reads}")}),  # noqa: S307
    )
    stored = result_text(kept) if text else None
    return tool.compensation(Debit(order_id="o", amount=1), stored, "r-1")


@pytest.mark.parametrize("reads", ["bank", "inner[0].id", "left_out"])
def test_what_a_result_does_not_keep_is_never_read_by_its_compensation(reads: str) -> None:
    kept = Kept(id="d-1", bank=SecretStr("b"), inner=[Hidden(id=SecretStr("h"))], left_out="x")
    assert _offset("id", kept).arguments == {"id": "d-1"}
    assert _offset("optional", kept).arguments == {"id": None}
    with pytest.raises(UsageError, match="of its result, which is not kept"):
        _offset(reads, kept)


def test_a_default_is_no_answer_where_only_the_receipt_is_known() -> None:
    assert _offset("id", Kept(id="d-1"), text=None).arguments == {"id": "r-1"}
    with pytest.raises(UsageError, match="reads optional of its result, which is not kept"):
        _offset("optional", Kept(id="d-1"), text=None)


class Starred(BaseModel):
    id: str

    @field_serializer("id")
    def _starred(self, value: str) -> str:
        return "*" * len(value)


class Summed(BaseModel):
    amount: int

    @computed_field
    def double(self) -> int:
        return 2 * self.amount


def test_a_proposal_never_holds_stars_for_an_argument() -> None:
    for lost in (Hidden(id=SecretStr("x")), Kept(id="a", left_out="x"), Starred(id="abc")):
        with pytest.raises(ValueError, match="is not written as what it is"):
            Proposal("t", lost)
    assert Proposal("t", Summed(amount=2)).arguments == {"amount": 2}
    with pytest.raises(ValueError, match="stars would be sent"):
        Request.post("/x", json=Hidden(id=SecretStr("x")))
    with pytest.raises(ValueError, match="stars would be sent"):
        Request.get("/x", query={"id": SecretStr("x")})
