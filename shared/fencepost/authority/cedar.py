"""The policy engine that reads Cedar: a bundle compiled once, asked for every decision.

A decision is allowed only if Cedar allows it and no policy erred. Cedar leaves out a policy that errs, and a
forbid that is left out would allow; so any error denies, with the code `policy_error`. So does whatever has
no place in a request: a tool or version the bundle was not checked against, an argument of another type, an
integer that JSON does not hold exactly. A plain no is `policy_denied`.

If a call is not allowed as it stands, it is judged once more as if one person more had approved it, then two,
up to two in all; the first that allows is the approval it needs (`approval_required`). What is asked for is
therefore what the policies say themselves, with `context.approvals`.

Nothing here remembers a decision. The entities of a principal and a resource are kept as parsed, by value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final

from fencepost.allowances import Allowance
from fencepost.allowances import read as read_allowances
from fencepost.authority.bundle import PRINCIPAL, RESOURCE, ROLE, SCHEMA, Bundle, uid_of
from fencepost.authority.decisions import (
    ApprovalNeed,
    Approver,
    AuthorizationDecision,
    AuthorizationRequest,
)
from fencepost.authority.defaults import RULES, SAYINGS, asks_itself, unmet
from fencepost.authority.shapes import Projection, Unfit, instant_text, projection
from fencepost.authority.statements import Statement, cedar, statements
from fencepost.authority.vocabulary import approve_action
from fencepost.canonical import CanonicalError, digest, encode, sanitize
from fencepost.errors import UsageError

PERSONS: Final = 2
"""How many persons a policy can ask for."""
UNPUBLISHED: Final = "unpublished"
DENIED, ERROR, NEEDED = "policy_denied", "policy_error", "approval_required"
_SLICES: Final = 1024
"""Sets of entities kept as parsed, per bundle; each is some kilobytes."""
_UNFIT: Final = (CanonicalError, ValueError, RecursionError, OverflowError)
_POSITION: Final = re.compile(r"`policy(\d+)`")


class InvalidBundle(UsageError):
    """The policies do not hold together. `problems`: one sentence each, with file and line."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("the policies cannot be used: " + "; ".join(problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type[InvalidBundle], tuple[tuple[str, ...]]]:
        return type(self), (self.problems,)


@dataclass(frozen=True)
class _Answer:
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
        schema = bundle.vocabulary.schema(bundle.schema)
        try:
            self._schema = engine.Schema.from_str(schema)
        except ValueError as error:
            raise InvalidBundle([*problems, f"{SCHEMA}: {sanitize(error, 300)}"]) from None
        if problems or not engine.validate_policies(text, self._schema).validation_passed:
            invalid = [problem for one in found for problem in _invalid(one, self._schema)]
            raise InvalidBundle([*problems, *invalid] or ["the policies do not fit the schema together"])
        self._policies = engine.PolicySet.from_str(text)
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

    def asked(self, questions: list[dict[str, Any]], entities: Any) -> list[_Answer]:
        """What Cedar says to each of the questions."""
        answers = self._ask(questions, self._policies, entities, self._schema)
        return [self._answer(answer) for answer in answers]

    def _answer(self, answer: Any) -> _Answer:
        decision, found = answer.decision.value, answer.diagnostics
        errors = [_POSITION.sub(self._named, error) for error in found.errors]
        if not errors and decision not in {"Allow", "Deny"}:
            errors = ["Cedar gave no decision"]
        named = found.id_annotations_by_reason
        ids = tuple(sorted(named[reason] for reason in found.reasons))
        return _Answer(decision == "Allow" and not errors, ids, tuple(errors))

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


