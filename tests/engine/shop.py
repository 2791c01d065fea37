"""The stage that tests of storage, engine and routes share: the example shop in a database, two tenants with keys, and workers over it.

A worker is what one process of the service has: its own memory of authority, its own lanes and connections. Nothing stands in for our own
code; what is changed for a test (a tool that is slow, a table that cascades) is changed in the database or in the policy.
"""

from __future__ import annotations

import asyncio
import io
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import jiter
import pytest

from app.domain.canonical import normalise_number
from app.domain.tool_call import Role, ToolCall
from app.engine.authority import Authority
from app.engine.change_authority import SYSTEM, AuthorityWriter, KeySpec
from app.engine.check_tool_call import ToolCallChecker
from app.engine.clock import Clock
from app.engine.stored_answer import CheckAnswer
from app.launcher import first_start
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.policy.compile import load_directory
from app.settings import PROJECT
from app.storage.database import Database
from app.telemetry import Metrics
from tests.conftest import TEMPLATE

SHOP_FILES: Mapping[str, str] = load_directory(PROJECT / "policies" / "shop")
DEMO = PROJECT / "policies" / "shop" / "demo"
SEGMENTS = ("standard", "trusted_buyer")


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant with a key of each role; `other` is a second agent's key."""

    tenant_id: uuid.UUID
    name: str
    tokens: Mapping[str, str]
    key_ids: Mapping[str, uuid.UUID]


@dataclass(frozen=True, slots=True)
class Shop:
    """One test's own database with the tenants acme and globex, whose orders have the same names."""

    url: str
    superuser_url: str
    acme: Tenant
    globex: Tenant
    platform_token: str

    @asynccontextmanager
    async def superuser(self) -> AsyncIterator[asyncpg.Connection]:
        connection = await asyncpg.connect(self.superuser_url)
        try:
            yield connection
        finally:
            await connection.close()

    async def rows(self, sql: str, *values: object) -> list[dict[str, Any]]:
        """Read as the superuser, whom no row level security stops."""
        async with self.superuser() as connection:
            return [dict(row) for row in await connection.fetch(sql, *values)]

    async def value(self, sql: str, *values: object) -> Any:
        async with self.superuser() as connection:
            return await connection.fetchval(sql, *values)

    async def execute(self, sql: str) -> None:
        async with self.superuser() as connection:
            await connection.execute(sql)


class SteppedClock(Clock):
    """The real clock moved by `ahead`."""

    ahead = timedelta()

    def __init__(self, ahead: timedelta = timedelta()) -> None:
        object.__setattr__(self, "ahead", ahead)  # the clock itself is frozen

    def step(self, by: timedelta) -> None:
        object.__setattr__(self, "ahead", self.ahead + by)

    def now(self) -> datetime:
        return Clock.now(self) + self.ahead


