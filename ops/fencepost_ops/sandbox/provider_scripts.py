"""What scripted models answer: turn n of a script to a request that asks for turn n.

    POST /models/script {"models": {"support": {"turns": [
        {"calls": [{"name": "orders.find", "id": "look", "arguments": {"order": {"$input": "order"}}}]},
        {"calls": [{"name": "wallet.refund", "arguments": {"debit": {"$result": "look", "path": "debit"}}}]},
        {"text": "Done."}]}}}

Arguments are an object, whose references are filled in from the request, or text, sent as it is. A turn may
also be a list of calls, or what a planner's script has: `proposals` (with `tool` and `call_id`) or `finish`
(said as JSON); `thoughts` are what the model thinks before each thing that it says or calls (empty: nothing).
`turns_from` is a path in the input the model was given, where its turns are. After its last turn a model says
`last` ("Done."). Which turn is asked for follows from the request alone.
`nine`: a model that takes call ids of nine letters and digits only, as Mistral's do. PURE.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from fencepost_ops.sandbox.provider_replies import END, TOOL, Call, Reply, Usage
from fencepost_ops.sandbox.provider_transcript import CHAT, Asked
from fencepost_ops.sandbox.standing import draw

_KEYS: Final = frozenset({"turns", "turns_from", "last", "usage", "latency", "limits", "nine"})
_NINE: Final = re.compile(r"[a-zA-Z0-9]{9}")
_P99: Final = statistics.NormalDist().inv_cdf(0.99)


class Unscripted(ValueError):
    """The script has no answer to this request; the text says why."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds: `p50`, or log-normal with that median and `p99`."""

    p50: float = 0.0
    p99: float | None = None

    def seconds(self, chance: float) -> float:
        """The wait at a point of its distribution."""
        if self.p99 is None or self.p50 <= 0:
            return self.p50
        sigma = math.log(self.p99 / self.p50) / _P99
        return self.p50 * math.exp(sigma * statistics.NormalDist().inv_cdf(min(max(chance, 1e-6), 1 - 1e-6)))


@dataclass(frozen=True, slots=True)
class Latency:
    """How long a model takes: to its headers, to its first token, between two pieces of its stream."""

    headers: Wait = field(default_factory=Wait)
    first: Wait = field(default_factory=Wait)
    between: Wait = field(default_factory=Wait)
    seed: int = 0

    def pace(self, digest: str, nth: int) -> tuple[float, float, float]:
        """The three for one request: the same whenever it is asked."""
        waits = (self.headers, self.first, self.between)
        texts = (f"{self.seed}:{name}:{digest}:{nth}" for name in ("headers", "first", "between"))
        headers, first, between = (w.seconds(draw(t)) for w, t in zip(waits, texts, strict=True))
        return headers, first, between


@dataclass(frozen=True, slots=True)
class Limits:
    """What a provider lets through before it answers 429: requests at once, and requests per second."""

    concurrent: int | None = None
    per_s: float | None = None
    retry_after_s: int = 1


@dataclass(frozen=True)
class Script:
    """What one model answers."""

    turns: tuple[Mapping[str, Any], ...] = ()
    turns_from: str | None = None
    last: str = "Done."
    usage: Mapping[str, int] = field(default_factory=dict)
    latency: Latency = field(default_factory=Latency)
    limits: Limits = field(default_factory=Limits)
    nine: bool = False


def parse(name: str, wire: Any) -> Script:
    """A script from JSON. Raises ValueError with one sentence."""
    if isinstance(wire, list):
        wire = {"turns": wire}
    if not isinstance(wire, Mapping) or not set(wire) <= _KEYS:
        raise ValueError(f"the script of {name} may have {', '.join(sorted(_KEYS))}, not {wire!r:.200}")
    turns_from = wire.get("turns_from")
    if turns_from is not None and not isinstance(turns_from, str):
        raise ValueError(f"the script of {name}: turns_from is a path, not {turns_from!r}")
    return Script(
        turns=_turns(name, wire.get("turns", [])),
        turns_from=turns_from,
        last=str(wire.get("last", "Done.")),
        usage=_numbers(name, "usage", wire, Usage),
        latency=_latency(name, wire.get("latency", {})),
        limits=Limits(**_numbers(name, "limits", wire, Limits)),
        nine=wire.get("nine") is True,
    )


