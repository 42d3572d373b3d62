"""What does not fit a model, in words without the value."""

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from fencepost.misfits import Misfit, misfits


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid")
    sku: str


class Order(BaseModel):
    lines: list[Line]
    secret: int = 0

    @model_validator(mode="after")
    def filled(self) -> "Order":
        if not self.lines:
            raise ValueError("an order has lines")
        return self


def found(value: object) -> list[Misfit]:
    with pytest.raises(ValidationError) as refused:
        Order.model_validate(value)
    return misfits(refused.value)


def test_each_part_is_told_by_its_path_and_none_is_quoted() -> None:
    wrong = found({"lines": [{"sku": "a"}, {"sku": "b", "colour": "hidden"}, {}], "secret": "hunter2"})
    assert [(one.path, one.kind) for one in wrong] == [
        (("lines", 1, "colour"), "extra_forbidden"),
        (("lines", 2, "sku"), "missing"),
        (("secret",), "int_parsing"),
    ]
    assert wrong[1].told() == "lines.2.sku: Field required"
    assert not any(text in str(one) for one in wrong for text in ("hunter2", "hidden", "https://"))


def test_what_is_wrong_with_the_whole_is_told_with_or_without_a_name_for_it() -> None:
    (wrong,) = found({"lines": []})
    assert (wrong.told(), wrong.told("")) == ("$: an order has lines", "an order has lines")
