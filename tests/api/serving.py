"""The whole application over a shop's database, asked in this process: its lifespan, its lanes, its middleware."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import structlog
from fastapi import FastAPI

from app.main import create_app
from app.settings import Settings
from tests.engine.shop import Shop, with_database

PROBLEM = "application/problem+json"
REFUND: Mapping[str, Any] = {"order_id": "A-1001", "amount": 20, "currency": "EUR", "cause": "damaged"}


class Client(httpx.AsyncClient):
    """Asks as the holder of a key."""

    app: FastAPI

    async def ask(self, method: str, path: str, token: str | None = None, body: object = ..., **more: Any) -> httpx.Response:
        headers = dict(more.pop("headers", {}))
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        if isinstance(body, bytes):
            more["content"] = body
        elif body is not ...:
            more["content"] = json.dumps(body).encode()
        if "content" in more:
            headers.setdefault("content-type", "application/json")
        return await self.request(method, path, headers=headers, **more)

    async def check(self, token: str, call_id: str, **more: Any) -> httpx.Response:
        """Check a refund of 20.00 EUR; `arguments` overlays its arguments, anything else the envelope."""
        body = {
            "tool": "refund",
            "arguments": {**REFUND, **more.pop("arguments", {})},
            "session_id": "chat-1",
            "call_id": call_id,
            "on_behalf_of": {"id": "cust-77", "segment": "standard"},
            **more,
        }
        return await self.ask("POST", "/tool-calls/check", token, body)


@asynccontextmanager
async def serving(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    """Serve over a shop."""
    with tempfile.TemporaryDirectory(prefix="placet-api-") as folder:
        own = replace(settings, database=replace(settings.database, url=shop.url), folders=replace(settings.folders, data=Path(folder)))
        app = create_app(own)
        structlog.configure(cache_logger_on_first_use=False)  # or no later test could look at what is logged
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with app.router.lifespan_context(app), Client(transport=transport, base_url="http://placet.test") as client:
            client.app = app
            yield client


def code(answer: httpx.Response) -> tuple[int, str]:
    """Give a problem's status and code, after a look at what all problems have."""
    assert answer.headers["content-type"] == PROBLEM, answer.text
    document = answer.json()
    assert document["status"] == answer.status_code
    assert document["type"] == f"/problems/{document['code']}"
    assert len(document["trace_id"]) == 32
    return answer.status_code, document["code"]


async def take_away(shop: Shop) -> None:
    """Let nobody reach a shop's database any more."""
    database = await shop.value("SELECT current_database()")
    elsewhere = await asyncpg.connect(with_database(shop.superuser_url, "postgres"))
    try:
        await elsewhere.execute(f"ALTER DATABASE {database} WITH CONNECTION LIMIT 0")
        await elsewhere.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", database)
    finally:
        await elsewhere.close()
