"""Bad weather between the fleet and its servers."""

import os

import pytest

LONG = os.environ.get("FENCEPOST_CHAOS") == "1"
"""With FENCEPOST_CHAOS=1 outages last as long, and repetitions are as many, as nobody waits for every day."""

long_only = pytest.mark.skipif(not LONG, reason="a variant of others; FENCEPOST_CHAOS=1 runs it too")
