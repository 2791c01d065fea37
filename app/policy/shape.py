"""A document's shape: what pydantic says against it, as faults with a line and what was expected."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from app.policy.reading import Faults, Path_, Source

_TYPES: Mapping[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "decimal_type": "a number",
    "is_instance_of": "a number",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
}
_PATTERNS: Mapping[str, str] = {
    r"^[a-z][a-z0-9_]{0,63}$": "a snake_case name such as `within_refundable`",
    r"^[A-Za-z0-9_.-]{1,128}$": "a tool's name: 1 to 128 of A-Z, a-z, 0-9, `_`, `.` and `-`",
    r"^(/[^/]{1,128}){1,8}$": "a JSON Pointer such as `/amount`",
    r"^[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}$": "a table with its schema such as `shop.orders`",
    r"^[a-z_][a-z0-9_]{0,62}$": "a column such as `order_id`",
    r"^[a-z]{2}(-[A-Z]{2})?$": "a locale such as `en`",
}

Model = typing.TypeVar("Model", bound=BaseModel)


def read_shape(source: Source, value: object, path: Path_, model: type[Model], faults: Faults) -> Model | None:
    """Validate a value that stands at `path` of a source; None where it has faults, which are added."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            _add(source, path, model, detail, faults)
        return None


def _add(source: Source, base: Path_, model: type[BaseModel], detail: ErrorDetails, faults: Faults) -> None:
    loc = tuple(part for part in detail["loc"] if part != "[key]")
    path = (*base, *loc)
    name = str(loc[-1]) if loc else "the document"
    shown = _shown(detail["input"])
    context = detail.get("ctx", {})
    match detail["type"]:
        case "extra_forbidden":
            known = _keys(_model_at(model, loc[:-1]))
            near = difflib.get_close_matches(name, known, 1, 0.6)
            hint = f"`{near[0]}`" if near else f"one of {', '.join(known)}"
            faults.at(source, path, f"`{name}` isn't a key here", hint)
        case "missing":
            faults.at(source, path[:-1], f"`{name}` is missing", f"the key `{name}`")
        case "unsupported":
            faults.at(source, path, f"`{name}`: {detail['msg']}", str(context.get("known")))
        case "literal_error":
            faults.at(source, path, f"`{name}` can't be {shown}", str(context.get("expected")))
        case "string_pattern_mismatch":
            pattern = str(context.get("pattern"))
            faults.at(source, path, f"`{name}` can't be {shown}", _PATTERNS.get(pattern, f"text like {pattern}"))
        case kind if kind in _TYPES:
            faults.at(source, path, f"`{name}` can't be {shown}", _TYPES[kind])
        case _:
            expected = detail["msg"][:1].lower() + detail["msg"][1:]
            for start in ("input ", "should ", "be "):
                expected = expected.removeprefix(start)
            faults.at(source, path, f"`{name}` can't be {shown}", expected)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "empty" if value is None else f"`{str(value)[:60]}`"


def _keys(model: type[BaseModel] | None) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()] if model else []


def _model_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> type[BaseModel] | None:
    """Find the model that stands at a place, through lists and mappings."""
    here: object = model
    for part in loc:
        if isinstance(here, type) and issubclass(here, BaseModel):
            field = next((each for name, each in here.model_fields.items() if part in (name, each.alias)), None)
            here = _without_none(field.annotation) if field else None
        else:
            arguments = typing.get_args(here)
            here = _without_none(arguments[-1]) if arguments else None
    return here if isinstance(here, type) and issubclass(here, BaseModel) else None


def _without_none(annotation: object) -> object:
    """Unwrap `X | None` and `Annotated[X, ...]` to X."""
    while (origin := typing.get_origin(annotation)) is not None and origin not in (list, dict):
        annotation = next(each for each in typing.get_args(annotation) if each is not types.NoneType)
    return annotation
