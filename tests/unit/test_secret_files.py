"""Secrets in files and variables: a tenant has its own and reaches no other's."""

from pathlib import Path

import pytest

from fencepost.errors import UsageError
from fencepost_workers.tools.secrets import files_and_variables

VALUE = 'c4n/ry"+<x> =='


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop" / "mailbox").mkdir(parents=True)
    (tmp_path / "shop" / "mailbox" / "anna").write_text(VALUE + "\n")
    return tmp_path


def test_a_secret_is_a_file_of_its_tenant(folder: Path) -> None:
    resolver = files_and_variables(str(folder))
    assert resolver("shop", "mailbox/anna") == VALUE
    assert resolver("shop", "mailbox/bob") is None
    assert resolver("other", "mailbox/anna") is None


@pytest.mark.parametrize("tenant", ["shop/mailbox", "..", "../shop", "other/../shop", ".", "shop%2Fmailbox"])
def test_no_tenant_reaches_anothers_files(folder: Path, tenant: str) -> None:
    nested = files_and_variables(str(folder / "shop"))
    resolver = files_and_variables(str(folder))
    assert resolver(tenant, "anna") is None
    assert resolver(tenant, "mailbox/anna") is None
    assert nested(tenant, "mailbox/anna") is None


def test_a_link_out_of_the_folder_is_not_followed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "key"
    outside.write_text("outside-outside")
    (folder / "shop" / "out").symlink_to(outside)
    (folder / "shop" / "in").symlink_to("mailbox/anna")  # as containers' secrets are mounted
    resolver = files_and_variables(str(folder))
    assert resolver("shop", "in") == VALUE
    with pytest.raises(UsageError, match="outside"):
        resolver("shop", "out")
    with pytest.raises(UsageError, match="no file"):
        resolver("shop", "mailbox")
    (folder / "shop" / "binary").write_bytes(b"\xff\xfe-secret")
    with pytest.raises(UsageError, match="UTF-8"):
        resolver("shop", "binary")


def test_a_secret_may_be_a_variable_whose_name_is_like_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FENCEPOST_SECRET_shop__mailbox_2Fanna", VALUE)
    resolver = files_and_variables("")
    assert resolver("shop", "mailbox/anna") == VALUE
    for tenant, name in (("shop", "mailbox_anna"), ("shop", "mailbox_2Fanna"), ("shop__mailbox", "anna")):
        assert resolver(tenant, name) is None
