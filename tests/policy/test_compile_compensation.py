"""A `compensation:` is compiled with the bundle: a misspelt name is a fault with its line, not a surprise after the call (S6.3, S8.3)."""

from __future__ import annotations

import pytest

from app.domain.errors import PolicyInvalid
from app.policy.compile import compile_bundle, load_directory
from app.settings import PROJECT

FILES = load_directory(PROJECT / "policies" / "shop")
FILE = "tools/refund.yaml"
START = FILES[FILE].index("compensation:")


def compiled_with(section: str) -> str:
    """Compile the shop with another section in its refund; return the first fault, or nothing."""
    try:
        compile_bundle({**FILES, FILE: FILES[FILE][:START] + section})
    except PolicyInvalid as invalid:
        return str(invalid.faults[0])
    return ""


LINE = FILES[FILE][:START].count("\n") + 1


@pytest.mark.parametrize(
    ("section", "line", "said"),
    [
        ('compensation:\n  tool: undo\n  arguments: {id: "{args.oder_id}"}\n', 2, "`args.oder_id` isn't a variable"),
        ('compensation:\n  tool: undo\n  arguments: {id: "{results.id}"}\n', 2, "`results.id` isn't a variable"),
        ('compensation:\n  tool: undo\n  arguments: {id: "{result}"}\n', 2, "`result` isn't a variable"),
        ('compensation:\n  tool: undo\n  arguments: {rows: "{after}"}\n', 2, "`after` isn't a variable"),
        ("compensation:\n  tool: undo\n  argument: {}\n  arguments: {}\n", 2, "`argument` isn't a key here; expected `arguments`"),
        ("compensation:\n  tool: undo\n", 0, "`arguments` is missing"),
        ("compensation: {tool: undo, arguments: {}, inverse: true}\n", 0, "`inverse` isn't a key here"),
        (
            "compensation: reversible\n",
            0, "`compensation` names no tool; expected a mapping with `tool` and `arguments`, or the word irreversible",
        ),
        ("compensation: {}\n", 0, "`tool` is missing"),
        (
            'compensation:\n  tool: search_order\n  arguments: {oder_id: "{args.order_id}"}\n',
            2, "`oder_id` isn't an argument of search_order; expected an argument that its schema declares",
        ),
        (
            'compensation:\n  tool: undo\n  arguments: {}\n  message: {en: "{args.oder_id} is back", zh: "x"}\n',
            3, "`args.oder_id` isn't a variable",
        ),
    ],
)  # fmt: skip
def test_a_fault_has_its_place(section: str, line: int, said: str) -> None:
    fault = compiled_with(section)
    assert said in fault
    assert fault.startswith(f"{FILE}:{LINE + line}:"), fault


@pytest.mark.parametrize(
    "section",
    [
        "compensation: irreversible\n",
        "",
        'compensation: {tool: undo, arguments: {id: "{result.id}", total: "{order.paid}", who: "{on_behalf_of.id}"}}\n',
        'compensation: {tool: search_order, arguments: {order_id: "{result.order_id}"}}\n',
    ],
)
def test_what_is_right_compiles(section: str) -> None:
    assert compiled_with(section) == ""
