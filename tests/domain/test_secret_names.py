"""Which names say that a secret stands under them (S10.3, AS-03): spelled as anyone would, and not the harmless ones beside them."""

from __future__ import annotations

import pytest

from app.domain.secret_names import NameKind, kind_of

SECRET = [
    "password", "Password", "PASSWORD", "PaSsWoRd", "MYPASSword", "user_password", "dbPasswd", "pass word", "pass-word",
    "p.a.s.s.w.o.r.d", "password\u200b", "pass\u00adword", "pa\u0301ssword", "pass\u3164word", "ｐａｓｓｗｏｒｄ", "to\x1bken", "token",
    "Token", "token\u200b", "to-ken", "accessToken", "access_token", "X-Auth-Token", "tOKEN", "Api-Key", "apiKey", "APIKey", "api key",
    "x_api_key", "X-Api-Key", "private_key", "PrivateKey", "clientSecret", "client_secret", "secret", "Secret:",
    "aws_secret_access_key", "credentials", "dsn", "cvv", "pin", "pwd", "jwt", "密码", "用户密码", "令牌", "passphrase",
    "connection_string",
    "bootstrap_key", "session-key", "signingKey",
]  # fmt: skip
SECRET_TEXT = [
    "Authorization",
    "authorization",
    "Proxy-Authorization",
    "cookie",
    "Set-Cookie",
    "cookies",
    "tokens",
    "max_tokens",
    "maxToken",
]
IDENTIFIER = ["order_id", "orderId", "orderid", "ids", "sha256", "digest", "authorization_id", "access_key_id", "file_path", "url"]
PLAIN = [
    "amount", "note", "author", "secretary", "secretaryName", "secretion", "token_count", "tokenCount", "tokencount", "cookie_consent",
    "cookiePolicy", "password_changed_at", "tokenizer", "tokenized", "sendToKenya", "ship_to_kentucky", "monkey", "keyboard", "key",
    "primary_key", "public_key", "idempotency_key", "boarding_pass", "compassion", "pinned", "authorised_by", "description", "", "---",
    "\u200b",
]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (SECRET, NameKind.SECRET),
        (SECRET_TEXT, NameKind.SECRET_TEXT),
        (IDENTIFIER, NameKind.IDENTIFIER),
        (PLAIN, NameKind.PLAIN),
    ],
)
def test_s10_3_what_stands_under_a_name(names: list[str], kind: NameKind) -> None:
    assert {name: kind_of(name) for name in names} == dict.fromkeys(names, kind)


def test_a_long_name_is_judged_and_not_kept() -> None:
    long = "x" * 100_000 + "_password"
    before = kind_of.__globals__["_kind_of_short"].cache_info().currsize
    assert kind_of(long) is NameKind.SECRET
    assert kind_of.__globals__["_kind_of_short"].cache_info().currsize == before
