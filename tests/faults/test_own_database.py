"""A PostgreSQL of one's own: DATABASE_URL with PLACET_MIGRATION_URL, what is refused, and that no password is ever printed (S12, S14.1)."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import asyncpg
import httpx
import pytest

from app.launcher.accounts import postgres_account
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.settings import PROJECT
from tests.faults.service import OWN_COMMAND, Service, descriptions

pytestmark = pytest.mark.faults
Start = Callable[..., Service]
VERIFY = (*OWN_COMMAND[:-1], "audit", "verify")
MIGRATE = (*OWN_COMMAND[:-1], "migrate")

OWNER_PASSWORD, SERVICE_PASSWORD = "owners-own-secret", "the service's %secret"
SERVICE_PASSWORD_IN_URL = "the%20service%27s%20%25secret"
WITH_PASSWORDS = "local all postgres trust\nlocal all all scram-sha-256\n"
READY = {"database": "ok", "migrations": "ok", "role": "ok", "partitions": "ok", "policy": "ok", "functions": "ok"}


@dataclass(frozen=True, slots=True)
class Server:
    """Somebody's server, with the database `shop` and the role `shop_owner`, who may make roles and owns nothing yet."""

    postgres: EmbeddedPostgres

    @property
    def superuser_dsn(self) -> str:
        return self.postgres.dsn("shop")

    def url(self, role: str, password: str) -> str:
        return f"postgresql://{role}:{password}@/shop?{self.superuser_dsn.partition('?')[2]}"

    @property
    def owner(self) -> str:
        return self.url("shop_owner", OWNER_PASSWORD)

    @property
    def service(self) -> str:
        return self.url("shop_service", SERVICE_PASSWORD_IN_URL)

    def execute(self, *statements: str) -> None:
        asyncio.run(_execute(self.superuser_dsn, statements))


@pytest.fixture
def server() -> Iterator[Server]:
    folder = Path(tempfile.mkdtemp(prefix="placet tests "))
    folder.chmod(0o711 if postgres_account().lent else 0o700)
    postgres = EmbeddedPostgres(folder / "postgres", database="shop", durable=False)
    try:
        postgres.start()
        (postgres.pgdata / "pg_hba.conf").write_text(WITH_PASSWORDS)
        made = Server(postgres)
        made.execute(
            "SELECT pg_reload_conf()",
            f"CREATE ROLE shop_owner LOGIN CREATEROLE PASSWORD '{OWNER_PASSWORD}'",
            "GRANT CREATE ON DATABASE shop TO shop_owner",
        )
        yield made
    finally:
        postgres.stop(hasten=lambda: True)
        shutil.rmtree(folder, ignore_errors=True)


def test_it_serves_with_two_roles_and_comes_back_after_the_server(start: Start, server: Server, data: Path) -> None:
    service = start(workers=2, DATABASE_URL=server.service, PLACET_MIGRATION_URL=server.owner)
    assert _readiness(service) == (200, READY)
    assert _refund(service) == "needs_user"
    assert not (data / "postgres").exists()
    asyncio.run(_expect_no_ownership(server.superuser_dsn))
    server.postgres.restart()
    assert _refund(service) == "needs_user"
    service.signal(signal.SIGTERM)
    assert service.end() == 0
    assert descriptions(service.family()) == {}
    again = start(DATABASE_URL=server.service, PLACET_MIGRATION_URL=server.owner)
    assert _readiness(again) == (200, READY)
    assert "Keys of the tenant" not in again.output
    assert server.postgres.is_running()
    verified = _command(data, VERIFY, DATABASE_URL=server.service, PLACET_MIGRATION_URL=server.owner)
    assert verified.end() == 0
    assert [json.loads(line)["verified"] for line in verified.lines] == [True, True]
    migrated = _command(data, MIGRATE, DATABASE_URL=server.service, PLACET_MIGRATION_URL=server.owner)
    assert (migrated.end(), migrated.output) == (0, "the schema is up to date\n")
    for each in (service, again, verified, migrated):
        _expect_no_secret(each)


