"""What may be taken from a broker message: the hint it names, and nothing else (R1).

Anybody who reaches the broker can put anything into a queue. `read` is the only reader of it, and it answers
with a message of our own making: whatever else the original said (a time to wait for, a chain to follow, a
time limit, a compressed body) has no effect. What is no list of hints is a Flaw, to be dropped: its row is
published again.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

MOST_ITEMS: Final = 1000
"""As many subjects as FENCEPOST_TASK_LIST can have one message name."""
_LONGEST_TENANT: Final = 100  # characters, as enqueue allows
_LONGEST_LABEL: Final = 200  # characters of an id or a delivery tag
_MOST_GENERATION: Final = 2**63 - 1  # Postgres's bigint
# What Postgres has in no text. Whatever else a tenant is called its runs are delivered: a message that was
# dropped for one of them would be published again and again, with all its others.
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a message is dropped, in words of a closed set."""

    reason: str


def read(message: object, queue: str) -> dict[str, Any] | Flaw:
    """The message to deliver in place of what lay in `queue`, or what is wrong with it. Never raises."""
    try:
        return _read(message, queue)
    except (KeyError, TypeError, ValueError, RecursionError):  # whatever a stranger's JSON may lack or hold
        return Flaw("it is no task message")


def _read(message: Any, queue: str) -> dict[str, Any] | Flaw:
    properties, headers, body = message["properties"], message["headers"], message["body"]
    tag, task_id = properties["delivery_tag"], headers["id"]
    if not (_is_label(tag) and _is_label(task_id) and isinstance(body, str)):
        return Flaw("it is no task message")
    if headers["task"] != f"fencepost.{queue}":
        return Flaw("it names another task")
    form = (message["content-type"], message["content-encoding"], properties["body_encoding"])
    if form != ("application/json", "utf-8", "base64") or headers.get("compression"):
        return Flaw("its body is not plain JSON")
    (items,), named, _ = json.loads(base64.b64decode(body, validate=True))
    if named or not isinstance(items, list) or not 1 <= len(items) <= MOST_ITEMS:
        return Flaw("its argument is not one list of subjects")
    if not all(map(_is_hint, items)):
        return Flaw("it names something that is no tenant, subject and generation")
    return _rebuilt(tag, task_id, queue, items)


def _is_label(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_LABEL


def _is_hint(item: Any) -> bool:
    tenant, subject, generation = item
    return (
        isinstance(tenant, str)
        and 0 < len(tenant) <= _LONGEST_TENANT
        and not _UNSTORABLE.search(tenant)
        and isinstance(subject, str)
        and str(UUID(subject)) == subject
        and type(generation) is int
        and 0 <= generation <= _MOST_GENERATION
    )


def _rebuilt(tag: str, task_id: str, queue: str, items: list[Any]) -> dict[str, Any]:
    """A message of Celery's second protocol that says this and nothing more."""
    body = json.dumps([[items], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    return {
        "body": base64.b64encode(body.encode()).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {
            "lang": "py",
            "task": f"fencepost.{queue}",
            "id": task_id,
            "root_id": task_id,
            "parent_id": None,
            "group": None,
            "eta": None,
            "expires": None,
            "retries": 0,
            "timelimit": [None, None],
            "argsrepr": "",
            "kwargsrepr": "",
            "origin": "",
            "ignore_result": True,
        },
        "properties": {
            "delivery_tag": tag,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "body_encoding": "base64",
            "priority": 0,
        },
    }
