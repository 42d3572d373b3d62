from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import pytest

from fencepost.contracts import (
    AfterTakeover,
    Contract,
    Dedupes,
    Effect,
    FirstFailure,
    Lookup,
    Mismatch,
    Natural,
)
from fencepost.recovery import (
    Answer,
    Ask,
    Decision,
    Evidence,
    Facts,
    Fail,
    LookupAnswer,
    Repair,
    Repeat,
    Succeed,
    Wait,
    recover,
)
from fencepost.states import RunStatus

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TICK, SECOND, MINUTE, HOUR = (
    timedelta(microseconds=1),
    timedelta(seconds=1),
    timedelta(minutes=1),
    timedelta(hours=1),
)
STRONG = Lookup(strong=True)
EVENTUAL = Lookup(lag=20 * SECOND, horizon=HOUR)
DEDUPES = Dedupes(window=10 * MINUTE, first_failure=FirstFailure.REPLAYED)
SETTLE = 10 * SECOND

CONTRACTS: dict[str, tuple[Contract, dict[str, Any]]] = {
    "nothing": (Contract(), {}),
    "lookup": (Contract(lookup=STRONG, settle=SETTLE), {}),
    "lookup, no settle": (Contract(lookup=STRONG), {}),
    "eventual lookup": (Contract(lookup=EVENTUAL, settle=SETTLE), {}),
    "dedupes": (Contract(repeat=DEDUPES, settle=SETTLE), {}),
    "dedupes, lookup": (Contract(repeat=DEDUPES, lookup=STRONG, settle=SETTLE), {}),
    "first failure unknown": (
        Contract(repeat=Dedupes(window=10 * MINUTE, first_failure=FirstFailure.UNKNOWN), settle=SETTLE),
        {},
    ),
    "mismatch ignored": (Contract(repeat=replace(DEDUPES, mismatch=Mismatch.IGNORED), settle=SETTLE), {}),
    "mismatch ignored, compared": (
        Contract(repeat=replace(DEDUPES, mismatch=Mismatch.IGNORED), settle=SETTLE),
        {"compares": True},
    ),
    "natural": (Contract(repeat=Natural(), settle=SETTLE), {"resource_locked": True}),
    "natural, unlocked": (Contract(repeat=Natural(resource=str), settle=SETTLE), {}),
    "natural, locked": (Contract(repeat=Natural(resource=str), settle=SETTLE), {"resource_locked": True}),
    "read": (Contract(), {"effect": Effect.READ}),
}


def said(answer: Answer, ago: timedelta) -> dict[str, Any]:
    return {"has_lookup": True, "asks": 1, "lookup": LookupAnswer(answer, NOW - ago, receipt=None)}


# "early" was asked while the attempt may still land, "late" when it no longer can and any lag is over.
LOOKUPS: dict[str, dict[str, Any]] = {
    "none": {},
    "not asked": {"has_lookup": True},
    "found": said(Answer.FOUND, SECOND),
    "found other": said(Answer.FOUND_OTHER, SECOND),
    "absent early": said(Answer.ABSENT, SECOND) | {"in_flight_until": NOW + SECOND},
    "absent late": said(Answer.ABSENT, SECOND),
    "unclear": said(Answer.UNCLEAR, TICK),
    "unclear, rested": said(Answer.UNCLEAR, MINUTE),
    "refused": said(Answer.NOT_ASKED, SECOND),
}
EVIDENCE: dict[str, tuple[Evidence, ...]] = {
    "nothing": (),
    "one no": (Evidence(1, applied=False),),
    "all no": (Evidence(1, applied=False, retryable=True), Evidence(2, applied=False)),
    "all no, may pass": (Evidence(1, applied=False), Evidence(2, applied=False, retryable=True)),
    "one yes": (Evidence(2, applied=True, receipt="r-2"),),
    "yes and no": (Evidence(1, applied=False), Evidence(2, applied=True, receipt="r-2")),
    "same yes": (Evidence(1, applied=True, receipt="r-2"), Evidence(2, applied=True, receipt="r-2")),
    "two receipts": (Evidence(1, applied=True, receipt="r-1"), Evidence(2, applied=True, receipt="r-2")),
    "yes against no": (Evidence(2, applied=False), Evidence(2, applied=True, receipt="r-2")),
}
WINDOWS = {"open": NOW - 2 * MINUTE, "over": NOW - 20 * MINUTE}
RUNS: dict[str, dict[str, Any]] = {
    "ACTING": {},
    "STOPPING": {},
    "STOPPING, offset": {"run": "STOPPING", "compensable": True},
    "COMPENSATING": {},
    "COMPENSATING, its own": {"run": "COMPENSATING", "is_compensation": True},
    "STOPPED": {},
    "STOPPED, its own": {"run": "STOPPED", "is_compensation": True},
    "PLANNING": {},
    "QUEUED": {},
    "COMPLETED": {},
}
LETTERS = {Succeed: "S", Fail: "F", Ask: "a", Repeat: "R", Wait: "w", Repair: "p"}


