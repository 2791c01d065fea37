"""Other processes are known by what they are, whatever their path looks like (S14.1: a blank in the path)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from app.launcher import process_table
from tests.faults.service import eventually

pytestmark = [pytest.mark.faults, pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")]


@pytest.mark.parametrize(("called", "name"), [("{}/a folder/sleep", "sleep"), ("sleep: of somebody/else", "sleep: of somebody/else")])
def test_a_program_is_found_where_it_works(tmp_path: Path, called: str, name: str) -> None:
    (tmp_path / "a folder").mkdir()
    real = shutil.which("sleep")
    assert real is not None
    link = tmp_path / "a folder" / "sleep"
    link.symlink_to(os.path.realpath(real))
    process = subprocess.Popen([called.format(tmp_path), "60"], executable=link, cwd=tmp_path)
    try:
        assert eventually(lambda: process_table.program(process.pid) != "")  # a moment after its start it has no arguments yet
        assert process_table.program(process.pid) == name
        assert process_table.working_in((tmp_path,), "sleep") == (process.pid,)
        assert process_table.working_in((tmp_path,), "postgres") == ()
        assert process_table.working_in((tmp_path / "a folder",), "sleep") == ()
    finally:
        process.kill()
        process.wait()
    assert process_table.program(process.pid) == ""
    assert process_table.working_in((tmp_path,), "sleep") == ()
