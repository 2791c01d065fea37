"""The `anthropic` format: the content block of a user's message of the Messages API that answers a tool use."""

from __future__ import annotations

from app.dialects.tool_result.content import text_of


def anthropic(tool: str | None, call_id: str | None, content: dict[str, object]) -> dict[str, object]:
    """Give the block; an id that isn't known (the body couldn't be read) is left out."""
    named = {"tool_use_id": call_id} if call_id is not None else {}
    return {"type": "tool_result", **named, "is_error": True, "content": [{"type": "text", "text": text_of(content)}]}
