"""Problem documents, whole (RFC 9457; SPEC S3.4, S3.10; API.md 0.1, 3.5, 3.6)."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field
from structlog.testing import capture_logs

from app.api.json_body import JsonRoute
from app.api.problems import KINDS, CheckedCall, Problem, code_of, install, problem, trace_id_of
from app.domain.errors import (
    BodyMalformed,
    BodyTooLarge,
    Conflict,
    DecisionUnavailable,
    NotFound,
    NotPermitted,
    PlacetError,
    PolicyFault,
    PolicyInvalid,
    RateLimited,
    RequestInvalid,
    TooManyRequests,
    TooManyUnderWay,
    Unauthenticated,
    UnsupportedMediaType,
)
from app.domain.limits import Standing

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
STANDING = Standing(50, 4, 0, 31)


def told(answer: Problem) -> dict[str, Any]:
    headers = dict(answer.headers)
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"content-length"] == str(len(answer.body)).encode()
    document: dict[str, Any] = json.loads(answer.body)
    assert document["status"] == answer.status
    return document


def test_s3_4_an_unknown_field_on_a_check_route() -> None:
    error = RequestInvalid((("/tenant", "this field is unknown; the key names the tenant"),))
    assert told(problem(error, TRACE, CheckedCall("refund", "call_01"))) == {
        "type": "/problems/request_invalid",
        "title": "The request has errors",
        "status": 422,
        "detail": "1 error",
        "code": "request_invalid",
        "errors": [{"pointer": "/tenant", "detail": "this field is unknown; the key names the tenant"}],
        "execution_permitted": False,
        "retryable": "after_change",
        "fix_hint": {
            "denial_class": "structural",
            "retryable": "after_change",
            "message": "/tenant: this field is unknown; the key names the tenant",
            "next_action": {"kind": "call_again"},
        },
        "tool_result": {
            "role": "tool",
            "tool_call_id": "call_01",
            "tool_name": "refund",
            "is_error": True,
            "content": {
                "guard_rejected": True,
                "reason": "request_invalid",
                "fix_hint": "/tenant: this field is unknown; the key names the tenant",
                "next_action": "call refund again with what the hint names corrected",
            },
        },
        "trace_id": TRACE,
    }


def test_s3_4_a_malformed_body_names_the_argument() -> None:
    document = told(problem(BodyMalformed("a string has a NUL character; remove it", "/arguments/note"), TRACE, CheckedCall()))
    assert document == {
        "type": "/problems/body_malformed",
        "title": "The body is not one exact JSON document",
        "status": 400,
        "detail": "a string has a NUL character; remove it",
        "code": "body_malformed",
        "errors": [{"pointer": "/arguments/note", "detail": "a string has a NUL character; remove it"}],
        "execution_permitted": False,
        "retryable": "after_change",
        "fix_hint": {
            "denial_class": "structural",
            "retryable": "after_change",
            "field": "/note",
            "message": "/arguments/note: a string has a NUL character; remove it",
            "next_action": {"kind": "call_again"},
        },
        "tool_result": {
            "role": "tool",
            "is_error": True,
            "content": {
                "guard_rejected": True,
                "reason": "body_malformed",
                "fix_hint": "/arguments/note: a string has a NUL character; remove it",
                "field": "/note",
                "next_action": "call the tool again with what the hint names corrected",
            },
        },
        "trace_id": TRACE,
    }


def test_s3_10_the_database_away() -> None:
    answer = problem(DecisionUnavailable(), TRACE, CheckedCall("refund", "call_01"))
    assert dict(answer.headers)[b"retry-after"] == b"2"
    document = told(answer)
    assert document["fix_hint"] == {
        "denial_class": "transient",
        "retryable": "after_delay",
        "retry_after_ms": 2000,
        "message": "the decision could not be recorded; treat it as refused",
        "next_action": {"kind": "wait"},
    }
    assert document["tool_result"]["content"]["next_action"] == "wait 2000 ms, then send the same call again"
    del document["fix_hint"], document["tool_result"]
    assert document == {
        "type": "/problems/decision_unavailable",
        "title": "No decision could be made",
        "status": 503,
        "detail": "the decision could not be recorded; treat it as refused",
        "code": "decision_unavailable",
        "execution_permitted": False,
        "retryable": "after_delay",
        "retry_after_s": 2,
        "trace_id": TRACE,
    }


def test_elsewhere_nothing_is_said_about_execution() -> None:
    assert told(problem(NotFound("no decision has this id"), TRACE)) == {
        "type": "/problems/not_found",
        "title": "There is no such thing",
        "status": 404,
        "detail": "no decision has this id",
        "code": "not_found",
        "retryable": "never",
        "trace_id": TRACE,
    }


def test_s12_1_401_says_how_to_authenticate() -> None:
    answer = problem(Unauthenticated("send a valid key"), TRACE)
    assert (answer.status, dict(answer.headers)[b"www-authenticate"]) == (401, b"Bearer")
    assert told(answer)["code"] == "unauthenticated"


@pytest.mark.parametrize(
    ("error", "status", "code", "retryable"),
    [
        (NotPermitted("x"), 403, "not_permitted", "never"),
        (Conflict("tenant_exists", "a tenant has this name"), 409, "tenant_exists", "never"),
        (BodyTooLarge(10), 413, "body_too_large", "after_change"),
        (UnsupportedMediaType("x"), 415, "unsupported_media_type", "after_change"),
        (PolicyInvalid(()), 422, "policy_invalid", "after_change"),
        (RateLimited("x", 31, STANDING), 429, "rate_limited", "after_delay"),
        (RateLimited("x", None, STANDING), 429, "rate_limited", "never"),
        (TooManyUnderWay("x", 1, STANDING), 429, "too_many_requests_under_way", "after_delay"),
        (PlacetError("sk-secret"), 500, "internal_error", "never"),
        (RuntimeError("sk-secret"), 500, "internal_error", "never"),
        (RecursionError(), 500, "internal_error", "never"),
    ],
)
def test_every_failure_has_one_status_and_code(error: Exception, status: int, code: str, retryable: str) -> None:
    document = told(problem(error, TRACE, CheckedCall()))
    assert (document["status"], document["code"], document["retryable"], document["execution_permitted"]) == (
        status,
        code,
        retryable,
        False,
    )
    assert document["type"] == f"/problems/{code}"
    assert code_of(error) == code
    assert "secret" not in json.dumps(document)


def test_each_anticipated_failure_is_in_the_table() -> None:
    ours = {kind for kind in PlacetError.__subclasses__() if kind.__module__ == PlacetError.__module__}
    assert set(KINDS) == (ours - {TooManyRequests}) | set(TooManyRequests.__subclasses__())


def test_a_broken_bundle_names_its_faults() -> None:
    fault = PolicyFault("tools/refund.yaml", 12, "`amuont` is unknown", "one of amount, currency")
    document = told(problem(PolicyInvalid((fault,) * 30), TRACE))
    assert (
        document["errors"]
        == [{"pointer": "", "detail": "tools/refund.yaml:12: `amuont` is unknown; expected one of amount, currency"}] * 20
    )


def test_ij_01_ij_06_no_text_can_break_the_answer() -> None:
    nasty = "\ud800\0\u202e" + "x" * 100_000
    answer = problem(RequestInvalid(((nasty, nasty),) * 1000), TRACE, CheckedCall("refund", nasty[:100]))
    assert answer.body.isascii()
    assert len(answer.body) < 40_000
    assert told(answer)["errors"][0]["detail"].endswith("…")


@pytest.mark.parametrize(
    "value",
    [
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        b"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-adds",
    ],
)
def test_s11_2_a_well_formed_traceparent_gives_the_trace_id(value: bytes) -> None:
    assert trace_id_of([(b"host", b"x"), (b"traceparent", value)]) == TRACE


@pytest.mark.parametrize(
    "values",
    [
        [],
        [b""],
        [b"00-00000000000000000000000000000000-00f067aa0ba902b7-01"],
        [b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01"],
        [b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"],
        [b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"],
        [b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"],
        [b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\xff"],
        [b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"] * 2,
    ],
)
def test_s11_2_any_other_traceparent_is_ignored(values: list[bytes]) -> None:
    fresh = trace_id_of([(b"traceparent", value) for value in values])
    assert re.fullmatch("[0-9a-f]{32}", fresh)
    assert fresh != TRACE
    assert fresh != trace_id_of([])


class Tenant(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    name: str = Field(min_length=1)
    size: int = Field(default=1, ge=1)


def application() -> FastAPI:
    app = FastAPI()
    install(app)
    router = APIRouter(route_class=JsonRoute)

    @router.post("/tenants")
    async def make(tenant: Tenant, limit: int = 1) -> str:
        return tenant.name

    @app.get("/missing")
    async def missing() -> None:
        raise NotFound("no key has this id")

    @app.get("/away")
    async def away() -> None:
        raise DecisionUnavailable from ConnectionRefusedError("10.0.0.7 said no")

    @app.get("/broken")
    async def broken() -> None:
        raise RuntimeError("sk-secret")

    @app.get("/teapot")
    async def teapot() -> None:
        raise HTTPException(418, "sk-secret")

    app.include_router(router)
    return app


async def ask(method: str, path: str, **more: Any) -> httpx.Response:
    transport = httpx.ASGITransport(app=application(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://placet.test") as client:
        headers = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"} | more.pop("headers", {})
        return await client.request(method, path, headers=headers, **more)


async def test_ordinary_routes_answer_with_problems() -> None:
    response = await ask("GET", "/missing")
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json() == {
        "type": "/problems/not_found",
        "title": "There is no such thing",
        "status": 404,
        "detail": "no key has this id",
        "code": "not_found",
        "retryable": "never",
        "trace_id": TRACE,
    }


async def test_unmatched_paths_and_methods() -> None:
    response = await ask("GET", "/sk-secret")
    assert (response.status_code, response.json()["code"], response.json()["detail"]) == (404, "not_found", "no route has this path")
    assert "secret" not in response.text
    response = await ask("DELETE", "/tenants")
    assert (response.status_code, response.json()["code"], response.headers["allow"]) == (405, "method_not_allowed", "POST")
    response = await ask("GET", "/teapot")
    assert (response.status_code, response.json()["code"], response.json()["detail"]) == (418, "request_refused", "i'm a teapot")


@pytest.mark.parametrize(
    ("body", "status", "detail", "errors"),
    [
        (b'{"name": "acme", "x": "sk-secret"}', 422, "1 error", [("/x", "this field is unknown")]),
        (b"{}", 422, "1 error", [("/name", "this field is required")]),
        (b'{"name": 1}', 422, "1 error", [("/name", "must be a string")]),
        (b'{"name": "acme", "size": true}', 422, "1 error", [("/size", "must be an integer")]),
        (b'{"name": "acme", "size": "1"}', 422, "1 error", [("/size", "must be an integer")]),
        (b'{"name": "", "size": 0}', 422, "2 errors", [("/name", "must not be empty"), ("/size", "must be 1 or more")]),
        (b"[]", 422, "1 error", [("", "must be an object")]),
        (b"null", 422, "1 error", [("", "must be an object")]),
        (b'{"name": "sk-secret", "size": NaN}', 400, "expected a value (NaN and Infinity aren't JSON) at line 1 column 31", []),
        (
            b'{"name": "sk-secret", "size": 1e400}',
            400,
            "a number is beyond 1e-324 to 1e308",
            [("/size", "a number is beyond 1e-324 to 1e308")],
        ),
        (b'{"name": "sk-secret\\udc00x"}', 400, "a string has a lone surrogate at line 1 column 25", []),
        (b'{"name": "a", "name": "sk-secret"}', 400, "duplicate key `name` at line 1 column 22", []),
        (b'{"name": "sk-secret"', 400, "the document ends inside an object at line 1 column 20", []),
        (b"[" * 5000, 400, "nested deeper than 64 at line 1 column 202", []),
        (b"", 400, "the body is empty; send one JSON document", []),
    ],
)
async def test_s3_4_ij_01_ordinary_routes_read_as_strictly(body: bytes, status: int, detail: str, errors: list[tuple[str, str]]) -> None:
    response = await ask("POST", "/tenants", content=body, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["detail"]) == (status, detail)
    assert [(error["pointer"], error["detail"]) for error in response.json().get("errors", [])] == errors
    assert "secret" not in response.text


async def test_s3_4_ordinary_routes_take_only_json_within_the_limit() -> None:
    assert (await ask("POST", "/tenants", json={"name": "acme", "size": 2.0})).json() == "acme"
    response = await ask("POST", "/tenants", content=b"{}", headers={"content-type": "text/plain"})
    assert (response.status_code, response.json()["code"]) == (415, "unsupported_media_type")
    response = await ask("POST", "/tenants", content=b" " * 1_048_577, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (413, "body_too_large")


async def test_a_wrong_parameter_is_named_with_its_place() -> None:
    response = await ask("POST", "/tenants?limit=sk-secret", json={"name": "acme"})
    assert response.json()["errors"] == [{"pointer": "/query/limit", "detail": "must be an integer"}]
    assert response.json()["detail"] == "1 error"


async def test_the_last_resort_says_nothing_and_logs_everything() -> None:
    with capture_logs() as logs:
        response = await ask("GET", "/broken")
    assert response.json() == {
        "type": "/problems/internal_error",
        "title": "Something went wrong here",
        "status": 500,
        "detail": "an unexpected error; it was logged under trace_id",
        "code": "internal_error",
        "retryable": "never",
        "trace_id": TRACE,
    }
    assert [(line["event"], line["trace_id"], line["method"]) for line in logs] == [("unexpected_error", TRACE, "GET")]


async def test_an_outage_is_logged_under_the_trace_id_that_its_answer_names() -> None:
    """S3.10, S11.2: what was away, by its kind alone."""
    with capture_logs() as logs:
        response = await ask("GET", "/away")
    assert (response.status_code, response.json()["trace_id"]) == (503, TRACE)
    assert logs == [{"event": "unavailable", "trace_id": TRACE, "method": "GET", "cause": "ConnectionRefusedError", "log_level": "warning"}]


def test_s3_12_a_problem_is_told_in_the_documents_locale_and_the_asked_format() -> None:
    error = RequestInvalid((("/turn", "必须是整数"), ("/tenant", "未知字段；租户由密钥决定")))
    document = told(problem(error, TRACE, CheckedCall("refund", "call_01", "anthropic", ("zh", "en"))))
    message = "/turn：必须是整数；/tenant：未知字段；租户由密钥决定"
    assert document["fix_hint"]["message"] == message
    assert document["tool_result"] == {
        "type": "tool_result",
        "tool_use_id": "call_01",
        "is_error": True,
        "content": [
            {
                "type": "text",
                "text": f'{{"fix_hint":"{message}","guard_rejected":true,"next_action":"请根据 fix_hint 调整参数后重新调用 refund",'
                '"reason":"request_invalid"}',
            }
        ],
    }


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (DecisionUnavailable(), "未能作出决定；请按拒绝处理，并原样重发本次调用"),
        (RuntimeError("secret"), "未能作出决定；请按拒绝处理，并原样重发本次调用"),
        (Unauthenticated("the key was revoked"), "需要有效的密钥"),
        (NotPermitted("this needs a key with the role agent"), "该密钥无权执行此操作"),
    ],
)
def test_s3_12_what_comes_after_the_body_is_told_in_chinese(error: Exception, message: str) -> None:
    document = told(problem(error, TRACE, CheckedCall("refund", "c", "generic", ("zh-CN", "zh", "en"))))
    assert (document["fix_hint"]["message"], document["tool_result"]["content"]["fix_hint"]) == (message, message)
    assert document["detail"].isascii()


@pytest.mark.parametrize("format_", ["generic", "openai", "openai_responses", "anthropic", "mcp"])
def test_s3_4_a_problem_has_the_message_in_each_format(format_: str) -> None:
    document = told(problem(BodyMalformed("the body is empty; send a JSON document"), TRACE, CheckedCall(format=format_)))
    text = json.dumps(document["tool_result"])
    assert "body_malformed" in text
    assert ('"is_error": true' in text, '"isError": true' in text) == (format_ in ("generic", "anthropic"), format_ == "mcp")
