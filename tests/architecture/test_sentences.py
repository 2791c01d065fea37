"""What a caller reads in a decision is said by `domain/wording`, in every language: no guard writes a sentence of its own (SPEC S3.12)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.domain import wording

APP = Path(__file__).parents[2] / "app"
SPEAKING = sorted([*(APP / "guards").rglob("*.py"), *(APP / "dialects").rglob("*.py"), APP / "engine" / "answer.py",
                   APP / "engine" / "decide_batch.py", APP / "policy" / "violations.py"])  # fmt: skip
SAYING = sorted(set(APP.rglob("*.py")) - {APP / "domain" / "wording.py"})
SENTENCE = re.compile(r"[A-Za-z']+ [A-Za-z'{}]+ [A-Za-z'{}]+|[\u4e00-\u9fff]")
SENTENCES = wording._SENTENCES


def texts_of(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Give the strings below a node, an f-string as one; not docstrings, nor what is raised or asserted: that is for the log."""
    if isinstance(node, ast.Raise | ast.Assert) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("warning", "error", "info", "__init__"):
        return
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
        yield node.lineno, "".join(map(str, parts))
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    for child in ast.iter_child_nodes(node):
        yield from texts_of(child)


def calls_of_say(path: Path) -> Iterator[tuple[int, str, frozenset[str] | None]]:
    """Give the calls whose sentence is named in place: line, a pattern of the name, and the keywords (None: some aren't written there)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say" and len(node.args) == 2:
            given = None if any(keyword.arg is None for keyword in node.keywords) else frozenset(str(each.arg) for each in node.keywords)
            for name in names_of(node.args[1]):
                yield node.lineno, name, given


def names_of(node: ast.expr) -> Iterator[str]:
    """Give the patterns of the names that an expression may be."""
    match node:
        case ast.Constant(value=str(name)):
            yield name
        case ast.JoinedStr(values=values):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else r"\w+" for part in values)
        case ast.IfExp(body=body, orelse=orelse):
            yield from names_of(body)
            yield from names_of(orelse)


@pytest.mark.parametrize("path", SPEAKING, ids=lambda path: str(path.relative_to(APP)))
def test_no_module_that_refuses_writes_a_sentence(path: Path) -> None:
    found = [(line, text) for line, text in texts_of(ast.parse(path.read_text(encoding="utf-8"))) if SENTENCE.search(text)]
    assert found == []


def test_the_walk_sees_sentences() -> None:
    seen = [
        text
        for _, text in texts_of(
            ast.parse('"""doc of a module"""\nCheck(message=f"the {x} is wrong")\nraise E("for the log only")\ny = "two words"')
        )
    ]
    assert [text for text in seen if SENTENCE.search(text)] == ["the {} is wrong"]


def test_what_is_said_is_there_with_its_values() -> None:
    said = [(path.name, *call) for path in SAYING for call in calls_of_say(path)]
    assert len(said) > 40
    for file, line, pattern, given in said:
        names = [name for name in SENTENCES if re.fullmatch(pattern, name)]
        assert names, f"{file}:{line}: {pattern}"
        for name in names:
            needed = set(re.findall(r"\{(\w+)\}", SENTENCES[name][0]))
            assert given is None or needed <= given, f"{file}:{line}: `{name}` needs {sorted(needed - given)}"


def test_every_sentence_is_said_somewhere() -> None:
    """By its name, or by a reason or limit whose name it has."""
    written = "\n".join(path.read_text(encoding="utf-8") for path in SAYING)
    patterns = {pattern for path in SAYING for _, pattern, _ in calls_of_say(path)}
    assert [name for name in SENTENCES if f'"{name}"' not in written and not any(re.fullmatch(pattern, name) for pattern in patterns)] == []
