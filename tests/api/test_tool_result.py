"""The message for the model over HTTP: five formats, two languages; refusals, replays and problems (SPEC S3.2, S3.4, S3.12)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import jsonschema_rs
import pytest

from app.api.answers import ToolResult
from app.settings import Settings
from tests.api.serving import REFUND, Client, serving
from tests.engine.shop import SHOP_FILES, Shop, activate, changed

TOO_MUCH: dict[str, Any] = {
    "tool": "refund",
    "arguments": {**REFUND, "amount": 12990},
    "session_id": "chat-1",
    "call_id": "call_01",
    "on_behalf_of": {"id": "cust-77", "segment": "standard"},
}
FORMATS = ["generic", "openai", "openai_responses", "anthropic", "mcp"]
TOOL_RESULT = jsonschema_rs.Draft202012Validator(ToolResult.model_json_schema(mode="serialization"))


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


def content_of(format_: str, message: Mapping[str, Any], call_id: str | None = "call_01", tool: str | None = "refund") -> dict[str, Any]:
    """Take the content out of a message that is exactly what the format says."""
    TOOL_RESULT.validate(message)
    if format_ == "generic":
        content = dict(message["content"])
        names: dict[str, Any] = {"tool_call_id": call_id} if call_id else {}
        names |= {"tool_name": tool} if tool else {}
        assert message == {"role": "tool", **names, "is_error": True, "content": content}
        return content
    if format_ == "openai":
        text = message["content"]
        assert message == {"role": "tool", **({"tool_call_id": call_id} if call_id else {}), "content": text}
    elif format_ == "openai_responses":
        text = message["output"]
        assert message == {"type": "function_call_output", **({"call_id": call_id} if call_id else {}), "output": text}
    else:
        text = message["content"][0]["text"]
        body = {"content": [{"type": "text", "text": text}]}
        if format_ == "mcp":
            assert message == {"isError": True, **body}
        else:
            assert message == {"type": "tool_result", **({"tool_use_id": call_id} if call_id else {}), "is_error": True, **body}
    return dict(json.loads(text))


async def ask(client: Client, shop: Shop, body: object, query: str = "") -> dict[str, Any]:
    return dict((await client.ask("POST", f"/tool-calls/check{query}", shop.acme.tokens["agent"], body)).json())


async def test_s3_2_the_content_is_the_same_in_every_format(client: Client, shop: Shop) -> None:
    """The first answer and its replays."""
    expected = {
        "guard_rejected": True,
        "reason": "amount_exceeds_refundable",
        "fix_hint": "amount is 12990.00 EUR; at most 129.90 EUR can still be refunded on order A-1001",
        "field": "/amount",
        "actual": 12990,
        "expected": {"exclusiveMinimum": 0, "maximum": 129.9},
        "suggested_arguments": {**REFUND, "amount": 129.9},
        "next_action": "call refund again with the arguments changed as suggested",
    }
    assert content_of("generic", (await ask(client, shop, TOO_MUCH))["tool_result"]) == expected
    for format_ in FORMATS:
        replayed = await ask(client, shop, TOO_MUCH, f"?format={format_}")
        assert replayed["replayed"] is True
        assert content_of(format_, replayed["tool_result"]) == expected
        fresh = await ask(client, shop, TOO_MUCH | {"call_id": format_, "task_id": format_}, f"?format={format_}")
        assert fresh["replayed"] is False
        assert content_of(format_, fresh["tool_result"], format_) == expected


@pytest.mark.parametrize("format_", FORMATS)
async def test_s3_2_scores_and_thresholds_never_go_in(client: Client, shop: Shop, format_: str) -> None:
    found = await ask(client, shop, TOO_MUCH | {"arguments": {**REFUND, "amount": 129.9}}, f"?format={format_}")
    assert found["reason"] == "needs_human_review"
    assert content_of(format_, found["tool_result"]) == {
        "guard_rejected": True,
        "reason": "needs_human_review",
        "fix_hint": "a person has to approve this call; wait for the answer",
        "next_action": "wait for the answer to the approval, then send the same call again",
    }


@pytest.mark.parametrize("format_", FORMATS)
async def test_s3_4_problems_have_the_message_too(client: Client, shop: Shop, format_: str) -> None:
    """400, 415 and 422, whether or not the body said which call it is."""
    token, route = shop.acme.tokens["agent"], f"/tool-calls/check?format={format_}"
    malformed = (await client.ask("POST", route, token, b'{"tool": "refund", "tool": "x"}')).json()
    assert content_of(format_, malformed["tool_result"], None, None)["reason"] == "body_malformed"
    typed = (await client.ask("POST", route, token, b"tool: refund", headers={"content-type": "text/yaml"})).json()
    assert content_of(format_, typed["tool_result"], None, None)["reason"] == "unsupported_media_type"
    invalid = (await client.ask("POST", route, token, TOO_MUCH | {"turn": "3"})).json()
    assert content_of(format_, invalid["tool_result"]) == {
        "guard_rejected": True,
        "reason": "request_invalid",
        "fix_hint": "/turn: must be an integer",
        "next_action": "call refund again with what the hint names corrected",
    }


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("format=xml", "/query/format"),
        ("format=", "/query/format"),
        ("format=OpenAI", "/query/format"),
        ("format=openai&format=mcp", "/query"),
        ("mode=explain", "/query"),
        ("&".join(["format=openai"] * 17), "/query"),
    ],
)
async def test_s3_2_another_format_is_a_problem_that_names_the_five(client: Client, shop: Shop, query: str, pointer: str) -> None:
    answer = await client.ask("POST", f"/tool-calls/check?{query}", shop.acme.tokens["agent"], TOO_MUCH)
    found = answer.json()
    assert (answer.status_code, found["execution_permitted"]) == (422, False)
    detail = "this route has the parameter `format` only, once"
    if pointer == "/query/format":
        detail = "must be one of generic, openai, openai_responses, anthropic, mcp"
    assert found["errors"] == [{"pointer": pointer, "detail": detail}]
    assert content_of("generic", found["tool_result"])["fix_hint"] == f"{pointer}: {detail}"
    asked = TOO_MUCH | {"locale": "zh"}
    chinese = (await client.ask("POST", f"/tool-calls/check?{query}", shop.acme.tokens["agent"], asked)).json()
    assert chinese["fix_hint"]["message"].startswith(f"{pointer}：")


async def test_s3_12_a_refusal_is_chinese_from_end_to_end(client: Client, shop: Shop) -> None:
    """The author's sentence and the service's; codes, pointers and values are as in English."""
    chinese = await ask(client, shop, TOO_MUCH | {"locale": "zh-CN", "task_id": "t1"})
    english = await ask(client, shop, TOO_MUCH | {"call_id": "call_02", "task_id": "t2"})
    message = "金额为 12990.00 EUR，订单 A-1001 最多还可退 129.90 EUR"
    assert chinese["fix_hint"] == english["fix_hint"] | {"message": message}
    assert chinese["layers"][2]["checks"][-1]["message"] == message
    assert chinese["tool_result"]["content"] == english["tool_result"]["content"] | {
        "fix_hint": message,
        "next_action": "请按建议的参数重新调用 refund",
    }
    kept = await client.ask("GET", f"/decisions/{chinese['decision_id']}", shop.acme.tokens["auditor"])
    assert kept.json()["request"]["locale"] == "zh-CN"
    assert kept.json()["fix_hint"]["message"] == message


@pytest.mark.parametrize(
    ("change", "reason", "message"),
    [
        ({"tool": "transfer"}, "tool_unknown", "没有这个工具"),
        ({"arguments": {**REFUND, "amount": "20"}}, "schema_invalid", "/amount：类型必须为 number"),
        ({"arguments": {**REFUND, "order_id": "A-9999"}}, "order_not_found", "找不到订单 A-9999"),
        ({"arguments": {**REFUND, "order_id": "T-9001"}}, "forbidden", "策略禁止本次调用"),
        (
            {"approval_id": "01a230d5-2fd8-7907-9af2-55e55f2a8983"},
            "approval_mismatch",
            "该 approval_id 不是本次调用的审批；请去掉它，调用会自行找到对应的审批",
        ),
    ],
)
async def test_s3_12_the_engines_and_the_layers_sentences(
    client: Client, shop: Shop, change: dict[str, Any], reason: str, message: str
) -> None:
    found = await ask(client, shop, TOO_MUCH | {"locale": "zh"} | change)
    assert (found["reason"], found["fix_hint"]["message"]) == (reason, message)


async def test_s3_12_call_ids_sessions_and_last_attempts_are_told_in_chinese(client: Client, shop: Shop) -> None:
    asked = TOO_MUCH | {"locale": "zh", "task_id": "t1"}
    for number in range(3):
        last = await ask(client, shop, asked | {"call_id": f"c{number}"})
    assert last["fix_hint"]["message"].endswith("最多还可退 129.90 EUR；本任务的尝试次数已用完，请停止并告知用户")
    assert last["tool_result"]["content"]["next_action"] == "请停止并告知用户"
    reused = await ask(client, shop, asked | {"call_id": "c0", "arguments": {**REFUND, "amount": 1}})
    assert reused["fix_hint"]["message"] == "c0 已用于其他参数的调用；请为本次调用使用新的 id"
    foreign = (await client.ask("POST", "/tool-calls/check", shop.acme.tokens["other"], asked | {"call_id": "c9"})).json()
    assert (foreign["reason"], foreign["fix_hint"]["message"]) == ("session_not_yours", "该会话属于其他主体；请使用自己的会话")
    assert (foreign["fix_hint"]["retryable"], foreign["fix_hint"]["next_action"]) == ("after_change", {"kind": "stop"})


async def test_s3_9_a_replay_keeps_the_language_of_the_first_answer(client: Client, shop: Shop) -> None:
    """What was decided is stored with its sentences; the message around it is in the same language."""
    first = await ask(client, shop, TOO_MUCH | {"locale": "zh"})
    again = await ask(client, shop, TOO_MUCH | {"locale": "en"})
    assert again["replayed"] is True
    assert (again["fix_hint"], again["tool_result"]) == (first["fix_hint"], first["tool_result"])


@pytest.mark.parametrize("tag", ["de", "fr-CA", "x-shop", "tlh"])
async def test_s3_1_a_language_that_nobody_has_is_english(client: Client, shop: Shop, tag: str) -> None:
    found = await ask(client, shop, TOO_MUCH | {"locale": tag})
    assert found["fix_hint"]["message"] == "amount is 12990.00 EUR; at most 129.90 EUR can still be refunded on order A-1001"
    assert found["tool_result"]["content"]["next_action"] == "call refund again with the arguments changed as suggested"


async def test_s3_12_an_authors_own_language_is_spoken(client: Client, shop: Shop) -> None:
    """The bundle may have languages that the service hasn't; the service's own sentences are English beside it."""
    files = changed(SHOP_FILES, "bundle.yaml", ("locales: [en, zh]", "locales: [en, zh, de]"))
    files = changed(files, "tools/refund.yaml", ('zh: "找不到订单 {args.order_id}"', 'zh: "x", de: "Bestellung {args.order_id} fehlt"'))
    await activate(shop, shop.acme, files)
    found = await ask(client, shop, TOO_MUCH | {"locale": "de-AT", "arguments": {**REFUND, "order_id": "A-9999"}})
    assert (found["fix_hint"]["message"], found["tool_result"]["content"]["next_action"]) == (
        "Bestellung A-9999 fehlt",
        "call search_order first",
    )


@pytest.mark.parametrize("tag", ["", 5, "z" * 200, None, "zh_CN", ["zh"]])
async def test_s3_1_what_is_no_tag_is_a_problem_in_english(client: Client, shop: Shop, tag: object) -> None:
    answer = await client.ask("POST", "/tool-calls/check", shop.acme.tokens["agent"], TOO_MUCH | {"locale": tag})
    found = answer.json()
    detail = "must be a language tag (BCP 47) of 1 to 35 characters, such as `en` or `zh-CN`"
    if tag is None:
        detail = "must not be null; leave the field out"
    assert (answer.status_code, found["errors"]) == (422, [{"pointer": "/locale", "detail": detail}])
    assert found["fix_hint"]["message"] == f"/locale: {detail}"


async def test_s3_12_a_wrong_request_is_told_in_its_own_language(client: Client, shop: Shop) -> None:
    found = await ask(client, shop, TOO_MUCH | {"locale": "zh", "turn": "3", "role": "operator"})
    assert found["fix_hint"]["message"] == "/turn：必须是整数；/role：未知字段"
    assert found["tool_result"]["content"]["next_action"] == "请根据 fix_hint 调整参数后重新调用 refund"


async def test_an_author_can_make_a_rule_say_stop_or_wait(client: Client, shop: Shop) -> None:
    """S3.9: `stop`, which the example says of a refund made before, settles; `wait` doesn't, so the same call id is decided again."""
    stop = "expected: {const: 0}, next_action: {kind: stop}"
    for kind, retryable, sentence in (
        ("stop", "never", "stop and tell the user"),
        ("wait", "after_delay", "wait a moment, then send the same call again"),
    ):
        await activate(shop, shop.acme, changed(SHOP_FILES, "tools/refund.yaml", (stop, stop.replace("stop", kind))))
        await ask(client, shop, TOO_MUCH | {"call_id": f"first_{kind}", "arguments": REFUND})
        asked = TOO_MUCH | {"call_id": f"again_{kind}", "arguments": REFUND}
        found, again = await ask(client, shop, asked), await ask(client, shop, asked)
        assert found["reason"] == "already_refunded"
        assert (found["fix_hint"]["retryable"], found["fix_hint"]["next_action"]) == (retryable, {"kind": kind})
        assert found["tool_result"]["content"]["next_action"] == sentence
        assert again["replayed"] is (kind == "stop")
