"""What one attempt proved: an answer from the wire, held against the contract. PURE.

Three outcomes and no fourth: applied, refused (proof that THIS attempt had no effect) or unsure. Only what
the contract lists proves a refusal; a timeout, a lost answer, an unlisted status, an unreadable body do not.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from fencepost.canonical import marked, marked_value, sanitize
from fencepost.contracts import ABSENT, Dedupes, Effect, FirstFailure
from fencepost.doubts import SENT_LATE
from fencepost.errors import NotApplied
from fencepost.misfits import misfits
from fencepost.output import MAX_OUTPUT_BYTES, bounded
from fencepost.tools import Absent, Found, LookupResult, Response, Tool, Unclear

RETRY_AFTER_CAP: Final = timedelta(hours=1)
OVERSIZE: Final = "oversize"
MAX_TEXT_CHARS: Final = 500
MAX_RECEIPT_CHARS: Final = 500


@dataclass(frozen=True)
class Answered:
    """A complete answer arrived. `requests` counts what went on the wire for it: 1, or a hidden retry.

    `late`: bytes of the request left after the attempt's time.
    """

    response: Response
    requests: int = 1
    late: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class NotSent:
    """No byte of the request left this machine: the only transport failure that proves "not applied"."""

    code: str
    message: str
    requests: int = 0
    retryable: bool = True


@dataclass(frozen=True)
class Lost:
    """The request may have arrived; what became of it is not known.

    `begun` is the answer as far as it was read, where it was longer than is read of any.
    """

    code: str
    message: str
    requests: int = 1
    begun: Response | None = field(default=None, compare=False)
    late: bool = field(default=False, compare=False)


Sent = Answered | NotSent | Lost


@dataclass(frozen=True)
class Applied:
    """The effect happened. The text is the downstream's result, `receipt` its own reference if any.

    `strange`: it is not what its server's own schema declares, so nobody vouches for it.
    """

    result_json_text: str
    receipt: str | None
    strange: bool = False


@dataclass(frozen=True)
class Refused:
    """Proof that this attempt applied nothing.

    `final_answer_stored`: the downstream stores this answer for the key, so it speaks for the key.
    """

    code: str
    message: str
    retryable: bool
    retry_after: timedelta | None = None
    final_answer_stored: bool = False


@dataclass(frozen=True)
class Unsure:
    """Nothing is proved. `retry_after` is what the answer asked for, if it was one.

    `repair`: nothing that is asked or sent further could prove it either, so a person decides.
    """

    code: str
    message: str
    retry_after: timedelta | None = None
    repair: bool = False


Outcome = Applied | Refused | Unsure


def sent_late(outcome: Outcome) -> Outcome:
    """The outcome of an attempt of which bytes left after its time: what proves nothing says just that."""
    if not isinstance(outcome, Unsure) or outcome.code == SENT_LATE:
        return outcome
    why = f"bytes left after the attempt's time, so it may land late ({outcome.code}: {outcome.message})"
    return Unsure(SENT_LATE, sanitize(why, MAX_TEXT_CHARS), repair=True)


Hide = Callable[[str], str]
"""Takes credentials out of a text."""


def classify(tool: Tool, sent: Sent, *, now: datetime, args: Any = None) -> Outcome:
    """The outcome of an effect request; total. `now` turns a Retry-After date into a duration.

    `args`, where given, are compared with the answer by the tool's `same`.
    """
    outcome = _judged(tool, sent, now, args)
    return without_effect(outcome) if tool.effect is Effect.READ else outcome


def without_effect(outcome: Outcome) -> Outcome:
    """The same outcome for a READ tool: whatever is not known, nothing was applied."""
    if not isinstance(outcome, Unsure):
        return outcome
    again = outcome.code != OVERSIZE  # what is too long once is so again
    return Refused(outcome.code, outcome.message, retryable=again, retry_after=outcome.retry_after)


def _judged(tool: Tool, sent: Sent, now: datetime, args: Any) -> Outcome:
    match sent:
        case NotSent(code, message, _, again):
            return Refused(sanitize(code, 100), sanitize(message, MAX_TEXT_CHARS), retryable=again)
        case Lost(begun=begun) if begun is not None:
            return _answer(tool, begun, now, args, whole=False)
        case Lost(code, message):
            return Unsure(sanitize(code, 100), sanitize(message, MAX_TEXT_CHARS))
        case Answered(response):
            return _answer(tool, response, now, args)


def _answer(tool: Tool, response: Response, now: datetime, args: Any, *, whole: bool = True) -> Outcome:
    status, contract = response.status, tool.contract
    code, text = f"http_{status}", sanitize(response.text, MAX_TEXT_CHARS)
    too_many = status != 429 and throttled(response)
    code = f"throttled_{status}" if too_many else code
    if status in contract.not_applied:
        stored = replayed_for_good(tool, response)
        again = (status in contract.retryable or too_many) and not stored
        return Refused(code, text, again, retry_after(response, now), final_answer_stored=stored)
    if isinstance(contract.repeat, Dedupes) and status in contract.repeat.in_progress:
        return Unsure("in_progress", text)
    if 200 <= status < 300:
        return _success(tool, response, args, whole=whole)
    if replayed_for_good(tool, response):
        # An answer, not a new failure: every repeat would meet it again, and only a lookup knows more.
        return Unsure(f"replayed_{status}", text, repair=not tool.has_lookup)
    return Unsure(code, text, retry_after(response, now))


def _success(tool: Tool, response: Response, args: Any, *, whole: bool) -> Outcome:
    if tool.parse is None and response.status not in tool.contract.applied:
        code = "accepted" if response.status == 202 else f"http_{response.status}"
        return Unsure(code, f"{response.status} is no status of `applied`; a parse function can know better")
    free = tool.parse is None and tool.returns is None
    if not whole and not (free and tool.same is None):
        return Unsure(OVERSIZE, f"its answer is longer than {MAX_OUTPUT_BYTES} bytes, so it was not read")
    try:
        if (why := not_understood(tool, response)) is not None:
            return why
        if not whole:  # a success whatever the rest of it says
            return Applied(bounded(response.text, tool.output.max_bytes, whole=False), None)
        if free:
            value, text = json_or_text(response)
            kept = bounded(text, tool.output.max_bytes)
            return answers_other(tool, args, value) or Applied(kept, receipt_of(tool, value))
        result = read_result(tool, response)
    except NotApplied as refusal:
        return refused(refusal, final_answer_stored=replayed_for_good(tool, response))
    except Exception as error:  # noqa: BLE001 - an answer nobody can read is an unknown outcome, whatever broke
        return Unsure("unreadable_answer", told(error))
    text = result_text(result, most=tool.output.max_bytes)
    other = answers_other(tool, args, result) or names_nothing(tool, result)
    return other or Applied(text, receipt_of(tool, result))


def not_understood(tool: Tool, answer: Any) -> Unsure | None:
    """Why an answer does not say that the effect happened, by what the tool declares of its successes.

    `answer` is what the tool's `parse` would be given. Raises whatever `succeeded` raises.
    """
    if tool.recognises is not None:
        return Unsure("not_understood", f"nothing tells a success of this tool: {tool.recognises}")
    if tool.succeeded is None or tool.succeeded(answer) is True:
        return None
    return Unsure("not_understood", "the answer is none that the tool's `succeeded` takes for a success")


def names_nothing(tool: Tool, result: Any) -> Unsure | None:
    """Why a result names no effect, though it fits: the field of its receipt, which it needs, is empty."""
    if tool.returns is None or not isinstance(tool.receipt, str) or tool.effect is Effect.READ:
        return None
    field = tool.returns.model_fields.get(tool.receipt)
    if field is None or not field.is_required():
        return None
    if receipt_of(tool, result) is not None:
        return None
    return Unsure("not_understood", f"its {tool.receipt} is empty, so the answer names no effect")


def answers_other(tool: Tool, args: Any, result: Any) -> Unsure | None:
    """Why an answer proves nothing of these arguments, by the tool's `same`; None where it does not object.

    A downstream that ignores what comes with a known key answers a repeat with what the first request made.
    """
    if tool.same is None or args is None:
        return None
    try:
        if tool.same(args, result):
            return None
    except Exception as error:  # noqa: BLE001 - an answer nobody can compare proves nothing
        return Unsure("incomparable_answer", told(error))
    return Unsure("other_request", "the downstream answered this key for another request", repair=True)


def read_result(tool: Tool, response: Response) -> Any:
    """What the answer says, by the tool's parse or its result model, else as JSON or text.

    Raises NotApplied, also where parse returns it, and whatever parse or the model raises.
    """
    if tool.parse is None:
        if tool.returns is None:
            return json_or_text(response)[0]
        return tool.returns.model_validate_json(marked(response.read()))
    result = tool.parse(response)
    if isinstance(result, NotApplied):
        raise result
    if tool.returns is None or isinstance(result, tool.returns):
        return result
    return tool.returns.model_validate(marked_value(result))


def json_or_text(response: Response) -> tuple[Any, str]:
    """The body as a value and as JSON text: as it came if JSON, null if empty, else as one string."""
    if not response.body:
        return None, "null"
    try:
        text = marked(response.read())
        return json.loads(text), text
    except (ValueError, RecursionError):
        return response.text, json.dumps(response.text)


def refused(refusal: NotApplied, *, final_answer_stored: bool = False, hide: Hide | None = None) -> Refused:
    """The outcome of a tool's own word that nothing was applied."""
    wait = refusal.retry_after
    return Refused(
        sanitize(refusal.code, 100) or "not_applied",
        _hidden(refusal.message, hide),
        retryable=refusal.retryable,
        retry_after=None if wait is None else min(max(wait, timedelta(0)), RETRY_AFTER_CAP),
        final_answer_stored=final_answer_stored,
    )


