"""A request for a run, checked before anything is sent: what a producer asks for, and why it cannot be. Pure.

The input is any JSON value: it is stored as it is and handed to the planner. It is not hashed, so numbers may
have a point; but what could not be stored or read back the same (NaN, NUL, half characters) is refused, with
the place where it stands. A Decimal is a number of exactly its digits.

Any planner may be named, whoever asks: a run waits for a worker that knows its planner, until its deadline.
"""

import json
import re
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from typing import Any, Final

from fencepost.budgets import Budget
from fencepost.canonical import sanitize
from fencepost.errors import UsageError
from fencepost.names import named
from fencepost.taint import BORN
from fencepost.tools import OnStop

MAX_INPUT_BYTES: Final = 1024 * 1024
MAX_INPUT_DEPTH: Final = 64
MAX_DIGITS: Final = 400
"""Of one number, written without an exponent."""
MAX_DEADLINE: Final = timedelta(days=3650)
OF_CALLS: Final = "child:"
"""How the keys of runs begin that calls start: nobody else's do, so that nobody takes one."""
_LONGEST: Final = {"run_key": 200, "planner": 200}
_MAX_VERSION: Final = 2**31 - 1
_SHOWN: Final = 80
_PARTS: Final = "-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
TRACEPARENT: Final = f"(00{_PARTS}|(?!00|ff)[0-9a-f]{{2}}{_PARTS}(-[!-~]{{1,200}})?)"
"""What the ledger takes for one as well: version 00 has four parts, what later ones add is kept."""
_TRACEPARENT: Final = re.compile(TRACEPARENT)
_MAX_BITS: Final = (10**MAX_DIGITS).bit_length()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """One run to enqueue. `deadline` counts from when the ledger takes it; no `budget` means its defaults.
    `tainted`: its input came from outside, so that policy treats the run as one that read untrusted output.
    `traceparent` (W3C Trace Context) says from which trace it was asked; it does not make it another request.

    UsageError, in one sentence, for anything the ledger would refuse.
    """

    planner: str
    input: Any
    run_key: str
    tenant: str
    principal: str
    deadline: timedelta
    version: int = 1
    budget: Budget | None = None
    on_stop: OnStop = OnStop.COMPENSATE
    tainted: bool = False
    traceparent: str | None = None
    input_text: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, longest in _LONGEST.items():
            _check_name(name, getattr(self, name), longest)
        named("tenant", self.tenant)
        named("principal", self.principal)
        if self.run_key.startswith(OF_CALLS):
            raise UsageError(
                f"run keys that begin with {OF_CALLS} are those of runs that calls start; use another"
            )
        if type(self.version) is not int or not 1 <= self.version <= _MAX_VERSION:
            raise UsageError(f"version is a whole number from 1 on, not {_shown(self.version)}")
        _check_deadline(self.deadline)
        if not isinstance(self.budget, Budget | None):
            raise UsageError(f"budget is a fencepost.Budget, not {_shown(self.budget)}")
        if self.on_stop not in tuple(OnStop):  # a set would ask for its hash
            raise UsageError(f"on_stop is {' or '.join(OnStop)}, not {_shown(self.on_stop)}")
        if type(self.tainted) is not bool:
            raise UsageError(f"tainted is True or False, not {_shown(self.tainted)}")
        if self.traceparent is not None and not is_traceparent(self.traceparent):
            raise UsageError(f"traceparent is one of W3C Trace Context, not {_shown(self.traceparent)}")
        object.__setattr__(self, "input_text", input_text(self.input))

    def means(self) -> tuple[object, ...]:
        """Equal for two requests exactly where the ledger takes them for the same; it has the last word."""
        value = json.loads(self.input_text, parse_int=_value, parse_float=_value)
        budget = self.budget or Budget()
        whose = (self.tenant, self.run_key, self.planner, self.version, self.principal)
        return (*whose, self.deadline, budget, self.on_stop, self.tainted, value)

    @property
    def budget_text(self) -> str:
        """The budget as the ledger stores it; an empty object stands for the defaults. The taint of a run's
        input stands beside its limits, as what its producer says of it.
        """
        limits: dict[str, Any] = {} if self.budget is None else self.budget.to_json()
        return json.dumps(limits | ({BORN: True} if self.tainted else {}))