class Worker:
    """The engine of one process over a shop's database."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.clock = clock if clock is not None else Clock()
        self.database = Database(url)
        self.authority = Authority(self.database, self.clock)
        self.writer = AuthorityWriter(self.database, self.clock)
        self.checker = ToolCallChecker(self.authority, self.clock, url, Metrics())

    async def ask(self, token: str, call: ToolCall) -> CheckAnswer:
        return await self.checker.check(token, await self.authority.authenticate(token), call)

    async def check(self, token: str, call: ToolCall) -> dict[str, Any]:
        """Give the stored document with what belongs to this answer alone."""
        return document(await self.ask(token, call))

    async def close(self) -> None:
        await self.checker.lanes.close()
        await self.database.close()


def document(answer: CheckAnswer) -> dict[str, Any]:
    found: dict[str, Any] = jiter.from_json(answer.document.encode(), float_mode="decimal")
    return {**found, "replayed": answer.replayed, "audit": {"chain": answer.chain, "sequence": answer.sequence, "hash": answer.hash}}


@asynccontextmanager
async def working(url: str, clock: Clock | None = None) -> AsyncIterator[Worker]:
    """Run a worker."""
    worker = Worker(url, clock)
    worker.checker.lanes.start()
    try:
        yield worker
    finally:
        await worker.close()


def refund(call_id: str, amount: str = "20.00", order: str = "A-1001", **more: Any) -> ToolCall:
    """Give a refund of an amount in EUR, unless `currency` says another."""
    arguments: dict[str, object] = {
        "order_id": order,
        "amount": normalise_number(Decimal(amount)),
        "currency": more.pop("currency", "EUR"),
        "cause": more.pop("cause", "damaged"),
    }
    arguments |= more.pop("extra", {})
    fields: dict[str, Any] = {"session_id": "chat-1", "on_behalf_of_id": "cust-77", "segment": "standard", **more}
    return ToolCall(tool=fields.pop("tool", "refund"), arguments=arguments, call_id=call_id, **fields)


def search_order(call_id: str, order: str = "A-1001", **more: Any) -> ToolCall:
    fields: dict[str, Any] = {"session_id": "chat-1", "on_behalf_of_id": "cust-77", **more}
    return ToolCall(tool="search_order", arguments={"order_id": order}, call_id=call_id, **fields)


def changed(files: Mapping[str, str], file: str, *replacements: tuple[str, str]) -> dict[str, str]:
    """Give a bundle with texts of one file replaced; each must be there."""
    text = files[file]
    for old, new in replacements:
        assert old in text, f"{old!r} isn't in {file}"
        text = text.replace(old, new)
    return {**files, file: text}


async def activate(shop: Shop, tenant: Tenant, files: Mapping[str, str]) -> int:
    """Store a bundle and make it active."""
    version = await store(shop, tenant, files)
    await activate_stored(shop, tenant, version)
    return version


async def store(shop: Shop, tenant: Tenant, files: Mapping[str, str]) -> int:
    async with _writer(shop) as writer:
        version, _ = await writer.store_policy(SYSTEM, tenant.tenant_id, files)
    return version


async def activate_stored(shop: Shop, tenant: Tenant, version: int) -> None:
    async with _writer(shop) as writer:
        await writer.activate_policy(SYSTEM, tenant.tenant_id, version)


@asynccontextmanager
async def _writer(shop: Shop) -> AsyncIterator[AuthorityWriter]:
    database = Database(shop.url)
    try:
        yield AuthorityWriter(database, Clock())
    finally:
        await database.close()


async def holds_agree(shop: Shop) -> None:
    """Assert that each account's sums are those of its holds."""
    wrong = await shop.rows(
        """
        SELECT a.tenant_id, a.account, a.held, a.spent, sum(h.quantity) FILTER (WHERE h.status = 'held') AS holds_held,
               sum(h.quantity) FILTER (WHERE h.status = 'spent') AS holds_spent
        FROM placet.accounts a LEFT JOIN placet.holds h USING (tenant_id, account)
        GROUP BY a.tenant_id, a.account, a.held, a.spent
        HAVING a.held <> coalesce(sum(h.quantity) FILTER (WHERE h.status = 'held'), 0)
            OR a.spent <> coalesce(sum(h.quantity) FILTER (WHERE h.status = 'spent'), 0)
            OR bool_or(h.unit <> a.unit)
        """
    )
    assert wrong == []


@dataclass(frozen=True, slots=True)
class ShopTemplate:
    """A filled database that each test gets a copy of."""

    name: str
    service_url: str
    acme: Tenant
    globex: Tenant
    platform_token: str


@pytest.fixture(scope="session")
def shop_template(postgres: EmbeddedPostgres, template: first_start.PreparedDatabase) -> ShopTemplate:
    """Fill a copy of the template once a test process."""
    name = f"shop_{uuid.uuid4().hex[:12]}"
    run(postgres.dsn("postgres"), f"create database {name} template {TEMPLATE} strategy file_copy")
    return asyncio.run(_fill(postgres.dsn(name), name, template.database_url))


