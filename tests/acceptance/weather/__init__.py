"""Bad weather between the fleet and its servers."""

import os

import pytest

LONG = os.environ.get("FENCEPOST_CHAOS") == "1"
"""With FENCEPOST_CHAOS=1 outages last as long, and repetitions are as many, as nobody waits for every day."""
OUTAGE_S = 20
"""How long an outage then lasts: most of the 30 s for which an unknown outcome is looked into."""

long_only = pytest.mark.skipif(not LONG, reason="a variant of others; FENCEPOST_CHAOS=1 runs it too")
patient = pytest.mark.timeout(300 if LONG else 120)
