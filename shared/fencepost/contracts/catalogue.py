"""What published interfaces promise about repeats, as data: one entry per kind of request. PURE.

An entry says what the provider's own documentation says, where, and when we looked. What it leaves out, or
what we have only from elsewhere, is listed under `undocumented` and counts as zero: a window nobody states
protects nothing, a lag nobody states makes an absence prove nothing. Use it in a declaration:

    @stripe.http(..., contract=catalogue.STRIPE_V1.contract, key=catalogue.STRIPE_V1.key)

A Python tool, which sends its requests itself, sends `catalogue.STRIPE_V1.key.spell(attempt.operation_key)`.

What you know better, from an agreement of your own or from your provider's newest page, is laid over it with
`dataclasses.replace`. A provider may change its word on any day: `checked_on` is what an entry is worth.
"""

from collections.abc import Mapping
from datetime import date, timedelta
from types import MappingProxyType
from typing import Final

from fencepost.contracts import WHILE_IT_EXISTS, Contract, Dedupes, FirstFailure, Lookup, Mismatch, Never
from fencepost.contracts.carriers import PATH_MARK, KeyCarrier, Place
from fencepost.contracts.entries import BUSY, FAILED, LAG, OTHER, REFUSALS, SETTLE, SUCCESS, WINDOW, Entry

_CHECKED: Final = date(2026, 11, 29)
_BY_REFERENCE: Final = Lookup(by="reference")  # no lag is stated: only what is found counts
_BY_NAME: Final = Lookup(by="key", strong=True)

STRIPE_V1 = Entry(
    name="stripe.v1",
    operation="any POST under /v1",
    contract=Contract(
        applied=frozenset({200}),
        repeat=Dedupes(
            window=timedelta(hours=24),
            first_failure=FirstFailure.REPLAYED,
            in_progress=frozenset({409}),
            replay_marker=("idempotent-replayed", "true"),
        ),
        lookup=_BY_REFERENCE,
        not_applied=frozenset({400, 401, 403, 404, 429}),
        retryable=frozenset({429}),
    ),
    key=KeyCarrier(max_length=255),
    scope="account and mode",
    sdk_invents=True,
    found_by="search by metadata, which may lag by minutes; lists are immediate",
    money="integer in the currency's smallest unit; no decimals for JPY and the like",
    notes=(
        "a success is 200 with the object and its id",
        "a 500 is stored once execution began, and replayed: it is an answer, not a new failure",
        "what fails validation or meets a conflict is not stored; once execution began every answer is",
        "what each status means is told at https://docs.stripe.com/error-low-level",
        "another request under a known key is refused with 400",
    ),
    undocumented=(SETTLE, LAG),
    source="https://docs.stripe.com/api/idempotent_requests",
    checked_on=_CHECKED,
)

STRIPE_V2 = Entry(
    name="stripe.v2",
    operation="any POST under /v2",
    contract=Contract(
        repeat=Dedupes(window=timedelta(days=30), first_failure=FirstFailure.REEXECUTED),
        lookup=_BY_REFERENCE,
    ),
    key=KeyCarrier(max_length=255),
    scope="account or sandbox",
    sdk_invents=True,
    found_by="lists, which lag",
    money="integer value and currency",
    notes=(
        "failed work is taken up again until it is complete, and the answer is the new one",
        "that, and that another request under a known key is refused, is on the page of v1's entry",
    ),
    undocumented=(BUSY, REFUSALS, SETTLE, LAG, SUCCESS),
    source="https://docs.stripe.com/error-low-level",
    checked_on=date(2026, 11, 30),
)

