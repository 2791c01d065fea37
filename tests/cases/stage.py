"""What a case is played on: a running service with two workers, tenants of the case's own, and the superuser's view of what is stored.

Everything that a caller could do goes over HTTP. The superuser sets the stage (orders, seeded counters) and reads what was stored; it never
does what the service should have done.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import jiter

from app.domain.tool_call import Role
from app.policy.compile import load_directory
from app.settings import PROJECT
from tests.faults.service import Service

SHOP: Mapping[str, str] = load_directory(PROJECT / "policies" / "shop")
BOOTSTRAP_KEY = "bootstrap-key-of-the-cases-0123456789"
CUSTOMER = {"id": "cust-77", "segment": "standard"}
CONNECTIONS = 48
Json = Any


class Text(str):
    """A JSON value as it is to be written, character by character: `Text("1.4505e2")`."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer: `at` reads by a pointer, numbers are exact."""

    status: int
    body: Json
    headers: httpx.Headers
    text: str

    def __getitem__(self, name: str) -> Json:
        return self.body[name]

    @property
    def said(self) -> tuple[str, str]:
        """The decision and its reason; a problem's status and code stand in their place."""
        if self.status == 200:
            return self.body["decision"], self.body["reason"]
        return str(self.status), self.body["code"]

    @property
    def holds(self) -> dict[str, tuple[str, str]]:
        return {hold["account"]: (hold["quantity"]["amount"], hold["quantity"].get("currency", "")) for hold in self.body["holds"]}

    def check(self, name: str) -> Json:
        """Give a check of any layer by its name."""
        return next(check for layer in self.body["layers"] for check in layer["checks"] if check["name"] == name)


@dataclass(eq=False)
class Tenant:
    """A tenant of one test. Keys are made when they are first asked for."""

    stage: Stage
    name: str
    tenant_id: uuid.UUID
    keys: dict[str, str] = field(default_factory=dict)
    key_ids: dict[str, str] = field(default_factory=dict)

    async def key(self, role: str = "agent", subject: str | None = None, **more: object) -> str:
        """Give the key of a subject with this role."""
        subject = subject or f"the-{role}"
        if subject not in self.keys:
            segments = ["standard", "trusted_buyer"] if role == Role.AGENT else []
            asked = {"tenant": self.name, "subject": subject, "roles": [role], "segments": segments} | more
            made = await self.stage.post("/keys", BOOTSTRAP_KEY, asked)
            assert made.status == 201, made.text
            self.keys[subject], self.key_ids[subject] = made["secret"], made["key_id"]
        return self.keys[subject]

    async def activate(self, files: Mapping[str, str]) -> None:
        """Store a bundle as an author and make it active as an operator."""
        stored = await self.stage.post("/policies", await self.key("author"), {"files": dict(files)})
        assert stored.status == 201, stored.text
        active = await self.stage.post(f"/policies/{stored['version']}/activation", await self.key("operator"), None)
        assert active.status == 200, active.text

    async def order(self, order_id: str, paid: int, currency: str = "EUR", status: str = "delivered", **more: object) -> str:
        """Put an order of so many minor units into the shop."""
        await self.stage.superuser.execute(
            "INSERT INTO shop.customers (tenant, customer_id, name) VALUES ($1, $2, 'Ada') ON CONFLICT DO NOTHING",
            self.name,
            more.get("customer", "cust-77"),
        )
        await self.stage.superuser.execute(
            "INSERT INTO shop.orders (tenant, order_id, customer_id, status, currency, paid_minor, refunded_minor)"
            " VALUES ($1, $2, $3, $4, $5, $6, $7)",
            self.name,
            order_id,
            more.get("customer", "cust-77"),
            status,
            currency,
            paid,
            more.get("refunded", 0),
        )
        return order_id

    async def refund(self, order_id: str, amount: str, call_id: str | None = None, currency: str = "EUR", **more: Any) -> Answer:
        """Ask for a refund; the amount is written as it stands."""
        arguments = {"order_id": order_id, "amount": Text(amount), "currency": currency, "cause": "damaged"} | more.pop("extra", {})
        return await self.call("refund", arguments, call_id, **{"on_behalf_of": CUSTOMER, **more})

    async def call(self, tool: str, arguments: Json, call_id: str | None = None, **more: Any) -> Answer:
        key = more.pop("key", None) or await self.key()
        return await self.stage.check(key, call(tool, arguments, call_id, **more))

    async def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """Read as the superuser; $1 is this tenant's id."""
        return [dict(row) for row in await self.stage.superuser.fetch(sql, self.tenant_id, *values)]

    async def value(self, sql: str, *values: object) -> Any:
        return await self.stage.superuser.fetchval(sql, self.tenant_id, *values)

    async def held(self, account: str) -> int:
        """Give what an account holds in minor units, 0 where there is none."""
        return int(await self.value("SELECT held FROM placet.accounts WHERE tenant_id = $1 AND account = $2", account) or 0)

    async def decisions(self) -> int:
        return int(await self.value("SELECT count(*) FROM placet.decisions WHERE tenant_id = $1"))

    async def events(self, event: str = "%") -> list[dict[str, Any]]:
        """Give the bodies of audit rows in the chain's order."""
        found = await self.rows("SELECT body FROM placet.audit_rows WHERE tenant_id = $1 AND event LIKE $2 ORDER BY sequence", event)
        return [jiter.from_json(row["body"].encode(), float_mode="decimal") for row in found]

    async def is_sound(self) -> None:
        """Assert what must hold whatever was asked: sums are those of the holds, the chain is one line and verifies."""
        wrong = await self.rows(
            "SELECT a.account, a.held, sum(h.quantity) FROM placet.accounts a LEFT JOIN placet.holds h USING (tenant_id, account)"
            " WHERE a.tenant_id = $1 GROUP BY a.account, a.held HAVING a.held <> coalesce(sum(h.quantity), 0)"
        )
        assert wrong == []
        chain = await self.rows("SELECT sequence, previous_hash FROM placet.audit_rows WHERE tenant_id = $1 ORDER BY sequence")
        assert [row["sequence"] for row in chain] == list(range(1, len(chain) + 1))
        assert len({row["previous_hash"] for row in chain}) == len(chain)
        decided = await self.value("SELECT count(*) FROM placet.audit_rows WHERE tenant_id = $1 AND event = 'tool_call.decided'")
        assert decided == await self.decisions()
        report = await self.stage.get("/audit/verification", await self.key("auditor"))
        assert (report.status, report["verified"]) == (200, True), report.text


