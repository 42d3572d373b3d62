"""Whatever a tool returns has a text that can be stored."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from fencepost.outcomes import result_text
from tests.typing.user_code import DebitReceipt


class Odd(BaseModel):
    value: float


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ({"a": float("nan")}, '{"a": NaN}'),
        ("\0\ud800", '"\\u0000\\\\ud800"'),
        ({"at": datetime(2026, 1, 2, tzinfo=UTC)}, '{"at": "2026-01-02 00:00:00+00:00"}'),
        ({"s": {1}}, '{"s": [1]}'),
        ({"m": DebitReceipt(id="d")}, '{"m": {"id": "d", "amount": 0}}'),
        (Odd(value=float("nan")), '{"value": NaN}'),
        (b"x", "\"b'x'\""),
        ({(1, 2): 3}, '"{(1, 2): 3}"'),
    ],
)
def test_any_result_has_a_text(value: Any, text: str) -> None:
    assert result_text(value) == text


def test_a_stored_result_reads_back_as_the_same_model() -> None:
    again = Odd.model_validate_json(result_text(Odd(value=float("-inf"))))
    assert again == Odd(value=float("-inf"))


def test_a_result_that_holds_itself_or_cannot_be_shown_has_a_text() -> None:
    class Unshowable:
        def __str__(self) -> str:
            raise RuntimeError

    loop: list[Any] = []
    loop.append(loop)
    assert json.loads(result_text(loop)) == "[[...]]"
    assert "without a text" in json.loads(result_text(Unshowable()))
