"""Which tests go to one process after each other: those of a file, all files that share a fleet, and all that
use the SDKs of models.
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
SHARING = "tests/acceptance"
SDKS = "tests/sdks"


@cache
def lane(file: str) -> str:
    """A file's lane: its folder, where its tests are on the folder's fleet; else the file itself."""
    folder = file.rpartition("/")[0]
    source = (ROOT / file).read_text()
    if "from tests.sdks import" in source:
        return SDKS
    if not folder.startswith(SHARING):
        return file
    return folder if "stage: Stage" in source and "staged(" not in source else file


def lanes(config: pytest.Config, log: Any) -> Any:
    """As `--dist=loadfile`, by lane: a fleet takes ten seconds of a processor to start, the SDKs five."""
    scheduling = LoadFileScheduling(config, log)
    scheduling._split_scope = lambda nodeid: lane(nodeid.split("::", 1)[0])
    return scheduling
