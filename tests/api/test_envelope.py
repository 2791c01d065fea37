"""What a check request may say around its arguments (SPEC S3.1, S12.4; API.md 0.1, 1.1, 3.6)."""

from __future__ import annotations

import re
import sys
import unicodedata
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.envelope import ToolCallCheckRequest, named_call, parse_tool_call
from app.api.json_body import parse_json
from app.domain.errors import RequestInvalid
from app.domain.tool_call import ToolCall

LEAST: dict[str, Any] = {"tool": "refund", "arguments": {"order_id": "A-1001"}, "session_id": "chat-481", "call_id": "call_01"}


TAG_EXPECTED = "must be a language tag (BCP 47) of 1 to 35 characters, such as `en` or `zh-CN`"


def errors_of(document: object) -> tuple[tuple[str, str], ...]:
    with pytest.raises(RequestInvalid) as caught:
        parse_tool_call(document)
    return caught.value.errors


def test_s3_1_a_whole_request_becomes_a_call() -> None:
    body = b"""{"tool": "refund", "arguments": {"order_id": "A-1001", "amount": 12990.00, "currency": "EUR", "cause": "damaged"},
     "session_id": "chat-481", "task_id": "task-17", "turn": 3.0, "call_id": "call_01", "state_version": 4,
     "requested_scope": [{"action": "refund", "resource": "order:A-1001", "constraints": {"amount": {"max": 1.50}}}],
     "on_behalf_of": {"id": "cust-77", "segment": "standard"}, "approval_id": "01A230D5-2fd8-7907-9af2-55e55f2a8983", "mode": "enforce"}"""
    call = parse_tool_call(parse_json(body))
    assert call == ToolCall(
        tool="refund",
        arguments={"order_id": "A-1001", "amount": 12990, "currency": "EUR", "cause": "damaged"},
        session_id="chat-481",
        call_id="call_01",
        task_id="task-17",
        turn=3,
        state_version=4,
        requested_scope=({"action": "refund", "resource": "order:A-1001", "constraints": {"amount": {"max": Decimal("1.5")}}},),
        on_behalf_of_id="cust-77",
        segment="standard",
        approval_id="01a230d5-2fd8-7907-9af2-55e55f2a8983",
    )
    assert type(call.arguments["amount"]) is int
    assert type(call.turn) is int


def test_s3_1_the_least_request() -> None:
    assert parse_tool_call(LEAST) == ToolCall("refund", {"order_id": "A-1001"}, "chat-481", "call_01")


@pytest.mark.parametrize(
    ("tag", "locales"),
    [
        ("en", ("en",)),
        ("zh-CN", ("zh-CN", "zh", "en")),
        ("ZH-cn", ("zh-CN", "zh", "en")),
        ("de", ("de", "en")),
        ("x-shop", ("x-shop", "x", "en")),
    ],
)
def test_s3_1_a_locale_is_any_well_formed_tag(tag: str, locales: tuple[str, ...]) -> None:
    """One that nobody has gets English; what was sent is kept as it was sent."""
    call = parse_tool_call(LEAST | {"locale": tag})
    assert (call.locale, call.locales) == (tag, locales)


def test_s3_12_faults_are_named_in_the_documents_locale() -> None:
    """Where that is one; the documents that name no good one are told in English."""
    wrong = LEAST | {"turn": "3", "tenant": "acme", "tool": None}
    assert errors_of(wrong | {"locale": "zh-CN"}) == (
        ("/tool", "不得为 null；必须是字符串"),
        ("/turn", "必须是整数"),
        ("/tenant", "未知字段；租户由密钥决定"),
    )
    assert dict(errors_of(wrong | {"locale": 5}))["/turn"] == "must be an integer"
    assert errors_of({f"k{n}": n for n in range(65)} | {"locale": "zh"}) == (("", "最多 64 个字段"),)


def test_s3_1_an_empty_scope_is_not_an_absent_one() -> None:
    assert parse_tool_call(LEAST | {"requested_scope": []}).requested_scope == ()


