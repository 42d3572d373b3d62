"""A key whose last holder failed without effect is taken anew, also where nobody vouches for that failure."""

import json
from dataclasses import replace
from uuid import UUID

from fencepost import commands as c
from fencepost.clock import uuid7
from tests.integration.family import asked, grown, heard, stopped
from tests.integration.ledger_bench import Bench


def fails_tainted(family: Bench, child: UUID) -> None:
    """A run reads what nobody vouches for, and stops without an effect."""
    (look,) = family.plan(child, ("wallet.balance", {"order": family.order()}))
    family.succeed(child, look)
    stopped(family, child)


def test_a_run_that_stopped_without_effect_is_asked_for_again(bench: Bench) -> None:
    family = grown(bench)
    run, call, child = asked(family)
    topic = json.loads(family.call(call).arguments)["topic"]
    waits = family.start()
    (waiter,) = family.plan(waits, ("wallet.ask", {"topic": topic}))
    fails_tainted(family, child)
    assert heard(family, run, call) == c.Done("FAILED")
    assert family.operation(call).untrusted
    claim = replace(family.claim_call(waits, waiter), child=uuid7(), request=None)
    assert isinstance(family.one(claim), c.Done | c.Send), "whoever waited for it takes it"
    assert not family.operation(waiter).untrusted