def _numbers(name: str, part: str, wire: Mapping[str, Any], kind: type[Usage | Limits]) -> dict[str, Any]:
    given, known = wire.get(part, {}), [one.name for one in fields(kind)]
    fine = isinstance(given, Mapping) and set(given) <= set(known)
    if not fine or not all(type(value) in (int, float) and value >= 0 for value in given.values()):
        raise ValueError(f"the script of {name}: {part} has numbers for {', '.join(known)}, not {given!r}")
    return dict(given)


def _latency(name: str, wire: Any) -> Latency:
    if not isinstance(wire, Mapping) or not set(wire) <= {"headers_s", "first_s", "between_s", "seed"}:
        raise ValueError(f"the script of {name}: latency has headers_s, first_s, between_s and seed")
    headers, first, between = (
        _wait(name, wire.get(f"{one}_s", 0)) for one in ("headers", "first", "between")
    )
    return Latency(headers, first, between, int(wire.get("seed", 0)))


def _wait(name: str, given: Any) -> Wait:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return Wait(float(given))
    if isinstance(given, Mapping) and set(given) == {"p50", "p99"} and 0 < given["p50"] <= given["p99"]:
        return Wait(float(given["p50"]), float(given["p99"]))
    raise ValueError(f"the script of {name}: a wait is seconds, or {{p50, p99}}, not {given!r}")


