"""Anticipated failures, each named for what is wrong. They carry no status code: `api/problems` maps them."""

from __future__ import annotations

from app.domain.limits import Standing


class PlacetError(Exception):
    """The root of every anticipated failure; the message says what to do."""


class BodyMalformed(PlacetError):
    """The body is not one exact JSON document (400)."""

    def __init__(self, detail: str, pointer: str = "") -> None:
        super().__init__(detail)
        self.pointer = pointer


class BodyTooSlow(PlacetError):
    """The body wasn't complete in time (408)."""

    def __init__(self, within_s: float) -> None:
        super().__init__(f"the body was not complete within {within_s:g} s; send it faster")


class BodyTooLarge(PlacetError):
    """The body is over the limit; no more than the limit was read (413)."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is over {limit} bytes; send a smaller one")
        self.limit = limit


class UnsupportedMediaType(PlacetError):
    """The body is declared as something else than plain JSON (415)."""


class ClientDisconnected(PlacetError):
    """The client went away before its body was complete; nobody reads an answer."""


class RequestInvalid(PlacetError):
    """The envelope has unknown or mistyped fields (422). `errors` are (pointer, detail)."""

    def __init__(self, errors: tuple[tuple[str, str], ...]) -> None:
        super().__init__(f"{len(errors)} error" + ("s" if len(errors) != 1 else ""))
        self.errors = errors


class Unauthenticated(PlacetError):
    """No valid key (401)."""


class NotPermitted(PlacetError):
    """The key lacks the role (403)."""


class NotFound(PlacetError):
    """There is no such thing, or the principal may not know of it (404)."""


class Conflict(PlacetError):
    """A thing of that name is there, or it moved on (409)."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class IdempotencyKeyReused(PlacetError):
    """The Idempotency-Key came before with another body or route (422)."""


class IdempotencyInProgress(PlacetError):
    """The request that first came with this Idempotency-Key isn't answered yet (409)."""


class DecisionUnavailable(PlacetError):
    """No decision could be recorded; nothing was kept (503)."""

    def __init__(self, detail: str = "the decision could not be recorded; treat it as refused", retry_after_s: int = 2) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class TooManyRequests(PlacetError):
    """A key is over one of its limits (429). `retry_after_s` None: waiting doesn't help, because the limit is 0."""

    def __init__(self, detail: str, retry_after_s: int | None, standing: Standing) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s
        self.standing = standing


class RateLimited(TooManyRequests):
    """The minute's requests are spent."""


class TooManyUnderWay(TooManyRequests):
    """As many requests as the key may have at once aren't answered yet."""


class PolicyInvalid(PlacetError):
    """A bundle is broken and was refused whole; the active one stays."""

    def __init__(self, faults: tuple[PolicyFault, ...]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults[:20]))
        self.faults = faults


class PolicyFault:
    """One fault of a bundle: where it is and what was expected there."""

    __slots__ = ("expected", "file", "line", "message")

    def __init__(self, file: str, line: int | None, message: str, expected: str) -> None:
        self.file, self.line, self.message, self.expected = file, line, message, expected

    def __str__(self) -> str:
        return f"{self.file}:{self.line or 1}: {self.message}; expected {self.expected}"
