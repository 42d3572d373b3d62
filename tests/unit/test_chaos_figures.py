"""What chaos counts in the services' own books: effects of its keys, duplicates among them, and lost ones."""

import pytest

from fencepost_ops.chaos_figures import judged

A, B = "key-a", "key-b"


@pytest.mark.parametrize(
    ("keys", "effects", "expected"),
    [
        ({}, [], (0, 0, 0)),
        ({A: True, B: False}, [("wallet", A)], (1, 0, 0)),
        ({A: True}, [("wallet", A), ("wallet", A), ("wallet", A)], (3, 2, 0)),
        ({A: True}, [("wallet", A), ("shipping", A)], (2, 0, 0)),
        ({A: True, B: True}, [("wallet", B)], (1, 0, 1)),
        ({A: True}, [("wallet", "somebody else's"), ("wallet", None)], (0, 0, 1)),
        ({A: False}, [], (0, 0, 0)),
    ],
)
def test_effects_duplicates_and_what_is_lost(
    keys: dict[str, bool], effects: list[tuple[str, str | None]], expected: tuple[int, int, int]
) -> None:
    assert judged(keys, effects) == expected
