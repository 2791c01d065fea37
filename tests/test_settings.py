"""The environment: defaults, and one clear line for each value that can't be used (S14.1, S14.2)."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from app.settings import EXPECTED, PROJECT, LogLevel, SettingsInvalid, load_settings


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tuple(os.environ):
        if name.startswith("PLACET_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)


def test_nothing_need_be_set() -> None:
    settings = load_settings()
    assert dataclasses.astuple(settings.listening) == ("127.0.0.1", 8080, 1)
    assert dataclasses.astuple(settings.database) == (None, None, False)
    assert settings.folders.policy == PROJECT / "policies" / "shop"
    assert (settings.start.bootstrap_key, settings.start.demo) == (None, True)
    assert dataclasses.astuple(settings.limits) == (30_000, 128)
    assert (settings.log_level, settings.worker_slot) == (LogLevel.INFO, None)


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACET_PORT", "")
    assert load_settings().listening.port == 8080


def test_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACET_DATA_DIR", "da ta")
    monkeypatch.setenv("PLACET_POLICY_DIR", ".")
    folders = load_settings().folders
    assert (folders.data, folders.policy) == (tmp_path / "da ta", tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("PLACET_PORT", "eighty", " `eighty`"),
        ("PLACET_PORT", "65536", " `65536`"),
        ("PLACET_PORT", "-1", " `-1`"),
        ("PLACET_WORKERS", "0", " `0`"),
        ("PLACET_WORKERS", "65", " `65`"),
        ("PLACET_REQUESTS_PER_MINUTE", "0", " `0`"),
        ("PLACET_REQUESTS_PER_MINUTE", "10000001", " `10000001`"),
        ("PLACET_CONCURRENT_REQUESTS", "many", " `many`"),
        ("PLACET_DEMO", "perhaps", " `perhaps`"),
        ("PLACET_SINGLE_ROLE", "2", " `2`"),
        ("PLACET_POLICY_DIR", "/nowhere/at all", " `/nowhere/at all`"),
        ("PLACET_LOG_LEVEL", "loud", " `loud`"),
        ("PLACET_BOOTSTRAP_KEY", "s" * 23, ""),
        ("PLACET_BOOTSTRAP_KEY", "with a blank inside of it", ""),
        ("DATABASE_URL", "mysql://u:secret@h/d", ""),
    ],
)
def test_a_bad_value_is_one_line_that_says_what_is_expected(monkeypatch: pytest.MonkeyPatch, name: str, value: str, shown: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsInvalid) as refused:
        load_settings()
    assert str(refused.value) == f"{name}{shown} can't be used; expected {EXPECTED[name]}"


def test_every_bad_value_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACET_PORT", "x")
    monkeypatch.setenv("PLACET_WORKERS", "y")
    with pytest.raises(SettingsInvalid) as refused:
        load_settings()
    assert [line.split()[0] for line in str(refused.value).splitlines()] == ["PLACET_PORT", "PLACET_WORKERS"]


def test_an_owner_without_a_service_role_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACET_MIGRATION_URL", "postgresql://o:secret@h/d")
    with pytest.raises(SettingsInvalid) as refused:
        load_settings()
    assert str(refused.value) == "PLACET_MIGRATION_URL is set without DATABASE_URL; set both to use a server of your own, or neither"


def test_a_key_of_24_characters_is_taken_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACET_BOOTSTRAP_KEY", "k" * 24)
    settings = load_settings()
    assert settings.start.bootstrap_key is not None
    assert settings.start.bootstrap_key.get_secret_value() == "k" * 24
    assert "kkk" not in repr(settings)
