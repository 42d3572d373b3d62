"""JSON as its author reads it: what has two readings is refused, at a cost that grows with its size."""

import pytest

from fencepost import strictjson
from fencepost.strictjson import BadJson


class Name(str):
    """A key that counts how often it is compared."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return str.__eq__(self, other)


def test_a_key_that_comes_twice_is_named() -> None:
    with pytest.raises(BadJson, match="the key 'b' appears twice in one object"):
        strictjson.parse('{"a": 1, "b": {"a": 2}, "c": 3, "b": 4}')


def test_a_key_that_comes_twice_is_found_in_one_walk() -> None:
    """One long object with its first doubled key at its end stood a whole process still."""
    Name.compared = 0
    names = [Name(n) for n in (*range(2000), 1999)]
    with pytest.raises(BadJson, match="'1999' appears twice"):
        strictjson._object([(name, None) for name in names])
    assert Name.compared < 20 * len(names)