class Stage:
    """One test's client and superuser connection on the running service."""

    def __init__(self, service: Service, client: httpx.AsyncClient, superuser: asyncpg.Connection) -> None:
        self.service = service
        self.client = client
        self.superuser = superuser
        self.host, self.port = urlsplit(service.url).hostname, urlsplit(service.url).port

    async def tenant(self, files: Mapping[str, str] | None = None) -> Tenant:
        """Make a tenant with the shop's bundle, or with `files`."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        made = await self.post("/tenants", BOOTSTRAP_KEY, {"tenant": name})
        assert made.status == 201, made.text
        tenant = Tenant(self, name, uuid.UUID(made["tenant_id"]))
        if files is not None:
            await tenant.activate(files)
        await tenant.key()
        return tenant

    async def check(self, key: str, document: Json) -> Answer:
        return await self.send("POST", "/tool-calls/check", key, written(document))

    async def get(self, path: str, key: str | None = None, **headers: str) -> Answer:
        return await self.send("GET", path, key, None, headers)

    async def post(self, path: str, key: str | None, document: Json, **headers: str) -> Answer:
        return await self.send("POST", path, key, None if document is None else written(document), headers)

    async def send(
        self, method: str, path: str, key: str | None, body: bytes | AsyncIterator[bytes] | None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        sent = {"content-type": "application/json"} if body is not None else {}
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        response = await self.client.request(method, path, content=body, headers=sent | dict(headers or {}))
        read = jiter.from_json(response.content, float_mode="decimal") if "json" in response.headers.get("content-type", "") else None
        return Answer(response.status_code, read, response.headers, response.text)

    async def metrics(self) -> dict[str, float]:
        """Give every series of a scrape."""
        scraped = await self.client.get("/metrics")
        assert scraped.status_code == 200
        lines = [line.rpartition(" ") for line in scraped.text.splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, _, value in lines}

    async def counted(self, name: str, **labels: str) -> float:
        """Add up the series of a metric that have these labels."""
        return counted(await self.metrics(), name, **labels)

    def resident_kib(self, what: str = "VmRSS") -> dict[int, int]:
        """Give each worker's memory."""
        return {pid: resident_kib(pid, what) for pid in self.service.workers}

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection of our own, for what no client library would do."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def request(self, key: str | None, body: bytes, *headers: str, path: str = "/tool-calls/check", length: bool = True) -> bytes:
        """Write a POST by hand."""
        lines = [f"POST {path} HTTP/1.1", f"Host: {self.host}", "Content-Type: application/json", *headers]
        if key is not None:
            lines.append(f"Authorization: Bearer {key}")
        if length:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def staged(service: Service) -> AsyncIterator[Stage]:
    """Open a client and the superuser's connection."""
    superuser = await asyncpg.connect(superuser_url(service.data))
    limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
    try:
        async with httpx.AsyncClient(base_url=service.url, verify=False, limits=limits, timeout=20, trust_env=False) as client:
            yield Stage(service, client, superuser)
    finally:
        await superuser.close()


