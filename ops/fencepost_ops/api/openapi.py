"""What OpenAPI tells of each route, beyond what its signature says: bodies, answers, refusals. Pure."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response

from fencepost.budgets import Budget
from fencepost.runrequest import MAX_DEADLINE
from fencepost.tools import OnStop
from fencepost_ops.api import answers, asked
from fencepost_ops.api.problems import CODES, MEDIA_TYPE

ABOUT: Final = (
    "Runs of agents, started, watched and stopped. A run is known by the Idempotency-Key it was started with"
    " for as long as it is kept: the same request again is the same run. Money and numbers are never floats"
    " where they are ours; times are RFC 3339 in UTC, by the ledger's clock."
)
KEY: Final = (
    f'a key of your own, of 1 to {asked.MAX_KEY} characters, written "like-this" or without quotes; kept as'
    " long as the run is"
)
_ALWAYS: Final = ("unauthenticated", "forbidden", "too_many_attempts", "bug", "unavailable", "overloaded")
_READING: Final = (*_ALWAYS, "invalid_request")
_OF_RUN: Final = (*_READING, "not_found")
_WRITING: Final = (
    "invalid_request",
    "timeout",
    "body_too_large",
    "unsupported_media_type",
)
_KEYED: Final = ("idempotency_key_required", "idempotency_in_flight", "idempotency_conflict")
_REPLAYED: Final = {
    "Idempotent-Replayed": {"schema": {"const": "true"}, "description": "it was there before"}
}
_LOCATION: Final = {"Location": {"schema": {"type": "string"}, "description": "where the run is"}}
_SECURITY: Final[list[dict[str, list[str]]]] = [{"token": []}]
_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": 200}

RUN_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["planner", "input", "deadline"],
    "properties": {
        "planner": _TEXT,
        "version": {"type": "integer", "minimum": 1, "default": 1, "maximum": 2**31 - 1},
        "input": {"description": "any JSON value, handed to the planner; at most 1 MiB and 64 levels deep"},
        "principal": {**_TEXT, "description": "one of those the token may name; by default its first"},
        "deadline": {
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": MAX_DEADLINE.total_seconds(),
            "description": "seconds from when the ledger takes it",
        },
        "budget": {
            "type": ["object", "null"],
            "additionalProperties": False,
            "properties": {name: {"type": ["integer", "null"]} for name in Budget().to_json()},
            "description": "limits of the run; absent ones are the usual ones",
        },
        "on_stop": {"enum": [str(one) for one in OnStop], "default": str(OnStop.COMPENSATE)},
        "tainted": {"type": "boolean", "default": False, "description": "its input came from outside"},
        "run_key": {**_TEXT, "description": "if given, what the Idempotency-Key says"},
    },
}
SIGNAL_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 100},
        "body": {"description": "any JSON value of at most 64 KiB", "default": {}},
    },
}
CANCEL_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["reason"],
    "properties": {"reason": {"type": "string", "minLength": 1}},
}


def _refusals(*codes: str) -> dict[int | str, dict[str, Any]]:
    by_status: dict[int | str, dict[str, Any]] = {}
    for code in dict.fromkeys(codes):
        said = by_status.setdefault(
            CODES[code], {"content": {MEDIA_TYPE: {"schema": _PROBLEM}}, "headers": {}}
        )
        said["description"] = ", ".join(filter(None, [said.get("description"), code]))
        if code == "unauthenticated":
            said["headers"]["WWW-Authenticate"] = {"schema": {"type": "string"}}
        if CODES[code] in {429, 503} or code == "idempotency_in_flight":
            said["headers"]["Retry-After"] = {"schema": {"type": "integer"}, "description": "seconds"}
    return by_status


_PROBLEM: Final = {"$ref": "#/components/schemas/ProblemModel"}


def _answer(model: str, description: str, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model}"}
    return {
        "description": description,
        "content": {"application/json": {"schema": schema}},
        "headers": headers or {},
    }


def _route(
    codes: tuple[str, ...],
    good: dict[int | str, dict[str, Any]],
    *,
    schema: dict[str, Any] | None = None,
    secured: bool = True,
) -> dict[str, Any]:
    extra: dict[str, Any] = {"security": _SECURITY if secured else []}
    if schema is not None:
        extra["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    (status,) = list(good)[:1]
    return {
        "responses": {**good, **_refusals(*codes)},
        "status_code": int(status),
        "openapi_extra": extra,
        "response_class": Response,
    }


START: Final = _route(
    (*_ALWAYS, *_WRITING, *_KEYED),
    {
        201: _answer("RunModel", "committed", _LOCATION),
        200: _answer("RunModel", "the same request was there before", _LOCATION | _REPLAYED),
    },
    schema=RUN_SCHEMA,
)
LIST: Final = _route(_READING, {200: _answer("RunsModel", "a page of runs")})
SHOW: Final = _route(_OF_RUN, {200: _answer("RunModel", "where it stands")})
EVENTS: Final = _route(_OF_RUN, {200: _answer("EventsModel", "a page of events")})
STREAM: Final = _route(
    _OF_RUN,
    {
        200: {
            "description": "server-sent events: `id` is a number, `event` a type, `data` an EventModel;"
            " `end` once the run has ended, `drain` where another process is to be asked, `revoked`",
            "content": {"text/event-stream": {"schema": {"type": "string"}}},
        },
        204: {"description": "the run has ended, and all of it was seen"},
    },
)
CANCEL: Final = _route(
    (*_OF_RUN, *_WRITING, "run_ended", "idempotency_in_flight"),
    {200: _answer("RunModel", "where it stands now")},
    schema=CANCEL_SCHEMA,
)
SIGNAL: Final = _route(
    (*_OF_RUN, *_WRITING, *_KEYED, "run_ended"),
    {
        201: _answer("SignalModel", "taken"),
        200: _answer("SignalModel", "the same signal was there before", _REPLAYED),
    },
    schema=SIGNAL_SCHEMA,
)
HEALTHY: Final = _route(("bug",), {200: _answer("HealthModel", "it lives")}, secured=False)
READY: Final = _route(("bug", "unavailable"), {200: _answer("HealthModel", "it can serve")}, secured=False)

_MODELS: Final = (
    answers.RunModel,
    answers.RunsModel,
    answers.EventsModel,
    answers.SignalModel,
    answers.HealthModel,
    answers.ProblemModel,
)


def tell(app: FastAPI) -> None:
    """Have the application tell of itself as here, at /openapi.json."""

    def made() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = made  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    told = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas: dict[str, Any] = {}
    for model in _MODELS:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    schemas["ProblemModel"]["properties"]["code"]["enum"] = list(CODES)
    problem = schemas["ProblemModel"]
    problem["required"] = [name for name in problem["required"] if name != "errors"]
    told["components"] = {
        "schemas": schemas,
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "bearerFormat": "fpt_…"}},
    }
    for operations in told["paths"].values():
        for operation in operations.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] == "Idempotency-Key":  # asked for by `asked`, in words of its own
                    parameter["required"] = True
            # What the framework would answer by itself; nothing is validated by it here.
            said = operation["responses"]
            if "HTTPValidationError" in str(said.get("422")):
                del said["422"]
    return told
