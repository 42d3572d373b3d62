"""A policy bundle: what is written in a folder, published as one text, and in force under a version.

    bundle.json             {"name": "shop", "approval": {"within": "24h"}, "allowances": []}
    *.cedar                 the policies: at most 500, of 256 KiB together
    schema.cedarschema      optional: types and entities of one's own, added to the generated schema
    entities.json           optional: Cedar entities, such as the roles of principals and what roles include
    tests/*.json            requests and the decisions expected of them (see `policytests`)

The published text also holds the tools the policies were checked against (names, versions, effects, shapes of
arguments), so that a version decides alike in every process, whatever application that process has loaded. A
call of a tool or a version of it that is not among them is denied: publish again with the application that
has it, before its workers start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from fencepost.allowances import read as read_allowances
from fencepost.authority.policytests import PolicyTest, PolicyTestFile
from fencepost.authority.statements import parse_span, span_text
from fencepost.authority.vocabulary import Vocabulary
from fencepost.canonical import CanonicalError, digest, encode, parse, sanitize
from fencepost.errors import UsageError
from fencepost.misfits import misfits
from fencepost.names import named

FORMAT: Final = 1
SETTINGS, SCHEMA, ENTITIES, TESTS = "bundle.json", "schema.cedarschema", "entities.json", "tests/"
POLICIES: Final = ".cedar"
MAX_BYTES: Final = 1024 * 1024
"""Of the published text."""
M = TypeVar("M", bound=BaseModel)
PRINCIPAL, ROLE, RESOURCE = "Principal", "Role", "Resource"


def _spanned(text: str) -> str:
    parse_span(text)
    return text


class Approval(BaseModel):
    """How long an approval may take and then counts, where no deciding policy says so with `@within`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    within: Annotated[str, AfterValidator(_spanned)] = "24h"


