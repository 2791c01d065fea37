"""Migrations are numbered in one line, so the newest is known without Alembic, which no worker loads."""

from __future__ import annotations

import subprocess
import sys

from alembic.script import ScriptDirectory

from app.settings import PROJECT
from app.storage.schema import alembic_config, head_revision


def test_the_last_files_number_is_alembics_head() -> None:
    assert head_revision() == ScriptDirectory.from_config(alembic_config()).get_current_head()


def test_a_worker_does_not_load_alembic() -> None:
    question = "import sys, app.main, app.launcher.worker; print([name for name in sys.modules if name.startswith('alembic')])"
    told = subprocess.run([sys.executable, "-c", question], cwd=PROJECT, check=True, capture_output=True, text=True)
    assert told.stdout == "[]\n"
