"""A bundle's files -> documents that know the line of everything in them.

YAML 1.2 without its surprises: no anchors, no tags, no duplicate keys, no octal; a number with a point is an exact `Decimal`,
a time stays the text that was written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from app.domain.errors import PolicyFault, PolicyInvalid
from app.policy.notes import Notes

FILES_MAX = 500
FILE_BYTES_MAX = 262_144
BUNDLE_BYTES_MAX = 4_194_304
DEPTH_MAX = 32
NODES_MAX = 50_000
FAULTS_MAX = 50

Path_ = tuple[str | int, ...]

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})\Z")
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})\.[0-9]{1,30}\Z")
_TRUE, _FALSE = frozenset({"true", "True", "TRUE"}), frozenset({"false", "False", "FALSE"})
_SURROGATE = re.compile("[\ud800-\udfff]")
_TAG = "tag:yaml.org,2002:"
_READ_FOLDERS = ("", "tools")


class Faults:
    """Collects what is wrong with a bundle, at most 50, in the order of finding; `notes` is what isn't wrong and has to be told."""

    def __init__(self) -> None:
        self.found: list[PolicyFault] = []
        self.notes = Notes()

    def add(self, fault: PolicyFault) -> None:
        known = {(each.file, each.line, each.message) for each in self.found}
        if len(self.found) < FAULTS_MAX and (fault.file, fault.line, fault.message) not in known:
            self.found.append(fault)

    def at(self, source: Source, path: Path_, message: str, expected: str, line: int | None = None) -> None:
        self.add(PolicyFault(source.file_of(path), line if line is not None else source.line(path), message, expected))


@dataclass(frozen=True, slots=True)
class Source:
    """One document and its lines; one that was merged from several files names the file of each top-level key in `files`."""

    file: str
    document: object
    lines: Mapping[Path_, int] = field(repr=False)
    text_lines: Mapping[Path_, int] = field(repr=False)
    files: Mapping[str | int, str] = field(default_factory=dict, repr=False)

    def file_of(self, path: Path_) -> str:
        return self.files.get(path[0], self.file) if path else self.file

    def line(self, path: Path_) -> int:
        """Give the line of a path, or of what is known nearest above it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 1

    def text_line(self, path: Path_, line: int) -> int:
        """Give the file's line of line `line` (from 1) inside the text at `path`."""
        return self.text_lines.get(path, self.line(path)) + line - 1


@dataclass(frozen=True, slots=True)
class Bundle:
    """All files, read: one source for each tool, and one for all other top-level keys together."""

    tools: tuple[Source, ...]
    rest: Source


class _Unreadable(Exception):
    def __init__(self, line: int, message: str, expected: str) -> None:
        super().__init__(message)
        self.line, self.message, self.expected = line, message, expected


class _TooDeep(_Unreadable):
    """One such file is enough: it costs its reader most of a second, and a bundle has many files."""


def load_directory(path: str | Path) -> dict[str, str]:
    """Read the bundle's files, `*.yaml` in the directory and in `tools/`, by their names with `/`.

    Raises:
        PolicyInvalid: there is none, or one can't be read (a link out of the directory, too large, not UTF-8).
    """
    root = Path(path)
    files: dict[str, str] = {}
    faults = Faults()
    total = 0
    for folder in _READ_FOLDERS:
        for file in sorted((root / folder).glob("*.yaml")) + sorted((root / folder).glob("*.yml")):
            name = file.relative_to(root).as_posix()
            if not file.resolve().is_relative_to(root.resolve()) or not file.is_file():
                faults.add(PolicyFault(name, None, "leads out of the bundle", "a file inside the directory"))
                continue
            size = file.stat().st_size
            total += size
            if size > FILE_BYTES_MAX or total > BUNDLE_BYTES_MAX or len(files) >= FILES_MAX:
                faults.add(PolicyFault(name, None, "the bundle is too large", _SIZES))
                break
            try:
                files[name] = file.read_bytes().decode("utf-8")
            except UnicodeDecodeError as error:
                faults.add(PolicyFault(name, None, f"not UTF-8 at byte {error.start}", "text in UTF-8"))
    if not files and not faults.found:
        faults.add(PolicyFault("bundle.yaml", None, "the directory has no policy", "`*.yaml` files, and tools in `tools/`"))
    if faults.found:
        raise PolicyInvalid(tuple(faults.found))
    return files


_SIZES = f"at most {FILES_MAX} files, {FILE_BYTES_MAX} bytes each, {BUNDLE_BYTES_MAX} together"


