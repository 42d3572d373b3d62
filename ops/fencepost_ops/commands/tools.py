"""`fencepost tools`: what is promised for each tool of the application, and what is not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from fencepost.contracts import Dedupes, promise, residual_risk, tool_class
from fencepost.tools import Tool
from fencepost_ops.commands.durations import spoken
from fencepost_ops.commands.output import print_json, print_table
from fencepost_ops.commands.session import Session, app_option, json_option, pass_session


@click.command()
@app_option
@json_option
@pass_session
def tools(session: Session, as_json: bool) -> None:
    """List tools: class, promise, what is left."""
    app = session.need_app()
    described = [_described(tool) for _, tool in sorted(app.registry.items())]
    if as_json:
        print_json(described)
        return
    rows = [
        (
            f"{tool['name']} v{tool['version']}",
            tool["kind"],
            tool["effect"],
            tool["class"],
            _spoken(tool["window"]),
            _spoken(tool["settle"]),
            _spoken(tool["lookup_horizon"]),
            tool["promise"],
            tool["residual_risk"],
        )
        for tool in described
    ]
    columns = ["TOOL", "KIND", "EFFECT", "CLASS", "WINDOW>", "SETTLE>", "HORIZON>", "PROMISE", "WHAT IS LEFT"]
    print_table(columns, rows, empty=f"app {app.name} has no tools")


def _described(tool: Tool) -> dict[str, Any]:
    repeat, lookup = tool.contract.repeat, tool.contract.lookup
    risk = residual_risk(tool.effect, tool.contract)
    if tool.kind == "python":
        risk += " That the function does only what its contract says is its author's word."
    return {
        "name": tool.name,
        "version": tool.version,
        "kind": tool.kind,
        "effect": str(tool.effect),
        "scope": tool.scope,
        "class": str(tool_class(tool.effect, tool.contract)),
        "promise": promise(tool.effect, tool.contract),
        "residual_risk": risk,
        "window": repeat.window if isinstance(repeat, Dedupes) else None,
        "settle": tool.contract.settle,
        "lookup": None if lookup is None else ("strong" if lookup.strong else "eventual"),
        "lookup_horizon": lookup.horizon if lookup is not None else None,
        "attempts": tool.dependency.attempts,
        "required": tool.required,
        "compensable": tool.compensable,
    }


def _spoken(span: timedelta | None) -> str:
    return "" if span is None else spoken(span)
