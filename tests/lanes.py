"""Which tests go to one process after each other: those of a file, and all files that share a fleet."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
SHARING = "tests/acceptance"


@cache
def lane(file: str) -> str:
    """A file's lane: its folder, where its tests are on the folder's fleet; else the file itself."""
    folder = file.rpartition("/")[0]
    if not folder.startswith(SHARING):
        return file
    source = (ROOT / file).read_text()
    return folder if "stage: Stage" in source and "staged(" not in source else file


def lanes(config: pytest.Config, log: Any) -> Any:
    """As `--dist=loadfile`, by lane: a fleet takes ten seconds of a processor to start."""
    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = lambda nodeid: lane(nodeid.split("::", 1)[0])
    return scheduling
