"""`fencepost repair`, `repin` and `cancel`: how a person settles what nobody else can."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

import click

from fencepost.commands import COMPENSATE, CONFIRM, LEAVE, OFFSET, RELEASE
from fencepost.errors import FencepostError
from fencepost.ledger import find
from fencepost.states import CallState
from fencepost_ops.commands.blocked import as_object, by_run
from fencepost_ops.commands.bulk import parse_where, repair_where
from fencepost_ops.commands.durations import DURATION
from fencepost_ops.commands.output import print_json, seen
from fencepost_ops.commands.session import (
    Session,
    by_option,
    dsn_option,
    json_option,
    pass_session,
    reason_option,
    redis_option,
    tenant_option,
)


@click.command()
@click.argument("call", required=False)
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
    help="Its effect was to be offset and that came to nothing: try once more.",
)
@click.option(
    "--leave",
    "decision",
    flag_value=LEAVE,
    help="Its effect was to be offset and was not: it stays as it is.",
)
@click.option(
    "--release-key",
    "decision",
    flag_value=RELEASE,
    help="It FAILED and the cause is mended: the same intent may be sent again, under its key.",
)
@click.option(
    "--compensate",
    "decision",
    flag_value=COMPENSATE,
    help="It happened and is to be offset; give --receipt. A run that goes on is stopped.",
)
@click.option(
    "--confirm",
    "decision",
    flag_value=CONFIRM,
    help="What another person asked for is decided (FENCEPOST_REPAIR_BY_TWO).",
)
@click.option("--receipt", metavar="TEXT", help="With --happened: the downstream's own reference.")
@click.option("--seen", type=int, metavar="N", help="The version you looked at; refuses if it has changed.")
@click.option(
    "--where",
    multiple=True,
    metavar="NAME=VALUE",
    help="Instead of CALL every one that fits, by tool, dependency, tenant or run; several are alternatives.",
)
@click.option("--older-than", type=DURATION, metavar="SPAN", help="With --where: not known for longer.")
@click.option(
    "--state",
    type=click.Choice([str(CallState.NEEDS_REPAIR)], case_sensitive=False),
    help="With --where: of this state; no other can be repaired.",
)
@click.option("--dry-run", is_flag=True, help="With --where: list them, and decide nothing.")
@click.option("--yes", is_flag=True, help="With --where: decide of all that fit, however many.")
@click.option("--expect", type=click.IntRange(min=0), metavar="N", help="With --where: only if it is N.")
@reason_option
@by_option
@tenant_option
@dsn_option
@redis_option
@json_option
@pass_session
def repair(
    session: Session,
    /,
    call: str | None,
    decision: str | None,
    receipt: str | None,
    seen: int | None,
    where: tuple[str, ...],
    older_than: timedelta | None,
    state: str | None,
    reason: str,
    by: str,
    tenant: str | None,
    as_json: bool,
    **agreed: Any,
) -> None:
    """Settle a call that needs repair, or take up again what a stopped run could not offset.

    CALL is a call's id, the beginning of one, or RUN/LABEL; it takes an operator's login. What you decide is
    recorded with your reason and name, and what follows from it happens at once. With --where the same is
    decided of every call that fits, each as it was when it was listed; exit code 1 if any was refused.
    """
    if decision is None:
        raise click.UsageError(
            "decide: --happened, --compensate, --did-not-happen, --ask-again, --accept-unknown, --offset, "
            "--leave, --release-key or --confirm"
        )
    many = bool(where or older_than or state)
    if many == (call is not None):
        raise click.UsageError("name a CALL, or say which with --where, --older-than or --state")
    if many and (receipt is not None or seen is not None):
        raise click.UsageError("--receipt and --seen are of one CALL")
    if many:
        chosen = parse_where(where, tenant, older_than)
        code = repair_where(session, chosen, decision, by, reason, as_json=as_json, **agreed)
        click.get_current_context().exit(code)
    if any(agreed.values()):
        raise click.UsageError("--dry-run, --yes and --expect are for --where")
    _repair_one(session, str(call), tenant, decision, receipt, seen, reason, by, as_json=as_json)


def _repair_one(
    session: Session,
    call: str,
    tenant: str | None,
    decision: str,
    receipt: str | None,
    seen: int | None,
    reason: str,
    by: str,
    *,
    as_json: bool,
) -> None:
    if (decision in {CallState.SUCCEEDED, COMPENSATE}) != (receipt is not None):
        raise click.UsageError(
            "--happened and --receipt go together, as do --compensate and --receipt: "
            "the receipt says how it is known"
        )
    with session.connection() as connection:
        found = find.find_call(connection, call, tenant)
    # Only that asks the application anything: for how long its tools are asked again.
    app = session.app() if decision == CallState.UNKNOWN else None
    with session.client(app) as client:
        state = client.repair(found.call, decision, by, reason, receipt, seen=seen)
    if as_json:
        asked = decision if state == CallState.NEEDS_REPAIR else None  # another operator is to confirm it
        told = {"call": found.call, "run": found.run, "tenant": found.tenant, "state": state}
        print_json(told | {"asked_for": asked})
        return
    if decision == OFFSET:
        click.echo(f"the effect of call {found.call} is to be offset once more")
        return
    if decision == RELEASE:
        click.echo(
            f"the key of call {found.call} is free: a run that asks for the same sends it again; a service "
            "that remembers the failure may repeat it"
        )
        return
    if decision == LEAVE:
        click.echo(f"the effect of call {found.call} stays as it is")
        return
    if state == CallState.NEEDS_REPAIR:
        click.echo(
            f"{decision} of call {found.call} is asked for; another operator confirms it with "
            f"fencepost repair {found.call} --confirm --reason TEXT"
        )
        return
    click.echo(f"call {found.call} is {state}{_FOLLOWS.get(decision, '')}; see fencepost show {found.run}")
    if state != (CallState.SUCCEEDED if decision == COMPENSATE else decision) and decision != CONFIRM:
        raise FencepostError(f"call {found.call} is {state}, not {decision}")


_FOLLOWS: Final = {
    CallState.SUCCEEDED.value: ": its run goes on with that, or offsets it if it has stopped to do so",
    CallState.FAILED.value: ": its run is told so, and goes on or stops as after any failure",
    CallState.UNKNOWN.value: ": the service is asked again, and a person only if that tells nothing",
    CallState.ACCEPTED_UNKNOWN.value: ": its key is not used again; if it comes to light, --happened says so",
    COMPENSATE: "; its effect is to be offset",
}
"""What follows from each decision."""


@click.command()
@click.argument("run")
@click.option("--to", type=click.IntRange(1), required=True, metavar="VERSION", help="Which one plans it.")
@reason_option
@by_option
@tenant_option
@dsn_option
@redis_option
@json_option
@pass_session
def repin(
    session: Session, run: str, to: int, reason: str, by: str, tenant: str | None, as_json: bool
) -> None:
    """Have another version of its planner plan a run.

    For a run whose version no worker knows any more (`fencepost blocked`), or whose planner is mended. RUN is
    a run's id, the unique beginning of one, or a run key; it takes an operator's login. Its calls, budget and
    deadline stay what they are; a model that is being asked is charged and its answer dropped.
    """
    with session.connection() as connection:
        _, run_id = find.find_run(connection, run, tenant)
    with session.client() as client:
        info = client.repin(run_id, to, by, reason)
    with session.connection() as connection:
        missing = by_run(connection, session.settings("dsn"), [run_id]).get(run_id)
    if as_json:
        print_json(asdict(info) | {"blocked": None if missing is None else as_object(missing)})
        return
    click.echo(f"run {info.run_id} is planned by {info.planner} version {info.planner_version} from now on")
    if missing is not None:
        click.echo(f"it waits: {seen(missing.reason, 400)}", err=True)


@click.command()
@click.argument("run")
@reason_option
@by_option
@tenant_option
@dsn_option
@redis_option
@json_option
@pass_session
def cancel(session: Session, run: str, reason: str, by: str, tenant: str | None, as_json: bool) -> None:
    """Stop a run.

    RUN is a run's id, the unique beginning of one, or a run key; it takes an operator's login. Nothing
    unsent is sent. What is in flight settles first; then its effects are offset, if the run asks for it.
    """
    with session.connection() as connection:
        _, run_id = find.find_run(connection, run, tenant)
    with session.client() as client:
        info = client.cancel(run_id, by, reason)
    if as_json:
        print_json(info)
        return
    click.echo(f"run {info.run_id} is {info.status}" + (f" ({info.stop_reason})" if info.stop_reason else ""))
