"""The hint and the message for the model, document by document (SPEC S3.2, API.md 1.1, 1.2, 3.2-3.4)."""

from __future__ import annotations

from decimal import Decimal

import pytest

from app.dialects.tool_result.content import content_of
from app.dialects.tool_result.generic import generic
from app.domain.hint import DenialClass, FixHint, NextAction, NextActionKind, Retryable, Suggestion
from app.domain.wording import ENGLISH, Locales

MESSAGE = "amount is 12990.00 EUR; at most 129.90 EUR can still be refunded on order A-1001"
SUGGESTED = {"order_id": "A-1001", "amount": Decimal("129.9"), "currency": "EUR", "cause": "damaged"}
TOO_MUCH = FixHint(
    DenialClass.STATE,
    Retryable.AFTER_CHANGE,
    MESSAGE,
    NextAction(NextActionKind.CALL_AGAIN),
    field="/amount",
    actual=12990,
    expected={"exclusiveMinimum": 0, "maximum": Decimal("129.9")},
    suggestion=Suggestion(SUGGESTED, "needs_user"),
    attempts_left=2,
)
TOO_RISKY = FixHint(
    DenialClass.RISK,
    Retryable.AFTER_APPROVAL,
    "a person has to approve this refund; wait for the answer",
    NextAction(NextActionKind.WAIT_FOR_APPROVAL, approval_id="01a230d5-2fd8-7907-9af2-55e55f2a8983"),
    fact="risk.score",
    actual=Decimal("0.7196"),
    expected={"exclusiveMaximum": Decimal("0.6")},
    attempts_left=3,
)


def test_s3_2_the_hint_of_api_1_1() -> None:
    document = TOO_MUCH.document()
    assert document == {
        "denial_class": "state",
        "retryable": "after_change",
        "field": "/amount",
        "actual": 12990,
        "expected": {"exclusiveMinimum": 0, "maximum": Decimal("129.9")},
        "message": MESSAGE,
        "next_action": {"kind": "call_again"},
        "suggested_arguments": SUGGESTED,
        "suggestion_verified": True,
        "suggestion_decision": "needs_user",
        "attempts_left": 2,
    }
    assert list(document) == ["denial_class", "retryable", "field", "actual", "expected", "message", "next_action", "suggested_arguments",
                              "suggestion_verified", "suggestion_decision", "attempts_left"]  # fmt: skip
    assert type(document["retryable"]) is str


def test_s3_2_the_tool_result_of_api_1_1() -> None:
    result = generic("refund", "call_01", content_of("refund", "amount_exceeds_refundable", TOO_MUCH.document(), ENGLISH))
    assert result == {
        "role": "tool",
        "tool_call_id": "call_01",
        "tool_name": "refund",
        "is_error": True,
        "content": {
            "guard_rejected": True,
            "reason": "amount_exceeds_refundable",
            "fix_hint": MESSAGE,
            "field": "/amount",
            "actual": 12990,
            "expected": {"exclusiveMinimum": 0, "maximum": Decimal("129.9")},
            "suggested_arguments": SUGGESTED,
            "next_action": "call refund again with the arguments changed as suggested",
        },
    }
    assert list(result) == ["role", "tool_call_id", "tool_name", "is_error", "content"]


def test_s3_2_the_hint_of_api_1_2() -> None:
    assert TOO_RISKY.document() == {
        "denial_class": "risk",
        "retryable": "after_approval",
        "fact": "risk.score",
        "actual": Decimal("0.7196"),
        "expected": {"exclusiveMaximum": Decimal("0.6")},
        "message": "a person has to approve this refund; wait for the answer",
        "next_action": {"kind": "wait_for_approval", "approval_id": "01a230d5-2fd8-7907-9af2-55e55f2a8983"},
        "attempts_left": 3,
    }


def test_s3_2_scores_and_thresholds_never_reach_the_model() -> None:
    assert content_of("refund", "needs_human_review", TOO_RISKY.document(), ENGLISH) == {
        "guard_rejected": True,
        "reason": "needs_human_review",
        "fix_hint": "a person has to approve this refund; wait for the answer",
        "next_action": "wait for the answer to the approval, then send the same call again",
    }


def test_s3_2_an_ordinary_fact_is_shown() -> None:
    hint = FixHint(
        DenialClass.STATE, Retryable.NEVER, "m", NextAction(NextActionKind.STOP), "/order_id", "order.status", None, {"enum": ["paid"]}
    )
    assert content_of("refund", "order_state_forbids", hint.document(), ENGLISH) == {
        "guard_rejected": True,
        "reason": "order_state_forbids",
        "fix_hint": "m",
        "field": "/order_id",
        "actual": None,
        "expected": {"enum": ["paid"]},
        "next_action": "stop and tell the user",
    }


