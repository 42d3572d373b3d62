"""The ways a text may be spelled when somebody gives it back, and where in their bytes it then stands. PURE.

Escapes of JSON (and of Python's `repr` of bytes), of URLs and forms, and of HTML are undone, each kind by
itself (JSON twice) and all of them again and again, up to `LAYERS` times in any order; there a run of
backslashes counts as one, so JSON within JSON is read at any depth. Not read: more layers than that, other
encodings, and a spelling whose first characters complete an escape that was begun in front of it.

Everything here is linear in what is read: no pattern can match, or fail, over one byte more than twice.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from html.entities import html5
from typing import Final

LAYERS: Final = 6
LEAST_BYTES: Final = 6
"""What is shorter would be found by chance."""

_LEAST_UNWRAPPED: Final = 12
_HEX: Final = "[0-9a-fA-F]"
_BACKSLASH: Final = (
    rf"\\(?:u(?P<high>[dD][89abAB]{_HEX}{{2}})\\u(?P<low>[dD][c-fC-F]{_HEX}{{2}})"
    rf"|u(?P<unit>{_HEX}{{4}})|x(?P<byte>{_HEX}{{2}})|(?P<one>.?))"
)
_RUN: Final = _BACKSLASH.replace(r"\\", r"\\++")
_PERCENT: Final = f"%(?P<percent>{_HEX}{{2}})"
_ENTITY: Final = (
    r"&(?:#0*+(?P<decimal>[0-9]{1,7}+)(?![0-9]);?"
    rf"|#[xX]0*+(?P<hexadecimal>{_HEX}{{1,6}}+)(?!{_HEX});?|(?P<name>[A-Za-z][A-Za-z0-9]{{1,31}}+);)"
)
_ONE: Final = dict(zip(b"btnfr", (b"\b", b"\t", b"\n", b"\f", b"\r"), strict=True))


def _of(pattern: str) -> re.Pattern[bytes]:
    return re.compile(pattern.encode(), re.DOTALL)


JSON: Final = _of(_BACKSLASH)
_RUNS: Final = _of(_RUN)
URL: Final = _of(_PERCENT)
HTML: Final = _of(_ENTITY)
ALL: Final = _of(f"{_RUN}|{_PERCENT}|{_ENTITY}")
LINES: Final = _of(r"[\r\n]++")
"""The ends of lines, as MIME and PEM put them into base64."""

Kind = re.Pattern[bytes] | None
"""What was undone last; None: nothing."""


def _plain(found: re.Match[bytes]) -> bytes:
    """What an escape stands for; itself where it stands for nothing."""
    kind = found.lastgroup
    if kind is None:
        return b""
    said = found[kind]
    if kind == "one":
        return _ONE.get(said[0], said) if said else said
    if kind in {"percent", "byte"}:
        return bytes((int(said, 16),))
    if kind == "name":
        return html5.get(f"{said.decode()};", "").encode() or found[0]
    if kind == "low":
        code = 0x10000 + ((int(found["high"], 16) - 0xD800) << 10) + int(said, 16) - 0xDC00
    else:
        code = int(said, 10 if kind == "decimal" else 16)
    return chr(code).encode("utf-8", "surrogatepass") if code <= 0x10FFFF else found[0]


# What texts are full of: looked up, it costs a third.
_USUAL: Final = {
    found[0]: _plain(found)
    for found in ALL.finditer(
        b"".join(b"%%%02x%%%02X\\u%04x" % (n, n, n) for n in range(256))
        + b"".join(b"\\" * n + one for n in (1, 2, 3, 4) for one in (b'"', b"/", b"n", b"t", b"r"))
        + b"&amp;&lt;&gt;&quot;&apos;&#39;&#x27;"
    )
} | {rb"\\": b"\\"}


def _quickly(found: re.Match[bytes]) -> bytes:
    usual = _USUAL.get(found[0])
    return _plain(found) if usual is None else usual


def undone(data: bytes, kind: re.Pattern[bytes]) -> bytes:
    """The bytes with one layer of escapes undone. Those of forms have no spaces: each is a plus, as there."""
    if kind is LINES:
        return data.translate(None, b"\r\n")
    if kind is ALL and len(kinds := _present(data)) < 2:  # one pattern is quicker than all of them
        return _as_in_forms((_RUNS if kinds[0] is JSON else kinds[0]).sub(_quickly, data) if kinds else data)
    data = kind.sub(_quickly, data)
    return _as_in_forms(data) if kind is URL or kind is ALL else data


def _as_in_forms(data: bytes) -> bytes:
    return data.replace(b" ", b"+")


def _present(data: bytes) -> list[re.Pattern[bytes]]:
    marked = ((b"\\", JSON), (b"%", URL), (b"&", HTML))
    return [kind for mark, kind in marked if mark in data and kind.search(data)]


class Reading:
    """What some bytes read as."""

    def __init__(self, data: bytes, kind: Kind = None, of: Reading | None = None) -> None:
        self.data = data
        self.kind = kind
        self._of = of

    def source(self, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """Where these parts of it stand in what was read at first: with every escape they touch, whole."""
        if self._of is None:
            return list(spans)
        return self._of.source([(self._place(start)[0], self._place(end - 1)[1]) for start, end in spans])

    def _place(self, at: int) -> tuple[int, int]:
        """Where the byte at `at` came from, in what this is a reading of."""
        starts, ends, froms, tos = self._escapes
        last = bisect_right(starts, at) - 1
        if last < 0:
            return at, at + 1
        if at < ends[last]:
            return froms[last], tos[last]
        there = tos[last] + at - ends[last]
        return there, there + 1

    @cached_property
    def _escapes(self) -> tuple[array[int], array[int], array[int], array[int]]:
        """Where each begins and ends here, and from where to where it goes there."""
        starts, ends, froms, tos = (array("q") for _ in range(4))
        shift = 0
        assert self.kind is not None  # asked by those that are of another only
        assert self._of is not None
        for found in self.kind.finditer(self._of.data):
            starts.append(found.start() - shift)
            ends.append(starts[-1] + len(_quickly(found)))
            froms.append(found.start())
            tos.append(found.end())
            shift = found.end() - ends[-1]
        return starts, ends, froms, tos


def readings(data: bytes) -> Iterator[Reading]:
    """All that these bytes read as, themselves first. Total: there are no bytes for which it raises."""
    first = last = Reading(data)
    yield first
    alone = [Reading(undone(data, kind), kind, first) for kind in _present(data)]
    yield from alone
    if alone and alone[0].kind is JSON and b"\\" in alone[0].data:
        yield Reading(undone(alone[0].data, JSON), JSON, alone[0])
    for _ in range(LAYERS):
        # All there is has been undone already, if no backslashes stand side by side.
        known = last is first and len(alone) == 1 and b"\\\\" not in data
        more = _as_in_forms(alone[0].data) if known else undone(last.data, ALL)
        if more == last.data:
            break
        last = Reading(more, ALL, last)
        yield last
    if b"\n" in last.data or b"\r" in last.data:
        yield Reading(undone(last.data, LINES), LINES, last)


def spelled(text: str) -> Iterator[tuple[Kind, bytes]]:
    """What to look for in the readings of each kind, to find `text` there.

    Also where its UTF-8 was taken for Latin-1, and written as UTF-8 once more.
    """
    data = text.encode("utf-8", "surrogatepass")
    twice = data.decode("latin-1").encode()
    for form in {data, twice}:
        yield None, form
        yield None, _as_in_forms(form)  # with nothing else in it to escape
        for kind, said in _spelled(form):
            if len(said) >= LEAST_BYTES:  # of backslashes too little may be left
                yield kind, said


def _spelled(data: bytes) -> Iterator[tuple[Kind, bytes]]:
    yield JSON, data
    yield HTML, data
    yield URL, data.replace(b" ", b"+")
    for _ in range(LAYERS):
        before, data = data, undone(data, ALL)
        yield ALL, data
        if data == before:
            break
    unwrapped = undone(data, LINES)
    if len(unwrapped) >= _LEAST_UNWRAPPED:
        yield LINES, unwrapped


class Sought:
    """Byte strings of `LEAST_BYTES` or more, looked for together; a bounded number of walks, however many."""

    _LONG: Final = 256
    _FEW: Final = 16

    def __init__(self, told: Iterable[bytes]) -> None:
        ordered = sorted(set(told), key=lambda one: (-len(one), one))
        first = max(self._FEW, sum(len(one) > self._LONG for one in ordered))
        self._first, self._others = ordered[:first], sorted(ordered[first:])
        self._shorter = _beginnings(self._others)
        self._starts = frozenset(one[:LEAST_BYTES] for one in self._others)
        self.starts = self._starts.union(one[:LEAST_BYTES] for one in self._first)

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """Where they stand, the longest taken first; none overlaps another."""
        left, spans = bytearray(data), []
        for one in self._first:
            at = left.find(one)
            while at >= 0:
                end = at + len(one)
                spans.append((at, end))
                left[at:end] = b"\xff" * len(one)  # in no UTF-8
                at = left.find(one, end)
        return spans + list(self._found(bytes(left)))

    def _found(self, data: bytes) -> Iterator[tuple[int, int]]:
        if not self._others:
            return
        until = 0
        for at in range(len(data) - LEAST_BYTES + 1):
            if at >= until and data[at : at + LEAST_BYTES] in self._starts and (size := self._size(data, at)):
                until = at + size
                yield at, until

    def _size(self, data: bytes, at: int) -> int:
        """The length of the longest that begins there, or 0."""
        place = bisect_right(self._others, data[at : at + self._LONG])
        nearest = self._others[place - 1] if place else b""
        while not data.startswith(nearest, at):  # in this order all that could begin there begin this one too
            nearest = self._shorter[nearest]
        return len(nearest)


def _beginnings(ordered: list[bytes]) -> dict[bytes, bytes]:
    """For each the longest other one that it begins with, or nothing."""
    found: dict[bytes, bytes] = {}
    chain: list[bytes] = []
    for one in ordered:
        while chain and not one.startswith(chain[-1]):
            chain.pop()
        found[one] = chain[-1] if chain else b""
        chain.append(one)
    return found
