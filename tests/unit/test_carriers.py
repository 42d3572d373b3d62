"""The operation key as each downstream wants it: same intent, same key there, whatever its form."""

import json
from uuid import UUID

import pytest
from pydantic import BaseModel

from fencepost import App, Effect, Request
from fencepost.contracts.carriers import KeyCarrier, Place
from fencepost.declarations import ToolOptions
from fencepost.tools import StoredRequest, operation_key

KEY = operation_key("t", "pay/default", "pay.now", ("order", "o-1"))
OTHER = operation_key("t", "pay/default", "pay.now", ("order", "o-2"))
URL = "https://pay.test/v1"


def bound(path: str = "/payments", body: object = None) -> StoredRequest:
    return Request.post(path, json={"n": 1} if body is None else body).bind(URL)


@pytest.mark.parametrize(
    ("carrier", "spelled"),
    [
        (KeyCarrier(), KEY),
        (KeyCarrier(max_length=255), KEY),
        (KeyCarrier(max_length=64), KEY),
        (KeyCarrier(max_length=45), KEY[:45]),
        (KeyCarrier(max_length=32), KEY[:32]),
        (KeyCarrier(form="uuid", max_length=36), str(UUID(hex=KEY[:32], version=4))),
    ],
)
def test_a_key_is_spelled_in_a_form_that_the_downstream_takes(carrier: KeyCarrier, spelled: str) -> None:
    assert carrier.spell(KEY) == spelled
    assert carrier.spell(OTHER) != spelled
    assert len(spelled) <= (carrier.max_length or 64)


def test_a_uuid_is_one_of_version_4_for_those_who_look() -> None:
    made = UUID(KeyCarrier(form="uuid").spell(KEY))
    assert (made.version, made.variant) == (4, "specified in RFC 4122")


def test_what_is_no_operation_key_is_spelled_by_nobody() -> None:
    for wrong in ("", "x" * 64, KEY[:63], KEY.upper()):
        with pytest.raises(ValueError, match="64 hex digits"):
            KeyCarrier().spell(wrong)


def test_a_header_is_added_raw_or_quoted() -> None:
    raw = KeyCarrier(name="PayPal-Request-Id").put(bound(), KEY)
    quoted = KeyCarrier(quoted=True).put(bound(), KEY)
    assert raw.headers == (*bound().headers, ("PayPal-Request-Id", KEY))
    assert quoted.headers[-1] == ("Idempotency-Key", f'"{KEY}"')
    assert (raw.body, raw.target) == (bound().body, bound().target)


def test_a_field_of_the_body_is_added_and_the_others_stay() -> None:
    carrier = KeyCarrier(Place.BODY, "metadata.name", max_length=63)
    body = {"kind": "Job", "metadata": {"labels": {"é": "1"}}, "big": 2**60}
    put = carrier.put(bound(body=body), KEY)
    assert json.loads(put.body) == body | {"metadata": {"labels": {"é": "1"}, "name": KEY[:63]}}
    assert json.loads(KeyCarrier(Place.BODY, "key").put(bound(body={}), KEY).body) == {"key": KEY}


def test_a_name_in_the_path_is_filled_in_once() -> None:
    carrier = KeyCarrier(Place.PATH)
    assert carrier.put(bound("/bucket/{key}"), KEY).target == f"{URL}/bucket/{KEY}"
    for wrong in ("/bucket", "/{key}/{key}"):
        with pytest.raises(ValueError, match="must say"):
            carrier.put(bound(wrong), KEY)


@pytest.mark.parametrize(
    ("carrier", "request_"),
    [
        (KeyCarrier(name="X-Key"), Request.post("/p", headers={"x-key": "mine"})),
        (KeyCarrier(Place.BODY, "key"), Request.post("/p", json={"key": "mine"})),
        (KeyCarrier(Place.BODY, "key"), Request.post("/p", json=[1])),
        (KeyCarrier(Place.BODY, "a.key"), Request.post("/p", json={"a": 1})),
        (KeyCarrier(Place.BODY, "key"), Request("POST", "/p", body=b"a=1")),
    ],
)
def test_a_place_that_is_taken_or_missing_is_refused(carrier: KeyCarrier, request_: Request) -> None:
    with pytest.raises(ValueError, match=r"carries the key|no JSON object"):
        carrier.put(request_.bind(URL), KEY)


@pytest.mark.parametrize(
    "build",
    [
        lambda: KeyCarrier(max_length=31),
        lambda: KeyCarrier(form="uuid", max_length=35),
        lambda: KeyCarrier(form="base64"),  # type: ignore[arg-type]
        lambda: KeyCarrier(name="a b"),
        lambda: KeyCarrier(Place.BODY, "a..b"),
        lambda: KeyCarrier(Place.BODY, "a", quoted=True),
    ],
)
def test_a_carrier_that_could_carry_no_key_is_refused(build: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        build()  # type: ignore[operator]


class Order(BaseModel):
    id: str


def test_a_tool_puts_the_key_into_what_is_stored_and_asks_for_it_as_the_downstream_knows_it() -> None:
    app = App("shop")
    pay = app.dependency("pay", URL)
    carrier = KeyCarrier(Place.BODY, "idempotency_key", max_length=45)

    @pay.http(
        "pay.now", effect=Effect.IRREVERSIBLE, intent=lambda a: ("order", a.id), key=carrier, returns=Order
    )
    def now(args: Order) -> Request:
        return Request.post("/payments", json={"id": args.id})

    @now.lookup
    def find(_args: Order, key: str) -> Request:
        return Request.get(f"/payments/{key}")

    args = Order(id="o-1")
    assert json.loads(now.tool.stored_request(args, KEY).body) == {"id": "o-1", "idempotency_key": KEY[:45]}
    assert now.tool.lookup_request(args, KEY).target == f"{URL}/payments/{KEY[:45]}"


def test_a_header_that_the_dependency_sends_too_can_carry_no_key() -> None:
    app = App("shop")
    app.allow("svc:*", tools=["pay.now"])
    pay = app.dependency("pay", URL, headers={"paypal-request-id": "always the same"})
    carrier = KeyCarrier(name="PayPal-Request-Id")

    @pay.http(
        "pay.now", effect=Effect.IRREVERSIBLE, intent=lambda a: ("order", a.id), key=carrier, returns=Order
    )
    def now(args: Order) -> Request:
        return Request.post("/payments", json={"id": args.id})

    (problem,) = app.check()
    assert "travels in PayPal-Request-Id" in problem
    assert now.tool.key is carrier


def test_how_the_key_is_carried_is_part_of_what_is_approved() -> None:
    digests = set()
    choices: tuple[ToolOptions, ...] = ({}, {"key": KeyCarrier()}, {"key": KeyCarrier(max_length=45)})
    for options in choices:
        pay = App("shop").dependency("pay", URL)

        def send(args: Order) -> Request:
            return Request.post("/p", json={"id": args.id})

        options["intent"] = lambda a: (a.id,)
        made = pay.http("p", effect=Effect.IRREVERSIBLE, **options)(send)
        digests.add(made.tool.definition_digest)
    assert len(digests) == 3
