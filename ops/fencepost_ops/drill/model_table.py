"""What every fault of a model provider comes to, on every wire: the table that `drill --models` holds us to.

A cell says what the planner of a run is left with: the calls that were proposed, all of them and as they
were written, or all but one whose arguments are refused; a claim that all is done; an empty turn; or the code
under which the answer counts as lost. Beside it stands what is charged: what the provider said it used,
nothing, or the reservation where nobody knows; and the reason the run stops for, where asking again would be
no use. Of a lost answer nothing becomes a call. PURE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fencepost.models import Wire
from fencepost.states import StopReason
from fencepost_ops.sandbox.provider_oddities import NOTHING_SAID, OTHER, SPELLED, Oddity

CALLS, REFUSED, NONE_LEFT = "2 calls", "1 call, 1 refused", "2 refused"
CLAIM, EMPTY = "a claim", "an empty turn"
USED, NOTHING, RESERVED = "used", "nothing", "reserved"
NONE: Final = "none"
PAUSES: Final = 8
"""How often a paused answer is gone on with, at most."""
RESPONSES, CHAT, MESSAGES = Wire.RESPONSES, Wire.CHAT, Wire.MESSAGES


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one answer comes to."""

    result: str
    charged: str
    stops: StopReason | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One fault: its rule as the provider takes it, and what it comes to on each wire that has it."""

    name: str
    on: Mapping[Wire, Outcome]
    rule: Mapping[str, Any] = field(default_factory=dict)
    patience_s: float | None = None
    """How long an answer is waited for, where none comes."""
    calls: bool = True
    """Whether the model proposes any."""
    requests: int = 1
    """How often the provider is asked."""

    @property
    def kind(self) -> str:
        """The provider's name for it; NONE where nothing is to go wrong."""
        return str(self.rule.get("kind", self.name))


def _all(result: str, charged: str = USED, stops: StopReason | None = None) -> dict[Wire, Outcome]:
    return dict.fromkeys(Wire, Outcome(result, charged, stops))


def _on(
    *wires: Wire, result: str, charged: str = USED, stops: StopReason | None = None
) -> dict[Wire, Outcome]:
    return dict.fromkeys(wires, Outcome(result, charged, stops))


def _status(number: int, charged: str, stops: StopReason | None = None) -> Row:
    on = _all(f"http_{number}", charged, stops)
    return Row(f"status {number}", on, {"kind": "status", "status": number})


SILENT_S: Final = 2.5
_ANYWAY: Final = _all(CALLS)
_BROKEN: Final = _all("connection_lost", RESERVED)
_UNENDED: Final = _all("response_lost", RESERVED)
_SILENT: Final = _all("timeout", RESERVED)
_MALFORMED: Final = _all("malformed_turn")
_REFUSED_ALONE: Final = _all(REFUSED)
_FAILED: Final = StopReason.PLANNER_FAILED
_REFUSED: Final = StopReason.REFUSED
_TOO_LONG: Final = Outcome("context_exceeded", RESERVED, _FAILED)  # a 400, and not everybody's is free

