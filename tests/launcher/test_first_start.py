"""Starts that are killed, come two at once, or find what an earlier version made (SPEC S14.1, S12.1)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from app.engine.change_authority import AuthorityWriter
from app.launcher import first_start
from app.launcher.addresses import DatabaseUnsuitable
from app.launcher.demo_shop import PEOPLE
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.settings import Settings

KEYS_OF_THE_DEMO = "Keys of the tenant `demo` (shown only now, good for 30 days):"
OPERATORS_KEY = "The platform operator's key (it makes tenants; it is shown only now):"


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def empty(postgres: EmbeddedPostgres, template: first_start.PreparedDatabase) -> Iterator[str]:
    """An empty database of a server that has the roles; its superuser's address."""
    name = f"e_{uuid.uuid4().hex[:12]}"
    asyncio.run(execute(postgres.dsn("postgres"), f"CREATE DATABASE {name}", f"GRANT CREATE ON DATABASE {name} TO placet_owner"))
    yield postgres.dsn(name)
    asyncio.run(execute(postgres.dsn("postgres"), f"DROP DATABASE {name} WITH (FORCE)"))


async def execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def value(url: str, question: str) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(question)
    finally:
        await connection.close()


def with_demo(settings: Settings) -> Settings:
    return replace(settings, start=replace(settings.start, demo=True))


def of_ones_own(settings: Settings, superuser_url: str) -> Settings:
    """Give the settings of DATABASE_URL and PLACET_MIGRATION_URL."""
    owner, service = (superuser_url.replace("postgres@", f"{role}@") for role in ("placet_owner", "placet_app"))
    return replace(settings, database=replace(settings.database, url=service, migration_url=owner))


def keys_shown(lines: Sequence[str]) -> tuple[bool, int]:
    """Say whether the operator's key is shown, and how many keys of the demo."""
    behind = list(lines)[list(lines).index(KEYS_OF_THE_DEMO) + 1 :] if KEYS_OF_THE_DEMO in lines else []
    return OPERATORS_KEY in lines, sum(" placet_" in line for line in behind[: len(PEOPLE)])


async def test_the_keys_are_shown_once(settings: Settings, empty: str) -> None:
    first = await first_start.prepare(with_demo(settings), empty)
    again = await first_start.prepare(with_demo(settings), empty)
    assert (keys_shown(first.lines), again.lines) == ((True, len(PEOPLE)), ())


async def test_an_old_data_folder_gets_the_shop_of_this_version(settings: Settings, empty: str) -> None:
    """Tables, rights and rows that an earlier version didn't make; what is there stays as it is."""
    await first_start.prepare(with_demo(settings), empty)
    await execute(
        empty,
        "DROP TABLE shop.events, shop.addresses",
        "DELETE FROM shop.orders WHERE order_id = 'A-5013'",
        "UPDATE shop.orders SET refunded_minor = 77 WHERE order_id = 'A-1001'",
        "ALTER TABLE shop.orders DROP CONSTRAINT orders_status_check",
        "ALTER TABLE shop.orders ADD CONSTRAINT orders_status_check CHECK (status IN ('paid', 'new') OR true)",
    )
    again = await first_start.prepare(with_demo(settings), empty)
    assert again.lines == ()
    assert await value(empty, "SELECT count(*) FROM shop.events WHERE tenant = 'demo'") == 5_012
    assert await value(empty, "SELECT has_table_privilege('placet_facts', 'shop.addresses', 'SELECT')")
    assert await value(empty, "SELECT relrowsecurity FROM pg_class WHERE oid = 'shop.events'::regclass")
    assert await value(empty, "SELECT count(*) FROM shop.orders WHERE order_id = 'A-5013'") == 1
    assert await value(empty, "SELECT refunded_minor FROM shop.orders WHERE order_id = 'A-1001'") == 77
    constraint = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'orders_status_check'"
    assert "'partially_refunded'" in await value(empty, constraint)


