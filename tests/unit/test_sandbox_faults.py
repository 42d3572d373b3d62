"""Which fault a request meets, and that one seed means one history."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost_ops.sandbox.faults import (
    Facts,
    Kind,
    Rule,
    Rules,
    lucky,
    matches,
    parse_file,
    parse_header,
    parse_rule,
)
from fencepost_ops.sandbox.standing import take

FACTS = Facts("wallet", "/wallet/debits", "effect", key="k1", reference="order-1", nth=1)


def applies(rule: Rule) -> bool:
    return matches(rule, FACTS)


@pytest.mark.parametrize(
    ("condition", "met"),
    [
        ({}, True),
        ({"service": "wallet"}, True),
        ({"service": "shipping"}, False),
        ({"path": "/wallet/debits"}, True),
        ({"path": "/wallet/*"}, True),
        ({"path": "/wallet/refunds"}, False),
        ({"key": "k1"}, True),
        ({"key": "k2"}, False),
        ({"reference": "order-1"}, True),
        ({"reference": "order"}, False),
        ({"reference_prefix": "order-"}, True),
        ({"reference_prefix": "invoice-"}, False),
        ({"nth": 1}, True),
        ({"nth": 2}, False),
        ({"on": "lookup"}, False),
        ({"service": "wallet", "key": "k2"}, False),
    ],
)
def test_a_rule_is_met_when_all_its_conditions_hold(condition: dict[str, object], met: bool) -> None:
    assert matches(parse_rule({"kind": "error_503", **condition}), FACTS) is met


def test_the_first_rule_that_applies_is_met_and_only_that_one_is_used_up() -> None:
    rules = (Rule(Kind.REFUSE, key="k2"), Rule(Kind.ERROR_503, count=1), Rule(Kind.THROTTLE_429, count=2))
    met, left = take(rules, applies)
    assert met == rules[1]
    assert left == (rules[0], rules[2])
    met, left = take(left, applies)
    assert met == rules[2]
    assert left == (rules[0], dataclasses.replace(rules[2], count=1))


def test_a_rule_without_count_is_never_used_up() -> None:
    rules = (Rule(Kind.ERROR_503),)
    assert take(rules, applies) == (rules[0], rules)


@given(seed=st.integers(0, 2**32), key=st.text(min_size=1), nth=st.integers(1, 100))
def test_chance_depends_on_nothing_but_seed_kind_service_key_and_number(
    seed: int, key: str, nth: int
) -> None:
    facts = dataclasses.replace(FACTS, key=key, nth=nth)
    rule = Rule(Kind.ERROR_503, probability=0.5, seed=seed)
    assert lucky(rule, facts) == lucky(dataclasses.replace(rule, id="fault_9"), facts)


def test_chance_meets_about_as_many_requests_as_it_says() -> None:
    rule = Rule(Kind.ERROR_503, probability=0.25, seed=7)
    met = sum(lucky(rule, dataclasses.replace(FACTS, key=f"k{n}")) for n in range(4000))
    assert 900 < met < 1100  # 1000 expected, five standard deviations are 137


def test_another_seed_is_another_history() -> None:
    def history(seed: int) -> list[bool]:
        rule = Rule(Kind.ERROR_503, probability=0.5, seed=seed)
        return [lucky(rule, dataclasses.replace(FACTS, key=f"k{n}")) for n in range(64)]

    assert history(1) == history(1) != history(2)


def test_rules_count_the_requests_of_each_key() -> None:
    rules = Rules(
        [parse_rule({"kind": "drop_after_commit", "nth": 1}), parse_rule({"kind": "refuse", "nth": 2})]
    )
    met = [
        rules.meet("wallet", "/wallet/debits", "effect", key, None, None) for key in ("a", "b", "a", "b", "a")
    ]
    assert [rule and rule.kind for rule in met] == [
        Kind.DROP_AFTER_COMMIT,
        Kind.DROP_AFTER_COMMIT,
        Kind.REFUSE,
        Kind.REFUSE,
        None,
    ]
    assert rules.fired == {"drop_after_commit": 2, "refuse": 2}


def test_a_fault_a_request_asks_for_itself_leaves_the_others_unused() -> None:
    rules = Rules([Rule(Kind.ERROR_503, count=1)])
    met = rules.meet("wallet", "/wallet/debits", "effect", "a", None, "garbage_200")
    assert met is not None
    assert met.kind is Kind.GARBAGE_200
    assert len(rules.standing) == 1


def test_rules_are_deleted_one_by_one_or_all_at_once() -> None:
    rules = Rules([Rule(Kind.ERROR_503), Rule(Kind.REFUSE), Rule(Kind.GARBAGE_200)])
    assert rules.delete("fault_2") == 1
    assert [rule.kind for rule in rules.standing] == [Kind.ERROR_503, Kind.GARBAGE_200]
    assert rules.delete() == 2


def test_a_header_names_a_kind_and_its_parameters() -> None:
    assert parse_header("throttle_429; retry_after_s=7;nth=2") == Rule(
        Kind.THROTTLE_429, retry_after_s=7, nth=2
    )
    assert parse_header("drop_before;reset=true;delay_s=0.5").reset is True


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"kind": "meteor"},
        {"kind": ["refuse"]},
        {"kind": "refuse", "count": 0},
        {"kind": "refuse", "count": True},
        {"kind": "refuse", "probability": 1.5},
        {"kind": "refuse", "delay_s": -1},
        {"kind": "refuse", "on": "monday"},
        {"kind": "refuse", "because": "x"},
    ],
)
def test_a_fault_that_makes_no_sense_is_refused_in_a_sentence(wire: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="a fault"):
        parse_rule(wire)


def test_a_file_is_a_list_or_an_object_with_a_seed_for_all_its_faults() -> None:
    listed = parse_file([{"kind": "refuse"}])
    seeded = parse_file({"seed": 9, "faults": [{"kind": "refuse"}, {"kind": "refuse", "seed": 3}]})
    assert [rule.seed for rule in (*listed, *seeded)] == [0, 9, 3]
    with pytest.raises(ValueError, match="faults file"):
        parse_file({"faults": "all of them"})


def test_a_rule_survives_its_own_wire_form() -> None:
    rule = Rule(Kind.DELAY_BEFORE, service="wallet", probability=0.5, seed=3, delay_s=0.2)
    assert parse_rule(rule.wire()) == rule
