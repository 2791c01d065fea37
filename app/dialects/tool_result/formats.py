"""Which formats there are, and the message in one of them. A format is one module and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.dialects.tool_result.anthropic import anthropic
from app.dialects.tool_result.content import content_of
from app.dialects.tool_result.generic import generic
from app.dialects.tool_result.mcp import mcp
from app.dialects.tool_result.openai import openai
from app.dialects.tool_result.openai_responses import openai_responses
from app.domain.wording import Locales

Rendering = Callable[[str | None, str | None, dict[str, object]], dict[str, object]]

FORMATS: Mapping[str, Rendering] = {
    "generic": generic,
    "openai": openai,
    "openai_responses": openai_responses,
    "anthropic": anthropic,
    "mcp": mcp,
}
DEFAULT_FORMAT = "generic"


def tool_result(
    format_: str, tool: str | None, call_id: str | None, reason: str, hint: Mapping[str, Any], locales: Locales
) -> dict[str, object]:
    """Give the message for the model in a format of `FORMATS`; `locales` are the hint's."""
    return FORMATS[format_](tool, call_id, content_of(tool, reason, hint, locales))
