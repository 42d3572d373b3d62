"""Records copied and read field by field are what dataclasses make of them."""

from dataclasses import FrozenInstanceError, dataclass, fields, replace
from datetime import UTC, datetime
from uuid import UUID

import pytest

from fencepost.clock import rfc3339
from fencepost.ledger import rows
from fencepost.records import amended, made, reader
from fencepost.subjects import Call, Run

AT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
RUN = Run(
    tenant="t",
    id=UUID(int=1),
    run_key="k",
    planner="p",
    planner_version=1,
    principal="svc:x",
    request="{}",
    on_stop="leave",
    created_at=AT,
    deadline=AT,
)


@dataclass(frozen=True, slots=True)
class Pair:
    one: int
    other: UUID | None = None


def test_a_record_with_changed_fields_is_what_replace_makes() -> None:
    assert amended(RUN, status="ACTING", owner="me", fence=3) == replace(
        RUN, status="ACTING", owner="me", fence=3
    )
    assert RUN.owner is None


def test_a_copy_is_frozen_like_any_other() -> None:
    with pytest.raises(FrozenInstanceError):
        amended(Pair(1)).one = 2  # type: ignore[misc]


def test_a_field_there_is_not_is_refused() -> None:
    with pytest.raises(KeyError):
        amended(Pair(1), another=2)


def test_a_record_is_made_of_all_its_values_in_order() -> None:
    assert made(Pair, (1, UUID(int=2))) == Pair(1, UUID(int=2))
    for values in [(1,), (1, None, 3)]:
        with pytest.raises(ValueError, match="values to unpack"):
            made(Pair, values)


def test_instants_and_ids_are_read_as_text_and_nothing_as_nothing() -> None:
    read = reader(Run, ["id", "created_at", "owner", "seq"])
    assert read(RUN) == [str(UUID(int=1)), rfc3339(AT), None, 0]
    assert reader(Pair, ["one", "other"])(Pair(1)) == [1, None]


def test_every_column_of_a_run_and_a_call_has_a_type_in_sql() -> None:
    assert rows.types(Run).keys() == {f.name for f in fields(Run)}
    assert rows.types(Call)["in_flight_until"] == "timestamptz"


@pytest.mark.parametrize(
    ("values", "spelled"),
    [
        ([], "{}"),
        (["a", ""], '{"a",""}'),
        (['q"', "b\\", "c,d", "{}", "NULL"], '{"q\\"","b\\\\","c,d","{}","NULL"}'),
    ],
)
def test_texts_are_spelled_as_postgres_reads_arrays(values: list[str], spelled: str) -> None:
    assert rows.text_array(values) == spelled
