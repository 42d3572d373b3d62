"""A planner whose turns are written down: the recorded path a model takes, without a model.

A script is a JSON list of turns, or JSON Lines with one turn per line:

    {"proposals": [{"tool": "wallet.debit", "call_id": "debit", "arguments": {"order": {"$input": "id"}}}]}
    {"proposals": [{"tool": "shipping.book", "arguments": {"debit": {"$result": "debit", "path": "id"}}}]}
    {"finish": {"shipped": true}}

`{"$input": path}` stands for a part of the run's input, `{"$result": label, "path": path}` for a part of the
result of the call proposed under that label; a path is names and list positions joined by dots, empty for the
whole. Where the result has nothing at the path `receipt`, that is the downstream's reference, and so is `id`
where there is no result, because a person settled the call. The same context always gives the same turn.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fencepost.errors import ScriptError
from fencepost.misfits import misfits
from fencepost.tools import CallView, Context, Proposal, Turn

Source = str | Path | Sequence[Mapping[str, Any]] | Callable[[Context], Any]


class _ScriptedCall(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    call_id: str = ""
    version: int | None = None


class _ScriptedTurn(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    proposals: list[_ScriptedCall] = Field(default_factory=list)
    finish: Any = None
    usage: dict[str, Any] = Field(default_factory=dict)
    raw: str = ""


class ScriptedPlanner:
    """Turn n of the run is turn n of the script, its references filled in from the context."""

    def __init__(self, name: str, turns: Callable[[Context], _ScriptedTurn | Turn]) -> None:
        self._name = name
        self._turns = turns

    @classmethod
    def load(cls, name: str, source: Source) -> "ScriptedPlanner":
        """A planner from a file, a list or a function of the context; ScriptError says what is wrong."""
        if callable(source):
            function = source
            return cls(name, lambda context: _from_function(name, function(context), context.turn))
        rows = _read(name, Path(source)) if isinstance(source, str | Path) else list(source)
        turns = [_turn(f"script {name}, turn {n}", row) for n, row in enumerate(rows, 1)]
        if not turns:
            raise ScriptError(f"script {name} has no turns")
        _check_labels(name, turns)
        return cls(name, lambda context: _numbered(name, turns, context.turn))

    async def propose(self, context: Context) -> Turn:
        """The turn for this context; ScriptError if there is none or a reference leads nowhere."""
        turn = self._turns(context)
        if isinstance(turn, Turn):
            return turn
        where = f"script {self._name}, turn {context.turn}"
        proposals = [
            Proposal(call.tool, _filled(call.arguments, context, where), call.call_id, call.version)
            for call in turn.proposals
        ]
        return Turn(proposals, _filled(turn.finish, context, where), turn.usage, turn.raw)


def _read(name: str, path: Path) -> list[Any]:
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ScriptError(f"script {name} cannot be read from {path}: {error}") from error
    try:
        if text.lstrip().startswith("["):
            return list(json.loads(text))
        return [_line(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    except ValueError as error:
        raise ScriptError(f"script {name} in {path} is not JSON: {error}") from error


def _line(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from error


def _turn(where: str, row: object) -> _ScriptedTurn:
    try:
        turn = _ScriptedTurn.model_validate(dict(row) if isinstance(row, Mapping) else row)
    except ValidationError as error:
        raise ScriptError(f"{where}: {misfits(error)[0].told('')}") from None
    if turn.proposals and turn.finish is not None:
        raise ScriptError(f"{where}: a turn either proposes calls or finishes the run, not both")
    for reference in _references([call.arguments for call in turn.proposals] + [turn.finish]):
        _check_reference(where, reference)
    return turn


def _from_function(name: str, given: object, turn: int) -> _ScriptedTurn | Turn:
    return given if isinstance(given, Turn) else _turn(f"script {name}, turn {turn}", given)


def _numbered(name: str, turns: list[_ScriptedTurn], turn: int) -> _ScriptedTurn:
    if not 1 <= turn <= len(turns):
        raise ScriptError(f"script {name} has {len(turns)} turns, none for turn {turn}; end it with a finish")
    return turns[turn - 1]


def _references(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        if "$input" in value or "$result" in value:
            yield value
        else:
            for inner in value.values():
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def _check_reference(where: str, reference: Mapping[str, Any]) -> None:
    allowed = {"$input"} if "$input" in reference else {"$result", "path"}
    if not set(reference) <= allowed or not all(isinstance(value, str) for value in reference.values()):
        shown = json.dumps(reference, default=str)[:120]
        raise ScriptError(
            f'{where}: {shown} is neither {{"$input": path}} nor {{"$result": label, "path": path}}'
        )


def _check_labels(name: str, turns: list[_ScriptedTurn]) -> None:
    known: set[str] = set()
    for number, turn in enumerate(turns, 1):
        for reference in _references([call.arguments for call in turn.proposals] + [turn.finish]):
            label = reference.get("$result")
            if label is not None and label not in known:
                raise ScriptError(
                    f"script {name}, turn {number}: no earlier turn has a call labelled {label!r}"
                )
        known |= {call.call_id for call in turn.proposals}


def _filled(value: Any, context: Context, where: str) -> Any:
    if isinstance(value, list):
        return [_filled(inner, context, where) for inner in value]
    if not isinstance(value, Mapping):
        return value
    if "$input" in value:
        return _at(context.input, value["$input"], f"{where}: the run's input")
    if "$result" in value:
        label = value["$result"]
        call = context.call(label)
        if call is None or not call.succeeded:
            state = "is not there" if call is None else f"is {call.state}"
            raise ScriptError(f"{where}: call {label!r} has no result, it {state}")
        return _of_result(call, value.get("path", ""), f"{where}: the result of {label!r}")
    return {name: _filled(inner, context, where) for name, inner in value.items()}


def _of_result(call: CallView, path: str, what: str) -> Any:
    given = isinstance(call.result, Mapping) and "receipt" in call.result
    if call.receipt is not None and (
        (path == "receipt" and not given) or (path == "id" and call.result is None)
    ):
        return call.receipt
    if call.result is None and path:
        raise ScriptError(f"{what} is empty, so there is nothing at {path!r}; a receipt is at 'receipt'")
    return _at(call.result, path, what)


def _at(value: Any, path: str, what: str) -> Any:
    for step in filter(None, path.split(".")):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isascii() and step.isdigit() and int(step) < len(value):
            value = value[int(step)]
        else:
            raise ScriptError(f"{what} has nothing at {path!r}")
    return value
