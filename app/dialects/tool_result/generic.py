"""The `generic` format: the essay's own shape, with the call's id and the hint's values beside it (API.md 1.1)."""

from __future__ import annotations


def generic(tool: str | None, call_id: str | None, content: dict[str, object]) -> dict[str, object]:
    """Give the message; a name or id that isn't known (the body couldn't be read) is left out."""
    message: dict[str, object] = {"role": "tool"}
    if call_id is not None:
        message["tool_call_id"] = call_id
    if tool is not None:
        message["tool_name"] = tool
    return message | {"is_error": True, "content": content}
