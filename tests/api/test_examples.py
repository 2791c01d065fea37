"""The contract's examples are what happens (S14.3): each request is made, and its answer held against the written one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from app.api.examples import CHECK_PROBLEMS, OPERATIONS, PROBLEMS, Exchange, exchanges
from app.api.json_body import BODY_BYTES_MAX, BODY_WITHIN_S
from app.settings import Settings
from tests.api.exchanges import BASE, Pairs, differences, make, record
from tests.api.serving import Client, serving, take_away
from tests.api.test_openapi import DOCUMENT, as_the_contract_says
from tests.engine.shop import Shop

RECORD = os.environ.get("PLACET_RECORD_EXAMPLES") == "1"
ROUTES = {operation["operationId"]: (method, path) for path, item in DOCUMENT["paths"].items() for method, operation in item.items()}


@pytest.fixture
async def client(settings: Settings, shop: Shop) -> AsyncIterator[Client]:
    async with serving(settings, shop) as client:
        yield client


class Stage:
    """Makes exchanges, each as the holder of the key that it names, and collects what isn't as it is written."""

    def __init__(self, client: Client, shop: Shop) -> None:
        self._client = client
        self._tokens: dict[str | None, str | None] = {None: None, "platform": shop.platform_token}
        self._tokens.update(shop.acme.tokens)
        self._pairs = Pairs()
        self._made = 0
        self.faults: list[str] = []

    async def play(self, file: str, situation: str | None = None, **more: Any) -> None:
        """Make the exchanges of a file that happen in a situation; `more` stands for the tokens and contents that it needs."""
        token, sent = more.get("token", ...), more.get("content")
        for exchange in exchanges(file):
            if exchange.situation == situation:
                method, path = ROUTES[exchange.operation]
                asked_by = self._tokens[exchange.asked_by] if token is ... else token
                content = sent() if sent is not None else None
                answer = await make(self._client, asked_by, exchange, path, method, self._pairs, content)
                self._look(file, exchange, answer)

    def _look(self, file: str, exchange: Exchange, answer: httpx.Response) -> None:
        """Hold an answer against the contract and against what is written; or write it."""
        self._made += 1
        if RECORD:
            text = not answer.headers["content-type"].endswith("json")
            moment = BASE + timedelta(seconds=self._made)
            record(file, exchange.name, answer.text.partition("# TYPE")[0] if text else self._pairs.write(answer.json(), moment))
            if answer.status_code != exchange.status:
                self.faults.append(f"{file} {exchange.name}: {answer.status_code} for {exchange.status}: {answer.text[:300]}")
            return
        self.faults += [f"{file} {exchange.name}: {fault}" for fault in differences(exchange, answer, self._pairs)]
        as_the_contract_says(answer, *ROUTES[exchange.operation])


async def test_s14_3_each_example_is_what_happens(client: Client, shop: Shop) -> None:
    stage = Stage(client, shop)
    for file in (*OPERATIONS, PROBLEMS, CHECK_PROBLEMS):
        await stage.play(file)
    for file in (PROBLEMS, CHECK_PROBLEMS):
        await stage.play(file, "large", content=lambda: b" " * (BODY_BYTES_MAX + 1))
    assert stage.faults == []


async def test_s12_2_a_spent_limit_is_told_as_written(client: Client, shop: Shop) -> None:
    stage = Stage(client, shop)
    for file, role, path in ((PROBLEMS, "operator", "/keys"), (CHECK_PROBLEMS, "agent", "/tool-calls/check")):
        wanted = {"subject": "hasty", "roles": [role], "limits": {"requests_per_minute": 1, "concurrent": 1}}
        made = (await client.ask("POST", "/keys", shop.acme.tokens["operator"], wanted)).json()
        await client.ask("GET" if role == "operator" else "POST", path, made["secret"])
        await stage.play(file, "limited", token=made["secret"])
    assert stage.faults == []


async def test_s3_9_a_request_that_still_runs_is_told_as_written(client: Client, shop: Shop) -> None:
    stage = Stage(client, shop)
    running = next(each for each in exchanges(PROBLEMS) if each.situation == "unfinished")
    await client.ask("POST", "/keys", shop.acme.tokens["operator"], running.body, headers=dict(running.headers))
    await shop.execute("UPDATE placet.idempotency_keys SET answer_status = NULL, answer = NULL")
    await stage.play(PROBLEMS, "unfinished")
    assert stage.faults == []


async def test_s3_10_an_outage_is_told_as_written(own_shop: Shop, settings: Settings) -> None:
    async with serving(settings, own_shop) as client:
        stage = Stage(client, own_shop)
        await client.check(own_shop.acme.tokens["agent"], "c1")
        await take_away(own_shop)
        for file in (PROBLEMS, CHECK_PROBLEMS, "readyz"):
            await stage.play(file, "outage")
        assert stage.faults == []


@pytest.mark.slow
async def test_s3_4_a_body_that_comes_too_slowly_is_told_as_written(client: Client, shop: Shop) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(BODY_WITHIN_S + 1)
        yield b"}"

    stage = Stage(client, shop)
    await asyncio.gather(*(stage.play(file, "slow", content=slowly) for file in (PROBLEMS, CHECK_PROBLEMS)))
    assert stage.faults == []


def test_each_situation_has_its_test() -> None:
    situations = {each.situation for file in (*OPERATIONS, PROBLEMS, CHECK_PROBLEMS) for each in exchanges(file)}
    assert situations == {None, "large", "limited", "outage", "slow", "unfinished"}