def test_s3_11_the_hint_of_api_3_3() -> None:
    hint = FixHint(
        DenialClass.TRANSIENT, Retryable.AFTER_DELAY, "call_07 hasn't finished yet; wait for it", NextAction(NextActionKind.WAIT),
        retry_after_ms=500, attempts_left=3,
    )  # fmt: skip
    document = hint.document()
    assert document == {
        "denial_class": "transient",
        "retryable": "after_delay",
        "retry_after_ms": 500,
        "message": "call_07 hasn't finished yet; wait for it",
        "next_action": {"kind": "wait"},
        "attempts_left": 3,
    }
    assert list(document)[2] == "retry_after_ms"


CALL_AGAIN = NextAction(NextActionKind.CALL_AGAIN)
CHINESE: Locales = ("zh-CN", "zh", "en")


@pytest.mark.parametrize(
    ("retryable", "action", "delay", "english", "chinese"),
    [
        (
            Retryable.AFTER_CHANGE,
            CALL_AGAIN,
            None,
            "call refund again with what the hint names corrected",
            "请根据 fix_hint 调整参数后重新调用 refund",
        ),
        (Retryable.AFTER_DELAY, CALL_AGAIN, 500, "wait 500 ms, then call refund again", "请等待 500 毫秒后重新调用 refund"),
        (
            Retryable.AFTER_APPROVAL,
            CALL_AGAIN,
            None,
            "call refund again with what the hint names corrected",
            "请根据 fix_hint 调整参数后重新调用 refund",
        ),
        (Retryable.AFTER_DELAY, CALL_AGAIN, None, "wait a moment, then call refund again", "请稍后重新调用 refund"),
        (
            Retryable.AFTER_CHANGE,
            NextAction(NextActionKind.CALL_FIRST, tool="search_order"),
            None,
            "call search_order first",
            "请先调用 search_order",
        ),
        (
            Retryable.AFTER_CHANGE,
            NextAction(NextActionKind.CALL_FIRST),
            None,
            "make the call that this one depends on first",
            "请先完成本次调用所依赖的调用",
        ),
        (
            Retryable.AFTER_DELAY,
            NextAction(NextActionKind.WAIT),
            2000,
            "wait 2000 ms, then send the same call again",
            "请等待 2000 毫秒后原样重发本次调用",
        ),
        (
            Retryable.AFTER_DELAY,
            NextAction(NextActionKind.WAIT),
            None,
            "wait a moment, then send the same call again",
            "请稍后原样重发本次调用",
        ),
        (
            Retryable.AFTER_APPROVAL,
            NextAction(NextActionKind.WAIT_FOR_APPROVAL),
            None,
            "wait for the answer to the approval, then send the same call again",
            "请等待审批结果，然后原样重发本次调用",
        ),
        (
            Retryable.NEVER,
            NextAction(NextActionKind.SEND_META_REQUEST),
            None,
            "ask for what is missing with a meta-request",
            "请用元请求申请所缺的内容",
        ),
        (Retryable.NEVER, NextAction(NextActionKind.STOP), None, "stop and tell the user", "请停止并告知用户"),
    ],
)
def test_s3_2_every_next_action_is_a_sentence(
    retryable: Retryable, action: NextAction, delay: int | None, english: str, chinese: str
) -> None:
    document = FixHint(DenialClass.STATE, retryable, "m", action, retry_after_ms=delay).document()
    assert content_of("refund", "r", document, ENGLISH)["next_action"] == english
    assert content_of("refund", "r", document, CHINESE)["next_action"] == chinese


def test_s3_12_a_suggestion_and_an_unknown_tool_are_said_in_chinese() -> None:
    assert content_of("refund", "r", TOO_MUCH.document(), CHINESE)["next_action"] == "请按建议的参数重新调用 refund"
    plain = FixHint(DenialClass.STRUCTURAL, Retryable.AFTER_CHANGE, "m", CALL_AGAIN).document()
    assert content_of(None, "r", plain, CHINESE)["next_action"] == "请根据 fix_hint 调整参数后重新调用 该工具"


def test_s3_12_what_to_call_first_is_in_the_hint() -> None:
    hint = FixHint(DenialClass.STATE, Retryable.AFTER_CHANGE, "m", NextAction(NextActionKind.CALL_FIRST, tool="search_order"))
    assert hint.document()["next_action"] == {"kind": "call_first", "tool": "search_order"}


def test_what_could_not_be_read_is_left_out() -> None:
    assert generic(None, None, {}) == {"role": "tool", "is_error": True, "content": {}}
