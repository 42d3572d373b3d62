"""What is set aside says why, and says no credential, whatever went into the error."""

import logging
from collections.abc import Iterator

import pytest

from fencepost.dependencies import DependencySpec
from fencepost.publication import MOST_FAILURES
from fencepost_ops.database import LedgerDatabase
from fencepost_ops.local import LocalValkey
from fencepost_workers import redaction
from fencepost_workers.redaction import Redaction
from fencepost_workers.step import Step
from fencepost_workers.tools.credentials import Credentials
from tests.integration.step_shop import Failing, Shop, opened

CANARY = "canary-7f3a/9c+e5"
PUBLISH = "UPDATE fencepost.outbox SET publish_count = publish_count + 1, publish_at = fencepost.now()"


@pytest.fixture
def shop(database: LedgerDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """A worker that has used a secret."""
    before = logging.getLogRecordFactory()
    monkeypatch.setattr(redaction, "PROCESS", Redaction())
    redaction.PROCESS.learn(Credentials.of(DependencySpec("d"), (CANARY,)))
    redaction.install()
    with LocalValkey.start() as valkey, opened(database, valkey, slots=2) as one:
        yield one
    logging.setLogRecordFactory(before)


def test_a_dead_letter_holds_no_canary(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    (call,) = shop.planned("k")
    error = ValueError("x" * 480 + CANARY + f" and {CANARY}")  # kept up to the middle of it
    step = Step(shop.worker, Failing(shop.worker, "claim", error))
    for _ in range(MOST_FAILURES):
        shop.sql(
            "UPDATE fencepost.outbox SET publish_count = publish_count + 1, publish_at = fencepost.now()"
        )
        assert step.handle([call]) == 0
    ((dead, text),) = shop.sql(
        "SELECT dead_at IS NOT NULL, t::text FROM fencepost.outbox t WHERE subject = %s", call[1]
    )
    assert dead
    assert "ValueError: xxx" in text
    assert "canary" not in text
    assert "could not be begun" in caplog.text
    assert "is set aside" in caplog.text
    assert "canary" not in caplog.text
