"""A lock that waited tests its row again: a join or a subselect there may drop a row that is there."""

import re

import pytest

from fencepost.ledger import health, load

STATEMENTS = [
    load.LOCK_RUNS,
    load.LOCK_CLAIMED,
    load.LOCK_ROWS,
    *load.LOCK_OPERATIONS.values(),
    health.LOCK_DEPENDENCIES,
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_what_is_locked_is_named_by_arrays_alone(statement: str) -> None:
    outside = re.sub(r"ARRAY\(SELECT.*\)\)", "", statement, flags=re.DOTALL)  # computed once, before
    assert not re.search(r"\bJOIN\b|\bIN \(|\bunnest\b", outside)
    assert "= ANY(" in outside
