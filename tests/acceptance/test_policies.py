"""Published policies on a live fleet: several at once, and one that is tightened while calls wait."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from fencepost_ops.fleet import ORDERS
from tests.acceptance.conftest import HOSTILE
from tests.acceptance.freezing import standing_still
from tests.acceptance.stage import Stage, staged
from tests.acceptance.weather import long_only
from tests.awaiting import until

GOODS = """
@id("goods")
permit (principal, action in [Action::"inventory.reserve", Action::"shipping.schedule"], resource)
when { principal.name like "svc:*" };

@id("back") @note("what offsets an effect waits for nobody") @unattended("irreversible")
permit (principal, action in Action::"irreversible", resource);
"""
DEBITS = """
@id("debits") permit (principal, action == Action::"wallet.debit", resource)
when { context.arguments.amount.currency == "EUR" && context.arguments.amount.amount_minor <= LIMIT };
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A fleet of the example, whose grants decide where no policy is published."""
    folder = tmp_path_factory.mktemp("policies")
    with staged(folder, env={"FENCEPOST_APP": ORDERS, **HOSTILE}) as stage:
        yield stage
        stage.calm()
        assert stage.verdict(whole=True) == []


def publish(stage: Stage, path: Path, limit: int, *options: str) -> int:
    """Publish as an operator does, with a limit for debits; the version."""
    path.mkdir()
    (path / "bundle.json").write_text('{"name": "orders"}')
    (path / "all.cedar").write_text(GOODS + DEBITS.replace("LIMIT", str(limit)))
    command = [sys.executable, "-m", "fencepost_ops.cli", "policy", "publish", str(path), "--json"]
    command += ["--note", f"debits up to {limit}", "--by", "ann", *options]
    env = {**os.environ, **stage.fleet.env("operator")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split('"published": ')[1].split(",")[0])


def order(stage: Stage, tenant: str, reference: str) -> UUID:
    stage.tenant = tenant
    return stage.order(reference)


def policies_of(stage: Stage, run: UUID, tenant: str) -> set[str | None]:
    stage.tenant = tenant
    decided = stage.events(run, "AuthorizationAllowed", "AuthorizationDenied")
    return {event.policy for event in decided}


@long_only
def test_each_tenant_is_decided_by_its_own_version_and_those_without_by_grants(
    stage: Stage, tmp_path: Path
) -> None:
    first = publish(stage, tmp_path / "a", 100, "--tenant", "a")
    second = publish(stage, tmp_path / "b", 99, "--tenant", "b")
    sent = {tenant: order(stage, tenant, f"order-{tenant}") for tenant in "abc"}
    stage.ended(*sent.values())
    assert [stage.status(run) for run in sent.values()] == ["COMPLETED", "STOPPED", "COMPLETED"]
    assert policies_of(stage, sent["a"], "a") == {str(first)}
    assert policies_of(stage, sent["b"], "b") == {str(second)}
    (granted,) = policies_of(stage, sent["c"], "c")
    assert granted is not None
    assert granted.startswith("allow-")
    assert stage.requests("order-b") == 0


@long_only
def test_a_policy_tightened_while_a_call_waits_lets_nothing_out(stage: Stage, tmp_path: Path) -> None:
    publish(stage, tmp_path / "loose", 100, "--tenant", "d")
    with standing_still(stage.fleet.pids("dispatcher").values()):
        run = order(stage, "d", "order-d")
        until("a call that waits", lambda: stage.events(run, "DispatchIntentRecorded"))
        tight = publish(stage, tmp_path / "tighter", 0, "--tenant", "d")
    stage.ended(run)
    (denied,) = stage.events(run, "AuthorizationDenied")
    assert (denied.policy, denied.data["code"]) == (str(tight), "policy_denied")
    assert "wallet.debit" in denied.data["reason"]
    assert "debit" not in stage.effects("order-d")