def read_bundle(files: Mapping[str, str], faults: Faults) -> Bundle:
    """Read all files; what can't be read is added to `faults` and left out."""
    if len(files) > FILES_MAX or sum(len(text) for text in files.values()) > BUNDLE_BYTES_MAX:
        faults.add(PolicyFault("bundle.yaml", None, "the bundle is too large", _SIZES))
        return Bundle((), Source("bundle.yaml", {}, {}, {}))
    tools: list[Source] = []
    sections: dict[str | int, Source] = {}
    for name in sorted(files):
        try:
            source = read_file(name, files[name])
        except _Unreadable as error:
            faults.add(PolicyFault(name, error.line, error.message, error.expected))
            if isinstance(error, _TooDeep):
                break
            continue
        document = source.document
        if not isinstance(document, Mapping):
            faults.at(source, (), "isn't a mapping", "`key: value` at the top")
        elif name.startswith("tools/") or "tool" in document:
            tools.append(source)
        else:
            for key in document:
                if key in sections:
                    faults.at(source, (key,), f"`{key}` is already in `{sections[key].file}`", "each top-level key in one file")
                else:
                    sections[key] = source
    return Bundle(tuple(tools), _merged(sections))


def _merged(sections: Mapping[str | int, Source]) -> Source:
    first = sections.get("bundle") or next(iter(sections.values()), None)
    document: dict[str | int, object] = {}
    lines: dict[Path_, int] = {(): 1}
    for key, source in sections.items():
        assert isinstance(source.document, Mapping)
        document[key] = source.document[key]
        lines |= {path: line for path, line in source.lines.items() if path[:1] == (key,)}
    files = {key: source.file for key, source in sections.items()}
    return Source(first.file if first else "bundle.yaml", document, lines, {}, files)


def read_file(name: str, text: str) -> Source:
    """Read one file into values and lines."""
    if len(text.encode("utf-8", "surrogatepass")) > FILE_BYTES_MAX:
        raise _Unreadable(1, "the file is too large", f"at most {FILE_BYTES_MAX} bytes")
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _BoundedComposer
    try:
        node = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = str(error.problem or error.context).removeprefix("but ")
        raise _Unreadable(mark.line + 1 if mark else 1, f"not YAML: {problem}", "YAML 1.2, one document a file") from None
    except YAMLError as error:
        raise _Unreadable(1, f"not YAML: {str(error).splitlines()[0]}", "YAML 1.2, one document a file") from None
    if node is None:
        raise _Unreadable(1, "the file is empty", "`key: value` at the top")
    reader = _Reader()
    document = reader.value(node, ())
    return Source(name, document, reader.lines, reader.text_lines)


class _BoundedComposer(Composer):
    """Ends the reading at the first level too many: ruamel descends by recursion, and a deep file would cost seconds before it failed."""

    _depth = 0

    def compose_node(self, parent: object, index: object) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise _TooDeep(self.parser.peek_event().start_mark.line + 1, "nested too deeply", f"at most {DEPTH_MAX} levels")
        node: Node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Reader:
    """Turns nodes into values and notes their lines."""

    def __init__(self) -> None:
        self.lines: dict[Path_, int] = {(): 1}
        self.text_lines: dict[Path_, int] = {}
        self._nodes = 0

    def value(self, node: Node, path: Path_) -> object:
        line = node.start_mark.line + 1
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise _Unreadable(line, "too many values", f"at most {NODES_MAX} values")
        if node.anchor is not None:
            raise _Unreadable(line, f"has an anchor (`&{node.anchor}`)", "the value written out wherever it is used")
        self.lines.setdefault(path, line)
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            self._expect_tag(node, "seq")
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        self.text_lines[path] = line + (1 if node.style in ("|", ">") else 0)
        return _scalar(node, line)

    def _mapping(self, node: MappingNode, path: Path_) -> dict[str, object]:
        self._expect_tag(node, "map")
        found: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, ScalarNode) or key_node.tag != _TAG + "str" or key_node.anchor is not None:
                shown = f"`{key_node.value[:40]}`" if isinstance(key_node, ScalarNode) else "a list or mapping"
                raise _Unreadable(line, f"{shown} isn't a key", "a key that is text (put it in quotes)")
            key = _whole(key_node.value, line)
            if key in found:
                raise _Unreadable(line, f"the key `{key}` is there twice, first in line {self.lines[(*path, key)]}", "each key once")
            self.lines[(*path, key)] = line
            found[key] = self.value(value_node, (*path, key))
        return found

    def _expect_tag(self, node: Node, name: str) -> None:
        if node.tag != _TAG + name:
            raise _Unreadable(node.start_mark.line + 1, f"has the tag `{node.tag}`", "plain YAML without tags")


def _scalar(node: ScalarNode, line: int) -> object:
    text = node.value
    match (node.tag or "").removeprefix(_TAG):
        case "str" | "timestamp":
            return _whole(text, line)
        case "null":
            return None
        case "bool" if text in _TRUE or text in _FALSE:
            return text in _TRUE
        case "int" if _INTEGER.match(text):
            return int(text)
        case "float" if _DECIMAL.match(text):
            return Decimal(text)
    raise _Unreadable(line, f"`{text[:40]}` isn't a plain value", "text in quotes, or a number such as 60 or 0.60")


def _whole(text: str, line: int) -> str:
    """Join the halves of characters that JSON writes as two escapes (`\\ud83d\\ude00`): published schemas are pasted as they are."""
    if _SURROGATE.search(text) is None:
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _Unreadable(line, "has half a character (a lone surrogate)", "both escapes, or the character itself") from None
