"""The key that signs: nobody else's from its first moment on, whatever an earlier start left (SPEC S10.2)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine.checkpoints import KEY_FILE, load_signing_key


@pytest.fixture
def _everything_is_open() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_everything_is_open")
def test_the_key_is_its_owners_whatever_the_umask_and_a_killed_starts_draft(tmp_path: Path) -> None:
    draft = tmp_path / f".{KEY_FILE}.{os.getpid()}"  # a container gives the next start the same process id
    draft.write_text("half of a k" * 1_000)
    made = load_signing_key(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [KEY_FILE]
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600
    assert load_signing_key(tmp_path).kid == made.kid