def superuser_url(data: Path) -> str:
    """Give the address of a service's embedded database."""
    from app.launcher.embedded_postgres import EmbeddedPostgres  # here, so that a reader sees that nothing is started

    return EmbeddedPostgres(data / "postgres").dsn()


def call(tool: str, arguments: Json, call_id: str | None = None, **more: Any) -> dict[str, Any]:
    """Give a check's document; each call has an id of its own unless one is given."""
    document = {"tool": tool, "arguments": arguments, "session_id": "chat-1", "call_id": call_id or f"c-{uuid.uuid4().hex[:12]}"}
    if tool == "search_order":
        document["on_behalf_of"] = CUSTOMER  # a look is always for a customer
    return {name: value for name, value in (document | more).items() if value is not None}


def written(document: Json) -> bytes:
    """Write JSON; `Text` and `Decimal` values as they stand."""
    places: dict[str, str] = {}

    def mark(value: Json) -> Json:
        if isinstance(value, dict):
            return {key: mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [mark(item) for item in value]
        if isinstance(value, Text | Decimal):
            place = f"@{uuid.uuid4().hex}@"
            places[place] = str(value)
            return place
        return value

    text = json.dumps(mark(document), ensure_ascii=True)
    for place, value in places.items():
        text = text.replace(f'"{place}"', value)
    return text.encode()


def changed(file: str, *replacements: tuple[str, str], files: Mapping[str, str] = SHOP) -> dict[str, str]:
    """Give a bundle with texts of one file replaced; each must be there."""
    text = files[file]
    for old, new in replacements:
        assert old in text, f"{old!r} isn't in {file}"
        text = text.replace(old, new)
    return {**files, file: text}


def calm() -> dict[str, str]:
    """Give the shop without budgets, where hardly any refund is a risk: for cases that are about something else."""
    files = changed("tools/refund.yaml", ("weight: 0.8", "weight: 0.08"), ("weight: 0.2,", "weight: 0.02,"))
    return {**files, "thresholds.yaml": files["thresholds.yaml"].split("budgets:")[0]}


def with_tool(name: str, arguments: str, files: Mapping[str, str] = SHOP, **more: str) -> dict[str, str]:
    """Give a bundle with one more tool, a read one without facts, whose arguments' schema is given as JSON."""
    lines = [f"tool: {name}", f"description: {{en: {name}}}", "effect_class: read", f"arguments: {arguments}"]
    lines += [f'scope: {{action: {name}, resource: "file:notes/all"}}', *(f"{key}: {value}" for key, value in more.items())]
    grant = f'      - {{action: {name}, resource: "file:**"}}\n'
    grants = files["grants.yaml"].replace("    scope:\n", "    scope:\n" + grant, 1)
    return {**files, f"tools/{name}.yaml": "\n".join(lines) + "\n", "grants.yaml": grants}


def counted(metrics: Mapping[str, float], name: str, **labels: str) -> float:
    """Add up the series of a metric that have these labels."""
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(value for series, value in metrics.items() if series.partition("{")[0] == name and all(each in series for each in wanted))


def resident_kib(pid: int, what: str = "VmRSS") -> int:
    """Give a process's memory; `VmHWM` is the most that it ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(what + ":")))


async def together(work: Iterable[Awaitable[Answer]]) -> list[Answer]:
    """Do everything at once."""
    return list(await asyncio.gather(*work))


def said(answers: Iterable[Answer]) -> dict[tuple[str, str], int]:
    """Count answers by what they said."""
    found: dict[tuple[str, str], int] = {}
    for answer in answers:
        found[answer.said] = found.get(answer.said, 0) + 1
    return found
