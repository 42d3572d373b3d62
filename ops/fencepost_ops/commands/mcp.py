"""`fencepost mcp pin` and `check`: what MCP servers say their tools are, and what was pinned."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

from fencepost.app import App
from fencepost.canonical import reveal, sanitize
from fencepost.dependencies import DependencySpec
from fencepost.errors import NotFound, Unreachable, UsageError
from fencepost.mcp import definition_digest, is_name
from fencepost_ops.commands.output import print_json
from fencepost_ops.commands.session import Session, app_option, json_option, pass_session

WITHIN_S: Final = 30.0
_SAID: Final = 300  # characters of a description

_within = click.option(
    "--within", type=click.FloatRange(0.1, 600), default=WITHIN_S, show_default=True, help="Seconds to wait."
)


@click.group()
def mcp() -> None:
    """Pin what MCP servers say their tools are, and compare it later.

    A definition is a tool's name, description, schemas and hints. A call whose definition is not the pinned
    one is held: nothing is sent, `fencepost unresolved` lists it, and it goes on by itself once the new
    definition is pinned in the application, or the server offers the old one again.
    """


@mcp.command()
@click.argument("dependency")
@app_option
@_within
@json_option
@pass_session
def pin(session: Session, dependency: str, within: float, as_json: bool) -> None:
    """Print the digest of everything DEPENDENCY offers, as pins= takes it.

    Read the descriptions first: what is pinned is what will be called.
    """
    offers = _offers(_server(session.need_app(), dependency), within)
    strange = sorted(name for name in offers if not is_name(name))
    offers = {name: listed for name, listed in offers.items() if name not in strange}
    pins = {name: definition_digest(listed) for name, listed in sorted(offers.items())}
    for name in strange:
        click.echo(f"left out: {json.dumps(sanitize(name, 80))} is no name of a tool", err=True)
    if as_json:
        print_json(pins)
        return
    for name, listed in sorted(offers.items()):
        said = " ".join(str(listed.get("description", "")).split())
        click.echo(f"# {sanitize(name, 80)}: {reveal(sanitize(said, _SAID))}")
    click.echo("pins={")
    for name, digest in pins.items():
        click.echo(f"    {json.dumps(name)}: {json.dumps(digest)},")
    click.echo("}")


@dataclass(frozen=True, slots=True)
class Compared:
    """One tool that is declared or pinned: `state` is same, changed, missing or unpinned."""

    dependency: str
    remote: str
    tools: tuple[str, ...]
    state: str
    pinned: str | None
    offered: str | None


@mcp.command()
@click.argument("dependency", required=False)
@app_option
@_within
@json_option
@pass_session
@click.pass_context
def check(ctx: click.Context, session: Session, dependency: str | None, within: float, as_json: bool) -> None:
    """Compare what servers offer now with what is pinned. Exit code 1 if anything is not what was pinned.

    Of all MCP servers of the application, or of DEPENDENCY alone.
    """
    app = session.need_app()
    known = [spec for spec in app.dependencies if spec.mcp is not None]
    asked = known if dependency is None else [_server(app, dependency)]
    found = [one for spec in asked for one in compared(app, spec, _offers(spec, within))]
    if as_json:
        print_json(found)
    elif not found:
        click.echo(f"app {app.name} has no tools of MCP servers")
    else:
        for one in found:
            whose = f" ({', '.join(one.tools)})" if one.tools else ""
            click.echo(f"{one.dependency} {one.remote}{whose}: {_told(one)}")
    ctx.exit(1 if any(one.state in {"changed", "missing"} for one in found) else 0)


def _told(one: Compared) -> str:
    if one.state == "same":
        return f"is what was pinned, {one.offered}"
    if one.state == "unpinned":
        return f"is not pinned; it is {one.offered}"
    if one.state == "missing":
        return "is not offered any more; its calls are held" if one.pinned else "is not offered"
    return f"was pinned as {one.pinned} and is {one.offered} now; its calls are held"


def compared(app: App, spec: DependencySpec, offers: Mapping[str, Mapping[str, Any]]) -> Iterator[Compared]:
    """Each tool at a server that the application declares, or that the server's pins name."""
    assert spec.mcp is not None
    wanted: dict[tuple[str, str | None], list[str]] = {(name, pin): [] for name, pin in spec.mcp.pins.items()}
    for _, tool in sorted(app.registry.items()):
        if tool.scope == spec.scope and tool.mcp is not None:
            whose = wanted.setdefault((tool.mcp.name, tool.mcp.definition), [])
            whose.append(f"{tool.name} v{tool.version}")
    for (name, pinned), tools in sorted(wanted.items(), key=lambda one: (one[0][0], one[0][1] or "")):
        now = definition_digest(offers[name]) if name in offers else None
        if now is None:
            state = "missing"
        elif pinned is None:
            state = "unpinned"
        else:
            state = "same" if now == pinned else "changed"
        yield Compared(spec.scope, name, tuple(tools), state, pinned, now)


def _server(app: App, name: str) -> DependencySpec:
    for spec in app.dependencies:
        if name in {spec.name, spec.scope}:
            if spec.mcp is None:
                raise UsageError(f"dependency {name} is no MCP server")
            return spec
    known = ", ".join(spec.name for spec in app.dependencies if spec.mcp is not None) or "none"
    raise NotFound(f"there is no dependency {name}; MCP servers of app {app.name}: {known}")


def _offers(spec: DependencySpec, within_s: float) -> dict[str, dict[str, Any]]:
    from fencepost_workers.tools.mcp import McpEngine, needed

    needed([spec])
    listed = asyncio.run(McpEngine().listing(spec, within_s=within_s))
    if not isinstance(listed, list):
        why = getattr(listed, "message", "it gave no list of its tools")
        raise Unreachable(f"MCP server {spec.scope}: {sanitize(why, 300)}")
    times = Counter(str(one["name"]) for one in listed)
    for name in sorted(name for name, count in times.items() if count > 1):
        said = f"{json.dumps(sanitize(name, 80))} is offered {times[name]} times; its calls are held"
        click.echo(f"left out: {said}", err=True)
    return {str(one["name"]): one for one in listed if times[str(one["name"])] == 1}