@pytest.mark.parametrize(
    ("change", "pointer", "detail"),
    [
        ({"tenant": "acme"}, "/tenant", "this field is unknown; the key names the tenant"),
        ({"tenant_id": "acme"}, "/tenant_id", "this field is unknown; the key names the tenant"),
        ({"provenance": {}}, "/provenance", "this field isn't supported by this version"),
        ({"after": ["call_00"]}, "/after", "this field isn't supported by this version"),
        ({"locale": None}, "/locale", "must not be null; leave the field out"),
        ({"locale": ""}, "/locale", TAG_EXPECTED),
        ({"locale": 5}, "/locale", TAG_EXPECTED),
        ({"locale": ["zh"]}, "/locale", TAG_EXPECTED),
        ({"locale": "zh_CN"}, "/locale", TAG_EXPECTED),
        ({"locale": "zh-CN\n"}, "/locale", TAG_EXPECTED),
        ({"locale": "中文"}, "/locale", TAG_EXPECTED),
        ({"locale": "z" * 200}, "/locale", TAG_EXPECTED),
        ({"locale": "-".join(["zh", *["abcdefgh"] * 4])}, "/locale", TAG_EXPECTED),
        ({"role": "operator"}, "/role", "this field is unknown"),
        ({"a/b~\n": 1}, "/a~1b~0\\n", "this field is unknown"),
        ({"k" * 5000: 1}, "/" + "k" * 64 + "…", "this field is unknown"),
        ({"mode": "explain"}, "/mode", "isn't supported by this version; leave it out or send `enforce`"),
        ({"mode": None}, "/mode", "must not be null; leave the field out"),
        ({"tool": "re fund"}, "/tool", "must be a tool's name: 1 to 128 of A-Z, a-z, 0-9, `_`, `.` and `-`"),
        ({"tool": "refund\n"}, "/tool", "must be a tool's name: 1 to 128 of A-Z, a-z, 0-9, `_`, `.` and `-`"),
        ({"tool": "refund\u2060.create"}, "/tool", "must be a tool's name: 1 to 128 of A-Z, a-z, 0-9, `_`, `.` and `-`"),
        ({"tool": 1}, "/tool", "must be a string"),
        ({"tool": None}, "/tool", "must not be null; must be a string"),
        ({"arguments": '{"amount":9999}'}, "/arguments", "must be an object, not text that holds one; send the object itself"),
        ({"arguments": None}, "/arguments", "must not be null; must be an object"),
        ({"arguments": []}, "/arguments", "must be an object"),
        ({"arguments": 42}, "/arguments", "must be an object"),
        ({"session_id": ""}, "/session_id", "must not be empty"),
        ({"session_id": "s" * 129}, "/session_id", "must have at most 128 characters"),
        ({"call_id": "acme\u202egpj.test"}, "/call_id", "must have no control, format or invisible characters"),
        ({"call_id": 7}, "/call_id", "must be a string"),
        ({"task_id": "O-1\u200b"}, "/task_id", "must have no control, format or invisible characters"),
        ({"task_id": None}, "/task_id", "must not be null; leave the field out"),
        ({"turn": True}, "/turn", "must be an integer"),
        ({"turn": "3"}, "/turn", "must be an integer"),
        ({"turn": Decimal("1.5")}, "/turn", "must be an integer"),
        ({"turn": -1}, "/turn", "must be 0 or more"),
        ({"turn": 2**31}, "/turn", "must be 2147483647 or less"),
        ({"state_version": 2**63}, "/state_version", "must be 9223372036854775807 or less"),
        ({"state_version": 10**300}, "/state_version", "must be 9223372036854775807 or less"),
        ({"requested_scope": {}}, "/requested_scope", "must be a list"),
        ({"requested_scope": ["refund"]}, "/requested_scope/0", "must be an object"),
        ({"requested_scope": [{}] * 33}, "/requested_scope", "must have at most 32 entries"),
        ({"on_behalf_of": "cust-77"}, "/on_behalf_of", "must be an object"),
        ({"on_behalf_of": {}}, "/on_behalf_of/id", "this field is required"),
        ({"on_behalf_of": {"id": "c", "segment": None}}, "/on_behalf_of/segment", "must not be null; leave the field out"),
        (
            {"on_behalf_of": {"id": "c", "segment": "x\u2028"}},
            "/on_behalf_of/segment",
            "must have no control, format or invisible characters",
        ),
        ({"on_behalf_of": {"id": "c", "roles": []}}, "/on_behalf_of/roles", "this field is unknown"),
        ({"approval_id": "ap1"}, "/approval_id", "must be the text of a UUID"),
        ({"approval_id": "01a230d5-2fd8-7907-9af2-55e55f2a8983\n"}, "/approval_id", "must be the text of a UUID"),
    ],
)
def test_s3_1_s12_4_ij_05_ij_09_au_03_a_wrong_field_is_named(change: dict[str, Any], pointer: str, detail: str) -> None:
    assert errors_of(LEAST | change) == ((pointer, detail),)


