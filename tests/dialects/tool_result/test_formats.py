"""One refusal in each format, whole: what the providers' own types ask for, and the same content in all (SPEC S3.2, API.md 1.1)."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from app.dialects.tool_result.formats import FORMATS, tool_result
from app.domain.wording import ENGLISH, locales_of

HINT: dict[str, Any] = {
    "denial_class": "state",
    "retryable": "after_change",
    "field": "/amount",
    "actual": 12990,
    "expected": {"exclusiveMinimum": 0, "maximum": Decimal("129.9")},
    "message": "金额为 12990.00 EUR，最多还可退 129.90 EUR",
    "next_action": {"kind": "call_again"},
    "suggested_arguments": {"amount": Decimal("129.9")},
}
CONTENT = (
    '{"actual":12990,"expected":{"exclusiveMinimum":0,"maximum":129.9},"field":"/amount",'
    '"fix_hint":"金额为 12990.00 EUR，最多还可退 129.90 EUR",'
    '"guard_rejected":true,"next_action":"请按建议的参数重新调用 refund","reason":"amount_exceeds_refundable",'
    '"suggested_arguments":{"amount":129.9}}'
)


def rendered(format_: str, call_id: str | None = "call_01", tool: str | None = "refund") -> dict[str, object]:
    return tool_result(format_, tool, call_id, "amount_exceeds_refundable", HINT, locales_of("zh"))


def test_there_are_five_formats() -> None:
    assert list(FORMATS) == ["generic", "openai", "openai_responses", "anthropic", "mcp"]


def test_generic_is_the_essays_shape() -> None:
    found = rendered("generic")
    assert list(found) == ["role", "tool_call_id", "tool_name", "is_error", "content"]
    assert (found["role"], found["tool_call_id"], found["tool_name"], found["is_error"]) == ("tool", "call_01", "refund", True)
    content = found["content"]
    assert isinstance(content, dict)
    assert {"guard_rejected", "reason", "fix_hint", "next_action"} <= set(content)
    assert content["guard_rejected"] is True
    assert json.loads(json.dumps(content, default=float)) == json.loads(CONTENT)


def test_openai_is_a_tool_message() -> None:
    assert rendered("openai") == {"role": "tool", "tool_call_id": "call_01", "content": CONTENT}


def test_openai_responses_is_an_output_item() -> None:
    assert rendered("openai_responses") == {"type": "function_call_output", "call_id": "call_01", "output": CONTENT}


def test_anthropic_is_a_content_block() -> None:
    assert rendered("anthropic") == {
        "type": "tool_result",
        "tool_use_id": "call_01",
        "is_error": True,
        "content": [{"type": "text", "text": CONTENT}],
    }


def test_mcp_is_a_result_that_any_client_lets_through() -> None:
    """Without `structuredContent`, which a client would hold against the tool's `outputSchema`."""
    assert rendered("mcp") == {"content": [{"type": "text", "text": CONTENT}], "isError": True}


@pytest.mark.parametrize("format_", FORMATS)
def test_an_id_that_could_not_be_read_is_left_out(format_: str) -> None:
    found = rendered(format_, call_id=None, tool=None)
    assert not {"tool_call_id", "call_id", "tool_use_id", "tool_name"} & set(found)


@pytest.mark.parametrize("format_", FORMATS)
def test_scores_and_thresholds_never_go_in(format_: str) -> None:
    hint = HINT | {"fact": "risk.score", "actual": Decimal("0.7196"), "expected": {"exclusiveMaximum": Decimal("0.6")}}
    found = json.dumps(tool_result(format_, "refund", "c", "needs_human_review", hint, ENGLISH), default=str)
    assert "0.7196" not in found
    assert "exclusiveMaximum" not in found
