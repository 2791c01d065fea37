"""Which texts have the form of a credential (S10.3): found in longer texts, replaced to their end, and never at a length's expense."""

from __future__ import annotations

from time import perf_counter

import pytest

from app.domain.credentials import is_dense, looks_like_credential, without_credentials

PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("sk-live-abc", "[redacted]"),
        ("the key sk_test_51Habcdef, please", "the key [redacted], please"),
        ("sk-abcdefghijklmnop", "[redacted]"),
        ("(ghp_abcdefghijklmnopqrst)", "([redacted])"),
        ("xoxb-1234567", "[redacted]"),
        ("see AKIAIOSFODNN7EXAMPLE now", "see [redacted] now"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.sig_", "[redacted]"),
        (f"here: {PEM} end", "here: [redacted] end"),
        ("-----BEGIN RSA", "[redacted]"),
        ("Bearer supersecret", "Bearer [redacted]"),
        ("sent with Bearer abc.def-123", "sent with Bearer [redacted]"),
        ("Basic dXNlcjpwYXNz", "Basic [redacted]"),
        ("postgresql://user:pass@host/db", "postgresql://[redacted]@host/db"),
        ("redis://:pass@host", "redis://[redacted]@host"),
        ("password=hunter", "password=[redacted]"),
        ("password: hunter2", "password: [redacted]"),
        ('{"password": "hunter", "a": 1}', '{"password": "[redacted]", "a": 1}'),
        ("https://x/?access_token=abcd&x=1", "https://x/?access_token=[redacted]&x=1"),
        ("Cookie: sid=abc; theme=dark", "Cookie: [redacted]"),
        ("Authorization: Digest hunter", "Authorization: [redacted]"),
        ("placet_acme_" + "aB3" * 14, "[redacted]"),
        ("sk-\u200blive-abcdef", "[redacted]"),
        ("Ｂｅａｒｅｒ　ａｂｃｄｅｆ１２３", "Ｂｅａｒｅｒ　[redacted]"),
    ],
)
def test_s10_3_a_credential_is_found_and_replaced_to_its_end(text: str, clean: str) -> None:
    assert looks_like_credential(text)
    assert without_credentials(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn-tutorial", "pk_customer_id", "risk-assessment-2024x", "desk-lamp-1234567890", "basic subscription",
        "the bearer understands that", "bearer of news", "asiapacificregion", "token: see docs", "the password is wrong",
        "token_count=4096", "max_tokens: 4096", "2024-01-15T10:00:00Z", "https://example.com:8080/a@b", "the secret: nobody knows",
        "cookie: must be set", "authorization: customer agreed by phone", "placet_unauthenticated_requests_total",
        "sha256:" + "0a1" * 21 + "f", "eyjafjallajokull.is", "01a230d5-2fd8-7907-9af2-55e55f2a8983",
        "01A230D5-2FD8-7907-9AF2-55E55F2A8983", "file:Shop_Repo/src/Main/Application1/ConfigurationLoader",
        "Order-1001-Item-2002-Box-3003-Row-4004", "call_01A09q90qw90lq917835lq9", "退款：顾客说杯子碎了，请尽快处理这个订单",
    ],
)  # fmt: skip
def test_s10_3_what_is_none_stays(text: str) -> None:
    assert not looks_like_credential(text)
    assert not is_dense(text)
    assert without_credentials(text) == text


def test_a_run_as_a_generator_makes_it_is_dense() -> None:
    key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    assert is_dense(f"with {key}.")
    assert without_credentials(f"with {key}.") == "with [redacted]."
    assert without_credentials(f"with {key}.", dense=False) == f"with {key}."
    assert not is_dense("aB1" * 200), "that is somebody's file"


@pytest.mark.parametrize(
    "piece",
    ["a", "sk-", "://", "://a:", "bearer ", "Bearer aaaaaaa ", "password ", "token-", "aB1", "-----begin", "basic ", "basic aaaaaaaa ",
     "authorization: ", "cookie: a=", "é", "eyJaaaaaaaaa", "key: a:", "Token token=a", "key_", " "],
)  # fmt: skip
def test_no_text_takes_long(piece: str) -> None:
    text = (piece * (1_000_000 // len(piece) + 1))[:1_000_000]
    started = perf_counter()
    looks_like_credential(text)
    is_dense(text)
    without_credentials(text)
    assert perf_counter() - started < 5  # a form that goes back and forth would take hours
