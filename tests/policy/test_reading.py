"""YAML without its surprises, and the line of everything (SPEC S6.3)."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from app.domain.errors import PolicyInvalid
from app.policy.reading import FILE_BYTES_MAX, Faults, load_directory, read_bundle, read_file


def faults_of(text: str, name: str = "a.yaml") -> list[str]:
    faults = Faults()
    read_bundle({name: text}, faults)
    return [str(fault) for fault in faults.found]


def test_values_are_exact() -> None:
    text = "a: 0.60\nb: [1, -2, no, on, 12:30, 2026-12-01T00:00:00Z, ~, true, '1']\nc: 129.900"
    assert read_file("a.yaml", text).document == {
        "a": Decimal("0.60"),
        "b": [1, -2, "no", "on", "12:30", "2026-12-01T00:00:00Z", None, True, "1"],
        "c": Decimal("129.900"),
    }


def test_everything_knows_its_line() -> None:
    source = read_file("a.yaml", "a: 1\nb:\n  - c: x\n    d: |\n      first\n      second\n  - {e: 2}\n")
    assert [source.line(path) for path in [("a",), ("b",), ("b", 0, "c"), ("b", 0, "d"), ("b", 1, "e"), ("b", 1, "nothing"), ("x",)]] == [
        1, 2, 3, 4, 7, 7, 1,
    ]  # fmt: skip
    assert source.text_line(("b", 0, "d"), 2) == 6
    assert source.text_line(("b", 0, "c"), 1) == 3


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: 1\nb: 2\na: 3", "a.yaml:3: the key `a` is there twice, first in line 1; expected each key once"),
        ("a:\n  b: 1\n  b: 2", "a.yaml:3: the key `b` is there twice, first in line 2; expected each key once"),
        ("a: &x 1\nb: *x", "a.yaml:1: has an anchor (`&x`); expected the value written out wherever it is used"),
        ("a:\n  <<: {b: 1}", "a.yaml:2: `<<` isn't a key; expected a key that is text (put it in quotes)"),
        ("1: a", "a.yaml:1: `1` isn't a key; expected a key that is text (put it in quotes)"),
        ("? [a]\n: b", "a.yaml:1: a list or mapping isn't a key; expected a key that is text (put it in quotes)"),
        ("a: 010", "a.yaml:1: `010` isn't a plain value; expected text in quotes, or a number such as 60 or 0.60"),
        ("a: 0x10", "a.yaml:1: `0x10` isn't a plain value; expected text in quotes, or a number such as 60 or 0.60"),
        ("a: 1_000", "a.yaml:1: `1_000` isn't a plain value; expected text in quotes, or a number such as 60 or 0.60"),
        ("a: .inf", "a.yaml:1: `.inf` isn't a plain value; expected text in quotes, or a number such as 60 or 0.60"),
        ("a: .nan", "a.yaml:1: `.nan` isn't a plain value; expected text in quotes, or a number such as 60 or 0.60"),
        ("a: !!python/name:os.system x", "a.yaml:1: `x` isn't a plain value; expected text in quotes, or a number such as 60 or 0.60"),
        ("a: !new {b: 1}", "a.yaml:1: has the tag `!new`; expected plain YAML without tags"),
        ("- a", "a.yaml:1: isn't a mapping; expected `key: value` at the top"),
        ("", "a.yaml:1: the file is empty; expected `key: value` at the top"),
        ("a: 1\n---\nb: 2", "a.yaml:2: not YAML: found another document; expected YAML 1.2, one document a file"),
        ("a: [1,\nb: 2", None),
        ("a: '\x00'", None),
        ("[" * 3000, "a.yaml:1: nested too deeply; expected at most 32 levels"),
        ("a: " + "[" * 40 + "]" * 40, "a.yaml:1: nested too deeply; expected at most 32 levels"),
        ("a: " + "x" * FILE_BYTES_MAX, f"a.yaml:1: the file is too large; expected at most {FILE_BYTES_MAX} bytes"),
    ],
)
def test_what_could_be_read_in_two_ways_is_a_fault(text: str, fault: str | None) -> None:
    found = faults_of(text)
    assert len(found) == 1
    assert fault is None or found == [fault]


def test_a_key_is_in_one_file_only() -> None:
    faults = Faults()
    read_bundle({"a.yaml": "grants: []", "b.yaml": "x: 1\ngrants: []"}, faults)
    assert [str(fault) for fault in faults.found] == ["b.yaml:2: `grants` is already in `a.yaml`; expected each top-level key in one file"]


def test_a_directory_is_read_by_name(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tests").mkdir()
    for name in ("bundle.yaml", "tools/x.yaml", "tests/x.yaml", "README.md"):
        (tmp_path / name).write_text("a: 1")
    assert load_directory(tmp_path) == {"bundle.yaml": "a: 1", "tools/x.yaml": "a: 1"}


def test_a_directory_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyInvalid) as raised:
        load_directory(tmp_path / "nothing")
    assert str(raised.value) == "bundle.yaml:1: the directory has no policy; expected `*.yaml` files, and tools in `tools/`"
    (tmp_path / "secret.txt").write_text("a: 1")
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "link.yaml").symlink_to(tmp_path / "secret.txt")
    (inside / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(PolicyInvalid) as raised:
        load_directory(inside)
    assert [str(fault) for fault in raised.value.faults] == [
        "latin.yaml:1: not UTF-8 at byte 3; expected text in UTF-8",
        "link.yaml:1: leads out of the bundle; expected a file inside the directory",
    ]


def test_a_character_that_json_writes_as_two_escapes_is_one() -> None:
    """A schema that was published as JSON is pasted as it is."""
    text = '{"a\\ud83c\\udfaf": "\\ud83d\\ude00!"}'
    assert read_file("a.yaml", text).document == {"a\U0001f3af": "\U0001f600!"}
    assert faults_of('a: 1\nb: "x\\ud83d"') == [
        "a.yaml:2: has half a character (a lone surrogate); expected both escapes, or the character itself"
    ]


def test_the_first_file_that_is_too_deep_ends_the_reading() -> None:
    """S12.2: each costs its reader most of a second, and all tenants' bundles are compiled one at a time."""
    faults = Faults()
    read_bundle({f"x{number}.yaml": "[" * 8000 for number in range(9)}, faults)
    assert [(fault.file, fault.message) for fault in faults.found] == [("x0.yaml", "nested too deeply")]
    assert faults_of("a: " + "[" * 30 + "1" + "]" * 30) == []
    assert faults_of("a: " + "[" * 31 + "1" + "]" * 31) == ["a.yaml:1: nested too deeply; expected at most 32 levels"]