def is_traceparent(text: object) -> bool:
    """Whether this is a header of W3C Trace Context (https://www.w3.org/TR/trace-context/, 3.2), of any
    version.
    """
    return isinstance(text, str) and _TRACEPARENT.fullmatch(text) is not None


def input_text(value: object) -> str:
    """The JSON text of a run's input. UsageError says what is wrong with it, and where."""
    surplus = _admit(value, "input", MAX_INPUT_DEPTH)
    # The spacing is PostgreSQL's own, so that the size below is the size the ledger judges.
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, check_circular=False)
    except TypeError:  # there are Decimals, which the encoder does not know
        text = _written(value)
    if (size := len(text.encode()) + surplus) > MAX_INPUT_BYTES:
        raise UsageError(
            f"the input is {size} bytes of JSON, at most {MAX_INPUT_BYTES} are taken; "
            "keep the rest elsewhere and pass a reference"
        )
    return text


def _written(value: Any) -> str:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key, ensure_ascii=False)}: {_written(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_written(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _value(digits: str) -> tuple[Decimal]:
    return (Decimal(digits),)  # in a tuple, because 1 == True


def _admit(value: object, path: str, depth: int) -> int:
    """How many characters longer the ledger writes it, which knows no exponents. UsageError: not admitted."""
    if value is None or isinstance(value, bool):
        return 0
    if isinstance(value, str):
        _check_text(path, value)
    elif isinstance(value, int | float | Decimal):
        return _check_number(path, value)
    elif depth <= 0:
        raise UsageError(f"{path} is nested deeper than {MAX_INPUT_DEPTH} levels")
    elif isinstance(value, dict):
        surplus = 0
        for key, item in value.items():
            if not isinstance(key, str):
                raise UsageError(f"{path} has a key that is no text: {_shown(key)}")
            _check_text(f"a key of {path}", key)
            surplus += _admit(item, f"{path}.{sanitize(key, _SHOWN)}", depth - 1)
        return surplus
    elif isinstance(value, list | tuple):
        return sum(_admit(item, f"{path}[{index}]", depth - 1) for index, item in enumerate(value))
    else:
        raise UsageError(f"{path} is a {type(value).__qualname__}, which is not JSON")
    return 0


def _check_number(path: str, value: float | Decimal) -> int:
    if isinstance(value, int):
        if value.bit_length() > _MAX_BITS or len(str(abs(value))) > MAX_DIGITS:
            raise UsageError(f"{path} is a number of more than {MAX_DIGITS} digits; pass it as text")
        return 0
    text = float.__repr__(value) if isinstance(value, float) else str(value)
    exact = Decimal(text)
    if not exact.is_finite():
        raise UsageError(f"{path} is {text}, which is not JSON")
    _, digits, exponent = exact.as_tuple()
    assert isinstance(exponent, int)  # a letter only for what is not finite
    if max(len(digits) + exponent, 1) + max(-exponent, 0) > MAX_DIGITS:
        raise UsageError(f"{path} is a number of more than {MAX_DIGITS} digits; pass it as text")
    return max(0, len(f"{exact:f}") - len(text))


def _check_name(name: str, value: object, longest: int) -> None:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{name} is a text that is not empty, not {_shown(value)}")
    if len(value) > longest:
        raise UsageError(f"{name} has {len(value)} characters, at most {longest} are taken")
    _check_text(name, value)


def _check_text(path: str, text: str) -> None:
    if "\0" in text:
        raise UsageError(f"{path} holds a NUL, which cannot be stored as text")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UsageError(f"{path} holds half a character (a lone surrogate)")


def _check_deadline(value: object) -> None:
    if not isinstance(value, timedelta):
        raise UsageError(f"deadline is a timedelta from now, not {_shown(value)}")
    if value <= timedelta(0):
        raise UsageError("the deadline lies in the past; give one that lies ahead")
    if value > MAX_DEADLINE:
        raise UsageError(f"the deadline lies {value.days} days ahead, at most {MAX_DEADLINE.days} are taken")


def _shown(value: object) -> str:
    return sanitize(repr(value), _SHOWN)
