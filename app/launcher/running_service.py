"""Asks the service that runs at an address, as its clients do, whether it is a Placet and ready."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from app.settings import Listening

ANSWER_WITHIN_S = 3.0
EVERYWHERE = ("0.0.0.0", "::", "")


def address_of(listening: Listening) -> str | None:
    """Give the address that a service with these settings has; None where it takes any free port."""
    if listening.port == 0:
        return None
    host = "127.0.0.1" if listening.host in EVERYWHERE else listening.host
    return f"http://[{host}]:{listening.port}" if ":" in host else f"http://{host}:{listening.port}"


def readiness_at(address: str) -> Mapping[str, str] | None:
    """Give what the service says of itself, each check with `ok` or what is wrong; None where none answers, or something else does."""
    try:
        answer = httpx.get(f"{address.rstrip('/')}/readyz", timeout=ANSWER_WITHIN_S, trust_env=False).json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None
    checks = answer.get("checks") if isinstance(answer, dict) else None
    return {str(name): str(said) for name, said in checks.items()} if isinstance(checks, dict) else None