PAYPAL_ORDERS = Entry(
    name="paypal.orders",
    operation="POST /v2/checkout/orders and what is done to one",
    contract=Contract(
        applied=frozenset({200, 201}),
        repeat=Dedupes(
            window=timedelta(hours=6), mismatch=Mismatch.IGNORED, first_failure=FirstFailure.UNKNOWN
        ),
        lookup=_BY_REFERENCE,
    ),
    key=KeyCarrier(name="PayPal-Request-Id", max_length=36, form="uuid"),
    scope="merchant account and API; how long keys live differs from API to API",
    sdk_invents=True,
    found_by="transaction search by invoice_id",
    money="decimal string with the currency's own number of decimals",
    notes=(
        "a success is 201, the repeat of one 200, with the order and its id",
        "a repeat is answered with the latest state, not with the first answer",
        "72 hours can be had on request: lay it over the window",
        "of two at once the second may fail",
    ),
    undocumented=(OTHER, FAILED, BUSY, REFUSALS, SETTLE, LAG, "how long a key may be"),
    source="https://developer.paypal.com/api/rest/reference/idempotency",
    checked_on=_CHECKED,
)

ADYEN = Entry(
    name="adyen",
    operation="any POST of Checkout and Payments",
    contract=Contract(repeat=Dedupes(mismatch=Mismatch.IGNORED), lookup=_BY_REFERENCE),
    key=KeyCarrier(max_length=64),
    scope="company account and region: another region's endpoint knows nothing of the key",
    found_by="merchantReference; webhooks",
    money="integer minor units; the number of decimals is Adyen's own for some currencies",
    notes=("a header transient-error tells failures that may be sent again",),
    undocumented=(f"{WINDOW}: 31 days in older copies", OTHER, FAILED, BUSY, REFUSALS, SETTLE, LAG, SUCCESS),
    source="https://docs.adyen.com/development-resources/api-idempotency",
    checked_on=_CHECKED,
)

SQUARE = Entry(
    name="square.payments",
    operation="POST /v2/payments",
    contract=Contract(repeat=Dedupes(), lookup=_BY_REFERENCE),
    key=KeyCarrier(Place.BODY, "idempotency_key", max_length=45),
    scope="application and seller",
    found_by="reference_id, in lists and webhooks; there is no lookup by key",
    money="integer in the currency's smallest unit",
    notes=("the provider says on its forum that it publishes no retention",),
    undocumented=(WINDOW, FAILED, BUSY, REFUSALS, SETTLE, LAG, SUCCESS),
    source="https://developer.squareup.com/docs/working-with-apis/idempotency",
    checked_on=_CHECKED,
)

CHECKOUT_COM = Entry(
    name="checkout.com",
    operation="POST /payments and what is done to one",
    contract=Contract(
        applied=frozenset({201}),
        repeat=Dedupes(
            window=timedelta(hours=24),
            mismatch=Mismatch.IGNORED,
            first_failure=FirstFailure.RELEASED,
            in_progress=frozenset({429}),
        ),
        lookup=_BY_REFERENCE,
    ),
    key=KeyCarrier(name="Cko-Idempotency-Key", max_length=36, form="uuid"),
    scope="account",
    found_by="payments by reference",
    money="integer in the currency's minor unit",
    notes=(
        "a success is 201 with the payment and its id; 202 says that it is not decided yet",
        "429 also means that an equal request is running, so it proves nothing",
        "what could not be processed is not stored: the repeat is a new try",
    ),
    undocumented=(OTHER, REFUSALS, SETTLE, LAG, "how long a key may be"),
    source="https://www.checkout.com/docs/developer-resources/api/idempotency",
    checked_on=_CHECKED,
)

QONTO = Entry(
    name="qonto",
    operation="the POSTs whose page names the header",
    contract=Contract(
        repeat=Dedupes(
            window=timedelta(minutes=30), mismatch=Mismatch.IGNORED, first_failure=FirstFailure.RELEASED
        ),
    ),
    key=KeyCarrier(name="X-Qonto-Idempotency-Key", max_length=36, form="uuid"),
    scope="organisation",
    money="decimal string in euro",
    notes=(
        "another request under a known key is answered with the first one's answer",
        "30 minutes are shorter than many an outage: then a person is asked",
    ),
    undocumented=(BUSY, REFUSALS, SETTLE, "a lookup", "how long a key may be", SUCCESS),
    source="https://docs.qonto.com/api-reference/using-the-apis/idempotent-requests",
    checked_on=_CHECKED,
)

