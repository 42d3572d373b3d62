"""Whether capabilities can be signed where a dependency asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from fencepost.dependencies import DependencySpec
from fencepost.errors import UsageError
from fencepost_ops.doctor.findings import Area, Finding

_AREA = Area("capabilities")
_OTHERS = 0o077  # any right of anybody but the owner


def judge_signing(folder: str, dependencies: Iterable[DependencySpec], now: datetime) -> Iterator[Finding]:
    """Findings on the folder of FENCEPOST_SIGNING_KEYS; none where nobody asks and none is named."""
    asking = sorted({spec.name for spec in dependencies if spec.capability_header is not None})
    if not folder:
        if asking:
            yield _AREA.problem(
                f"dependency {asking[0]} asks for capabilities, and there are no keys: no dispatcher starts",
                "fencepost keys new --folder PATH, and set FENCEPOST_SIGNING_KEYS to it for every worker",
            )
        return
    try:
        from fencepost.capabilities import read_keys, signing

        keys = read_keys(folder)
    except ImportError:
        yield _AREA.problem(
            "PyJWT is missing, so that nothing is signed", "pip install 'fencepost[capabilities]'"
        )
        return
    except UsageError as error:
        yield _AREA.problem(str(error), "mend the folder, or name another in FENCEPOST_SIGNING_KEYS")
        return
    current = signing(keys, now)
    if current is None:
        yield _AREA.problem(
            f"none of the {len(keys)} keys in {folder} signs yet", "fencepost keys new --at-once"
        )
    else:
        yield _AREA.ok(f"{current.kid[:8]} signs; {len(keys)} in all are exported")
    for key in keys:
        if key.since > now:
            yield _AREA.note(
                f"{key.kid[:8]} signs from {key.since.astimezone(UTC):%Y-%m-%d %H:%M} UTC on",
                "give downstreams the output of fencepost keys export before that",
            )
        if (Path(folder) / key.file).stat().st_mode & _OTHERS:
            yield _AREA.warning(
                f"others than its owner may read {key.file}", f"chmod 600 {Path(folder) / key.file}"
            )
