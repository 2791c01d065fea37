"""JSON Pointers (RFC 6901) into arguments: read one, or give a copy with one value changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.domain.decision import ABSENT


def parts_of(pointer: str) -> tuple[str, ...]:
    """Split a pointer into its unescaped parts; "" is the whole document."""
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])


def value_at(document: object, pointer: str) -> object:
    """Give the value at `pointer`, or ABSENT."""
    for part in parts_of(pointer):
        if isinstance(document, Mapping):
            document = document.get(part, ABSENT)
        elif isinstance(document, Sequence) and not isinstance(document, str) and part.isascii() and part.isdigit() and len(part) < 9:
            document = document[int(part)] if int(part) < len(document) else ABSENT
        else:
            return ABSENT
    return document


def with_value(document: Mapping[str, object], pointer: str, value: object) -> Mapping[str, object]:
    """Give a copy of `document` in which `pointer`, a path of object members, is `value`."""
    first, *rest = parts_of(pointer)
    if not rest:
        return {**document, first: value}
    inner = document.get(first)
    below = "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in rest)
    return {**document, first: with_value(inner if isinstance(inner, Mapping) else {}, below, value)}
