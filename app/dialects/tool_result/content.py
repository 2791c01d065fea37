"""The content of the message, which is the same in every format (SPEC S3.2, API.md 1.1).

A pure rendering of a reason and a hint. The model never sees a score or a threshold: whoever sees them can stay just below. So a hint about
`risk.…` has neither `actual` nor `expected` here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

from app.domain.canonical import canonical
from app.domain.hint import NextActionKind, Retryable
from app.domain.wording import Locales, say

_RISK = "risk."


def content_of(tool: str | None, reason: str, hint: Mapping[str, Any], locales: Locales) -> dict[str, object]:
    """Give the content of the message for the model, of a `fix_hint` as answers have it; `locales` are the hint's."""
    content: dict[str, object] = {"guard_rejected": True, "reason": reason, "fix_hint": hint["message"]}
    if "field" in hint:
        content["field"] = hint["field"]
    if not str(hint.get("fact", "")).startswith(_RISK):
        content |= {name: hint[name] for name in ("actual", "expected") if name in hint}
    if "suggested_arguments" in hint:
        content["suggested_arguments"] = hint["suggested_arguments"]
    content["next_action"] = _sentence(tool, hint, locales)
    return content


def text_of(content: Mapping[str, object]) -> str:
    """Give the content as JSON text, its numbers exact: for the formats whose messages hold text only."""
    return canonical(content)


def _sentence(tool: str | None, hint: Mapping[str, Any], locales: Locales) -> str:
    """Say the next action as the model should do it."""
    name = tool if tool is not None else say(locales, "the_tool")
    kind = NextActionKind(hint["next_action"]["kind"])
    delay = hint.get("retry_after_ms")
    match kind:
        case NextActionKind.CALL_AGAIN:
            if "suggested_arguments" in hint:
                return say(locales, "next_as_suggested", tool=name)
            if hint["retryable"] != Retryable.AFTER_DELAY:
                return say(locales, "next_corrected", tool=name)
            return say(locales, "next_again_later" if delay is None else "next_again_after", tool=name, ms=delay)
        case NextActionKind.CALL_FIRST:
            first = hint["next_action"].get("tool")
            return say(locales, "next_prerequisite") if first is None else say(locales, "next_call_first", tool=first)
        case NextActionKind.WAIT:
            return say(locales, "next_same_later" if delay is None else "next_same_after", ms=delay)
        case NextActionKind.WAIT_FOR_APPROVAL:
            return say(locales, "next_wait_for_approval")
        case NextActionKind.SEND_META_REQUEST:
            return say(locales, "next_meta_request")
        case NextActionKind.STOP:
            return say(locales, "next_stop")
        case _:
            assert_never(kind)
