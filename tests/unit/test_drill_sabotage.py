"""The table of sabotages: what each one says of itself, and that what is switched off comes back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencepost.errors import UsageError
from fencepost_ops.checker import PROMISES
from fencepost_ops.drill.protocol import parse_protocol
from fencepost_ops.drill.prove import COLUMNS, Proof, Ran, matrix, to_json, uncovered
from fencepost_ops.drill.sabotage import SABOTAGES, Sabotage, sabotage
from fencepost_ops.drill.sabotages.refusals import REFUSALS
from fencepost_ops.drill.sabotages.switch import POSTGRES, STAND_IN, entry, every, instead, silenced

NOWHERE: Any = SimpleNamespace()


@pytest.mark.parametrize("one", SABOTAGES.values(), ids=SABOTAGES)
def test_each_says_what_it_switches_off_and_what_that_must_break(one: Sabotage) -> None:
    assert one.invariant in COLUMNS
    assert len(one.about.split()) > 3
    assert one.layer
    # Its protocol expects a clean history, and can be kept in a file.
    assert one.shows.sabotage == [] == one.shows.expect.violated
    assert parse_protocol(one.shows.to_text(), one.name) == one.shows


def test_names_are_unique() -> None:
    assert list(SABOTAGES) == [one.name for one in SABOTAGES.values()]


def test_every_invariant_has_one_that_breaks_it() -> None:
    breaks = {one.invariant for one in SABOTAGES.values() if one.held_by is None}
    assert breaks >= set(PROMISES)


def test_where_another_defence_holds_the_same_is_switched_off_together_with_it_too() -> None:
    harmless = {
        "lease_to_anybody",
        "lease_released_by_anybody",
        "floor_ignored",
        "term_not_presented",
        "history_edited.granted",
    }
    alone = {name for name, one in SABOTAGES.items() if one.held_by is not None} - harmless
    for name in alone:
        both = SABOTAGES[name.rpartition(".")[0]]
        assert both.held_by is None
        assert both.invariant == SABOTAGES[name].invariant
        assert both.shows == SABOTAGES[name].shows


def test_where_postgres_holds_it_is_told_with_which_words() -> None:
    held = {name for name, one in SABOTAGES.items() if one.held_by == POSTGRES}
    assert held == {name for name, one in SABOTAGES.items() if one.refusal} == REFUSALS.keys()


def test_what_alters_the_drills_own_redis_and_services_says_so() -> None:
    assert {name for name, one in SABOTAGES.items() if one.layer == STAND_IN} == {
        "retries_in_the_sdk",
        "lease_to_anybody",
        "lease_released_by_anybody",
        "floor_ignored",
    }


def test_an_unknown_one_is_refused_with_the_names_there_are() -> None:
    assert sabotage("blind_retry") is SABOTAGES["blind_retry"]
    with pytest.raises(UsageError, match=r"there is no sabotage 'trust_everyone'.*blind_retry"):
        sabotage("trust_everyone")


class _Owner:
    @staticmethod
    def plain(number: int) -> int:
        return number

    def bound(self, number: int) -> int:
        return number


@pytest.mark.parametrize("name", ["plain", "bound"])
def test_what_was_there_comes_back_exactly_also_after_an_error(name: str) -> None:
    before = vars(_Owner)[name]

    def divided() -> None:
        with instead(_Owner, name, lambda _was: lambda *_given: 7):
            assert getattr(_Owner(), name)(1) == 7
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        divided()
    assert vars(_Owner)[name] is before


def test_several_are_switched_off_together_and_on_again() -> None:
    table = {"a": 1, "b": 2}
    off = every(entry(table, "a", lambda was: was + 10), entry(table, "b", lambda was: was + 10))
    with off(NOWHERE):
        assert table == {"a": 11, "b": 12}
    assert table == {"a": 1, "b": 2}


GUARD = """
    IF a THEN
        RAISE EXCEPTION 'call %: it isn''t so', NEW.id USING ERRCODE = 'FP001';
    END IF;
    IF b THEN
        RAISE EXCEPTION 'call %: a fence never falls', NEW.id
            USING ERRCODE = 'FP002';
    END IF;
