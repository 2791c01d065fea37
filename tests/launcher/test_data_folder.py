"""Where the data goes: decided by who starts it and from where, so a clone finds its own again (S14.1)."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from app.launcher.accounts import Account, can_enter
from app.launcher.data_folder import FolderForbidden, data_folder, make_folder
from app.settings import Folders

ORDINARY = Account(uid=os.geteuid(), gid=os.getegid(), lent=False)
STRANGER = Account(uid=54321, gid=54321, lent=True)


def folders(data: Path | None = None, checkout: Path | None = None) -> Folders:
    return Folders(data=data, checkout=checkout, policy=Path("/policy"))


def test_the_variable_wins(tmp_path: Path) -> None:
    assert data_folder(folders(tmp_path / "x", tmp_path)) == tmp_path / "x"


def test_a_checkout_keeps_its_own(tmp_path: Path) -> None:
    assert data_folder(folders(checkout=tmp_path), account_of=lambda _cluster: ORDINARY) == tmp_path / ".placet"


def test_a_checkout_that_postgres_cannot_enter_gets_a_place_of_its_own_elsewhere(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "clone"
    hidden.mkdir(parents=True)
    hidden.parent.chmod(0o700)
    clones = (hidden, hidden, hidden.parent / "other")
    first, again, other = (data_folder(folders(checkout=clone), account_of=lambda _cluster: STRANGER) for clone in clones)
    assert first == again
    assert str(first).startswith("/var/lib/placet-")
    assert len(first.name) == len("placet-") + 8
    assert other != first


def test_without_a_checkout_it_is_the_accounts_place(tmp_path: Path) -> None:
    assert data_folder(folders(), {"XDG_DATA_HOME": str(tmp_path)}, lambda _cluster: ORDINARY) == tmp_path / "placet"
    assert data_folder(folders(), {}, lambda _cluster: STRANGER) == Path("/var/lib/placet")


def test_whether_an_account_can_enter_follows_the_mode_bits() -> None:
    with tempfile.TemporaryDirectory() as made:  # not pytest's, whose parents only their owner can enter
        folder = Path(made)
        folder.chmod(0o711)
        assert can_enter(STRANGER, folder)
        assert can_enter(STRANGER, folder / "not" / "yet")
        folder.chmod(0o710)
        assert not can_enter(STRANGER, folder / "not" / "yet")
        assert can_enter(Account(54321, folder.stat().st_gid, lent=True), folder)


def test_folders_are_made_with_their_mode_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        make_folder(tmp_path / "a" / "b", 0o711)
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b")] == [0o711, 0o711]


def test_what_cannot_be_made_names_the_variable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderForbidden, match=r"file/inside` can't be made .*; set PLACET_DATA_DIR"):
        make_folder(tmp_path / "file" / "inside", 0o700)
