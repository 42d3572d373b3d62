"""Defences in the decisions: what may be sent, sent again, believed and ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fencepost import recovery
from fencepost.contracts import Effect
from fencepost.doubts import Decision, Facts, Repeat
from fencepost_ops.drill.protocol import Asked, Expect, Fault, Protocol
from fencepost_ops.drill.sabotages.switch import Sabotage, code

Recover = Callable[[Facts], Decision]


def _blind(recover: Recover) -> Recover:
    def blind(facts: Facts) -> Decision:
        room = facts.attempts < facts.max_attempts and facts.now < facts.reconcile_until
        acts = facts.run == ("COMPENSATING" if facts.is_compensation else "ACTING")
        return Repeat() if facts.effect is not Effect.READ and room and acts else recover(facts)

    return blind


DECISIONS: Final = (
    Sabotage(
        name="blind_retry",
        invariant="I1",
        about="an unknown outcome is looked into before anything is sent again; without that it is sent "
        "again at once, and happens twice wherever the downstream does not deduplicate",
        off=code(recovery, "recover", _blind),
        shows=Protocol(
            name="sabotage.blind_retry",
            runs=[Asked(input={"contract": "lookup"})],
            faults=[Fault(at="dispatch.after_effect", do="crash")],
            expect=Expect(effects={"lookup": 1}, runs=["COMPLETED"]),
        ),
    ),
)
