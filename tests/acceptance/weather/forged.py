"""Messages that no relay of ours has sent."""

import base64
import json
import uuid
from typing import Any

from kombu.utils.json import dumps

SUBJECT = str(uuid.UUID(int=1))


def message(queue: str, items: Any, *, tag: str = "", **headers: Any) -> bytes:
    """A task of Celery's, as any client may send it to one of our queues."""
    named = tag or str(uuid.uuid4())
    body = json.dumps([[items], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    whole = {
        "body": base64.b64encode(body.encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": f"fencepost.{queue}",
            "id": named,
            "root_id": named,
            "parent_id": None,
            "group": None,
            "eta": None,
            "expires": None,
            "retries": 0,
            "timelimit": [None, None],
            "argsrepr": "",
            "kwargsrepr": "",
            "origin": "a stranger",
            **headers,
        },
        "properties": {
            "correlation_id": named,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": named,
        },
    }
    return dumps(whole).encode()


def _with(queue: str, **parts: Any) -> bytes:
    return json.dumps({**json.loads(message(queue, [["t", SUBJECT, 1]])), **parts}).encode()


def garbage(queue: str) -> list[bytes]:
    """Entries that are no list of hints, or one of hints at nothing."""
    hint = ["t", SUBJECT, 1]
    return [
        b"",
        b"not json",
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b"null",
        b"17",
        b'"text"',
        b"[1, 2, 3]",
        b"{}",
        b'{"__type__": "datetime", "__value__": {}}',
        b'{"__type__": "uuid", "__value__": 3}',
        b'{"properties": {}, "headers": {}, "body": ""}',
        _with(queue, properties=None),
        _with(queue, properties={"delivery_tag": "t"}),
        _with(queue, headers=None),
        _with(queue, headers={"task": {}}),
        _with(queue, body="&&&"),
        _with(queue, body="bm90IGpzb24="),
        _with(queue, **{"content-type": "application/x-python-serialize"}),
        _with(queue, **{"content-encoding": "no-such-code"}),
        message(queue, [hint], task="no.such.task"),
        message(queue, [hint], task="celery.backend_cleanup"),
        message(queue, [hint], compression="application/x-gzip"),
        message(queue, [hint], expires="yesterday"),
        message(queue, [hint], eta="not a time"),
        message(queue, [hint], timelimit="none"),
        message(queue, [hint], id=None),
        message(queue, None),
        message(queue, "text"),
        message(queue, [[]]),
        message(queue, [["t", "no uuid", 1]]),
        message(queue, [["t", SUBJECT, "one"]]),
        message(queue, [["t\x00", SUBJECT, 1]]),
        message(queue, [["\ud800", SUBJECT, 1]]),
        message(queue, [hint] * 3000),
        message(queue, [hint]),
        message(queue, [["t", SUBJECT, -1]]),
        message(queue, [["t", SUBJECT, 2**70]]),
        message(queue, [["nobody", str(uuid.uuid4()), 3]] * 1000),
    ]
