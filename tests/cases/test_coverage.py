"""The table in `tests/cases.md` names every case, each with tests that exist or the reason why there is none yet."""

from __future__ import annotations

import ast
import json
import os
import re
from pathlib import Path

import pytest

from app.settings import PROJECT

TABLE = PROJECT / "tests" / "cases.md"
KINDS_OF_THIS_VERSION = (
    "money", "idempotency", "input-json", "audit-chain", "audit-secrets", "postgres-async", "tenancy-auth", "metrics",
    "policy-semantics", "object-identity", "sandbox",
)  # fmt: skip
ROW = re.compile(r"\| ([A-Z]{2}-\d{2}) \| ([a-z-]+) \| (.+) \|")


@pytest.fixture(scope="module")
def cases() -> dict[str, str]:
    """The kind of each case."""
    file = Path(os.environ.get("PLACET_SHARED_DIR") or PROJECT.parent / "shared") / "cases" / "cases.jsonl"
    if not file.is_file():
        pytest.skip(f"{file} is absent; set PLACET_SHARED_DIR to run this test")
    read = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line)
    return {case["id"]: case["kind"] for case in read}


@pytest.fixture(scope="module")
def table() -> dict[str, tuple[str, str]]:
    found = ROW.findall(TABLE.read_text(encoding="utf-8"))
    assert len({case for case, _, _ in found}) == len(found)
    return {case: (kind, told) for case, kind, told in found}


@pytest.fixture(scope="module")
def tests() -> set[str]:
    """The names of all tests of the cases."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in (PROJECT / "tests" / "cases").glob("test_*.py"))
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef)}


def test_every_case_is_in_the_table_with_its_kind(cases: dict[str, str], table: dict[str, tuple[str, str]]) -> None:
    assert {case: kind for case, (kind, _) in table.items()} == cases


def test_every_case_of_the_kinds_of_this_version_has_a_test_or_a_reason(table: dict[str, tuple[str, str]], tests: set[str]) -> None:
    for case, (kind, told) in table.items():
        prefix = f"test_{case.lower().replace('-', '_')}_"
        own = {name for name in tests if name.startswith(prefix)}
        if kind in KINDS_OF_THIS_VERSION:
            assert own or "not yet: " in told, case
        assert own <= set(re.findall(r"`(test_\w+)`", told)), case
        assert own or told.startswith("not yet: "), case


def test_the_table_names_no_test_that_is_not_there(table: dict[str, tuple[str, str]], tests: set[str]) -> None:
    named = {name for _, told in table.values() for name in re.findall(r"`(test_\w+)`", told)}
    assert named <= tests
