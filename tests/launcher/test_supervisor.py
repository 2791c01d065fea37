"""What the parent tells the person who started it (SPEC S14.1)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.launcher.supervisor import Service
from app.settings import Settings


def test_keys_that_are_shown_once_are_shown_although_the_service_never_got_ready(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped or failed between the database's preparation and the first ready worker: the next start makes no new ones."""
    signals: Any = SimpleNamespace(hasten=lambda: False)
    service = Service(settings, signals)
    service._told_once = ("Keys:", "  agent  placet_x")
    service.stop()
    service.stop()
    assert capsys.readouterr().out == "Keys:\n  agent  placet_x\n"
