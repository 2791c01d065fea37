"""The `openai_responses` format: the input item of the Responses API that answers a function call. It has no mark for an error, so the
content says `guard_rejected`."""

from __future__ import annotations

from app.dialects.tool_result.content import text_of


def openai_responses(tool: str | None, call_id: str | None, content: dict[str, object]) -> dict[str, object]:
    """Give the item; an id that isn't known (the body couldn't be read) is left out."""
    named = {"call_id": call_id} if call_id is not None else {}
    return {"type": "function_call_output", **named, "output": text_of(content)}
