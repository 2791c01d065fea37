"""The envelope of `POST /tool-calls/check`: what a caller may send around the arguments (SPEC S3.1, API.md 1.1).

The models are strict, refuse unknown fields and are what OpenAPI is generated from. Every error text is ours, by the kind of the error:
pydantic's own messages and inputs never leave this module, because they hold what was sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from app.api.json_body import pointer_of
from app.domain.errors import RequestInvalid
from app.domain.tool_call import ToolCall
from app.domain.wording import ENGLISH, TAG, TAG_LENGTH_MAX, Locales, locales_of, say

ID_LENGTH_MAX = 128
SCOPE_ENTRIES_MAX = 32
ERRORS_MAX = 20
FIELDS_MAX = 64
TURN_MAX = 2**31 - 1
STATE_VERSION_MAX = 2**63 - 1
SEGMENT_LENGTH_MAX = 64
TOOL_NAME = r"^[A-Za-z0-9_.-]{1,128}$"

# Unicode's control and format characters, line and paragraph separators, and what is ignorable by default: what can't be seen or turns
# the text around it, so that one id looks like another (CWE-1007). A table, because the categories move with the version of Python.
_UNSEEN_RANGES = (
    (0x00, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x34F, 0x34F), (0x600, 0x605), (0x61C, 0x61C), (0x6DD, 0x6DD), (0x70F, 0x70F),
    (0x890, 0x891), (0x8E2, 0x8E2), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x200B, 0x200F), (0x2028, 0x202E),
    (0x2060, 0x206F), (0x3164, 0x3164), (0xD800, 0xDFFF), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFFB),
    (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
)  # fmt: skip
_UNSEEN = re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _UNSEEN_RANGES) + "]")
# what a reader of the contract may send, in the dialect of JSON Schema; surrogates can't be written there and can't be sent either
_SEEN_PATTERN = "^[^" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _UNSEEN_RANGES if first != 0xD800) + "]*$"


def parse_tool_call(document: object) -> ToolCall:
    """Check a check request's document (of `json_body.parse_json`) and give the call.

    Raises:
        RequestInvalid: with at most ERRORS_MAX pairs of JSON Pointer and what is expected there, in the order of the model's fields,
            unknown fields last; in the document's `locale`, where that is one.
    """
    if type(document) is dict and len(document) > FIELDS_MAX:
        detail = say(named_locales(document), "request_too_many_fields", value=FIELDS_MAX)
        raise RequestInvalid((("", detail),))  # or each would become an error
    try:
        request = _validate(document)
    except ValidationError as error:
        raise RequestInvalid(_errors(error, named_locales(document))) from None
    subject = request.on_behalf_of
    scope = request.requested_scope
    approval_id = request.approval_id
    return ToolCall(
        request.tool,
        request.arguments,
        request.session_id,
        request.call_id,
        request.task_id,
        request.turn,
        request.state_version,
        None if scope is None else tuple(scope),
        None if subject is None else subject.id,
        None if subject is None else subject.segment,
        None if approval_id is None else approval_id.lower(),
        request.locale,
        locales_of(request.locale),
    )


def named_call(document: object) -> tuple[str | None, str | None]:
    """Give the tool's name and the call id of a document that was refused, each None unless it is well-formed by itself."""
    if not isinstance(document, dict):
        return None, None
    tool, call_id = document.get("tool"), document.get("call_id")
    named = isinstance(tool, str) and re.fullmatch(TOOL_NAME[1:-1], tool) is not None
    identified = isinstance(call_id, str) and 0 < len(call_id) <= ID_LENGTH_MAX and _UNSEEN.search(call_id) is None
    return tool if named else None, call_id if identified else None


def named_locales(document: object) -> Locales:
    """Give the locales of a document that may be refused; English where its `locale` isn't one."""
    tag = document.get("locale") if isinstance(document, dict) else None
    return locales_of(tag) if isinstance(tag, str) else ENGLISH


def _seen(text: str) -> str:
    if (text.isascii() and text.isprintable()) or _UNSEEN.search(text) is None:
        return text
    raise PydanticCustomError("unseen", "unseen")  # the text is written in _DETAILS, like all others


def _without_null_defaults(schema: dict[str, Any]) -> None:
    """A field that may be absent is never null (API.md 0.1), so the schema names no default."""
    for field in schema.get("properties", {}).values():
        if field.get("default", ...) is None:
            del field["default"]


def _absent(description: str, examples: list[Any], **limits: Any) -> Any:
    """Declare a field that may be absent. Its type has no None, so that a null is refused; absent reads as None."""
    return Field(default=None, description=description, examples=examples, **limits)


OpaqueId = Annotated[
    str, Field(min_length=1, max_length=ID_LENGTH_MAX, json_schema_extra={"pattern": _SEEN_PATTERN}), AfterValidator(_seen)
]
Segment = Annotated[
    str, Field(min_length=1, max_length=SEGMENT_LENGTH_MAX, json_schema_extra={"pattern": _SEEN_PATTERN}), AfterValidator(_seen)
]
_STRICT = ConfigDict(extra="forbid", strict=True, json_schema_extra=_without_null_defaults)


class OnBehalfOf(BaseModel):
    """The end user whom the agent serves; the runtime vouches for it."""

    model_config = _STRICT

    id: OpaqueId = Field(description="the end user's id, as the state database knows it", examples=["cust-77"])
    segment: Segment = _absent("the end user's segment; one that the key may not name is read as the strictest that it may", ["standard"])