@dataclass(frozen=True)
class CedarEngine:
    """A compiled bundle as an `Authority`, deciding in the name of one published version."""

    compiled: Compiled
    version: str = UNPUBLISHED

    @property
    def digest(self) -> str:
        """Of the bundle."""
        return self.compiled.bundle.digest

    @property
    def allowances(self) -> tuple[Allowance, ...]:
        """Those of the bundle."""
        return self.compiled.allowances

    def decide(self, request: AuthorizationRequest) -> AuthorizationDecision:
        """Allowed, denied, or what approval would open it. Never raises for what a request holds."""
        try:
            asking = Approver(request.principal, request.roles, request.on_behalf_of)
            question = _Question(self.compiled, request, asking, request.tool)
            return self._decided(request, question)
        except _UNFIT as error:
            return self._erred(request, sanitize(error, 300), {})

    def _decided(self, request: AuthorizationRequest, question: _Question) -> AuthorizationDecision:
        (first,) = question.answers([request.approvals])
        digests = question.digests
        if first.errors:
            return self._erred(request, "; ".join(first.errors), digests)
        lacking = unmet(request, self._lifted(first.ids)) if first.allows else ()
        if first.allows and not lacking:
            return AuthorizationDecision(True, "permitted", self.version, first.ids, digests=digests)
        ahead = list(range(request.approvals + 1, PERSONS + 1))
        for count, answer in zip(ahead, question.answers(ahead), strict=True):
            if answer.errors:
                return self._erred(request, "; ".join(answer.errors), digests)
            if answer.allows:
                return self._needed(request, count, first, answer, lacking, digests)
        who, where = sanitize(request.principal, 80), sanitize(request.tenant, 80)
        if first.ids and not first.allows:
            reason = f"{request.tool} is forbidden: {self._said(first.ids)}"
        else:
            reason = f"no policy lets {who} use {request.tool} in {where}"
        return AuthorizationDecision(False, reason, self.version, first.ids, DENIED, digests=digests)

    def _needed(
        self,
        request: AuthorizationRequest,
        count: int,
        first: _Answer,
        opened: _Answer,
        lacking: tuple[str, ...],
        digests: Mapping[str, str],
    ) -> AuthorizationDecision:
        forbids = () if first.allows else first.ids
        asking = (*forbids, *(RULES[account] for account in lacking))
        why = [self._said(forbids)] if forbids else [SAYINGS[account] for account in lacking]
        persons = "a person" if count == 1 else f"{count} persons"
        reason = f"{request.tool} needs the approval of {persons}" + (f": {'; '.join(why)}" if why else "")
        need = ApprovalNeed(count, self._within({*forbids, *opened.ids}))
        return AuthorizationDecision(
            False, reason, self.version, asking or opened.ids, NEEDED, need, digests=digests
        )

    def _within(self, ids: set[str]) -> timedelta:
        said = [self.compiled.statements[name].within for name in ids]
        return min((span for span in said if span is not None), default=self.compiled.bundle.within)

    def _lifted(self, ids: Sequence[str]) -> frozenset[str]:
        return frozenset[str]().union(*(self.compiled.statements[name].unattended for name in ids))

    def _said(self, ids: Sequence[str]) -> str:
        said = [self.compiled.statements[name].annotations.get("reason", "") for name in ids]
        return "; ".join(reason or f"policy {name}" for name, reason in zip(ids, said, strict=True))

    def _erred(
        self, request: AuthorizationRequest, why: str, digests: Mapping[str, str]
    ) -> AuthorizationDecision:
        reason = f"policy {self.version} cannot judge {sanitize(request.tool, 80)}: {sanitize(why, 500)}"
        found = digests or self.compiled.digests
        return AuthorizationDecision(False, reason, self.version, (), ERROR, digests=found)

    def may_approve(self, request: AuthorizationRequest, approver: Approver) -> AuthorizationDecision:
        """Whether this person may approve exactly this call. Never raises for what a request holds.

        That two approvals are of two persons is for whoever counts them.
        """
        more = {"requester": request.principal}
        try:
            question = _Question(self.compiled, request, approver, approve_action(request.tool), more)
            (answer,) = question.answers([request.approvals])
            digests = question.digests
        except _UNFIT as error:
            return self._erred(request, sanitize(error, 300), {})
        if answer.errors:
            return self._erred(request, "; ".join(answer.errors), digests)
        ids, who = answer.ids, sanitize(approver.principal, 80)
        if answer.allows and not asks_itself(request, approver):
            return AuthorizationDecision(True, "may approve", self.version, ids, digests=digests)
        if answer.allows:
            reason = f"{who} asks for it and cannot approve it"
        elif ids:
            reason = f"{who} may not approve {request.tool}: {self._said(ids)}"
        else:
            reason = f"no policy lets {who} approve {request.tool} in {sanitize(request.tenant, 80)}"
        return AuthorizationDecision(False, reason, self.version, ids, DENIED, digests=digests)


class _Question:
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
        self._text = encode(self._context).decode()
        asked = digest("fencepost.question.v1", [principal, action, resource, self._text])
        self.digests: dict[str, str] = {**compiled.digests, "entities": sliced, "request": asked}

    def answers(self, approvals: list[int]) -> list[_Answer]:
        """What Cedar says with so many approvals, each."""
        if not approvals:
            return []
        questions = [{**self._named, "context": self._with(count)} for count in approvals]
        return self._compiled.asked(questions, self._entities)

    def _with(self, approvals: int) -> str:
        if approvals == self._context["approvals"]:
            return self._text
        return encode({**self._context, "approvals": approvals}).decode()


def engine_of(text: str, version: str = UNPUBLISHED) -> CedarEngine:
    """The engine of a published text. UsageError if it cannot be read or does not compile."""
    return CedarEngine(Compiled(Bundle.unpack(text)), version)