def facts(**changes: Any) -> Facts:
    """Two attempts of at most three, the last one over a minute ago; nine minutes are left to reconcile."""
    base: dict[str, Any] = {
        "now": NOW,
        "effect": Effect.REVERSIBLE,
        "contract": Contract(),
        "attempts": 2,
        "max_attempts": 3,
        "per_attempt": 5 * SECOND,
        "margin": MINUTE,
        "in_flight_until": NOW - MINUTE,
        "first_sent_at": WINDOWS["open"],
        "reconcile_until": NOW + 9 * MINUTE,
        "run": "ACTING",
    }
    return Facts(**base | changes)


def scene(contract: str, lookup: str, evidence: str, window: str, run: str) -> Facts:
    terms, setting = CONTRACTS[contract]
    return facts(
        contract=terms,
        first_sent_at=WINDOWS[window],
        evidence=EVIDENCE[evidence],
        **({"run": run} | RUNS[run] | setting | LOOKUPS[lookup]),
    )


def letter(decision: Decision) -> str:
    return LETTERS[type(decision)]


# What a lookup decides by itself, whatever the contract, the window and the run (a read apart).
BY_LOOKUP = {
    "not asked": "a",
    "found": "S",
    "found other": "p",
    "unclear": "w",
    "unclear, rested": "a",
}

# What is left to the contract. Ten runs in the order of RUNS: ACTING, STOPPING, STOPPING with an effect that
# can be offset, COMPENSATING, COMPENSATING for its own compensation, and five in which nothing may be sent;
# then the same ten with the window over.
BY_CONTRACT = """
    nothing               | none         | ppppp ppppp | ppppp ppppp
    nothing               | absent early | wwwww wwwww | wwwww wwwww
    nothing               | absent late  | ppppp ppppp | ppppp ppppp
    lookup                | none         | ppppp ppppp | ppppp ppppp
    lookup                | absent early | wwwww wwwww | wwwww wwwww
    lookup                | absent late  | RFFFR FFFFF | RFFFR FFFFF
    lookup, no settle     | none         | ppppp ppppp | ppppp ppppp
    lookup, no settle     | absent early | wwwww wwwww | wwwww wwwww
    lookup, no settle     | absent late  | ppppp ppppp | ppppp ppppp
    eventual lookup       | none         | ppppp ppppp | ppppp ppppp
    eventual lookup       | absent early | wwwww wwwww | wwwww wwwww
    eventual lookup       | absent late  | RFFFR FFFFF | RFFFR FFFFF
    dedupes               | none         | RpRpR ppppp | ppppp ppppp
    dedupes               | absent early | RwRwR wwwww | wwwww wwwww
    dedupes               | absent late  | RpRpR ppppp | ppppp ppppp
    dedupes, lookup       | none         | RpRpR ppppp | ppppp ppppp
    dedupes, lookup       | absent early | wwwww wwwww | wwwww wwwww
    dedupes, lookup       | absent late  | RFFFR FFFFF | RFFFR FFFFF
    first failure unknown | none         | ppppp ppppp | ppppp ppppp
    first failure unknown | absent early | wwwww wwwww | wwwww wwwww
    first failure unknown | absent late  | ppppp ppppp | ppppp ppppp
    mismatch ignored      | none         | ppppp ppppp | ppppp ppppp
    mismatch ignored      | absent early | wwwww wwwww | wwwww wwwww
    mismatch ignored      | absent late  | ppppp ppppp | ppppp ppppp
    mismatch ignored, compared | none     | RpRpR ppppp | ppppp ppppp
    mismatch ignored, compared | absent early | RwRwR wwwww | wwwww wwwww
    mismatch ignored, compared | absent late | RpRpR ppppp | ppppp ppppp
    natural               | none         | ppppp ppppp | ppppp ppppp
    natural               | absent early | wwwww wwwww | wwwww wwwww
    natural               | absent late  | ppppp ppppp | ppppp ppppp
    natural, unlocked     | none         | ppppp ppppp | ppppp ppppp
    natural, unlocked     | absent early | wwwww wwwww | wwwww wwwww
    natural, unlocked     | absent late  | ppppp ppppp | ppppp ppppp
    natural, locked       | none         | RpppR ppppp | RpppR ppppp
    natural, locked       | absent early | wwwww wwwww | wwwww wwwww
    natural, locked       | absent late  | RpppR ppppp | RpppR ppppp
"""