class BundleSettings(BaseModel):
    """`bundle.json`. What an allowance may say is `fencepost.allowances.Allowance`."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9_.:-]{1,100}$")
    approval: Approval = Approval()
    allowances: list[dict[str, Any]] = []


@dataclass(frozen=True)
class PolicyVersion:
    """A row of the table `policies`: a bundle as it was published. `tenant` empty: for all of them."""

    version: int
    tenant: str
    name: str
    digest: str
    bundle: str
    published_at: datetime
    published_by: str
    login: str
    note: str


@dataclass(frozen=True)
class Bundle:
    """A bundle that reads; whether its policies hold together `fencepost.authority.cedar` says."""

    name: str
    policies: Mapping[str, str]
    vocabulary: Vocabulary
    within: timedelta = timedelta(hours=24)
    schema: str = ""
    entities: tuple[Mapping[str, Any], ...] = ()
    allowances: tuple[Mapping[str, Any], ...] = ()
    tests: Mapping[str, tuple[PolicyTest, ...]] = field(default_factory=dict)

    @cached_property
    def value(self) -> dict[str, Any]:
        """The whole bundle as JSON."""
        return {
            "format": FORMAT,
            "name": self.name,
            "within": span_text(self.within),
            "allowances": [dict(one) for one in self.allowances],
            "policies": dict(self.policies),
            "schema": self.schema,
            "entities": [dict(one) for one in self.entities],
            "tools": self.vocabulary.to_json(),
            "tests": {
                file: [test.model_dump(mode="json", exclude_defaults=True) for test in tests]
                for file, tests in self.tests.items()
            },
        }

    def pack(self) -> str:
        """The one text that is published, canonical: equal bundles give equal texts."""
        return encode(self.value).decode()

    @cached_property
    def digest(self) -> str:
        """Names the whole content, the tools it was checked against included."""
        return digest("fencepost.policies.v1", self.value)

    def files(self) -> dict[str, str]:
        """The folder that reads as this bundle, beside the same tools."""
        settings = BundleSettings(
            name=self.name,
            approval=Approval(within=span_text(self.within)),
            allowances=[dict(one) for one in self.allowances],
        )
        made = {SETTINGS: _pretty(settings.model_dump(mode="json")), **self.policies}
        if self.schema:
            made[SCHEMA] = self.schema
        if self.entities:
            made[ENTITIES] = _pretty(self.value["entities"])
        for file, tests in self.value["tests"].items():
            made[file] = _pretty({"tests": tests})
        return made

    @classmethod
    def unpack(cls, text: str) -> Bundle:
        """The bundle of a published text; UsageError for one that this installation cannot read."""
        try:
            value = parse(text, max_bytes=MAX_BYTES, max_depth=64)
            if not isinstance(value, dict) or value.get("format") != FORMAT:
                raise ValueError(f"it is not of format {FORMAT}, the one this installation reads")
            kept: dict[str, Any] = value
            tests = {
                file: tuple(PolicyTestFile.model_validate({"tests": listed}).tests)
                for file, listed in kept["tests"].items()
            }
            return cls(
                kept["name"],
                {str(file): str(policy) for file, policy in kept["policies"].items()},
                Vocabulary.from_json(kept["tools"]),
                parse_span(kept["within"]),
                kept["schema"],
                tuple(kept["entities"]),
                tuple(kept["allowances"]),
                tests,
            )
        except (ValueError, KeyError, AttributeError, TypeError, UsageError) as error:
            why = f"{type(error).__name__}: {sanitize(error, 200)}"
            raise UsageError(f"a published policy cannot be read ({why})") from None


def _pretty(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def read_bundle(files: Mapping[str, str], vocabulary: Vocabulary) -> tuple[Bundle | None, list[str]]:
    """The bundle of a folder's files by relative name, and what is wrong with them, `file:line: sentence`.

    None if its settings, entities or tests cannot be read; policies are not looked into.
    """
    problems = [f"{name}: {_WHAT}" for name in sorted(files) if not _belongs(name)]
    settings = _settings(files, problems)
    entities = _entities(files.get(ENTITIES, "[]"), problems)
    tests = {
        name: tuple(found.tests)
        for name, text in sorted(files.items())
        if name.startswith(TESTS) and (found := _model(PolicyTestFile, name, text, problems)) is not None
    }
    if settings is not None:
        try:
            read_allowances(settings.allowances)
        except UsageError as error:
            problems.append(f"{SETTINGS}:{_line(files[SETTINGS], ('allowances',))}: {error}")
    policies = {name: text for name, text in sorted(files.items()) if name.endswith(POLICIES)}
    if not policies:
        problems.append(f"there are no policies, so nothing would be allowed; write some into a *{POLICIES}")
    if settings is None or problems:
        return None, problems
    bundle = Bundle(
        settings.name,
        policies,
        vocabulary,
        parse_span(settings.approval.within),
        files.get(SCHEMA, ""),
        tuple(entities),
        tuple(settings.allowances),
        tests,
    )
    try:
        size = len(bundle.pack())
    except CanonicalError as error:
        return None, [f"the bundle cannot be kept: {error.path}: {error.message}"]
    if size > MAX_BYTES:
        return None, [f"the bundle has {size} bytes; at most {MAX_BYTES} can be published"]
    return bundle, []


_WHAT: Final = (
    f"a bundle holds {SETTINGS}, *{POLICIES}, {SCHEMA}, {ENTITIES} and {TESTS}*.json; take this away"
)


def _belongs(name: str) -> bool:
    if name.startswith(TESTS):
        return name.endswith(".json") and "/" not in name.removeprefix(TESTS)
    return name in {SETTINGS, SCHEMA, ENTITIES} or (name.endswith(POLICIES) and "/" not in name)


def _settings(files: Mapping[str, str], problems: list[str]) -> BundleSettings | None:
    if SETTINGS not in files:
        problems.append(f'{SETTINGS} is missing; write {{"name": "…"}} into it')
        return None
    return _model(BundleSettings, SETTINGS, files[SETTINGS], problems)


def _model(model: type[M], name: str, text: str, problems: list[str]) -> M | None:
    value = _json(name, text, problems)
    if value is _NOTHING:
        return None
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problems += [
            f"{name}:{_line(text, one.path)}: {sanitize(one.told(), 200)}" for one in misfits(error)[:10]
        ]
        return None


_NOTHING: Final = object()


def _json(name: str, text: str, problems: list[str]) -> Any:
    try:
        return parse(text, max_bytes=MAX_BYTES)
    except CanonicalError as error:
        line = 1
        try:
            json.loads(text)
        except json.JSONDecodeError as syntax:
            line = syntax.lineno
        except (ValueError, RecursionError):
            pass
        problems.append(f"{name}:{line}: {error.path}: {error.message}")
        return _NOTHING


def _line(text: str, path: tuple[int | str, ...]) -> int:
    """About where a path stands: the line of its innermost key, each looked for after the one above it."""
    at = 0
    for part in path:
        if isinstance(part, int):
            continue
        found = text.find(json.dumps(part), at)
        if found < 0:
            break
        at = found
    return text.count("\n", 0, at) + 1


def _entities(text: str, problems: list[str]) -> list[Mapping[str, Any]]:
    value = _json(ENTITIES, text, problems)
    if value is _NOTHING:
        return []
    if not isinstance(value, list):
        problems.append(f"{ENTITIES}:1: it must be a list of Cedar entities")
        return []
    found: list[Mapping[str, Any]] = []
    for number, one in enumerate(value):
        try:
            found.append(_entity(one))
        except (ValueError, UsageError) as error:
            problems.append(f"{ENTITIES}:{_line(text, ())}: entity {number + 1}: {error}")
    return found


def _entity(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not set(value) <= {"uid", "attrs", "parents", "tags"}:
        raise ValueError('an entity is {"uid": {"type": …, "id": …}, "attrs": {}, "parents": []}')
    kind, name = uid_of(value.get("uid"))
    parents = value.get("parents", [])
    if not isinstance(parents, list):
        raise ValueError("its parents are a list")  # noqa: TRY004
    above = [uid_of(parent) for parent in parents]
    if kind in {RESOURCE, "Action"}:
        raise ValueError(f"{kind} entities are made for each request; those of a bundle are of other types")
    if kind in {PRINCIPAL, ROLE}:
        if value.get("attrs"):
            raise ValueError(f"a {kind} has no attributes here; give it roles as parents")
        if any(of != ROLE for of, _ in above):
            raise ValueError(f"the parents of a {kind} are roles")
    if kind == PRINCIPAL:
        named("principal", name)
    return {"attrs": {}, "parents": [], **value}


def uid_of(value: Any) -> tuple[str, str]:
    """Type and id of an entity's reference; ValueError for anything but {"type": …, "id": …}."""
    if not isinstance(value, dict) or set(value) != {"type", "id"}:
        raise ValueError('an entity is named as {"type": "Role", "id": "clerk"}')
    kind, name = value["type"], value["id"]
    if not isinstance(kind, str) or not isinstance(name, str):
        raise ValueError("the type and the id of an entity are texts")  # noqa: TRY004
    return kind, name
