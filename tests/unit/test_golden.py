"""The golden vectors: one text and one hash for each value, in every process, place and time zone."""

import hashlib
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from fencepost.proposals import Rejected, Validated
from tests.unit.golden import VECTORS, checked

GOLDEN: list[dict[str, Any]] = json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: vector["given"][:40])
def test_texts_and_hashes_are_what_they_always_were(vector: dict[str, Any]) -> None:
    found = checked(vector["model"], vector["given"])
    assert isinstance(found, Validated), found
    assert (found.arguments, found.arguments_hash) == (vector["canonical"], vector["hash"])
    # The rule as it is written, by nothing of ours.
    named = b"fencepost.arguments.v1\0" + vector["canonical"].encode()
    assert vector["hash"] == "1:" + hashlib.sha256(named).hexdigest()


def test_a_canonical_text_is_its_own_canonical_text() -> None:
    for vector in GOLDEN:
        again = checked(vector["model"], vector["canonical"])
        assert isinstance(again, Validated)
        assert (again.arguments, again.arguments_hash) == (vector["canonical"], vector["hash"])


def test_equal_values_have_equal_hashes_and_different_ones_differ() -> None:
    meanings = {vector["hash"]: (vector["model"], vector["canonical"]) for vector in GOLDEN}
    assert len(set(meanings.values())) == len(meanings)
    assert len(GOLDEN) - len(meanings) == 4  # pairs of spellings of one value


@pytest.mark.parametrize(
    "place",
    [
        {"PYTHONHASHSEED": "1", "LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu"},
        {"PYTHONHASHSEED": "4242", "LANG": "C", "LC_ALL": "C", "TZ": "America/St_Johns", "PYTHONUTF8": "0"},
    ],
    ids=["Turkish in Nepal", "C in Newfoundland"],
)
def test_they_are_the_same_in_another_process(place: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.golden"],
        capture_output=True,
        check=True,
        env=os.environ | place | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    lines = [json.loads(line) for line in done.stdout.decode().splitlines()]
    assert [line[:2] for line in lines] == [[v["canonical"], v["hash"]] for v in GOLDEN]
    assert lines[0][2] != hash("seed")
    assert {line[3] for line in lines} == {1}


def test_what_is_no_vector_is_refused() -> None:
    assert isinstance(checked("Free", '{"value":1.0}'), Rejected)