# Evidence comes first. "." is as without evidence, "?" a contradiction if the contract can prove the absence,
# "r" a repeat where the run may act, else a failure.
# In the order of LOOKUPS: none, not asked, found, found other, absent early and late, unclear, and
# rested, and refused by the engine, which leaves all to the contract as none does.
BY_EVIDENCE = {
    "nothing": ".........",
    "one no": ".........",
    "all no": "FFppFFFFF",
    "all no, may pass": "rrpprrrrr",
    "one yes": "SSSpS?SSS",
    "yes and no": "SSSpS?SSS",
    "same yes": "SSSpS?SSS",
    "two receipts": "ppppppppp",
    "yes against no": "ppppppppp",
}
# A read has nothing to contradict: any answer will do, and without one it is repeated or fails.
READ_BY_EVIDENCE = {
    "nothing": "..S......",
    "one no": "..S......",
    "all no": "FFSFFFFFF",
    "all no, may pass": "rrSrrrrrr",
    "one yes": "SSSSSSSSS",
    "yes and no": "SSSSSSSSS",
    "same yes": "SSSSSSSSS",
    "two receipts": "SSSSSSSSS",
    "yes against no": "SSSSSSSSS",
}
AGAIN_BY_RUN = dict(zip(RUNS, "RFFFRFFFFF", strict=True))


def by_contract() -> dict[tuple[str, str, str, str], str]:
    table = {}
    for line in BY_CONTRACT.strip().splitlines():
        contract, lookup, *columns = (cell.strip() for cell in line.split("|"))
        for window, column in zip(WINDOWS, columns, strict=True):
            for run, expected in zip(RUNS, column.replace(" ", ""), strict=True):
                table[contract, lookup, window, run] = expected
                if lookup == "none":
                    table[contract, "refused", window, run] = expected
    return table


def expected_letter(contract: str, lookup: str, evidence: str, window: str, run: str) -> str:
    column = list(LOOKUPS).index(lookup)
    if contract == "read":
        found = READ_BY_EVIDENCE[evidence][column]
        return AGAIN_BY_RUN[run] if found in ".r" else found
    found = BY_EVIDENCE[evidence][column]
    if found == "r":
        return AGAIN_BY_RUN[run]
    if found == "?":
        return "p" if CONTRACTS[contract][0].absence_provable else "S"
    if found == ".":
        return BY_LOOKUP.get(lookup) or TABLE[contract, lookup, window, run]
    return found


TABLE = by_contract()


def test_the_table_names_every_contract_lookup_window_and_run() -> None:
    left_to_contracts = set(LOOKUPS) - set(BY_LOOKUP)
    assert set(TABLE) == set(product(set(CONTRACTS) - {"read"}, left_to_contracts, WINDOWS, RUNS))
    assert set(BY_EVIDENCE) == set(READ_BY_EVIDENCE) == set(EVIDENCE)
    assert {RUNS[run].get("run", run) for run in RUNS} == set(RunStatus)
    assert {item["lookup"].answer for item in LOOKUPS.values() if "lookup" in item} == set(Answer)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_combination_has_the_one_decision_of_the_table(contract: str) -> None:
    wrong = [
        (place, decided)
        for place in product([contract], LOOKUPS, EVIDENCE, WINDOWS, RUNS)
        if letter(decided := recover(scene(*place))) != expected_letter(*place)
    ]
    assert not wrong[:5]


# After the worker was lost, in an ACTING run: as the contract leaves it, with repair, with a repeat declared.
TAKEOVERS = """
    nothing               | none         | p p -
    lookup                | absent late  | F F R
    lookup                | absent early | w w w
    eventual lookup       | absent late  | F F R
    dedupes               | none         | R p R
    dedupes, lookup       | absent late  | R F R
    natural, locked       | none         | R p R
    natural, unlocked     | none         | p p p
    read                  | none         | R R -
"""


@pytest.mark.parametrize("line", TAKEOVERS.strip().splitlines())
def test_a_lost_worker_is_followed_by_what_the_contract_allows(line: str) -> None:
    contract, lookup, letters = (cell.strip() for cell in line.split("|"))
    before = scene(contract, lookup, "nothing", "open", "ACTING")
    for choice, expected in zip((None, *AfterTakeover), letters.split(), strict=True):
        if expected != "-":
            terms = replace(before.contract, after_takeover=choice)
            assert letter(recover(replace(before, contract=terms, taken_over=True))) == expected, choice