def test_s3_1_what_is_missing_is_named_in_order() -> None:
    assert errors_of({}) == tuple((f"/{name}", "this field is required") for name in ("tool", "arguments", "session_id", "call_id"))


@pytest.mark.parametrize("document", [[], "x", 5, True])
def test_s3_1_only_an_object_is_a_request(document: object) -> None:
    assert errors_of(document) == (("", "must be an object"),)


def test_every_error_is_told_but_not_without_bound() -> None:
    assert errors_of(LEAST | {"turn": -1, "tenant": 1}) == (
        ("/turn", "must be 0 or more"),
        ("/tenant", "this field is unknown; the key names the tenant"),
    )
    assert len(errors_of(LEAST | {f"x{number}": 1 for number in range(40)})) == 20
    assert errors_of(LEAST | {f"x{number}": 1 for number in range(100)}) == (("", "must have at most 64 fields"),)


@given(
    st.dictionaries(
        st.sampled_from([*ToolCallCheckRequest.model_fields, "tenant", "x"]),
        st.sampled_from([None, True, "sk-secret", ["sk-secret"], {"sk": "sk-secret"}, 1, Decimal("1.5")]),
    )
)
def test_no_error_text_holds_a_value(document: dict[str, Any]) -> None:
    try:
        parse_tool_call(document)
    except RequestInvalid as error:
        told = repr(error.errors) + str(error)
    else:
        told = ""
    assert "secret" not in told


def test_au_03_control_and_format_characters_are_in_no_id() -> None:
    unseen = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    assert len(unseen) > 2_000
    through = [char for char in unseen if named_call({"call_id": f"a{char}b"})[1] is not None]
    assert through == []
    for char in ("\0", "\x7f", "\xad", "\u200d", "\u2066", "\u3164", "\ufe0f", "\U000e0041"):
        assert errors_of(LEAST | {"session_id": f"a{char}b"}) == (("/session_id", "must have no control, format or invisible characters"),)


@pytest.mark.parametrize("fine", ["日本-1", "ключ", "a b", "é", "😀", "x" * 128, "order:1/2?x={}"])
def test_ids_are_opaque(fine: str) -> None:
    assert parse_tool_call(LEAST | {"session_id": fine}).session_id == fine


def test_the_published_pattern_says_what_is_checked() -> None:
    properties = ToolCallCheckRequest.model_json_schema()["properties"]
    pattern = re.compile(properties["session_id"]["pattern"])
    for char in ("\0", "\u200b", "\u202e", "\u2028", "\ufeff", "\U000e0041"):
        assert pattern.search(f"a{char}b") is None
    assert pattern.search("日本-1 😀") is not None


def test_the_published_schema_has_descriptions_examples_and_no_null() -> None:
    schema = ToolCallCheckRequest.model_json_schema()
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["tool", "arguments", "session_id", "call_id"]
    for field in schema["properties"].values():
        assert field["description"]
        assert field["examples"]
        assert "default" not in field
        assert "anyOf" not in field
    assert schema["$defs"]["OnBehalfOf"]["required"] == ["id"]


def test_a_refused_document_still_names_its_call_where_it_can() -> None:
    assert named_call(LEAST | {"tenant": 1}) == ("refund", "call_01")
    assert named_call({"tool": "x\n", "call_id": ""}) == (None, None)
    assert named_call({"tool": 1, "call_id": "c" * 129}) == (None, None)
    assert named_call([]) == (None, None)