TRUELAYER = Entry(
    name="truelayer.payments",
    operation="POST /v3/payments",
    contract=Contract(
        repeat=Dedupes(window=timedelta(hours=6), first_failure=FirstFailure.UNKNOWN), lookup=_BY_REFERENCE
    ),
    key=KeyCarrier(max_length=36, form="uuid"),
    scope="client and endpoint",
    found_by="the payment's id",
    money="integer minor units",
    notes=("one page says 30 days, another 6 hours: the shorter one counts",),
    undocumented=(FAILED, BUSY, REFUSALS, SETTLE, LAG, SUCCESS),
    source="https://docs.truelayer.com/docs/idempotency",
    checked_on=_CHECKED,
)

TELNYX = Entry(
    name="telnyx",
    operation="the requests whose page names the header",
    contract=Contract(repeat=Dedupes(first_failure=FirstFailure.RELEASED)),
    key=KeyCarrier(max_length=255),
    scope="organisation, method and path",
    charset="letters, digits, '-', '_' and ':'; never quoted",
    notes=(
        "a key lives for up to 24 hours, which is a most and no least",
        "only successes are replayed; another body, were it by one byte, is refused with 422",
    ),
    undocumented=(f"{WINDOW} at least", BUSY, REFUSALS, SETTLE, "a lookup", SUCCESS),
    source="https://developers.telnyx.com/docs/development/api-fundamentals/idempotency",
    checked_on=date(2026, 11, 30),
)

DYNAMODB = Entry(
    name="aws.dynamodb.transact",
    operation="TransactWriteItems",
    contract=Contract(
        applied=frozenset({200}),
        repeat=Dedupes(window=timedelta(minutes=10), starts="completion", first_failure=FirstFailure.UNKNOWN),
    ),
    key=KeyCarrier(Place.BODY, "ClientRequestToken", max_length=36, form="uuid"),
    scope="account and region",
    sdk_invents=True,
    notes=(
        "a success is 200 with a body that may be empty: say succeeded=",
        "another request under a known token is refused: IdempotentParameterMismatchException",
    ),
    undocumented=(FAILED, REFUSALS, SETTLE),
    source="https://docs.aws.amazon.com/amazondynamodb/latest/APIReference/API_TransactWriteItems.html",
    checked_on=_CHECKED,
)

OBJECT_STORE = Entry(
    name="s3.put-if-absent",
    operation="PutObject with If-None-Match: *, under a name made of the key",
    contract=Contract(
        applied=frozenset({200}),
        repeat=Dedupes(
            window=WHILE_IT_EXISTS, first_failure=FirstFailure.RELEASED, in_progress=frozenset({409})
        ),
        lookup=_BY_NAME,
    ),
    key=KeyCarrier(Place.PATH, PATH_MARK, max_length=1024),
    scope="bucket",
    charset="any UTF-8, letters and digits without escaping",
    found_by="HEAD or GET of the object: strongly consistent",
    notes=(
        "a success is 200 with an ETag in its head and no body: say succeeded=, or parse it",
        "send the header If-None-Match: * and put {key} into the path",
        "412 says that the name is taken, by us or by others: the lookup tells whose it is",
        "409 is a conflict with another write: nothing is known yet",
        "an object that is deleted, or expired by a rule of the bucket, is forgotten",
    ),
    undocumented=(SETTLE,),
    source="https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html",
    checked_on=_CHECKED,
)

