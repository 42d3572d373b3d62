"""Whether what MCP servers say of their tools is pinned, and whether they can be spoken to at all. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fencepost.app import App
from fencepost.mcp import Stdio
from fencepost.tools import Tool
from fencepost_ops.doctor.findings import Area, Finding

_AREA = Area("mcp")


def judge_mcp(app: App, *, installed: bool, found: Callable[[str], bool]) -> Iterator[Finding]:
    """Nothing where no dependency is an MCP server. `found` says whether this machine has a command."""
    servers = [spec for spec in app.dependencies if spec.mcp is not None]
    if not servers:
        return
    if not installed:
        yield _AREA.problem(
            f"dependency {servers[0].name} is an MCP server, and its SDK is missing: no dispatcher starts",
            "pip install 'fencepost[mcp]'",
        )
    for spec in servers:
        if isinstance(spec.mcp, Stdio) and not found(spec.mcp.command):
            yield _AREA.warning(
                f"{spec.scope} is started as {spec.mcp.command}, which this machine does not have",
                "install it where dispatchers and reconcilers run, or name it by its whole path",
            )
    tools = [tool for _, tool in sorted(app.registry.items())]
    loose = [tool for tool in tools if tool.mcp is not None and tool.mcp.definition is None]
    for tool in loose:
        yield _AREA.warning(
            f"{tool.name} v{tool.version} is not pinned: its server may make another tool of it unseen",
            f"look at it and pin it: fencepost mcp pin {tool.dependency.name}",
        )
    asked = [tool for tool in tools if tool.mcp is not None and tool.has_lookup and not _asks_pinned(tool)]
    for name in sorted({tool.name for tool in asked}):
        yield _AREA.warning(
            f"what answers the lookup of {name} is not pinned: a wrong answer settles an unknown outcome",
            "add the tool it asks to the server's pins=",
        )
    if not loose and not asked:
        yield _AREA.ok("every tool of an MCP server is pinned")


def _asks_pinned(tool: Tool) -> bool:
    """Whether the server's pins name another tool than this one; which one a lookup asks only it knows."""
    server, remote = tool.dependency.mcp, tool.mcp
    return server is not None and remote is not None and any(name != remote.name for name in server.pins)
