"""A person's road at the end of every other: told, audited, settled on the command line; the run goes on."""

import itertools
import json
from typing import Any
from uuid import UUID

from click.testing import CliRunner, Result

from fencepost.budgets import Budget
from fencepost.tools import OnStop
from fencepost_ops import cli
from tests.acceptance.stage import Stage, step
from tests.awaiting import until

_numbers = itertools.count(1)


def fencepost(stage: Stage, *args: str, role: str = "operator") -> Result:
    env = stage.fleet.env(role)
    told = {name: env[name] for name in ("FENCEPOST_REDIS_URL",)}
    return CliRunner(env={**told, "FENCEPOST_DSN": stage.fleet.database.dsns[role], "COLUMNS": "240"}).invoke(
        cli.main, list(args)
    )


def audit(stage: Stage) -> list[dict[str, Any]]:
    """What differs between the ledger and the mailer's own book, of this test's runs."""
    where = ("--book", stage.sandbox.url, "--since", "2h", "--slack", "10m")
    result = fencepost(stage, "audit", "mail", *where, "--json", role="reader")
    found = json.loads(result.stdout)["findings"]
    return [finding for finding in found if finding["intent"] and finding["intent"]["tenant"] == stage.tenant]


def lost_letter(stage: Stage, fault: str) -> tuple[UUID, UUID]:
    """A letter nobody knows about; then the run has a note to write, if it ever goes on: (run, call)."""
    reference = f"repaired-{next(_numbers)}"
    stage.sandbox.fault(fault, service="mail", reference=reference)
    run = stage.send(
        [step("mail.send", "letter", reference=reference)],
        [step("bank.debit", "debit", reference=reference)],
        deadline_s=600,
    )
    return run, stage.until_state(run, "letter", "NEEDS_REPAIR").id


def test_what_is_unknown_is_found_by_an_audit_repaired_and_its_run_goes_on(stage: Stage) -> None:
    """The mailer neither deduplicates nor can be asked: one attempt, then a person."""
    arrived, letter = lost_letter(stage, "drop_after_commit")
    never, unsent = lost_letter(stage, "drop_before")
    forgotten = [lost_letter(stage, "drop_after_commit") for _ in range(2)]
    told = fencepost(stage, "unresolved", str(letter), role="reader").stdout
    assert "  request POST " in told
    assert "/mail/messages" in told
    assert "  asked   never" in told
    assert f"fencepost repair {letter} --seen " in told

    kinds = {
        str(letter): "in_doubt_yet_found",
        str(unsent): "in_doubt",
        **{str(call): "in_doubt_yet_found" for _, call in forgotten},
    }
    found: dict[str, Any] = {}

    def seen() -> bool:
        found.update({finding["intent"]["call"]: finding for finding in audit(stage)})
        return {call: one["kind"] for call, one in found.items()} == kinds

    until("an audit that nothing moves under", seen)  # what may still land is not told to be absent
    for call in (letter, unsent):  # as the audit says, word for word
        result = fencepost(stage, *found[str(call)]["next"].replace("TEXT", "audited").split()[1:])
        assert result.exit_code == 0, result.output
    every = ("repair", "--where", "tool=mail.send", "--tenant", stage.tenant, "--accept-unknown")
    reason = ("--reason", "nobody will ever know", "--by", "pat")
    assert f"{len(forgotten)} calls would be" in fencepost(stage, *every, *reason, "--dry-run").stdout
    assert fencepost(stage, *every, *reason, "--expect", str(len(forgotten))).exit_code == 0

    assert stage.ended(arrived) == ["COMPLETED"]
    assert stage.ended(never, *(run for run, _ in forgotten)) == ["STOPPED"] * 3
    assert stage.effects("repaired-1") == ["message", "debit"]
    settled = f"no call of tenant {stage.tenant} is unknown, held or left to a person\n"
    assert fencepost(stage, "unresolved", "--tenant", stage.tenant).stdout == settled
    until("books that agree but for what is given up", lambda: len(audit(stage)) == len(forgotten))


def test_what_happened_is_offset_although_its_run_was_to_leave_what_it_did(stage: Stage) -> None:
    """The run has no attempt left to be sure with, and would have gone on."""
    reference = f"repaired-{next(_numbers)}"
    stage.sandbox.fault("drop_after_commit", service="wallet", reference=reference, nth=1)
    run = stage.send(
        [step("blind.debit", "debit", reference=reference)],
        [step("mail.send", "letter", reference=reference)],
        deadline_s=600,
        on_stop=OnStop.LEAVE,
        budget=Budget(attempts=1),
    )
    call = stage.until_state(run, "debit", "NEEDS_REPAIR")
    (debit,) = stage.book.effects("wallet", key=call.operation)
    decided = ("--compensate", "--receipt", debit.id, "--reason", "charged in error", "--by", "pat")
    result = fencepost(stage, "repair", str(call.id), *decided)
    said = f"call {call.id} is SUCCEEDED; its effect is to be offset; see fencepost show {run}\n"
    assert result.stdout == said, result.output
    assert stage.ended(run) == ["STOPPED"]
    assert stage.history(run).run.stop_reason == "operator"
    assert stage.effects(reference) == ["debit", "refund"]
    assert stage.events(run, "RunStopped")[-1].data["offset"] == [str(call.id)]
