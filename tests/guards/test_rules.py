"""What a rule's refusal repeats (S3.12, S10.3): the fact or argument as it is, and no secret, whoever has it."""

from __future__ import annotations

import pytest

from app.domain.decision import Layer
from app.domain.hint import DenialClass
from app.domain.tool_call import ToolCall
from app.guards.rules import refuse
from app.policy.expressions import Environment, ValueType
from app.policy.model import Refusal
from app.policy.templates import compile_template

VARIABLES = {"account.api_key": ValueType.STRING, "account.status": ValueType.STRING}
BINDINGS = Environment(VARIABLES).bind({"account.api_key": "hunter2", "account.status": "closed"})
CALL = ToolCall("keep", {"password": "other", "note": "plain"}, "chat-1", "c1")


@pytest.mark.parametrize(
    ("field", "fact", "actual", "expected", "seen"),
    [
        ("/note", None, "plain", "{account.status}", "closed"),
        ("/note", None, "plain", "{account.api_key}", "[redacted]"),
        ("/password", None, "[redacted]", "{account.status}", "[redacted]"),
        ("/note", "account.status", "closed", "{account.status}", "closed"),
        ("/note", "account.api_key", "[redacted]", "{account.status}", "[redacted]"),
    ],
)
def test_s10_3_actual_and_expected_under_a_secrets_name(field: str, fact: str | None, actual: str, expected: str, seen: str) -> None:
    message = {"en": compile_template("no", VARIABLES, "sentence")}
    refusal = Refusal("wrong", message, field, fact, compile_template({"const": expected}, VARIABLES))
    check, refused = refuse("rule", refusal, BINDINGS, CALL, Layer.SEMANTIC, DenialClass.STATE)
    assert (check.actual, check.expected) == (actual, {"const": seen})
    assert (refused.hint.actual, refused.hint.expected) == (actual, {"const": seen})
