"""`fencepost tools`: what is promised for each tool of the application or the catalogue, and what is not."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Any, Final

import click

from fencepost import cosmetic
from fencepost.contracts import Dedupes, Effect, catalogue, promise, residual_risk, tool_class
from fencepost.declarations import stored_names
from fencepost.mcp import Stdio
from fencepost.tools import Tool
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.output import print_json
from fencepost_ops.commands.session import Session, app_option, json_option, pass_session
from fencepost_ops.commands.withdrawals import restore, withdraw, withdrawn

_OF_RUNS: Final = "one run per call, whatever crashes or is redelivered; its end settles the call"
_TIMES: Final = (("window", "window"), ("settle", "settle"), ("lookups for", "lookup_horizon"))


@click.group(invoke_without_command=True)
@app_option
@click.option(
    "--catalogue", "published", is_flag=True, help="List published contracts instead of your tools."
)
@json_option
@pass_session
@click.pass_context
def tools(ctx: click.Context, session: Session, published: bool, as_json: bool) -> None:
    """List tools: class, promise, what is left.

    With --catalogue: what published interfaces promise, where they say it and when that was read, as
    fencepost.contracts.catalogue holds it. An application is not needed for that.
    """
    if ctx.invoked_subcommand is not None:
        return
    if published:
        _show_catalogue(as_json)
        return
    app = session.need_app()
    described = [_described(tool) for _, tool in sorted(app.registry.items())]
    if as_json:
        print_json(described)
        return
    if not described:
        click.echo(f"app {app.name} has no tools")
    for tool in described:
        kind = f"{tool['kind']}, {tool['effect']}, {tool['class']}{_trust(tool)}"
        times = "".join(f", {name} {spoken(tool[key])}" for name, key in _TIMES if tool[key] is not None)
        click.echo(f"{tool['name']} v{tool['version']}: {kind}{times}")
        click.echo(f"  holds   {tool['promise']}")
        click.echo(f"  left    {tool['residual_risk']}")
        for name, how in tool["recognised"].items():
            click.echo(f"  {name:<7} {how}")
        if tool["starts"] is not None:
            planner, version = tool["starts"]["planner"]
            click.echo(f"  starts  a run of {planner} v{version}, with {', '.join(tool['starts']['tools'])}")
            whole = ", ".join(tool["starts"]["whole"]) or "nothing"
            click.echo(f"  whole   {whole}; of all else at most a share")
        elif tool["mcp"] is not None:
            pinned = f"pinned as {tool['mcp']['definition']}" if tool["mcp"]["definition"] else "NOT PINNED"
            click.echo(f"  is      {tool['mcp']['name']} of {', '.join(tool['goes_to'])}, {pinned}")
        elif len(tool["goes_to"]) > 1 or tool["capability"]:
            carried = f", with a capability in {tool['capability']}" if tool["capability"] else ""
            click.echo(f"  goes to {', '.join(tool['goes_to'])}{carried}")
        if tool["secrets"]:
            click.echo(f"  secrets {', '.join(tool['secrets'])}")
        if tool["cosmetic"]:
            whose = "" if tool["cosmetic_declared"] else " (by name; cosmetic=() if they mean something)"
            click.echo(f"  counts  {', '.join(tool['cosmetic'])}{whose}")
    for note in app.notes():
        click.echo(f"note: {note}")


for _command in (withdraw, restore, withdrawn):
    tools.add_command(_command)


def _trust(tool: dict[str, Any]) -> str:
    """Whether its output is somebody else's word, what of it planners are shown, and whether it sends out."""
    promote = tool["output"]["promote"]
    untrusted = ", untrusted output" if tool["taints"] else ""
    fields = "" if promote is None else f", shown of it: {', '.join(promote) or 'nothing'}"
    polls = ", asked again and again" if tool["poller"] else ""
    return untrusted + fields + (", sends data out" if tool["egress"] else "") + polls


def _show_catalogue(as_json: bool) -> None:
    entries = [entry.to_json() for entry in catalogue.ENTRIES.values()]
    if as_json:
        print_json(entries)
        return
    for entry in entries:
        carried = (
            "no key" if entry["key"] is None else f"key in {entry['key']['place']} {entry['key']['name']}"
        )
        click.echo(f"{entry['name']}: {entry['class']}, {carried}: {entry['operation']}")
        click.echo(f"  holds   {entry['promise']}")
        click.echo(f"  left    {entry['residual_risk']}")
        if entry["undocumented"]:
            click.echo(f"  unsaid  {'; '.join(entry['undocumented'])}")
        click.echo(f"  source  {entry['source']}, checked on {entry['checked_on']}")