class ToolCallCheckRequest(BaseModel):
    """May this agent make this tool call now?"""

    model_config = _STRICT

    tool: str = Field(description="the tool's name, as the policy has it", pattern=TOOL_NAME, examples=["refund"])
    arguments: dict[str, Any] = Field(
        description="the arguments that the model wrote, as an object; numbers are read exactly",
        examples=[{"order_id": "A-1001", "amount": 20.5, "currency": "EUR", "cause": "damaged"}],
    )
    session_id: OpaqueId = Field(description="the agent's conversation; it belongs to the key that first used it", examples=["chat-481"])
    call_id: OpaqueId = Field(description="the model's tool-call id; with the session it makes a retry safe", examples=["call_01"])
    task_id: OpaqueId = _absent("one goal inside the session", ["task-17"])
    turn: int = _absent("which of the model's responses asked, counted from 0", [3], ge=0, le=TURN_MAX)
    state_version: int = _absent("the version of the task's state that the model saw", [4], ge=0, le=STATE_VERSION_MAX)
    requested_scope: list[dict[str, Any]] = _absent(
        "narrows what the call may touch: a union of entries of action, resource and constraints; absent means what the arguments need",
        [[{"action": "refund", "resource": "order:A-1001"}]],
        max_length=SCOPE_ENTRIES_MAX,
    )
    on_behalf_of: OnBehalfOf = _absent("the end user whom the agent serves", [{"id": "cust-77", "segment": "standard"}])
    approval_id: str = _absent(
        "points at an approval; it is never authority by itself",
        ["01a230d5-2fd8-7907-9af2-55e55f2a8983"],
        pattern=r"^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$",
    )
    locale: str = _absent(
        "the language of the answer's sentences, a tag of BCP 47; English and Chinese are built in, a policy may have more; one that "
        "nobody has gets English",
        ["en", "zh-CN"],
        min_length=1,
        max_length=TAG_LENGTH_MAX,
        pattern=f"^{TAG}$",
    )
    mode: Literal["enforce"] = _absent("only `enforce`, which is also what its absence means", ["enforce"])


_validate = ToolCallCheckRequest.model_validate

_EXTRA_DETAILS: Mapping[tuple[str | int, ...], str] = {
    ("provenance",): "request_not_yet",
    ("after",): "request_not_yet",
    ("tenant",): "request_unknown_tenant",
    ("tenant_id",): "request_unknown_tenant",
}
_DETAILS: Mapping[str, str] = {
    "missing": "request_missing",
    "extra_forbidden": "request_unknown",
    "bool_type": "request_boolean",
    "string_type": "request_string",
    "int_type": "request_integer",
    "dict_type": "request_object",
    "list_type": "request_list",
    "model_type": "request_object",
    "model_attributes_type": "request_object",
    "int_parsing": "request_integer",
    "uuid_parsing": "request_uuid",
    "unseen": "request_unseen",
}
_PATTERN_DETAILS: Mapping[str, str] = {"tool": "request_tool", "approval_id": "request_uuid"}


def detail_of(kind: str, context: Mapping[str, Any], locales: Locales = ENGLISH) -> str:
    """Say what is expected at a field of any model, by pydantic's kind of the error and its limits, never by what was sent."""
    match kind:
        case "greater_than_equal":
            return say(locales, "request_at_least", value=context["ge"])
        case "less_than_equal":
            return say(locales, "request_at_most", value=context["le"])
        case "string_too_short" | "too_short" if context["min_length"] == 1:
            return say(locales, "request_empty")
        case "string_too_short" | "too_short":
            return say(locales, "request_too_short", value=context["min_length"])
        case "string_too_long":
            return say(locales, "request_too_long", value=context["max_length"])
        case "too_long":
            return say(locales, "request_too_many", value=context["max_length"])
        case "string_pattern_mismatch":
            return say(locales, "request_pattern", value=context["pattern"])
        case "enum" | "literal_error":
            return say(locales, "request_one_of", value=context["expected"])
        case _:
            return say(locales, _DETAILS.get(kind, "request_form"))


def _errors(error: ValidationError, locales: Locales) -> tuple[tuple[str, str], ...]:
    details = error.errors(include_url=False, include_input=True)
    return tuple((pointer_of(item["loc"]), _detail(item, locales)) for item in details[:ERRORS_MAX])


def _detail(item: ErrorDetails, locales: Locales) -> str:
    """Say what is expected in the envelope; the input is looked at for its type only."""
    kind, path = item["type"], item["loc"]
    match kind:
        case "extra_forbidden":
            return say(locales, _EXTRA_DETAILS.get(path, "request_unknown"))
        case _ if item["input"] is None and (not path or path[0] in _REQUIRED):
            known = _DETAILS.get(kind)
            if known is None:
                return say(locales, "request_null_other")
            return say(locales, "request_null_kind", found=say(locales, known))
        case _ if item["input"] is None:
            return say(locales, "request_null")
        case _ if path == ("locale",):
            return say(locales, "request_locale")
        case "string_pattern_mismatch":
            return say(locales, _PATTERN_DETAILS[str(path[-1])])
        case "literal_error":
            return say(locales, "request_mode")
        case "dict_type" if path == ("arguments",) and isinstance(item["input"], str):
            return say(locales, "request_object_not_text")
        case _:
            return detail_of(kind, item.get("ctx", {}), locales)


_REQUIRED = frozenset(name for name, field in ToolCallCheckRequest.model_fields.items() if field.is_required())
