"""The table of hostile proposals, held against the five checks that need no ledger."""

from collections import Counter

import pytest

from fencepost import App
from fencepost.proposals import Rejected, Validated, validate
from fencepost.tools import Proposal
from fencepost_ops.drill.hostile.table import BENIGN, HOSTILE, Hostile
from fencepost_ops.drill.hostile.tools import HOSTS, add

APP = App("hostile")
add(APP.dependency("mail", "http://127.0.0.1:9", hosts=HOSTS))


def checked(tool: str, text: str, version: int | None = None) -> Validated | Rejected:
    proposal = Proposal(tool, text, "label", version)
    return validate(proposal, tools=APP.tools, tenant="shop", run_id="r", turn=1, ordinal=0)


@pytest.mark.parametrize("row", HOSTILE, ids=lambda row: row.name)
def test_every_hostile_proposal_is_refused_where_it_has_to_be(row: Hostile) -> None:
    found = checked(row.tool, row.text("shop"), row.version)
    assert isinstance(found, Rejected), found
    assert (found.step, found.code) == (row.step, row.code)
    assert found.message.startswith(f"{row.code}: ")
    for text in (found.message, found.arguments, found.tool_name):
        assert "\0" not in text
        text.encode()
    assert len(found.message) < 600
    assert len(found.arguments) <= 2000


@pytest.mark.parametrize(("tool", "text"), BENIGN)
def test_the_same_tools_take_what_is_well_made(tool: str, text: str) -> None:
    assert isinstance(checked(tool, text.replace("TENANT", "shop")), Validated)


def test_the_table_is_large_and_no_row_is_there_twice() -> None:
    assert len({row.name for row in HOSTILE}) == len({row[1:] for row in HOSTILE}) == len(HOSTILE) >= 100
    steps = Counter(row.step for row in HOSTILE)
    assert set(steps) == {1, 2, 3, 4, 5}
    assert min(steps.values()) >= 4
