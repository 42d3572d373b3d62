"""A bundle of policies in Cedar's own form: parsed, validated and held together, once per process.

What a request may ask stands here too: its context, its entities, and how Cedar's answer is read. The
entities of a principal and a resource are kept as parsed, by value; no decision is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from fencepost.allowances import read as read_allowances
from fencepost.authority.bundle import PRINCIPAL, RESOURCE, ROLE, SCHEMA, Bundle, uid_of
from fencepost.authority.decisions import Approver, AuthorizationRequest
from fencepost.authority.nesting import nested_types
from fencepost.authority.shapes import Projection, Unfit, instant_text, projection
from fencepost.authority.statements import Statement, cedar, statements, union_of
from fencepost.canonical import digest, encode, sanitize
from fencepost.errors import UsageError

_SLICES: Final = 256
"""Sets of entities kept as parsed, per bundle; each takes some 13 kB."""
_POSITION: Final = re.compile(r"`policy(\d+)`")


class InvalidBundle(UsageError):
    """The policies do not hold together. `problems`: one sentence each, with file and line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("the policies cannot be used: " + "; ".join(problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[InvalidBundle], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


@dataclass(frozen=True)
class Answer:
    """What Cedar says to one question: its ids, and its errors, with which it has no say."""

    allows: bool
    ids: tuple[str, ...]
    errors: tuple[str, ...]


class Compiled:
    """A bundle with its policies, schema and entities parsed; InvalidBundle if they do not fit together."""

    def __init__(self, bundle: Bundle) -> None:
        engine = cedar()
        self.bundle = bundle
        found, problems = statements(bundle.policies)
        text = "\n".join(statement.text for statement in found)
        if (why := nested_types(bundle.schema)) is not None:
            raise InvalidBundle([*problems, f"{SCHEMA}: {why}"])
        schema = bundle.vocabulary.schema(bundle.schema)
        try:
            self._schema = engine.Schema.from_str(schema)
        except ValueError as error:
            raise InvalidBundle([*problems, f"{SCHEMA}: {sanitize(error, 300)}"]) from None
        if problems or not engine.validate_policies(text, self._schema).validation_passed:
            invalid = [problem for one in found for problem in _invalid(one, self._schema)]
            raise InvalidBundle([*problems, *invalid] or ["the policies do not fit the schema together"])
        self._policies = engine.PolicySet.from_str(text)
        self._seen, self._asked_by = self._narrowed(found, text)
        self.statements = {statement.id: statement for statement in found}
        self._order = [statement.id for statement in found]
        self._roles, self._known, self._base = self._entities_of(bundle)
        self._projections: dict[str, Projection] = {
            name: projection(word.arguments) for name, word in bundle.vocabulary.words.items()
        }
        self.digests: Mapping[str, str] = {
            "policy": digest("fencepost.cedar.v1", text),
            "schema": digest("fencepost.cedarschema.v1", schema),
        }
        self._shared = digest("fencepost.entities.v1", [dict(one) for one in bundle.entities])
        self.allowances = read_allowances(bundle.allowances)
        self._ask = engine.is_authorized_batch
        self.slice = lru_cache(maxsize=_SLICES)(self._slice)

    def _narrowed(self, found: list[Statement], text: str) -> tuple[frozenset[str] | None, Any]:
        """Which attributes of the context the policies read, and the schema of a context of those alone.

        Each attribute costs Cedar some microseconds in every question. Its validator says that nothing else
        is read; where it does not, everything is handed over.
        """
        seen = union_of(one.reads for one in found)
        if seen is not None:
            schema = cedar().Schema.from_str(self.bundle.vocabulary.schema(self.bundle.schema, seen))
            if cedar().validate_policies(text, schema).validation_passed:
                return seen, schema
        return None, self._schema

    @property
    def approves(self) -> bool:
        """Whether any policy permits anybody to approve anything."""
        return any(statement.approves for statement in self.statements.values())

    def _entities_of(self, bundle: Bundle) -> tuple[dict[str, tuple[str, ...]], frozenset[str], Any]:
        """The roles that the bundle gives principals, the roles it knows, and all other entities, parsed."""
        roles: dict[str, tuple[str, ...]] = {}
        rest = []
        for entity in bundle.entities:
            kind, name = uid_of(entity["uid"])
            if kind != PRINCIPAL:
                rest.append(entity)
            elif name in roles:
                raise InvalidBundle([f"entities.json: the principal {name} is there twice"])
            else:
                roles[name] = tuple(uid_of(parent)[1] for parent in entity["parents"])
        known = {uid_of(entity["uid"])[1] for entity in rest if uid_of(entity["uid"])[0] == ROLE}
        above = [uid_of(p) for entity in rest for p in entity["parents"]]
        rest += [_role(name) for name in sorted({name for kind, name in above if kind == ROLE} - known)]
        known |= {name for kind, name in above if kind == ROLE}
        try:
            base = cedar().Entities.from_json_str(encode([dict(one) for one in rest]).decode(), self._schema)
        except ValueError as error:
            raise InvalidBundle([f"entities.json: {sanitize(error, 300)}"]) from None
        return roles, frozenset(known), base

    def _slice(self, tenant: str, asking: Approver, resource: tuple[str, str]) -> tuple[Any, str]:
        """The entities of one question, parsed, and their digest."""
        behind = sorted(set(asking.on_behalf_of) - {asking.principal})
        people = {name: sorted(self._roles.get(name, ())) for name in behind}
        people[asking.principal] = sorted({*asking.roles, *self._roles.get(asking.principal, ())})
        held = sorted({role for roles in people.values() for role in roles})
        kind, name = resource
        delta = [
            *(
                _principal(who, tenant, roles, behind if who == asking.principal else ())
                for who, roles in people.items()
            ),
            {
                "uid": {"type": RESOURCE, "id": resource_id(resource)},
                "attrs": {"kind": kind, "name": name, "tenant": tenant},
                "parents": [],
            },
            *(_role(role) for role in held if role not in self._known),
        ]
        text = encode(delta).decode()
        entities = self._base.with_added_json_str(text, self._schema)
        return entities, digest("fencepost.slice.v1", [self._shared, delta])

    def asked(
        self, named: Mapping[str, Any], context: Mapping[str, Any], entities: Any, approvals: Sequence[int]
    ) -> list[Answer]:
        """What Cedar says with so many approvals, each; asked once where no policy counts them."""
        seen = self._seen
        shown = context if seen is None else {name: context[name] for name in context if name in seen}
        counted = "approvals" in shown
        texts = [
            encode({**shown, "approvals": count} if counted else shown).decode()
            for count in (approvals if counted else approvals[:1])
        ]
        questions = [{**named, "context": text} for text in texts]
        answers = self._ask(questions, self._policies, entities, self._asked_by)
        found = [self._answer(answer) for answer in answers]
        return found if counted else found * len(approvals)

    def _answer(self, answer: Any) -> Answer:
        decision, found = answer.decision.value, answer.diagnostics
        errors = [_POSITION.sub(self._named, error) for error in found.errors]
        if not errors and decision not in {"Allow", "Deny"}:
            errors = ["Cedar gave no decision"]
        named = found.id_annotations_by_reason
        ids = tuple(sorted(named[reason] for reason in found.reasons))
        return Answer(decision == "Allow" and not errors, ids, tuple(errors))

    def _named(self, match: re.Match[str]) -> str:
        position = int(match[1])
        return self._order[position] if position < len(self._order) else match[0]

    def context(self, request: AuthorizationRequest) -> dict[str, Any]:
        """What policies see of a request; Unfit for what has no place in it."""
        word = self.bundle.vocabulary.words.get(request.tool)
        if word is None:
            raise Unfit(f"it was published without the tool {sanitize(request.tool, 80)}")
        if request.tool_version not in word.effects:
            raise Unfit(f"it was published without version {request.tool_version} of {request.tool}")
        context: dict[str, Any] = {
            "approvals": request.approvals,
            "arguments": self._projections[request.tool](request.arguments),
            "attempt": request.attempt,
            "compensates": request.compensates,
            "definition": request.definition,
            "delegation": list(request.delegation),
            "effect": str(request.effect),
            "egress": request.egress,
            "now": instant_text(request.at),
            "on_behalf_of": list(request.on_behalf_of),
            "phase": request.phase,
            "tainted": request.tainted,
            "tenant": request.tenant,
            "tool": request.tool,
            "tool_version": request.tool_version,
        }
        if (amount := request.amount) is not None:
            context["amount"] = {
                "currency": amount.currency,
                "minor": amount.amount_minor,
                "scale": amount.scale,
            }
        return context


def _principal(name: str, tenant: str, roles: Sequence[str], behind: Sequence[str]) -> dict[str, Any]:
    parents = [*((ROLE, role) for role in roles), *((PRINCIPAL, other) for other in behind)]
    return {
        "uid": {"type": PRINCIPAL, "id": name},
        "attrs": {"name": name, "tenant": tenant},
        "parents": [{"type": kind, "id": other} for kind, other in parents],
    }


def _role(name: str) -> dict[str, Any]:
    return {"uid": {"type": ROLE, "id": name}, "attrs": {}, "parents": []}


def _invalid(statement: Statement, schema: Any) -> list[str]:
    found = cedar().validate_policies(statement.text, schema).errors
    return [f"{statement.place}: {_plain(one.error)}" for one in found]


def _plain(error: str) -> str:
    return sanitize(re.sub(r"^for policy `policy\d+`, ", "", error), 300)


def resource_id(resource: tuple[str, str]) -> str:
    """The id of a `Resource` in policies: `account/a-1`; empty where a tool names none. May raise Unfit."""
    kind, name = resource
    if "/" in kind:
        raise Unfit(f"the resource type {sanitize(kind, 40)} has a slash in it")
    return f"{kind}/{name}" if kind or name else ""


class Question:
    """One request put to a compiled bundle, at as many levels of approval as are asked."""

    def __init__(
        self,
        compiled: Compiled,
        request: AuthorizationRequest,
        asking: Approver,
        action: str,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        acted_on, principal = request.resource or ("", ""), asking.principal
        resource = resource_id(acted_on)
        self._compiled = compiled
        self._context = {**compiled.context(request), **(more or {})}
        self._entities, sliced = compiled.slice(request.tenant, asking, acted_on)
        self._named = {
            "principal": {"type": PRINCIPAL, "id": principal},
            "action": {"type": "Action", "id": action},
            "resource": {"type": RESOURCE, "id": resource},
        }
        asked = digest("fencepost.question.v1", [principal, action, resource, self._context])
        self.digests: dict[str, str] = {**compiled.digests, "entities": sliced, "request": asked}

    def answers(self, approvals: list[int]) -> list[Answer]:
        """What Cedar says with so many approvals, each."""
        return (
            self._compiled.asked(self._named, self._context, self._entities, approvals) if approvals else []
        )