"""


def test_a_guard_loses_the_refusals_that_are_named_and_no_other() -> None:
    assert silenced(GUARD, ("a fence never falls",)) == GUARD.replace(
        "RAISE EXCEPTION 'call %: a fence never falls', NEW.id\n            USING ERRCODE = 'FP002';", "NULL;"
    )
    assert "it isn''t so" not in silenced(GUARD, ("it isn''t so",))


def test_a_refusal_that_no_guard_knows_is_an_error() -> None:
    with pytest.raises(LookupError, match="no guard says 'it is late'"):
        silenced(GUARD, ("it is late",))


# -- what a proof says -------------------------------------------------------------------------------------

CLEAN = Ran((), (), ())


def _proof(
    held_by: str | None = None, *, clean: Ran = CLEAN, broken: Ran = CLEAN, layer: str = "code"
) -> Proof:
    one = SABOTAGES["blind_retry"]
    made = Sabotage("it", "I1", one.about, one.off, one.shows, layer, held_by, "a fence never")
    return Proof(made, clean, broken)


BROKE = Ran(("I1", "I2"), ("violated: I1, I2",), (), {}, ("another",))
REFUSED = Ran((), (), ("a fence never falls",))


@pytest.mark.parametrize(
    ("proof", "verdict", "wrong"),
    [
        (_proof(broken=BROKE), "caught", []),
        (_proof(), "NOT CAUGHT", ["without the defence I1 still holds; what broke: nothing"]),
        (
            _proof(broken=Ran(("I2",), (), ())),
            "NOT CAUGHT",
            ["without the defence I1 still holds; what broke: I2"],
        ),
        (_proof(clean=BROKE, broken=BROKE), "NOT CAUGHT", ["with the defence: violated: I1, I2"]),
        (_proof(POSTGRES, broken=REFUSED), "held by Postgres", []),
        (_proof(POSTGRES), "NOT CAUGHT", ["Postgres is said to hold, and refused nothing"]),
        (
            _proof(POSTGRES, broken=Ran((), (), ("permission denied", "it is late"))),
            "NOT CAUGHT",
            ["Postgres had to refuse with 'a fence never', and said: it is late; permission denied"],
        ),
        (
            _proof("the claim", broken=BROKE),
            "NOT CAUGHT",
            ["I1 broke, which the claim should have held"],
        ),
        (_proof("the claim", broken=Ran((), (), (), {}, ("another",))), "held by the claim", []),
        (
            _proof("the claim"),
            "NOT CAUGHT",
            ["nothing came of it, so nothing shows that the claim holds"],
        ),
        (_proof(layer=POSTGRES, clean=REFUSED, broken=BROKE), "caught", []),
        (
            _proof(layer=POSTGRES, broken=BROKE),
            "NOT CAUGHT",
            ["with the defence Postgres refused nothing, so there was nothing to defend against"],
        ),
    ],
)
def test_a_proof_says_why_it_proves_nothing(proof: Proof, verdict: str, wrong: list[str]) -> None:
    assert (proof.verdict, proof.wrong, proof.ok) == (verdict, wrong, not wrong)


def test_the_matrix_marks_what_had_to_break_and_what_broke_with_it() -> None:
    headings, (broken, held) = matrix([_proof(broken=BROKE), _proof(POSTGRES, broken=REFUSED)])
    headings = [name.rstrip("!?") for name in headings]
    at = dict(zip(headings, broken, strict=True))
    assert (at["defence"], at["I1"], at["I2"], at["I3"], at["verdict"]) == ("it", "X", "x", "", "caught")
    at = dict(zip(headings, held, strict=True))
    assert (at["I1"], at["I2"], at["verdict"]) == ("=", "", "held by Postgres")


def test_an_invariant_without_a_proof_fails_the_whole() -> None:
    proofs = [_proof(broken=BROKE)]
    assert uncovered(proofs) == [name for name in PROMISES if name != "I1"]
    assert to_json(proofs)["ok"] is False
    assert to_json(proofs)["sabotages"][0]["broke"] == ["I1", "I2"]
