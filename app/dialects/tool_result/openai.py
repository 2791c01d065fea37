"""The `openai` format: the tool message of the Chat Completions API, whose content is text. It has no mark for an error, so the content
says `guard_rejected`."""

from __future__ import annotations

from app.dialects.tool_result.content import text_of


def openai(tool: str | None, call_id: str | None, content: dict[str, object]) -> dict[str, object]:
    """Give the message; an id that isn't known (the body couldn't be read) is left out."""
    named = {"tool_call_id": call_id} if call_id is not None else {}
    return {"role": "tool", **named, "content": text_of(content)}
