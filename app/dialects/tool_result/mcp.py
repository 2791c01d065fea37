"""The `mcp` format: the result of `tools/call` in the Model Context Protocol, as an error of the tool and not of the protocol: the model
sees it.

Without `structuredContent`: that is for what the tool's `outputSchema` says, and clients made with the TypeScript SDK hold an error's
against it too and throw, so that the model would see nothing (modelcontextprotocol/typescript-sdk#1943).
"""

from __future__ import annotations

from app.dialects.tool_result.content import text_of


def mcp(tool: str | None, call_id: str | None, content: dict[str, object]) -> dict[str, object]:
    """Give the result; the request's id is the protocol's to carry."""
    return {"content": [{"type": "text", "text": text_of(content)}], "isError": True}