KUBERNETES = Entry(
    name="kubernetes.create",
    operation="POST of an object whose metadata.name is made of the key",
    contract=Contract(
        applied=frozenset({200, 201}),
        repeat=Dedupes(window=WHILE_IT_EXISTS, first_failure=FirstFailure.RELEASED),
        lookup=_BY_NAME,
    ),
    key=KeyCarrier(Place.BODY, "metadata.name", max_length=63),
    scope="cluster, namespace and kind",
    charset="lower case letters, digits and '-', as a DNS label",
    found_by="GET by name, without resourceVersion: strongly consistent",
    notes=(
        "a success is 201, or 200, with the object; 202 says that it comes later",
        "never metadata.generateName: every repeat would be another object",
        "409 AlreadyExists says that the name is taken, by us or by others: the lookup tells whose it is",
        "an object that is deleted, by its TTL too, is forgotten",
    ),
    undocumented=(SETTLE, BUSY),
    source="https://kubernetes.io/docs/concepts/overview/working-with-objects/names/",
    checked_on=_CHECKED,
)

TWILIO = Entry(
    name="twilio.messages",
    operation="POST Messages and Calls",
    contract=Contract(repeat=Never()),
    key=None,
    notes=("a repeat sends a second message; a list by recipient and time is no proof of anything",),
    undocumented=("a key", "a lookup by anything we know before the answer", REFUSALS, SETTLE, SUCCESS),
    source="https://www.twilio.com/docs/api/errors/20500",
    checked_on=_CHECKED,
)

SLACK = Entry(
    name="slack.post-message",
    operation="chat.postMessage",
    contract=Contract(applied=frozenset({200}), repeat=Never()),
    key=None,
    notes=(
        "a success is 200 with ok true, a refusal is 200 with ok false: read ts, or say succeeded=",
        "metadata of a message can hold our key, and the channel's history be searched for it by a person",
    ),
    undocumented=("a key", "how soon a message is in the history", REFUSALS, SETTLE),
    source="https://docs.slack.dev/reference/methods/chat.postMessage",
    checked_on=_CHECKED,
)

SMTP = Entry(
    name="smtp",
    operation="a message handed to a mail server",
    contract=Contract(applied=frozenset({250}), repeat=Never()),
    key=None,
    notes=(
        "250 after the final dot says that the server has taken it over",
        "a connection lost after the final dot leaves both sides without knowing: RFC 1047",
        "no server is bound to compare Message-ID",
    ),
    undocumented=("a key", "a lookup", SETTLE),
    source="https://www.rfc-editor.org/rfc/rfc1047",
    checked_on=_CHECKED,
)

MCP = Entry(
    name="mcp.tools-call",
    operation="tools/call of a server that promises nothing itself",
    contract=Contract(repeat=Never()),
    key=None,
    notes=(
        "idempotentHint is a hint, which a server one does not trust may not be believed",
        "a lost stream is to be sent again under a new request id: that is a second call",
        "isError says that the tool failed, not that it did nothing",
    ),
    undocumented=("a key", "a lookup", REFUSALS, SETTLE, SUCCESS),
    source="https://modelcontextprotocol.io/specification/2026-07-28/server/tools",
    checked_on=_CHECKED,
)

HTTP = Entry(
    name="http",
    operation="a POST to a service of which nothing is known",
    contract=Contract(repeat=Never()),
    key=None,
    notes=("POST is not idempotent: RFC 9110, section 9.2.2",),
    undocumented=("a key", "a lookup", REFUSALS, SETTLE, SUCCESS),
    source="https://www.rfc-editor.org/rfc/rfc9110#section-9.2.2",
    checked_on=_CHECKED,
)

ENTRIES: Final[Mapping[str, Entry]] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            STRIPE_V1,
            STRIPE_V2,
            PAYPAL_ORDERS,
            ADYEN,
            SQUARE,
            CHECKOUT_COM,
            QONTO,
            TRUELAYER,
            TELNYX,
            DYNAMODB,
            OBJECT_STORE,
            KUBERNETES,
            TWILIO,
            SLACK,
            SMTP,
            MCP,
            HTTP,
        )
    }
)
"""Every entry by its name."""
