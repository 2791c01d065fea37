"""What the model reads after a refusal: the message to hand back in the place of the tool's answer.

Pure renderings of a reason and a hint (SPEC S3.2, API.md 1.1). The model never sees a score or a threshold: whoever sees them can stay
just below. So a hint about `risk.…` has neither `actual` nor `expected` in the content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from app.domain.hint import NextActionKind, Retryable

_RISK = "risk."


def content_of(tool: str | None, reason: str, hint: Mapping[str, Any]) -> dict[str, object]:
    """Give the content of the message for the model, of a `fix_hint` as answers have it; it is the same in every format."""
    content: dict[str, object] = {"guard_rejected": True, "reason": reason, "fix_hint": hint["message"]}
    if "field" in hint:
        content["field"] = hint["field"]
    if not str(hint.get("fact", "")).startswith(_RISK):
        content |= {name: hint[name] for name in ("actual", "expected") if name in hint}
    if "suggested_arguments" in hint:
        content["suggested_arguments"] = hint["suggested_arguments"]
    content["next_action"] = _sentence(tool, hint)
    return content


def generic(tool: str | None, call_id: str | None, content: dict[str, object]) -> dict[str, object]:
    """Give the message in the `generic` format; a name or id that isn't known (the body couldn't be read) is left out."""
    message: dict[str, object] = {"role": "tool"}
    if call_id is not None:
        message["tool_call_id"] = call_id
    if tool is not None:
        message["tool_name"] = tool
    message["is_error"] = True
    message["content"] = content
    return message


def _sentence(tool: str | None, hint: Mapping[str, Any]) -> str:
    """Say the next action as the model should do it."""
    name = tool if tool is not None else "the tool"
    kind = NextActionKind(hint["next_action"]["kind"])
    match kind:
        case NextActionKind.CALL_AGAIN:
            if "suggested_arguments" in hint:
                return f"call {name} again with the arguments changed as suggested"
            if hint["retryable"] == Retryable.AFTER_CHANGE:
                return f"call {name} again with what the hint names corrected"
            return f"{_later(hint)}call {name} again"
        case NextActionKind.CALL_FIRST:
            first = hint["next_action"].get("tool")
            return f"call {first} first" if first is not None else "make the call that this one depends on first"
        case NextActionKind.WAIT:
            return f"{_later(hint)}send the same call again"
        case NextActionKind.WAIT_FOR_APPROVAL:
            return "wait for the answer to the approval, then send the same call again"
        case NextActionKind.SEND_META_REQUEST:
            return "ask for what is missing with a meta-request"
        case NextActionKind.STOP:
            return "stop and tell the user"
        case _:
            assert_never(kind)


def _later(hint: Mapping[str, Any]) -> str:
    if "retry_after_ms" in hint:
        return f"wait {hint['retry_after_ms']} ms, then "
    return "wait a moment, then "