_REFUSALS: Final = (
    _status(400, NOTHING, _FAILED),
    _status(422, NOTHING, _FAILED),
    _status(401, NOTHING),
    _status(408, RESERVED),
    _status(403, NOTHING),
    _status(404, NOTHING),
    _status(409, NOTHING),
    Row("status 413", dict.fromkeys(Wire, _TOO_LONG), {"kind": "status", "status": 413}),
    _status(429, NOTHING),
    _status(499, RESERVED),
    _status(500, RESERVED),  # it may have been made, and got lost on its way
    _status(503, NOTHING),
    _status(529, NOTHING),
    Row("garbage", _UNENDED),
)
_LOST: Final = (
    Row("reset_before_headers", _BROKEN),
    Row("close_before_headers", _BROKEN),
    Row("silent_before_headers", _SILENT, patience_s=SILENT_S),
    Row("cut_fin", _BROKEN),
    Row("cut_reset", _BROKEN),
    Row("cut_clean", _UNENDED),
    Row("cut_clean, all calls told", _UNENDED, {"kind": "cut_clean", "at": "stop"}),
    Row("cut_half_event", _UNENDED),
    Row("silence", _SILENT, patience_s=SILENT_S),
    Row(
        "silence, the stop reason told",  # Chat tells its usage later, and Anthropic its end
        {**_ANYWAY, CHAT: Outcome(CALLS, RESERVED), MESSAGES: _SILENT[MESSAGES]},
        {"kind": "silence", "at": "end"},
        patience_s=SILENT_S,
    ),
    # A Chat stream has ended with its finish_reason: some servers send no [DONE].
    Row("no_done", _on(CHAT, result=CALLS) | _on(MESSAGES, result="response_lost", charged=RESERVED)),
    Row("bad_event", _UNENDED),
    Row(
        "error_event",
        _on(RESPONSES, CHAT, result="http_500", charged=RESERVED)
        | _on(MESSAGES, result="http_529", charged=RESERVED),
    ),
    Row("response_failed", _on(RESPONSES, result="http_500", charged=RESERVED)),
)
_SPOILED: Final = (
    Row("truncated", _all("truncated")),
    Row("truncated_valid", _all("truncated")),
    Row("truncated_as_whole", _MALFORMED),
    Row("duplicate_keys", _REFUSED_ALONE),
    Row("nan", _REFUSED_ALONE),
    Row("trailing", _REFUSED_ALONE),
    Row("calls_at_end", _on(CHAT, MESSAGES, result=CALLS)),  # as servers do that have one word for both
    Row("no_calls", _on(CHAT, MESSAGES, result="malformed_turn")),
)
_LABELS: Final = (
    Row("same_ids", _ANYWAY),
    Row("empty_ids", _ANYWAY),
    Row("index_zero", _ANYWAY),
    Row("index_missing", _ANYWAY),
    Row("interleaved", _ANYWAY),
    Row("mingled", _on(CHAT, result="malformed_turn")),  # nobody can tell whose fragment is whose
    Row("late_id", _on(CHAT, result=CALLS)),
)
_ENDINGS: Final = (
    Row("empty", _all(EMPTY)),
    Row("words, and no call", _all(CLAIM), {"kind": NONE}, calls=False),
    Row("usage_missing", _all(CALLS, RESERVED)),
    Row("unknown_stop", _all("unknown_stop")),
    Row("pause_turn", _on(MESSAGES, result=CALLS), requests=2),
    Row(
        "pause_turn, for ever",
        _on(MESSAGES, result="paused"),
        {"kind": "pause_turn", "count": 99},
        requests=1 + PAUSES,
    ),
    Row("refusal", _all("model_refused", stops=_REFUSED)),
    Row(
        "content_filter",  # Anthropic has one word for both
        _on(RESPONSES, CHAT, result="content_filter", stops=_REFUSED)
        | _on(MESSAGES, result="model_refused", stops=_REFUSED),
    ),
    Row(
        "context_exceeded",
        {RESPONSES: _TOO_LONG, CHAT: _TOO_LONG, MESSAGES: Outcome("context_exceeded", USED, _FAILED)},
    ),
    Row("hosted_item", _on(RESPONSES, MESSAGES, result="hosted_tool", stops=_FAILED)),
    Row("unknown_caller", _on(RESPONSES, MESSAGES, result="hosted_tool", stops=_FAILED)),
)
TABLE: Final = (Row("no fault", _ANYWAY, {"kind": NONE}), *_REFUSALS, *_LOST, *_SPOILED, *_LABELS, *_ENDINGS)


