"""The words policies are written in: the tools of an application, and the fixed part of the schema.

    entity Role in [Role];
    entity Principal in [Role, Principal] { name: String, tenant: String };
    entity Resource { kind: String, name: String, tenant: String };    // Resource::"account/a-1"

A principal is in its roles and in whoever delegated to it: `principal in Principal::"ann"` is Ann and those
who act on her behalf, `principal == Principal::"ann"` Ann alone.

Each tool is an action of its own name, `Action::"wallet.debit"`, in the groups of its effect
(`Action::"read"`, `Action::"reversible"`, `Action::"irreversible"`), and in `Action::"egress"` if it sends
data out; all are in `Action::"tools"`. To approve a call of it is `Action::"approve wallet.debit"`, in
`Action::"approve"`, and the principal is then whoever wants to approve. If versions of a tool differ in their
effect, the action is in the group of the gravest; `context.effect` is exact.

`context` holds, for every action: `tenant`, `tool`, `tool_version`, `effect`, `definition` (the digest of the
tool's declaration), `arguments`, `amount` ({currency, minor, scale}, where the tool moves money), `tainted`,
`egress`, `approvals` (how many persons have approved exactly this), `compensates` (it offsets an earlier
effect of its run), `attempt`, `phase` ("recording" or "claim"), `on_behalf_of` and `delegation` (sets of
names and of "from>to") and `now`; to approve also `requester`, the run's principal, of whom those sets then
are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fencepost.authority.shapes import Shape, arguments_shape, check_shape, merged, quoted, type_text
from fencepost.authority.statements import APPROVE
from fencepost.contracts import Effect
from fencepost.tools import Tool

EGRESS: Final = "egress"
TOOLS: Final = "tools"
_GRAVITY: Final = [Effect.READ, Effect.REVERSIBLE, Effect.IRREVERSIBLE]
RESERVED: Final = frozenset({APPROVE, EGRESS, TOOLS, *(str(effect) for effect in Effect)})
"""Names of groups of actions, which no tool can have."""

_BASE: Final = """\
entity Role in [Role];
entity Principal in [Role, Principal] { name: String, tenant: String };
entity Resource { kind: String, name: String, tenant: String };
type Amount = { currency: String, minor: Long, scale: Long };
action "tools", "approve", "egress";
action "read", "reversible", "irreversible" in ["tools"];
"""
_CONTEXT: Final = {
    "amount?": "Amount",
    "approvals": "Long",
    "attempt": "Long",
    "compensates": "Bool",
    "definition": "String",
    "delegation": "Set<String>",
    "effect": "String",
    "egress": "Bool",
    "now": "datetime",
    "on_behalf_of": "Set<String>",
    "phase": "String",
    "tainted": "Bool",
    "tenant": "String",
    "tool": "String",
    "tool_version": "Long",
}
"""What is in the context of every action beside its arguments."""


@dataclass(frozen=True)
class Word:
    """One tool as policies know it: its effect in each version, and what they see of its arguments."""

    name: str
    effects: Mapping[int, Effect]
    egress: bool
    arguments: Shape

    @property
    def effect(self) -> Effect:
        """The gravest effect of any version."""
        return max(self.effects.values(), key=_GRAVITY.index)

    def to_json(self) -> dict[str, Any]:
        """What a published policy keeps."""
        effects = {str(version): str(effect) for version, effect in sorted(self.effects.items())}
        return {"effects": effects, "egress": self.egress, "arguments": self.arguments}

    @classmethod
    def from_json(cls, name: str, value: Any) -> Word:
        """What `to_json` gave; ValueError for anything else."""
        if not isinstance(value, dict) or set(value) != {"effects", "egress", "arguments"}:
            raise ValueError(f"tool {name} is not described as policies keep it")
        check_shape(value["arguments"])
        effects = value["effects"]
        if not isinstance(effects, dict) or not effects or not isinstance(value["egress"], bool):
            raise ValueError(f"tool {name} has no effect by version")
        read = {int(version): Effect(effect) for version, effect in effects.items()}
        return cls(name, read, value["egress"], value["arguments"])


@dataclass(frozen=True)
class Vocabulary:
    """The tools policies may name. `left_out` lists arguments they cannot read, as `tool: path`."""

    words: Mapping[str, Word]
    left_out: tuple[str, ...] = ()

    def schema(self, additions: str = "", seen: frozenset[str] | None = None) -> str:
        """The Cedar schema: the fixed part, two actions for each tool, and the user's additions.

        With `seen` their contexts have these attributes only.
        """
        actions = [_actions(word, seen) for _, word in sorted(self.words.items())]
        return _BASE + "".join(actions) + additions

    def to_json(self) -> dict[str, Any]:
        """What a published policy keeps."""
        return {name: word.to_json() for name, word in sorted(self.words.items())}

    @classmethod
    def from_json(cls, value: Any) -> Vocabulary:
        """What `to_json` gave; ValueError for anything else."""
        if not isinstance(value, dict):
            raise ValueError("tools are an object by name")  # noqa: TRY004 - one error for a bad text
        return cls({name: Word.from_json(name, word) for name, word in value.items()})


def _actions(word: Word, seen: frozenset[str] | None) -> str:
    groups = ", ".join(map(quoted, [str(word.effect), *([EGRESS] if word.egress else [])]))
    applies = "appliesTo { principal: [Principal], resource: [Resource], context: "
    fields = {"arguments": type_text(word.arguments), **_CONTEXT}
    use, approve = _record(fields, seen), _record({**fields, "requester": "String"}, seen)
    return (
        f"action {quoted(word.name)} in [{groups}] {applies}{use} }};\n"
        f"action {quoted(approve_action(word.name))} in [{quoted(APPROVE)}] {applies}{approve} }};\n"
    )


def _record(fields: Mapping[str, str], seen: frozenset[str] | None) -> str:
    kept = (f"{name}: {of}" for name, of in fields.items() if seen is None or name.rstrip("?") in seen)
    return "{ " + ", ".join(kept) + " }"


def approve_action(tool: str) -> str:
    """The action of approving a call of this tool; no tool has a blank in its name."""
    return f"{APPROVE} {tool}"


def vocabulary(registry: Mapping[tuple[str, int], Tool]) -> tuple[Vocabulary, list[str]]:
    """The words for an application's tools, and what is wrong with their names, one sentence each.

    Of an argument that differs between versions of a tool nothing can be said; it is left out.
    """
    names = sorted({name for name, _ in registry})
    problems = [
        f"tool {name}: policies need this name for a group of actions; give the tool another"
        for name in names
        if name in RESERVED
    ]
    words: dict[str, Word] = {}
    left_out: dict[str, None] = {}
    for name in names:
        versions = {version: tool for (of, version), tool in sorted(registry.items()) if of == name}
        read = [arguments_shape(tool.arguments) for tool in versions.values()]
        shape, lost = merged([shape for shape, _ in read])
        for path in (*(path for _, missing in read for path in missing), *lost):
            left_out[f"{name}: {path}"] = None
        effects = {version: tool.effect for version, tool in versions.items()}
        words[name] = Word(name, effects, any(tool.egress for tool in versions.values()), shape)
    return Vocabulary(words, tuple(left_out)), problems
