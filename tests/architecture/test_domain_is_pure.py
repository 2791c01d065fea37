"""`app/domain` is a function of values: the standard library and itself, no clock, no chance, no I/O (DESIGN.md, idea 1)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DOMAIN = Path(__file__).parents[2] / "app" / "domain"
MODULES = sorted(DOMAIN.rglob("*.py"))
IMPURE = frozenset(
    [
        "asyncio",
        "ctypes",
        "ftplib",
        "glob",
        "http",
        "importlib",
        "io",
        "locale",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "platform",
        "random",
        "secrets",
        "select",
        "selectors",
        "shelve",
        "shutil",
        "signal",
        "smtplib",
        "socket",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
    ]
)
IMPURE_NAMES = frozenset(
    ["open", "input", "print", "eval", "exec", "compile", "__import__", "globals", "getcontext", "setcontext", "localcontext"]
)
IMPURE_ATTRIBUTES = frozenset(["now", "utcnow", "today", "getcontext", "setcontext", "localcontext"])


def test_there_is_a_domain_to_look_at() -> None:
    assert {"canonical.py", "quantity.py", "scope.py", "audit_chain.py"} <= {module.name for module in MODULES}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(DOMAIN)))
def test_domain_is_pure(module: Path) -> None:
    assert list(_faults(module.read_text())) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("import pydantic", "imports `pydantic`"),
        ("from sqlalchemy import text", "imports `sqlalchemy`"),
        ("import os.path", "imports `os.path`"),
        ("from uuid import uuid4", "imports `uuid`"),
        ("from uuid import UUID, uuid4", "imports `uuid`"),
        ("import uuid", "imports `uuid`"),
        ("from time import time", "imports `time`"),
        ("from app.storage import tables", "imports `app.storage`"),
        ("from app import settings", "imports `app`"),
        ("from . import scope", "imports relatively"),
        ("from datetime import datetime\ndatetime.now()", "uses `now`"),
        ("import datetime\nx = datetime.datetime.utcnow", "uses `utcnow`"),
        ("open('x')", "uses `open`"),
        ("from decimal import getcontext\ngetcontext().prec = 3", "uses `getcontext`"),
    ],
)
def test_the_check_itself_finds_what_is_impure(source: str, fault: str) -> None:
    assert fault in list(_faults(source))


@pytest.mark.parametrize(
    "source", ["from uuid import UUID", "import json.encoder", "from app.domain.scope import meet", "def f(now): return now"]
)
def test_the_check_itself_lets_values_pass(source: str) -> None:
    assert list(_faults(source)) == []


def _faults(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (f"imports `{name.name}`" for name in names if not _may_import(name.name))
            case ast.ImportFrom(module="uuid", names=[ast.alias(name="UUID")]):
                pass  # the type of an id that is handed in; making one would need `uuid4` or the module
            case ast.ImportFrom(module=module, level=level):
                if level:
                    yield "imports relatively"
                elif not _may_import(module or ""):
                    yield f"imports `{module}`"
            case ast.Attribute(attr=attribute) if attribute in IMPURE_ATTRIBUTES:
                yield f"uses `{attribute}`"
            case ast.Name(id=name) if name in IMPURE_NAMES:
                yield f"uses `{name}`"


def _may_import(name: str) -> bool:
    if name == "app.domain" or name.startswith("app.domain."):
        return True
    top = name.split(".")[0]
    return top in sys.stdlib_module_names and top not in IMPURE
