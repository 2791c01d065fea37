"""Sends many hostile requests to the application and says what each answer has to have, whatever was sent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import jiter

from tests.api.serving import Client
from tests.cases.stage import with_tool
from tests.engine.shop import Shop

AT_ONCE = 8
TRIES_MAX = 6
BUSY = (429, 503)
CHECK = "/tool-calls/check"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer, read strictly: what a caller can't read is a fault of ours."""

    status: int
    document: Any
    text: str

    @property
    def said(self) -> str:
        """The decision, or the problem's status and code."""
        if "decision" in self.document:
            return str(self.document["decision"])
        return f"{self.status} {self.document['code']}"


def answered(answer: httpx.Response) -> Answered:
    """Read an answer, and assert what holds of all: no 5xx, JSON, and nothing permitted by a problem or a refusal."""
    text = answer.content.decode("utf-8")  # a lone surrogate or half a character doesn't pass
    assert answer.status_code < 500, text
    document = jiter.from_json(answer.content, catch_duplicate_keys=True, float_mode="decimal")
    if answer.request.url.path == CHECK:
        permitted = isinstance(document, dict) and document["execution_permitted"]
        assert permitted is (answer.status_code == 200 and document["decision"] == "accepted"), text
    return Answered(answer.status_code, document, text)


async def each(work: Iterable[T], send: Callable[[T], Awaitable[httpx.Response]], *, plain: bool = False) -> list[tuple[T, Answered]]:
    """Send everything, AT_ONCE at a time, and give the answers in the order of the work; `plain`: an answer may be no JSON."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(item: T) -> tuple[T, Answered]:
        async with places:
            answer = await send(item)
            for _ in range(TRIES_MAX):  # what a string causes comes again; what the machine was too busy for doesn't
                if answer.status_code not in BUSY:
                    break
                await asyncio.sleep(1)
                answer = await send(item)
            if plain and not answer.headers.get("content-type", "").partition(";")[0].endswith("json"):
                assert answer.status_code < 500, answer.text
                return item, Answered(answer.status_code, None, answer.text)
            return item, answered(answer)

    return list(await asyncio.gather(*(one(item) for item in work)))


async def take_notes(client: Client, shop: Shop, **more: str) -> None:
    """Let acme have a tool `note` that takes any value as its argument `note`, and any other argument; `more` are sections of its file."""
    files = with_tool("note", "{type: object, properties: {note: {}, text: {type: string}}, additionalProperties: true}", **more)
    stored = await client.ask("POST", "/policies", shop.acme.tokens["author"], {"files": files})
    assert stored.status_code == 201, stored.text
    active = await client.ask("POST", f"/policies/{stored.json()['version']}/activation", shop.acme.tokens["operator"])
    assert active.status_code == 200, active.text


@dataclass(frozen=True, slots=True)
class Route:
    """A route that takes a body, where to send it, and a key that may use it."""

    method: str
    path: str
    place: str
    token: str

    async def send(self, client: Client, body: object, **headers: Any) -> httpx.Response:
        return await client.ask(self.method, self.place, self.token, body, headers=headers)


async def contract(client: Client) -> dict[str, Any]:
    return dict((await client.ask("GET", "/openapi.json")).json()["paths"])


async def writing_routes(client: Client, shop: Shop) -> list[Route]:
    """Find the routes that take a body in what is served, each with a key that isn't refused there; the check route isn't among them."""
    found = []
    for path, operations in (await contract(client)).items():
        for method in operations.keys() & {"post", "put", "patch"}:
            if "requestBody" not in operations[method] or path == CHECK:
                continue
            place = filled(path, str(shop.acme.key_ids["other"]))
            for token in (shop.platform_token, *shop.acme.tokens.values()):
                answer = await client.ask(method.upper(), place, token, [])
                if answer.status_code != 403:
                    found.append(Route(method.upper(), path, place, token))
                    break
            else:
                raise AssertionError(f"nobody may use {method} {path}")
    return found


def filled(path: str, value: str) -> str:
    """Put a value in the place of a path's parameters."""
    return re.sub(r"\{[a-z_]+\}", lambda _: quote(value, safe=""), path)