# -- Chat, as others speak it: each field, with each oddity --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """A field of Chat, and what an answer comes to where nothing stands in it, or something else than should,
    or where all events with it come twice. Another spelling of the same changes nothing. `but`: what does not
    follow from these.
    """

    path: str
    empty: Outcome = _ANYWAY[CHAT]
    other: Outcome = _ANYWAY[CHAT]
    twice: Outcome = _ANYWAY[CHAT]
    but: Mapping[Oddity, Outcome] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        """A row for each oddity."""
        each = dict.fromkeys(NOTHING_SAID, self.empty)
        if not self.path.endswith("?"):  # in the place of nothing stands nothing
            each |= dict.fromkeys(OTHER, self.other) | dict.fromkeys(SPELLED, _ANYWAY[CHAT])
            each |= {Oddity.TWICE: self.twice}
        return [
            Row(
                f"{self.path} {oddity}",
                {CHAT: outcome},
                {"kind": "odd", "field": self.path, "oddity": oddity},
            )
            for oddity, outcome in {**each, **self.but}.items()
        ]


_TWO: Final = Outcome(NONE_LEFT, USED)
_UNREAD: Final = Outcome("malformed_turn", USED)
_NO_END: Final = Outcome("response_lost", USED)
_NO_USAGE: Final = Outcome(CALLS, RESERVED)
_CALL: Final = "choices[].delta.tool_calls[]"
FIELDS: Final = (
    *(Field(name, twice=_TWO) for name in ("id", "object", "created", "model")),
    Field("choices", empty=_NO_END, other=_NO_END, twice=_TWO),
    Field("choices[].index", other=_UNREAD, twice=_TWO, but={Oddity.NUMBER: _NO_END}),
    Field("choices[].delta", empty=_UNREAD, other=_UNREAD, twice=_TWO),
    Field("choices[].delta.role"),
    Field("choices[].delta.content"),
    Field(_CALL[:-2], empty=_UNREAD, other=_UNREAD, twice=_TWO),
    Field(f"{_CALL}.index", other=_UNREAD, twice=_TWO, but={Oddity.NUMBER: _ANYWAY[CHAT]}),
    Field(f"{_CALL}.id"),
    Field(f"{_CALL}.type", other=_UNREAD, but={Oddity.TEXT_NULL: _ANYWAY[CHAT]}),
    Field(f"{_CALL}.function", empty=_UNREAD, other=_UNREAD, twice=_TWO),
    Field(
        f"{_CALL}.function.name",
        empty=_UNREAD,
        other=_UNREAD,
        but=dict.fromkeys((Oddity.TEXT_NULL, Oddity.WORD, Oddity.UPPER), _TWO),  # there is no such tool
    ),
    Field(
        f"{_CALL}.function.arguments",
        empty=_TWO,
        other=_TWO,
        twice=_TWO,
        but={Oddity.UPPER: _TWO, Oddity.SPACED: Outcome(REFUSED, USED)},  # within a text of one of them
    ),
    Field(
        "choices[].finish_reason",
        empty=_NO_END,
        other=_NO_END,
        but={Oddity.WORD: Outcome("unknown_stop", USED)},
    ),
    Field("usage", empty=_NO_USAGE, other=_NO_USAGE),
    Field("usage.prompt_tokens"),
    Field("usage.completion_tokens"),
    Field("usage.total_tokens"),
    Field("usage.prompt_tokens_details"),
    Field("usage.prompt_tokens_details.cached_tokens"),
    Field("usage.completion_tokens_details"),
    Field("usage.completion_tokens_details.reasoning_tokens"),
    Field("error?"),
    Field("usage?"),
    Field("choices[].finish_reason?"),
    Field("choices[].logprobs?"),
    Field("choices[].delta.refusal?"),
    Field("choices[].delta.content?"),
    Field("choices[].delta.reasoning_content?"),
    Field("choices[].delta.function_call?"),
    Field("choices[].delta.tool_calls?"),
    Field(f"{_CALL}.id?"),
    Field(f"{_CALL}.type?"),
    Field(f"{_CALL}.extra_content?"),
    Field(f"{_CALL}.function.name?"),
)
"""What a server sends, and with `?` what it leaves out where there is nothing to say."""
MATRIX: Final = tuple(row for field in FIELDS for row in field.rows())
