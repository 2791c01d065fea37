"""Who calls: the bearer key of the Authorization header, and nothing else (SPEC S12.1, S12.4)."""

from __future__ import annotations

from collections.abc import Iterable

from app.domain.errors import Unauthenticated

TOKEN_LENGTH_MAX = 512
NEEDED = "send one header `Authorization` with the scheme `Bearer` and a key"  # written out, it would be redacted as a credential


def bearer_token(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Give the key of a request's raw headers.

    Raises:
        Unauthenticated: there is none, or more than one, or it isn't a bearer token.
    """
    found = [value for name, value in headers if name == b"authorization"]
    if len(found) != 1:
        raise Unauthenticated(NEEDED)
    scheme, _, token = found[0].partition(b" ")
    token = token.strip()
    if scheme.lower() != b"bearer" or not token or len(token) > TOKEN_LENGTH_MAX or not all(33 <= byte <= 126 for byte in token):
        raise Unauthenticated(NEEDED)
    return token.decode("ascii")