async def test_without_the_demo_the_shop_is_left_alone(settings: Settings, empty: str) -> None:
    await first_start.prepare(with_demo(settings), empty)
    await execute(empty, "DROP TABLE shop.events")
    await first_start.prepare(settings, empty)
    assert await value(empty, "SELECT to_regclass('shop.events')") is None


FOREIGN = ("CREATE SCHEMA shop", "CREATE TABLE shop.orders (number integer)")


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (("CREATE SCHEMA shop",), "GRANT CREATE ON DATABASE"),
        ((*FOREIGN, "GRANT ALL ON SCHEMA shop TO placet_owner", "ALTER TABLE shop.orders OWNER TO placet_owner"), "don't fit what is in"),
    ],
    ids=["of another role", "of another shape"],
)
async def test_somebody_elses_shop_is_one_line_and_costs_no_key(settings: Settings, empty: str, there: tuple[str, ...], said: str) -> None:
    """At the first start it is refused before any key is made, so that the next start shows them."""
    await execute(empty, *there)
    with pytest.raises(DatabaseUnsuitable, match=said):
        await first_start.prepare(with_demo(settings), empty)
    await execute(empty, "DROP SCHEMA shop CASCADE")
    assert keys_shown((await first_start.prepare(with_demo(settings), empty)).lines) == (True, len(PEOPLE))


async def test_a_shop_that_can_no_longer_be_changed_stops_no_service(settings: Settings, empty: str) -> None:
    await first_start.prepare(with_demo(settings), empty)
    await execute(empty, "ALTER TABLE shop.orders OWNER TO postgres")
    (line,) = (await first_start.prepare(with_demo(settings), empty)).lines
    assert line.startswith("placet: the demo's shop stays as it was: ")


@pytest.mark.parametrize("made_before", range(len(PEOPLE)))
async def test_a_start_that_was_killed_while_it_made_the_keys_is_done_over(
    settings: Settings, empty: str, monkeypatch: pytest.MonkeyPatch, made_before: int
) -> None:
    """Nobody has seen what it had made."""
    real: Callable[..., Any] = AuthorityWriter.make_key
    made: list[object] = []

    async def killed(*arguments: Any) -> Any:
        if len(made) == made_before:
            raise Killed
        made.append(arguments)
        return await real(*arguments)

    with monkeypatch.context() as killing:
        killing.setattr(AuthorityWriter, "make_key", killed)
        with pytest.raises(Killed):
            await first_start.prepare(with_demo(settings), empty)
    assert keys_shown((await first_start.prepare(with_demo(settings), empty)).lines) == (True, len(PEOPLE))
    assert (await first_start.prepare(with_demo(settings), empty)).lines == ()


async def test_starts_at_once_on_an_empty_server_make_everything_once(settings: Settings, empty: str) -> None:
    """Replicas come up together."""
    prepared = await asyncio.gather(*(first_start.prepare(with_demo(of_ones_own(settings, empty)), None) for _ in range(3)))
    assert sorted(keys_shown(each.lines) for each in prepared) == [(False, 0), (False, 0), (True, len(PEOPLE))]
    assert await value(empty, "SELECT array_agg(name ORDER BY name) FROM placet.tenants") == ["demo", "platform"]
    assert await value(empty, "SELECT count(*) FROM placet.api_keys") == 1 + len(PEOPLE)


async def test_a_start_does_not_wait_for_ever_for_its_turn(settings: Settings, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_start, "TURN_WITHIN_S", 1)
    own = of_ones_own(settings, empty)
    await first_start.prepare(own, None)
    other = await asyncpg.connect(empty)
    try:
        await other.execute("BEGIN; SELECT pg_advisory_xact_lock(hashtext('placet.first_start'))")
        with pytest.raises(DatabaseUnsuitable, match="another start has been preparing this database for 1 s"):
            await first_start.prepare(own, None)
    finally:
        await other.close()