def test_one_role_serves_when_it_is_meant(start: Start, server: Server) -> None:
    refused = start(DATABASE_URL=server.owner)
    assert refused.end() == 1
    assert refused.output == (
        "placet: DATABASE_URL alone would make the service own its tables, and an owner can change audit rows; set PLACET_MIGRATION_URL to "
        "the owner and DATABASE_URL to another role (it is made if it is missing), or PLACET_SINGLE_ROLE=true if one role is meant\n"
    )
    service = start(DATABASE_URL=server.owner, PLACET_SINGLE_ROLE="true")
    assert _readiness(service) == (200, READY)
    assert _refund(service) == "needs_user"
    _expect_no_secret(service)


def test_an_owner_as_the_services_role_is_refused_unless_it_is_meant(start: Start, server: Server) -> None:
    _expect_one_line(
        start(DATABASE_URL=server.owner, PLACET_MIGRATION_URL=server.owner),
        "DATABASE_URL and PLACET_MIGRATION_URL name the same role, which could change audit rows; name another role in DATABASE_URL .*",
    )


def test_a_server_that_cannot_be_reached_is_one_clear_line(start: Start) -> None:
    url = "postgresql://shop_owner:secret@127.0.0.1:1/shop"
    _expect_one_line(
        start(DATABASE_URL=url.replace("owner", "service"), PLACET_MIGRATION_URL=url),
        r"can't connect to postgresql://shop_owner:\*\*\*@127\.0\.0\.1:1/shop: Connection refused; check DATABASE_URL and .*",
    )


