"""`placet`: what can be foreseen ends with a line that says what to do (S14.2), a broken bundle with every fault's place (S6.4)."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

from app.cli import main
from app.settings import PROJECT

SHOP = PROJECT / "policies" / "shop"
TOOLS = ("cancel_order", "delete_customer_data", "refund", "search_order", "send_message", "update_address")


def placet(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["placet", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_example_bundle_is_valid(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("PLACET_POLICY_DIR", raising=False)
    assert placet(monkeypatch, "policy", "validate") == 0
    assert re.fullmatch(rf"shop is valid: 6 tools \({', '.join(TOOLS)}\), digest \S+\n", capsys.readouterr().out)


def test_every_fault_of_a_broken_bundle_has_its_file_line_and_expectation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copytree(SHOP, tmp_path / "shop")
    tool = tmp_path / "shop" / "tools" / "search_order.yaml"
    line = len(tool.read_text().splitlines()) + 1
    tool.write_text(tool.read_text().rstrip("\n") + "\nsurprise: 1\n")
    assert placet(monkeypatch, "policy", "validate", str(tmp_path / "shop")) == 1
    told = capsys.readouterr()
    assert told.out == ""
    (only,) = told.err.splitlines()  # the tools that name this one as the next step aren't told of as well
    assert re.fullmatch(rf"tools/search_order\.yaml:{line}: `surprise` .+; expected .+", only)


def test_what_is_only_an_annotation_is_told_with_its_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shutil.copytree(SHOP, tmp_path / "shop")
    tool = tmp_path / "shop" / "tools" / "search_order.yaml"
    before, key, rest = tool.read_text().partition("    order_id: {")
    tool.write_text(f"{before}{key}default: A-1001, {rest}")
    assert placet(monkeypatch, "policy", "validate", str(tmp_path / "shop")) == 0
    note, valid = capsys.readouterr().out.splitlines()
    line = len(before.splitlines()) + 1
    place = f"tools/search_order.yaml:{line}: /properties/order_id/default"
    assert note == f"{place}: a default is not filled in; it is only an annotation"
    assert valid.startswith("shop is valid: ")


def test_a_folder_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert placet(monkeypatch, "policy", "validate", "/no/such/bundle") == 2
    assert capsys.readouterr().err == "placet: `/no/such/bundle` is not a folder; name the one that holds the bundle\n"


@pytest.mark.parametrize("command", ["serve", "migrate"])
def test_a_bad_variable_ends_a_command_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str) -> None:
    monkeypatch.setenv("PLACET_WORKERS", "many")
    assert placet(monkeypatch, command) == 2
    assert capsys.readouterr().err == "placet: PLACET_WORKERS `many` can't be used; expected a number of processes from 1 to 64\n"


def test_an_unknown_command_ends_with_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert placet(monkeypatch, "nonsense") == 2
    assert "No such command 'nonsense'" in capsys.readouterr().err
