"""What an author is told that is no fault: a bounded list, each with its place (SPEC S6.3)."""

from __future__ import annotations

from app.policy.compile import compile_bundle
from app.policy.notes import NOTES_MAX, Notes, PolicyNote

FILES = {
    "bundle.yaml": "bundle: {name: b, format: 1}\n",
    "grants.yaml": 'grants:\n  - {grant: all, effect: permit, to: {roles: [agent]}, scope: [{action: use, resource: "file:**"}]}\n',
    "tools/x.yaml": """\
tool: getThings-2.0
description: {en: things}
effect_class: read
arguments:
  type: object
  properties:
    n:
      type: integer
      format: int32
      default: 1
scope: {action: use, resource: "file:all"}
""",
}


def test_a_note_has_file_line_and_pointer() -> None:
    notes = compile_bundle(FILES).notes
    assert [str(note) for note in notes] == [
        "tools/x.yaml:9: /properties/n/format: int32 is not asserted; it is only an annotation",
        "tools/x.yaml:10: /properties/n/default: a default is not filled in; it is only an annotation",
    ]


def test_a_bundle_without_annotations_has_no_notes() -> None:
    text = FILES["tools/x.yaml"].replace("      format: int32\n      default: 1\n", "")
    policy = compile_bundle({**FILES, "tools/x.yaml": text})
    assert (policy.notes, policy.notes_left_out) == ((), 0)


def test_a_tool_has_the_name_that_its_server_gave_it() -> None:
    assert list(compile_bundle(FILES).tools) == ["getThings-2.0"]


def test_notes_are_bounded_and_what_is_beyond_is_counted() -> None:
    notes = Notes()
    for line in range(1, NOTES_MAX + 4):
        notes.add(PolicyNote("a.yaml", line, "/x", "y"))
    assert (len(notes.found), notes.found[-1].line, notes.left_out) == (NOTES_MAX, NOTES_MAX, 3)