def _turns(name: str, given: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(given, list):
        raise ValueError(f"the script of {name}: turns is a list")  # noqa: TRY004 - answered like any bad body
    return tuple(_turn(name, number, one) for number, one in enumerate(given, 1))


def _turn(name: str, number: int, given: Any) -> Mapping[str, Any]:
    if isinstance(given, list):
        given = {"calls": given}
    known = {"calls", "text", "refusal", "stop", "usage", "proposals", "finish", "raw", "thoughts"}
    if not isinstance(given, Mapping) or not set(given) <= known:
        raise ValueError(f"the script of {name}, turn {number}, may have {', '.join(sorted(known))}")
    text = given.get("text", given.get("raw", ""))
    if given.get("finish") is not None:
        text = json.dumps(given["finish"])
    calls = [_call(name, number, one) for one in given.get("calls", given.get("proposals", []))]
    _numbers(f"{name}, turn {number}", "usage", given, Usage)
    kept = {key: given[key] for key in ("refusal", "stop", "usage", "thoughts") if key in given}
    return {"text": text, "finish": given.get("finish"), "calls": calls, **kept}


def _call(name: str, number: int, given: Any) -> Mapping[str, Any]:
    known = {"name", "tool", "id", "call_id", "arguments", "version", "caller"}
    if not isinstance(given, Mapping) or not set(given) <= known:
        raise ValueError(f"the script of {name}, turn {number}: a call has name, id and arguments")
    called = given.get("name", given.get("tool"))
    if not isinstance(called, str):
        raise ValueError(f"the script of {name}, turn {number}: a call needs a name")  # noqa: TRY004 - as above
    label = given.get("id", given.get("call_id", ""))
    return {
        "name": called,
        "id": label,
        "arguments": given.get("arguments", {}),
        "caller": given.get("caller"),
    }


def reply(script: Script, asked: Asked, number: int) -> Reply:
    """What the model answers to request `number`. Raises Unscripted."""
    turns = script.turns
    if script.turns_from is not None:
        turns = _turns(asked.model, list(_at(asked.given(), script.turns_from, "the input")))
    if asked.turn > len(turns):
        row: Mapping[str, Any] = {"text": script.last, "calls": []}
    else:
        row = turns[asked.turn - 1]
    _remembered(asked, turns)
    odd = [item.id for item in asked.items if item.id and not _NINE.fullmatch(item.id)]
    if script.nine and odd:
        raise Unscripted(f"Tool call id was {odd[0]} but must be a-z, A-Z, 0-9, with a length of 9")
    filled = _Filled(asked, turns)
    calls = tuple(
        Call(
            id=call["id"] or f"call_{number}_{place}",
            name=_wire_name(call["name"], asked.tools),
            arguments=filled.text(call["arguments"]),
            caller=call["caller"],
        )
        for place, call in enumerate(row["calls"])
    )
    text = row["text"] if row.get("finish") is None else json.dumps(filled.value(row["finish"]))
    stop = row.get("stop", TOOL if calls else END)
    said = len(text) + sum(len(call.arguments) for call in calls)
    counted = {"input": len(json.dumps(asked.body)) // 4, "output": said // 4 + 1}
    usage = Usage(**{**counted, **script.usage, **row.get("usage", {})})
    return Reply(
        id=f"answer_{number}",
        model=asked.model,
        text=text,
        calls=calls,
        refusal=row.get("refusal", ""),
        stop=stop,
        usage=usage,
        thoughts=tuple(map(str, row.get("thoughts", ()))),
    )


def _remembered(asked: Asked, turns: Sequence[Mapping[str, Any]]) -> None:
    """On Chat a model has to be told what it thought; elsewhere, if it is, then in its place. Unscripted."""
    thought = [one for row in turns[: asked.turn - 1] for one in row.get("thoughts", ()) if one]
    if asked.wire == CHAT and asked.thoughts < len(thought):
        raise Unscripted("the reasoning_content in the thinking mode must be passed back to the API")


def _wire_name(name: str, tools: Sequence[str]) -> str:
    """The tool as the request names it: names have no dots on the wire."""
    plain = _plain(name)
    return next((tool for tool in tools if tool == name), None) or next(
        (tool for tool in tools if _plain(tool) == plain), name
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-zA-Z0-9]+", "_", name)


class _Filled:
    """Fills references in: `{"$input": path}` and `{"$result": label, "path": path}`."""

    def __init__(self, asked: Asked, turns: Sequence[Mapping[str, Any]]) -> None:
        self._asked = asked
        self._turns = turns

    def text(self, arguments: Any) -> str:
        """Arguments as a model writes them."""
        return arguments if isinstance(arguments, str) else json.dumps(self.value(arguments))

    def value(self, given: Any) -> Any:
        """The value with its references replaced. Raises Unscripted where one leads nowhere."""
        if isinstance(given, list):
            return [self.value(one) for one in given]
        if not isinstance(given, Mapping):
            return given
        if "$input" in given:
            return _at(self._asked.given(), given["$input"], "the input")
        if "$result" in given:
            return self._result(given["$result"], given.get("path", ""))
        return {name: self.value(one) for name, one in given.items()}

    def _result(self, label: str, path: str) -> Any:
        """A part of the result of the call the script gave this label; known by its place, whatever its id is
        by now.
        """
        for turn, row in enumerate(self._turns[: len(self._asked.turns)]):
            for place, call in enumerate(row["calls"]):
                if call["id"] == label:
                    made = [item for item in self._asked.turns[turn] if item.kind == "call"]
                    if place < len(made):
                        return _of_result(self._asked.results.get(made[place].id, ""), path, label)
        raise Unscripted(f"no call with the label {label!r} is in the transcript")


def _of_result(text: str, path: str, label: str) -> Any:
    try:
        told = json.loads(text)
    except ValueError:
        told = text
    for place in (told, told.get("result") if isinstance(told, Mapping) else None):
        try:
            return _at(place, path, "")
        except Unscripted:
            continue
    if isinstance(told, Mapping) and path in ("id", "receipt") and "receipt" in told:
        return told["receipt"]
    raise Unscripted(f"the result of {label!r} has nothing at {path!r}: {text[:200]}")


def _at(value: Any, path: str, what: str) -> Any:
    whole = value
    for step in filter(None, path.split(".")):
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        elif isinstance(whole, Mapping) and isinstance(whole.get("input"), Mapping) and what:
            return _at(whole["input"], path, "")
        else:
            raise Unscripted(f"{what or 'it'} has nothing at {path!r}")
    return value