def _places(tool: Tool) -> list[str]:
    """Where an HTTP tool's requests may go, as declared; a Python tool's are its own affair."""
    if isinstance(tool.dependency.mcp, Stdio):
        return [shlex.join((tool.dependency.mcp.command, *tool.dependency.mcp.args))]
    if not tool.sends_request:
        return []
    base = tool.dependency.base_url
    return [*([] if base is None else [base]), *tool.dependency.hosts]


def _cosmetic(tool: Tool) -> list[str]:
    """The arguments that count for nothing where a run is looked at that asks again and again."""
    if tool.cosmetic is not None:
        return list(tool.cosmetic)
    flags = {name for name, info in tool.arguments.model_fields.items() if info.annotation is bool}
    return [name for name in sorted(stored_names(tool.arguments) - flags) if cosmetic.by_name(name)]


def _recognised(tool: Tool) -> dict[str, str]:
    """How success, presence and absence are told from answers; nothing for what changes nothing."""
    if tool.effect is Effect.READ or tool.child is not None or tool.memory is not None:
        return {}
    statuses = ", ".join(str(status) for status in sorted(tool.contract.applied))
    said = [] if tool.succeeded is None else ["its `succeeded` says so"]
    if tool.parse is not None:
        said.append("its `parse` reads the answer")
    elif tool.returns is not None:
        said.append(f"the {'result' if tool.kind == 'python' else 'answer'} is a {tool.returns.__name__}")
    elif tool.kind == "python":
        said.append("it returns")
    if tool.kind == "http" and tool.parse is None:
        said.insert(0, f"status {statuses}")
    found = {"done if": " and ".join(said) or "never: " + (tool.recognises or "")}
    if not tool.has_lookup:
        return found
    if tool.kind == "python" or tool.lookup_parse is not None:
        return found | {"found if": "its lookup says so", "none if": "its lookup says so"}
    where = "`receipt`" if callable(tool.receipt) else repr(tool.receipt)
    known = f"200, and the answer names {where}" + (" and is for these arguments" if tool.same else "")
    absent = tool.contract.lookup.absent if tool.contract.lookup is not None else frozenset()
    return found | {"found if": known, "none if": "status " + ", ".join(map(str, sorted(absent)))}


def _described(tool: Tool) -> dict[str, Any]:
    repeat, lookup = tool.contract.repeat, tool.contract.lookup
    risk = residual_risk(tool.effect, tool.contract, compares=tool.same is not None)
    if tool.child is not None:
        risk = "What the tools of that run leave. One that did not end in time is UNKNOWN, then a person's."
    if tool.kind == "python":
        risk += " That the function does only what its contract says is its author's word."
    if tool.mcp is not None and tool.mcp.definition is None:
        risk += " It is not pinned: its server may make another tool of it, and it is called all the same."
    return {
        "name": tool.name,
        "version": tool.version,
        "kind": tool.kind,
        "effect": str(tool.effect),
        "scope": tool.scope,
        "class": str(tool_class(tool.effect, tool.contract)) if tool.child is None else "run",
        "promise": promise(tool.effect, tool.contract) if tool.child is None else _OF_RUNS,
        "residual_risk": risk,
        "recognised": _recognised(tool),
        "window": repeat.window if isinstance(repeat, Dedupes) else None,
        "settle": tool.contract.settle,
        "lookup": None if lookup is None else ("strong" if lookup.strong else "eventual"),
        "lookup_horizon": lookup.horizon if lookup is not None else None,
        "key": None if tool.key is None else tool.key.to_json(),
        "mcp": None if tool.mcp is None else asdict(tool.mcp),
        "starts": None if tool.child is None else tool.child.to_json() | {"whole": sorted(tool.child.firm)},
        "attempts": tool.dependency.attempts,
        "goes_to": _places(tool),
        "private": tool.dependency.private,
        "capability": tool.dependency.capability_header,
        "secrets": list(tool.secrets),
        "required": tool.required,
        "compensable": tool.compensable,
        "taints": tool.taints,
        "egress": tool.egress,
        "poller": tool.poller,
        "cosmetic": _cosmetic(tool),
        "cosmetic_declared": tool.cosmetic is not None,
        "output": tool.output.row(),
    }
