"""How much a key may ask for, and how far it has got: values only (SPEC 12.2).

Limits hang on the key that was authenticated and on nothing that a caller sends; no address is ever part of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

WINDOW_S = 60
REQUESTS_PER_MINUTE_MAX = 10_000_000
CONCURRENT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """A key's own limits; None is the service's default, 0 stops the first request."""

    requests_per_minute: int | None = None
    concurrent: int | None = None


DEFAULT_LIMITS = KeyLimits()


class Standing(NamedTuple):
    """A key's limits and what is left of the window's requests, as far as this worker knows: `remaining` is never too small."""

    requests_per_minute: int
    concurrent: int
    remaining: int
    resets_in_s: int
