"""Whether the policies in force can be read here, and know the application's tools as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fencepost.app import App
from fencepost.authority.bundle import PolicyVersion
from fencepost.authority.inforce import compiled
from fencepost.authority.vocabulary import Vocabulary, vocabulary
from fencepost.errors import UsageError
from fencepost_ops.doctor.findings import Area, Finding

_AREA = Area("policies")
_AGAIN = "publish it again with the application the workers run: fencepost policy publish"


def judge_policies(live: Sequence[PolicyVersion], app: App | None) -> Iterator[Finding]:
    """Findings on the versions in force; none where none was ever published. `app` None: not compared."""
    if live and app is not None and not app.governed:
        yield _AREA.note(f"app {app.name} has an authority of its own; no published policy decides for it")
        return
    for row in live:
        whom = f"tenant {row.tenant}" if row.tenant else "all tenants"
        try:
            known = compiled(row.bundle).bundle.vocabulary
        except UsageError as error:
            yield _AREA.problem(
                f"version {row.version} is in force for {whom} and cannot be used, so all it is asked is "
                f"denied: {error}",
                "install what is missing, or publish a bundle that this installation can read",
            )
            continue
        problems = [] if app is None else list(_strange(row.version, known, app))
        yield from problems
        if not problems:
            yield _AREA.ok(f"version {row.version} of {row.name} decides for {whom}")


def _strange(version: int, known: Vocabulary, app: App) -> Iterator[Finding]:
    """The application's tools that the version does not know, or knows otherwise."""
    words, _ = vocabulary(app.registry)
    for name, word in words.words.items():
        held = known.words.get(name)
        missing = sorted(word.effects if held is None else word.effects.keys() - held.effects.keys())
        if missing:
            numbers = ", ".join(map(str, missing))
            yield _AREA.problem(
                f"version {version} was published without {name} version {numbers}: calls of it are denied",
                _AGAIN,
            )
        elif held is not None and (held.arguments, held.egress) != (word.arguments, word.egress):
            yield _AREA.warning(
                f"version {version} knows {name} with other arguments than the application: calls that lack "
                "one of those are denied, and new ones no policy sees",
                _AGAIN,
            )
