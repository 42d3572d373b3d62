"""How published interfaces behave with repeats, written down from their documentation for `imitation`.

This knows nothing of the catalogue of contracts, on purpose: a contract that promises more than its interface
does is found when the two meet. Where a documentation is silent, the imitation does the worst it could: it
forgets a key at once, answers whatever was sent, or finds an effect late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

MINUTE_S: Final = 60.0
HOUR_S: Final = 60 * MINUTE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What one interface does. Without `header`, `field` and `in_path` it knows no keys.

    A key is `longest` characters at most, and a UUID if `uuid`. `remembers_s` counts from the first request,
    or from the end of its execution; a `taken` status instead makes the key the name of what is made, and
    refuses that name as long as it exists. `unless` is a header without which a name is simply written over.
    `other_body` is the status that refuses another request under a known key; None answers as for the first.
    `running` is the status while the first request executes; None makes its equals wait for it.
    """

    header: str | None = None
    field: str | None = None
    in_path: bool = False
    longest: int | None = None
    uuid: bool = False
    remembers_s: float = 0.0
    from_completion: bool = False
    taken: int | None = None
    unless: str | None = None
    other_body: int | None = None
    after_failure: Literal["replayed", "released", "reexecuted"] = "released"
    running: int | None = None
    marker: tuple[str, str] | None = None
    found_by: Literal["key", "reference"] | None = None
    found_after_s: float = 0.0

    @property
    def keyed(self) -> bool:
        """Whether anything in a request is recognised again."""
        return self.header is not None or self.field is not None or self.in_path


BEHAVIOURS: Final[Mapping[str, Behaviour]] = {
    "stripe.v1": Behaviour(
        header="idempotency-key",
        longest=255,
        remembers_s=24 * HOUR_S,
        other_body=400,
        after_failure="replayed",
        running=409,
        marker=("Idempotent-Replayed", "true"),
        found_by="reference",
        found_after_s=MINUTE_S,
    ),
    "stripe.v2": Behaviour(
        header="idempotency-key",
        longest=255,
        remembers_s=30 * 24 * HOUR_S,
        other_body=400,
        after_failure="reexecuted",
        found_by="reference",
        found_after_s=MINUTE_S,
    ),
    # Silent on other requests under a known key; of two at once the second may fail.
    "paypal.orders": Behaviour(
        header="paypal-request-id",
        longest=38,
        remembers_s=6 * HOUR_S,
        after_failure="reexecuted",
        running=422,
        found_by="reference",
        found_after_s=3 * HOUR_S,
    ),
    # Silent, in what could be read, on how long a key is remembered.
    "adyen": Behaviour(
        header="idempotency-key", longest=64, found_by="reference", found_after_s=5 * MINUTE_S
    ),
    # Publishes no retention.
    "square.payments": Behaviour(
        field="idempotency_key",
        longest=45,
        other_body=400,
        found_by="reference",
        found_after_s=MINUTE_S,
    ),
    "checkout.com": Behaviour(
        header="cko-idempotency-key",
        uuid=True,
        remembers_s=24 * HOUR_S,
        running=429,
        found_by="reference",
        found_after_s=MINUTE_S,
    ),
    "qonto": Behaviour(header="x-qonto-idempotency-key", uuid=True, remembers_s=30 * MINUTE_S),
    # Silent on first failures: the one that is worst for whoever repeats is replayed.
    "truelayer.payments": Behaviour(
        header="idempotency-key",
        uuid=True,
        remembers_s=6 * HOUR_S,
        other_body=422,
        after_failure="replayed",
        found_by="reference",
        found_after_s=MINUTE_S,
    ),
    # States only how long a key lives at most.
    "telnyx": Behaviour(header="idempotency-key", longest=255, other_body=422),
    "aws.dynamodb.transact": Behaviour(
        field="ClientRequestToken",
        longest=36,
        remembers_s=10 * MINUTE_S,
        from_completion=True,
        other_body=400,
        running=400,
    ),
    "s3.put-if-absent": Behaviour(
        in_path=True, longest=1024, taken=412, unless="if-none-match", running=409, found_by="key"
    ),
    "kubernetes.create": Behaviour(field="metadata.name", longest=63, taken=409, found_by="key"),
    "twilio.messages": Behaviour(),
    "slack.post-message": Behaviour(),
    "smtp": Behaviour(),
    "mcp.tools-call": Behaviour(),
    "http": Behaviour(),
}
"""Every imitated interface, by name."""