async def _fill(superuser_url: str, name: str, service_url: str) -> ShopTemplate:
    superuser = await asyncpg.connect(superuser_url)
    try:
        await superuser.execute((DEMO / "schema.sql").read_text(encoding="utf-8"))
        for tenant in ("acme", "globex"):
            await superuser.execute("SELECT set_config('placet.demo_tenant', $1, false)", tenant)
            await superuser.execute((DEMO / "data.sql").read_text(encoding="utf-8"))
    finally:
        await superuser.close()
    database = Database(with_database(service_url, name))
    try:
        writer = AuthorityWriter(database, Clock())
        files = await writer.platform_bundle()
        acme, globex = [await _tenant(writer, tenant, files) for tenant in ("acme", "globex")]
        spec = KeySpec("platform", "platform", (Role.OPERATOR,), (), timedelta(days=1))
        platform = await writer.make_key(SYSTEM, uuid.UUID(int=0), spec)
    finally:
        await database.close()
    return ShopTemplate(name, service_url, acme, globex, platform.token)


async def _tenant(writer: AuthorityWriter, name: str, files: Mapping[str, str] | None) -> Tenant:
    made = await writer.make_tenant(SYSTEM, name, files)
    tokens: dict[str, str] = {}
    key_ids: dict[str, uuid.UUID] = {}
    for label, role in (*((role.value, role) for role in Role), ("other", Role.AGENT)):
        subject = {"agent": "support-agent", "other": "second-agent"}.get(label, f"the-{label}")
        segments = SEGMENTS if role is Role.AGENT else ()
        key = await writer.make_key(SYSTEM, made.tenant_id, KeySpec(subject, f"owner of {label}", (role,), segments, timedelta(days=30)))
        tokens[label], key_ids[label] = key.token, key.key.key_id
    return Tenant(made.tenant_id, name, tokens, key_ids)


class ResettableShop:
    """One database that is set back to the filled state: twenty times faster than a copy, and as good where the schema isn't changed."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self._tables: list[str] = []
        self._filled: dict[str, bytes] = {}

    async def snapshot(self) -> None:
        async with self.shop.superuser() as connection:
            found = await connection.fetch(
                "SELECT format('%I.%I', n.nspname, c.relname) AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname IN ('placet', 'shop') AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
                " AND c.relname <> 'schema_version' ORDER BY n.nspname,"
                " array_position(ARRAY['customers', 'orders']::name[], c.relname), c.relname"
            )
            self._tables = [row["name"] for row in found]
            for name in self._tables:
                kept = io.BytesIO()
                await connection.copy_from_query(f"SELECT * FROM {name}", output=kept)
                if kept.getvalue():
                    self._filled[name] = kept.getvalue()

    async def reset(self) -> None:
        async with self.shop.superuser() as connection, connection.transaction():
            await connection.execute(";".join(f"DELETE FROM {name}" for name in reversed(self._tables)))
            for name, kept in self._filled.items():
                schema, table = name.split(".")
                await connection.copy_to_table(table, schema_name=schema, source=io.BytesIO(kept))


@pytest.fixture(scope="session")
def resettable_shop(postgres: EmbeddedPostgres, shop_template: ShopTemplate) -> ResettableShop:
    """Give the database that the tests of this process share, one after the other."""
    resettable = ResettableShop(_copy(postgres, shop_template, f"r_{uuid.uuid4().hex[:12]}"))
    asyncio.run(resettable.snapshot())
    return resettable


@pytest.fixture
def shop(resettable_shop: ResettableShop) -> Shop:
    """The filled database, as no test has touched it. A test that changes the schema takes `own_shop`."""
    asyncio.run(resettable_shop.reset())
    return resettable_shop.shop


@pytest.fixture
def own_shop(postgres: EmbeddedPostgres, shop_template: ShopTemplate) -> Iterator[Shop]:
    """A copy of the filled database, dropped after the test."""
    name = f"s_{uuid.uuid4().hex[:12]}"
    yield _copy(postgres, shop_template, name)
    run(postgres.dsn("postgres"), f"drop database {name} with (force)")


def _copy(postgres: EmbeddedPostgres, filled: ShopTemplate, name: str) -> Shop:
    run(postgres.dsn("postgres"), f"create database {name} template {filled.name} strategy file_copy")
    return Shop(with_database(filled.service_url, name), postgres.dsn(name), filled.acme, filled.globex, filled.platform_token)


def with_database(url: str, name: str) -> str:
    """Give an address on a Unix socket with another database."""
    role, _, place = url.partition("@/")
    return f"{role}@/{name}?{place.partition('?')[2]}"


def run(url: str, statement: str) -> None:
    async def execute() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(execute())
