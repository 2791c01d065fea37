"""What of a call is kept and what its agent gets (S10.3, S3.9): documents without a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from app.domain.decision import Check, Decision, Layer, Outcome
from app.domain.hint import DenialClass, Suggestion
from app.domain.tool_call import Principal, Role, ToolCall
from app.engine.kept_documents import (
    KeptCall,
    clean_answer,
    clean_suggestion,
    clean_verdict,
    kept_answer,
    kept_call,
    kept_request,
)
from app.engine.prepare_call import Work
from app.guards.pipeline import Verdict
from app.guards.refusal import refusal_of

NOW = datetime(2026, 12, 1, 9, tzinfo=UTC)
PRINCIPAL = Principal(UUID(int=1), "acme", UUID(int=2), "agent", "agent", frozenset({Role.AGENT}), frozenset())
SENT: dict[str, Any] = {"headers": {"Authorization": "hunter2-hunter2"}, "note": "plain", "count": 1}
KEPT = {"headers": {"Authorization": "[redacted]"}, "note": "plain", "count": 1}


def work(arguments: dict[str, Any] = SENT, **more: Any) -> Work:
    return Work("", PRINCIPAL, ToolCall("keep", arguments, "chat-1", "c1", **more), None, "", NOW)


def test_a_call_without_a_secret_is_kept_as_the_same_object() -> None:
    harmless = {"order_id": "A-1001", "amount": 20}
    call = work(harmless)
    kept = kept_call(call)
    assert kept.arguments is harmless
    document = {"effective_arguments": harmless}
    clean_answer(document, Verdict(Decision.ACCEPTED, "within_policy", ()), kept)
    assert kept_answer(document, kept) is document


def test_s10_3_the_stored_answer_is_redacted_and_the_live_one_is_not() -> None:
    kept = kept_call(work())
    assert kept == KeptCall(KEPT, frozenset({"hunter2-hunter2"}))
    suggested = {**SENT, "count": 0}
    document = {"effective_arguments": SENT, "fix_hint": {"message": "sent hunter2-hunter2", "suggested_arguments": suggested}}
    clean_answer(document, Verdict(Decision.ACCEPTED, "within_policy", ()), kept)
    assert document == {"effective_arguments": SENT, "fix_hint": {"message": "sent [redacted]", "suggested_arguments": suggested}}
    assert kept_answer(document, kept) == {
        "effective_arguments": KEPT,
        "fix_hint": {"message": "sent [redacted]", "suggested_arguments": {**KEPT, "count": 0}},
    }


def test_s10_3_the_request_is_kept_without_secrets_in_its_scope_too() -> None:
    scope = [
        {"action": "keep", "resource": "file:hunter2-hunter2/a", "constraints": {"api_key": {"in": ["x"]}, "note": {"in": ["sk-live-abc"]}}}
    ]
    call = work(requested_scope=tuple(scope))
    assert kept_request(call, kept_call(call)) == {
        "tool": "keep",
        "arguments": KEPT,
        "session_id": "chat-1",
        "call_id": "c1",
        "requested_scope": [
            {"action": "keep", "resource": "file:[redacted]/a", "constraints": {"api_key": "[redacted]", "note": {"in": ["[redacted]"]}}}
        ],
    }


def test_s10_3_effects_show_no_secret_and_keep_the_digest_of_the_real_ones() -> None:
    row = {"table": "shop.tokens", "operation": "update", "key": {"id": 7}, "before": {"api_token": "a"}, "after": {"api_token": "b"}}
    effects = {"strategy": "transaction", "rows": [row], "counts": {"shop.tokens": {"updated": 1}}, "digest": "sha256:00"}
    verdict = Verdict(Decision.ACCEPTED, "within_policy", (), side_effects=effects)
    clean = clean_verdict(verdict, KeptCall({})).side_effects
    assert clean == {**effects, "rows": [{**row, "before": {"api_token": "[redacted]"}, "after": {"api_token": "[redacted]"}}]}
    plain = replace(verdict, side_effects={**effects, "rows": [{**row, "before": {"paid": 1}, "after": {"paid": 2}}]})
    assert clean_verdict(plain, KeptCall({})) is plain


def test_a_refusal_says_no_credential_wherever_its_text_came_from() -> None:
    check = Check("rule", Outcome.DENIED, "too_many", field="/sk-live-abc", actual=1, message="not with sk-live-abc")
    refused = refusal_of(Layer.STATIC, check, DenialClass.STRUCTURAL)
    document: dict[str, object] = {"layers": [{"checks": [{"message": check.message}]}], "fix_hint": refused.hint.document()}
    clean_answer(document, Verdict(Decision.DENIED, "too_many", (), refused), KeptCall({}))
    assert document["layers"] == [{"checks": [{"message": "not with [redacted]"}]}]
    hint = document["fix_hint"]
    assert isinstance(hint, dict)
    assert (hint["field"], hint["message"], hint["actual"]) == ("/[redacted]", "not with [redacted]", 1)


@pytest.mark.parametrize(
    ("suggested", "given"),
    [
        ({**SENT, "count": 0}, True),
        ({"note": "plain", "count": 0}, True),
        ({**SENT, "note": "sk-live-abc"}, False),
        ({**SENT, "headers": {"Authorization": "another"}}, False),
    ],
)
def test_a_suggestion_that_a_replay_could_not_give_is_not_made(suggested: dict[str, Any], given: bool) -> None:
    suggestion = Suggestion(suggested, "accepted")
    assert clean_suggestion(work(), suggestion) == (suggestion if given else None)
    assert clean_suggestion(work(), None) is None
