"""What is wrong with a value that does not fit its model: part by part, and without the value. Pure."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ValidationError


class Misfit(NamedTuple):
    """One part that does not fit: the path to it, pydantic's name for what is wrong, and a sentence."""

    path: tuple[int | str, ...]
    kind: str
    message: str

    def told(self, whole: str = "$") -> str:
        """`lines.0.sku: Field required`. The value itself is called `whole`; by an empty text not at all."""
        where = ".".join(map(str, self.path)) or whole
        return f"{where}: {self.message}" if where else self.message


def misfits(error: ValidationError) -> list[Misfit]:
    """All that is wrong, in pydantic's order. Only a validator of the model's own may quote the value."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [Misfit(one["loc"], one["type"], one["msg"].removeprefix("Value error, ")) for one in found]
