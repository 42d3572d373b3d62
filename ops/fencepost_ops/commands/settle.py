"""`fencepost repair` and `cancel`: how a person settles what nobody else can."""

from __future__ import annotations

import click

from fencepost.commands import OFFSET
from fencepost.errors import FencepostError
from fencepost.ledger import find
from fencepost.states import CallState
from fencepost_ops.commands.session import (
    Session,
    by_option,
    dsn_option,
    pass_session,
    reason_option,
    redis_option,
    tenant_option,
)


@click.command()
@click.argument("call")
@click.option(
    "--happened", "decision", flag_value=CallState.SUCCEEDED.value, help="It happened; give --receipt."
)
@click.option(
    "--did-not-happen", "decision", flag_value=CallState.FAILED.value, help="It did not, and will not."
)
@click.option("--ask-again", "decision", flag_value=CallState.UNKNOWN.value, help="Reconcile it once more.")
@click.option(
    "--accept-unknown",
    "decision",
    flag_value=CallState.ACCEPTED_UNKNOWN.value,
    help="It will never be known; its key is not used again.",
)
@click.option(
    "--offset",
    "decision",
    flag_value=OFFSET,
    help="Its effect was to be offset and that was given up: try once more.",
)
@click.option("--receipt", metavar="TEXT", help="With --happened: the downstream's own reference.")
@click.option("--seen", type=int, metavar="N", help="The version you looked at; refuses if it has changed.")
@reason_option
@by_option
@tenant_option
@dsn_option
@redis_option
@pass_session
def repair(
    session: Session,
    call: str,
    decision: str | None,
    receipt: str | None,
    seen: int | None,
    reason: str,
    by: str,
    tenant: str | None,
) -> None:
    """Settle a call that needs repair, or take up again what a stopped run could not offset.

    CALL is a call's id, or the unique beginning of one; it takes an operator's login. What you decide is
    recorded with your reason and name, and what follows from it happens at once.
    """
    if decision is None:
        raise click.UsageError(
            "decide: --happened, --did-not-happen, --ask-again, --accept-unknown or --offset"
        )
    if (decision == CallState.SUCCEEDED) != (receipt is not None):
        raise click.UsageError("--happened and --receipt go together: the receipt says how it is known")
    with session.connection() as connection:
        found = find.find_call(connection, call, tenant)
    with session.client() as client:
        state = client.repair(found.call, decision, by, reason, receipt, seen=seen)
    if decision == OFFSET:
        click.echo(f"the effect of call {found.call} is to be offset once more")
        return
    click.echo(f"call {found.call} is {state}")
    if state != decision:
        raise FencepostError(f"call {found.call} is {state}, not {decision}")


@click.command()
@click.argument("run")
@reason_option
@by_option
@tenant_option
@dsn_option
@redis_option
@pass_session
def cancel(session: Session, run: str, reason: str, by: str, tenant: str | None) -> None:
    """Stop a run.

    RUN is a run's id, the unique beginning of one, or a run key; it takes an operator's login. Nothing
    unsent is sent. What is in flight settles first; then its effects are offset, if the run asks for it.
    """
    with session.connection() as connection:
        _, run_id = find.find_run(connection, run, tenant)
    with session.client() as client:
        info = client.cancel(run_id, by, reason)
    click.echo(f"run {info.run_id} is {info.status}" + (f" ({info.stop_reason})" if info.stop_reason else ""))