def replayed_for_good(tool: Tool, response: Response) -> bool:
    """Whether the answer is marked as the key's stored first one, by a downstream that stores failures."""
    repeat = tool.contract.repeat
    if not isinstance(repeat, Dedupes) or repeat.first_failure is not FirstFailure.REPLAYED:
        return False
    if repeat.replay_marker is None:
        return False
    name, value = repeat.replay_marker
    return response.headers.get(name, "").strip().lower() == value.lower()


_RESET: Final = re.compile(r"rate-?limit.*reset")
_REMAINING: Final = ("ratelimit-remaining", "x-ratelimit-remaining", "x-rate-limit-remaining")
_UNITS: Final = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SPAN: Final = re.compile(r"(?:\d{1,9}(?:\.\d{0,9})?(?:ms|[smh])){1,4}", re.ASCII | re.IGNORECASE)
_PART: Final = re.compile(r"(\d+(?:\.\d*)?)(ms|[smh])", re.ASCII | re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d{1,15}(?:\.\d{0,9})?", re.ASCII)
_EPOCH: Final = 1_000_000_000  # no wait is that long in seconds, and no date of ours that early
_EPOCH_MS: Final = 1_000 * _EPOCH


def retry_after(response: Response, now: datetime) -> timedelta | None:
    """How long an answer asks to be left alone: rounded up, at least zero, at most an hour; else None.

    By Retry-After (seconds, also with a fraction or a unit; an HTTP or ISO date; RFC 9110, section 10.2.3),
    else by retry-after-ms. An answer that says "too many" (`throttled`) else by the first of its limits to
    begin anew (`ratelimit-reset` and its kin): seconds, seconds since the epoch, or a date.
    """
    said = response.headers
    found = _wait(said.get("retry-after", ""), now)
    if found is None and "retry-after-ms" in said:
        found = _wait(said["retry-after-ms"] + "ms", now)
    if found is None and throttled(response):
        resets = [_wait(value, now) for name, value in said.items() if _RESET.search(name)]
        found = min((wait for wait in resets if wait is not None), default=None)
    return None if found is None else min(max(found, timedelta(0)), RETRY_AFTER_CAP)


def throttled(response: Response) -> bool:
    """Whether an answer says that there were too many requests: 429, or 403 with none left of a limit."""
    none_left = any(response.headers.get(name, "").strip() == "0" for name in _REMAINING)
    return response.status == 429 or (response.status == 403 and none_left)


def _wait(text: str, now: datetime) -> timedelta | None:
    text = text.strip()
    if _SPAN.fullmatch(text):
        seconds = sum(float(number) * _UNITS[unit.lower()] for number, unit in _PART.findall(text))
        return _rounded_up(seconds)
    if _NUMBER.fullmatch(text):
        number = float(text)
        if number < _EPOCH:
            return _rounded_up(number)
        return _rounded_up((number / 1000 if number >= _EPOCH_MS else number) - now.timestamp())
    try:
        date = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
    except (ValueError, OverflowError, IndexError, TypeError):
        return None
    return (date if date.tzinfo is not None else date.replace(tzinfo=UTC)) - now


def _rounded_up(seconds: float) -> timedelta:
    """In whole milliseconds: whoever comes back a moment too soon is throttled again."""
    return timedelta(milliseconds=math.ceil(round(seconds * 1000, 3)))


def result_text(result: object, *, hide: Hide | None = None, most: int = MAX_OUTPUT_BYTES) -> str:
    """A result as storable JSON text; never raises. NaN is kept, what JSON has no form for is its str.

    `hide` sees all of it before it is cut. Beyond `most` bytes it is an object that holds its start.
    """
    try:
        text = marked(json.dumps(_plain(result), default=_plain))
    except Exception:  # noqa: BLE001 - the effect is there; its description must not be what fails
        text = json.dumps(sanitize(result, 1000))
    return bounded(text if hide is None else hide(text), most)


def _plain(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, warnings=False)
    if value is None or isinstance(value, dict | list | tuple | str | int | float):
        return value
    return list(value) if isinstance(value, set | frozenset) else str(value)


def fits(tool: Tool, result: object, text: str) -> bool:
    """Whether a result is what the tool declares; of a tool without a `returns` model anything is."""
    if tool.returns is None or isinstance(result, tool.returns):
        return True
    try:
        tool.returns.model_validate_json(text)
    except Exception:  # noqa: BLE001 - a model may break in any way
        return False
    return True


def doubtful(tool: Tool, text: str) -> bool:
    """Whether nobody vouches for this very result, kept as this text, of a tool that taints by some only.

    What was cut, or cannot be judged, is vouched for by nobody.
    """
    if tool.doubtful is None:
        return False
    try:
        return tool.doubtful(json.loads(text))
    except Exception:  # noqa: BLE001 - a text that was cut has none of the fields
        return True


def receipt_of(tool: Tool, result: object) -> str | None:
    """The downstream's reference in a result, as the tool says where to find it; None if there is none."""
    try:
        if callable(tool.receipt):
            found = tool.receipt(result)
        elif isinstance(result, dict):
            found = result.get(tool.receipt)
        else:
            found = getattr(result, tool.receipt, None)
    except Exception:  # noqa: BLE001 - a missing reference must not turn an effect into doubt
        return None
    return storable_receipt(found)


def storable_receipt(found: object) -> str | None:
    """A reference as bounded text, None for none: a flag, a list or an object names nothing, nor does a text
    of which nothing is seen, nor zero, which is what services say where they have no number.
    """
    if found is None or isinstance(found, bool | Mapping | list | tuple | set | frozenset):
        return None
    if isinstance(found, int | float | Decimal) and (not found or not math.isfinite(found)):
        return None
    text = sanitize(found, MAX_RECEIPT_CHARS, data=True)
    return text if any(one.isprintable() and not one.isspace() for one in text) else None


def classify_lookup(tool: Tool, args: Any, sent: Sent) -> LookupResult:
    """What a lookup's answer says about the effect it asked for; total. Only an answer can say anything.

    Without a `lookup_parse`: a 200 in which the effect is identified, read as the tool's own answer, is
    found: by a receipt, or by `same`, and by `succeeded` where there is one. A status of the contract's
    `absent` is absent, all else unclear.
    """
    if not isinstance(sent, Answered):
        return Unclear(sanitize(f"{sent.code}: {sent.message}", MAX_TEXT_CHARS))
    try:
        return _looked_up(tool, args, sent.response)
    except NotApplied as refusal:
        return Unclear(f"found, but refused: {sanitize(refusal, MAX_TEXT_CHARS)}")
    except Exception as error:  # noqa: BLE001 - an answer nobody can read says nothing
        return Unclear(told(error))


def _looked_up(tool: Tool, args: Any, response: Response) -> LookupResult:
    if tool.lookup_parse is None:
        promised = tool.contract.lookup
        if response.status in (ABSENT if promised is None else promised.absent):
            return Absent()
        if response.status != 200:
            return Unclear(f"http_{response.status}")
        if not _tells_success(tool, response):
            return Unclear(
                "what it found is none that the tool's `succeeded` takes for a success; where a lookup "
                "answers in another form, have @tool.lookup_parse read it"
            )
        result = read_result(tool, response)
        receipt = receipt_of(tool, result)
        same = tool.same is None or bool(tool.same(args, result))
        if receipt is None and (tool.same is None or not same):
            return Unclear(
                "the answer names no effect: it has no receipt, nor is it known by `same`; where that means "
                "that there is none, have @tool.lookup_parse say so"
            )
        return Found(receipt, result, same_arguments=same)
    return heard(tool, args, tool.lookup_parse(response, args))


def _tells_success(tool: Tool, response: Response) -> bool:
    """Whether `succeeded` takes what a lookup found for a success, had the request itself been answered so.

    A lookup's own 200 says nothing of the status that the request had: any that means "applied" will do.
    """
    if tool.succeeded is None:
        return True
    as_answered = (replace(response, status=status) for status in sorted({200, *tool.contract.applied}))
    return any(tool.succeeded(answer) is True for answer in as_answered)


def heard(tool: Tool, args: Any, answer: object) -> LookupResult:
    """The answer of a `lookup_parse`, or of a Python tool's lookup, held against its `same`.

    Unclear for what is no answer of one. Raises whatever `same` raises.
    """
    if isinstance(answer, Found):
        same = answer.same_arguments
        if tool.same is not None and answer.result is not None:  # without a result its own word counts
            same = same and bool(tool.same(args, answer.result))
        return replace(answer, receipt=storable_receipt(answer.receipt), same_arguments=same)
    if isinstance(answer, Absent | Unclear):
        return answer
    return Unclear(f"the lookup gave {type(answer).__name__}, not Found, Absent or Unclear")


def told(error: BaseException, *, hide: Hide | None = None) -> str:
    """An error as bounded, storable text; `hide` sees all of it before it is cut."""
    if isinstance(error, ValidationError):  # whose own text quotes the answer, over several lines
        wrong = "; ".join(one.told() for one in misfits(error)[:3])
        return f"ValidationError of {_hidden(error.title, hide)}: {_hidden(wrong, hide)}"
    return f"{type(error).__name__}: {_hidden(error, hide)}"


def _hidden(text: object, hide: Hide | None) -> str:
    if hide is not None:
        with suppress(Exception):  # whose text cannot be had, `sanitize` says
            text = hide(str(text))
    return sanitize(text, MAX_TEXT_CHARS)