def test_a_server_that_does_not_answer_is_one_clear_line(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://shop_owner:secret@127.0.0.1:{silent.getsockname()[1]}/shop"
        service = start(DATABASE_URL=url.replace("owner", "service"), PLACET_MIGRATION_URL=url)
        service.process.wait(30)
    _expect_one_line(service, r"can't connect to postgresql://shop_owner:\*\*\*@127\.0\.0\.1:\d+/shop: no answer within 10 s; check .*")


@pytest.mark.parametrize(
    "url", ["postgresql://shop:secret@127.0.0.1:a-port/shop", "postgresql:///shop", "postgresql://shop:secret@127.0.0.1", "postgresql://["]
)
def test_an_address_that_cannot_be_read_is_one_clear_line(start: Start, url: str) -> None:
    _expect_one_line(
        start(DATABASE_URL=url, PLACET_SINGLE_ROLE="true"),
        "DATABASE_URL can't be used; expected postgresql://user:password@host:port/database, with special characters .*",
    )


def test_a_wrong_password_is_one_clear_line(start: Start, server: Server) -> None:
    _expect_one_line(
        start(DATABASE_URL=server.service, PLACET_MIGRATION_URL=server.url("shop_owner", "wrong-secret")),
        r'can\'t connect to postgresql://shop_owner:\*\*\*@/shop\S*: password authentication failed for user "shop_owner"; check .*',
    )
    server.execute("CREATE ROLE shop_service LOGIN PASSWORD 'another one'")  # made by hand, so its password stays
    _expect_one_line(
        start(DATABASE_URL=server.service, PLACET_MIGRATION_URL=server.owner),
        r'can\'t connect to postgresql://shop_service:\*\*\*@/shop\S*: password authentication failed for user "shop_service"; check .*',
    )


def test_an_owner_that_may_not_make_roles_is_one_clear_line(start: Start, server: Server) -> None:
    server.execute("ALTER ROLE shop_owner NOCREATEROLE")
    _expect_one_line(
        start(DATABASE_URL=server.service, PLACET_MIGRATION_URL=server.owner),
        r"the role of PLACET_MIGRATION_URL can't make the roles that are needed \(permission denied to create role\); give it CREATEROLE, "
        r"or make shop_service, placet_facts and placet_sandbox by hand .*",
    )


def test_an_owner_that_may_not_make_a_schema_is_one_clear_line(start: Start, server: Server) -> None:
    server.execute("REVOKE CREATE ON DATABASE shop FROM shop_owner")
    _expect_one_line(
        start(DATABASE_URL=server.service, PLACET_MIGRATION_URL=server.owner),
        r"the role of PLACET_MIGRATION_URL can't make the schema that is needed \(permission denied for database shop\); .*",
    )


def test_a_server_that_is_too_old_is_one_clear_line(start: Start, server: Server) -> None:
    with _older(server) as port:
        place = f"127.0.0.1:{port}/shop"
        _expect_one_line(
            start(
                DATABASE_URL=f"postgresql://shop_service:{SERVICE_PASSWORD_IN_URL}@{place}",
                PLACET_MIGRATION_URL=f"postgresql://shop_owner:{OWNER_PASSWORD}@{place}",
            ),
            r"PostgreSQL 18 or newer is needed \(uuidv7, RETURNING old and new\); this server has 17\.\d+",
        )


@pytest.mark.parametrize("command", [VERIFY, MIGRATE])
def test_the_other_commands_say_it_in_one_line_too(server: Server, data: Path, command: tuple[str, ...]) -> None:
    """The service's role was made by hand with another password; to `verify`, which tenants there are is the owner's to say."""
    server.execute("CREATE ROLE shop_service LOGIN PASSWORD 'another one'")
    named = (*command, "demo") if command == VERIFY else command
    _expect_one_line(
        _command(data, named, DATABASE_URL=server.service, PLACET_MIGRATION_URL=server.owner),
        r"can't connect to postgresql://shop_service:\*\*\*@/shop\S*: password authentication failed .*",
    )
    _expect_one_line(
        _command(data, named, DATABASE_URL="postgresql://a:secret@b:c/d", PLACET_SINGLE_ROLE="true"),
        "DATABASE_URL can't be used; expected .*",
    )


def _command(data: Path, command: tuple[str, ...], **environment: str) -> Service:
    return Service(data, command=command, PLACET_DATA_DIR=str(data), PYTHONPATH=str(PROJECT), **environment)


def _expect_one_line(service: Service, pattern: str) -> None:
    assert service.process.wait(30) == 1, service.output
    service.end()
    assert re.fullmatch(f"placet: {pattern}\n", service.output), service.output
    assert descriptions(service.family()) == {}
    _expect_no_secret(service)


def _expect_no_secret(service: Service) -> None:
    for secret in (OWNER_PASSWORD, SERVICE_PASSWORD, SERVICE_PASSWORD_IN_URL, "secret@", ":secret", "wrong-secret"):
        assert secret not in service.output


def _readiness(service: Service) -> tuple[int, dict[str, str]]:
    answer = httpx.get(f"{service.url}/readyz", timeout=5)
    return answer.status_code, answer.json()["checks"]


def _refund(service: Service) -> str:
    """Ask for a refund of the demo data, a new order's worth, and give the decision; the first answers after an outage may be 503."""
    key = service.wait_for(r"agent +(placet_\S+)")
    body = {
        "tool": "refund",
        "arguments": {"order_id": "A-1001", "amount": 129.90, "currency": "EUR", "cause": "damaged"},
        "session_id": "chat-1",
        "call_id": "call-1",
        "on_behalf_of": {"id": "cust-77", "segment": "standard"},
    }
    for _ in range(20):
        answer = httpx.post(f"{service.url}/tool-calls/check", json=body, headers={"authorization": f"Bearer {key}"}, timeout=5)
        if answer.status_code == 200:
            break
        assert answer.status_code == 503
    return str(answer.json()["decision"])


async def _expect_no_ownership(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        owners = await connection.fetch(
            "SELECT DISTINCT relowner::regrole::text AS owner FROM pg_class"
            " WHERE relnamespace IN ('placet'::regnamespace, 'shop'::regnamespace)"
        )
        assert [row["owner"] for row in owners] == ["shop_owner"]
        role = await connection.fetchrow("SELECT * FROM pg_roles WHERE rolname = 'shop_service'")
        assert (role["rolsuper"], role["rolcreaterole"], role["rolbypassrls"]) == (False, False, False)
    finally:
        await connection.close()


async def _execute(dsn: str, statements: tuple[str, ...]) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@contextmanager
def _older(server: Server) -> Iterator[int]:
    """Stand between a client and the server, and say a version that is one less; give the port."""
    path = str(server.postgres.socket_folder / ".s.PGSQL.5432")

    def carry(source: socket.socket, target: socket.socket, *, older: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(65536):
                if older:
                    piece = re.sub(rb"(\0\0\0[\4\6])18(\d{4}|\.\d)", rb"\g<1>17\2", piece)  # a value of that length
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(path)
                for source, target, older in ((client, upstream, False), (upstream, client, True)):
                    threading.Thread(target=carry, args=(source, target), kwargs={"older": older}, daemon=True).start()

    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
