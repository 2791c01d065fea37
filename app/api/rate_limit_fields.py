"""The fields `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers (structured fields, RFC 9651).

They are hints for the client: what is available is what this worker knows, and no promise.
"""

from __future__ import annotations

from functools import lru_cache

from app.domain.limits import WINDOW_S, Standing

POLICY = b"ratelimit-policy"
LIMIT = b"ratelimit"
REQUESTS = "requests"
CONCURRENT = "concurrent"


def fields_of(standing: Standing, *, none_at_once: bool = False) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    """Give both headers; `none_at_once` where the limit of concurrent requests is what was hit."""
    available = b'"requests";r=%d;t=%d' % (standing.remaining, standing.resets_in_s)
    if none_at_once:
        available += b', "concurrent";r=0'
    return (POLICY, _policy(standing.requests_per_minute, standing.concurrent)), (LIMIT, available)


@lru_cache(maxsize=1024)
def _policy(requests: int, concurrent: int) -> bytes:
    return f'"{REQUESTS}";q={requests};w={WINDOW_S}, "{CONCURRENT}";q={concurrent};qu="concurrent-requests"'.encode()
