"""`placet doctor` (S14.2): right set-ups and wrong ones, each told with what to do, and no secret among it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from app.cli import main
from app.engine.checkpoints import KEY_FILE, load_signing_key
from app.launcher import doctor, doctor_database
from app.launcher.accounts import NoAccount, postgres_account
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.launcher.findings import Status
from app.settings import PROJECT
from app.storage.readiness import DatabaseState
from app.storage.schema import head_revision
from tests.conftest import TestDatabase

PASSWORD = "hush-hush-17"
Examine = Callable[..., tuple[int, Mapping[str, Mapping[str, str]]]]


@pytest.fixture
def examine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, database: TestDatabase, postgres: EmbeddedPostgres
) -> Examine:
    """Run `placet doctor --json` on a database as a first start leaves it; return the exit code and the findings by name."""
    name = database.superuser_url.partition("@/")[2].partition("?")[0]
    execute(database, f"GRANT CREATE ON DATABASE {name} TO placet_owner")  # a copy of a database has its rights anew
    usual = {
        "DATABASE_URL": database.url,
        "PLACET_MIGRATION_URL": postgres.dsn(name, "placet_owner"),
        "PLACET_DATA_DIR": str(tmp_path),
        "PLACET_PORT": "0",
    }

    def run(**changed: str) -> tuple[int, Mapping[str, Mapping[str, str]]]:
        for variable in tuple(os.environ):
            if variable.startswith("PLACET_"):
                monkeypatch.delenv(variable)
        for variable, value in (usual | changed).items():
            monkeypatch.setenv(variable, value)
        return _run(monkeypatch, capsys)

    return run


def _run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, Mapping[str, Mapping[str, str]]]:
    monkeypatch.setattr(sys, "argv", ["placet", "doctor", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert PASSWORD not in told.out + told.err
    document = json.loads(told.out)
    code = int(ended.value.code or 0)
    assert document["ok"] is (code == 0)
    return code, {each["check"]: each for each in document["findings"]}


def execute(database: TestDatabase, *statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(database.superuser_url)
        try:
            for statement in statements:
                await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


def faults(found: Mapping[str, Mapping[str, str]]) -> set[str]:
    return {name for name, each in found.items() if each["status"] == "fault"}


def test_a_right_set_up_has_nothing_to_do(examine: Examine) -> None:
    code, found = examine()
    assert code == 0
    assert {name: each["status"] for name, each in found.items() if name not in ("disk_space", "inodes")} == dict.fromkeys(
        ("python", "settings", "data_folder", "checkpoint_key", "owner", "server_version", "clock", "connections", "owner_rights",
         "sessions", "role", "migrations", "partitions", "policy_active", "functions", "policy_bundle", "port"), "ok",
    )  # fmt: skip
    assert not [each for each in found.values() if each["status"] == "ok" and "remedy" in each]


@pytest.fixture
def entered_by_all() -> Iterator[Path]:
    """A folder that PostgreSQL's account can pass through."""
    folder = Path(tempfile.mkdtemp(prefix="placet-doctor-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


def test_before_the_first_start_nothing_is_wrong_and_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], entered_by_all: Path
) -> None:
    """S14.1: an embedded database that doesn't run, or isn't there yet, is as it should be."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.setenv("PLACET_DATA_DIR", str(entered_by_all / "none"))
    monkeypatch.setenv("PLACET_PORT", "0")
    code, found = _run(monkeypatch, capsys)
    assert (code, found["database"]["said"]) == (0, "the embedded database isn't there yet; the first start makes it")
    assert found["postgres_programs"]["said"].startswith("postgres (PostgreSQL) 18")
    assert not (entered_by_all / "none").exists()
    entered_by_all.chmod(0o700)
    code, found = _run(monkeypatch, capsys)
    assert (code, faults(found)) == ((1, {"data_folder"}) if postgres_account().lent else (0, set()))


def test_a_server_without_a_schema_is_ready_for_the_first_start(examine: Examine, postgres: EmbeddedPostgres) -> None:
    async def change(statement: str) -> None:
        connection = await asyncpg.connect(postgres.dsn("postgres"))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(change("CREATE DATABASE t_doctor OWNER placet_owner"))
    try:
        code, found = examine(PLACET_MIGRATION_URL=postgres.dsn("t_doctor", "placet_owner"))
    finally:
        asyncio.run(change("DROP DATABASE t_doctor WITH (FORCE)"))
    assert (code, found["migrations"]["said"]) == (0, "there is no schema yet; the first start makes it")


def test_a_bad_variable_is_a_fault_of_its_own(examine: Examine) -> None:
    code, found = examine(PLACET_WORKERS="many", DATABASE_URL=f"mysql://me:{PASSWORD}@h/d")
    assert (code, faults(found)) == (1, {"settings"})


def test_a_server_that_is_away_is_named_without_its_password(examine: Examine) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    code, found = examine(PLACET_MIGRATION_URL=f"postgresql://owner:{PASSWORD}@127.0.0.1:{port}/placet")
    assert (code, faults(found)) == (1, {"database"})
    assert f"127.0.0.1:{port}/placet" in found["database"]["said"]
    assert found["database"]["remedy"] == "check DATABASE_URL and PLACET_MIGRATION_URL"


def test_an_owner_who_may_not_do_what_every_start_does(examine: Examine, database: TestDatabase) -> None:
    name = database.superuser_url.partition("@/")[2].partition("?")[0]
    execute(database, f"REVOKE CREATE ON DATABASE {name} FROM placet_owner")
    code, found = examine()
    assert (code, faults(found)) == (1, {"owner_rights"})
    assert doctor_database.owner_rights(makes_roles=False, makes_schemas=True).said == "the owner can't make the roles that are needed"


def test_an_address_without_an_owner_is_told_what_to_set(examine: Examine) -> None:
    code, found = examine(PLACET_MIGRATION_URL="")
    assert (code, faults(found)) == (1, {"database"})
    assert found["database"]["remedy"].startswith("set PLACET_MIGRATION_URL to the owner")


def test_a_service_that_could_change_audit_rows_is_a_fault(examine: Examine, database: TestDatabase) -> None:
    code, found = examine(DATABASE_URL=database.superuser_url)
    assert (code, faults(found)) == (1, {"role"})
    assert "superuser" in found["role"]["said"]


def test_a_schema_of_a_newer_program_is_a_fault_and_an_older_one_is_mended_by_a_start(examine: Examine, database: TestDatabase) -> None:
    execute(database, "UPDATE placet.schema_version SET version_num = '9999'")
    code, found = examine()
    assert (code, faults(found)) == (1, {"migrations"})
    assert found["migrations"]["remedy"] == "install the Placet that migrated it, or a newer one"
    execute(database, "UPDATE placet.schema_version SET version_num = '0000'")
    code, found = examine()
    assert (code, found["migrations"]["status"]) == (0, "note")


def test_more_workers_than_the_server_has_connections_for(examine: Examine) -> None:
    code, found = examine(PLACET_WORKERS="64")
    assert (code, faults(found)) == (1, {"connections"})
    assert found["connections"]["said"] == "64 workers may open 773 connections and the server has 97"
    assert found["connections"]["remedy"] == "raise max_connections to 776, or lower PLACET_WORKERS"


def test_a_folder_that_is_a_file(examine: Examine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, found = examine(PLACET_DATA_DIR=str(tmp_path / "file"))
    assert code == 1
    assert "data_folder" in faults(found)


def test_a_checkpoint_key_that_others_can_read_or_nobody_can_use(examine: Examine, tmp_path: Path) -> None:
    """S10.2: whoever has the key can sign."""
    load_signing_key(tmp_path)
    assert examine()[1]["checkpoint_key"]["said"] == "this account can read it, and no other"
    (tmp_path / KEY_FILE).chmod(0o644)
    code, found = examine()
    assert (code, found["checkpoint_key"]["status"]) == (0, "note")
    assert f"chmod 600 '{tmp_path / KEY_FILE}'" in found["checkpoint_key"]["remedy"]
    secret = (tmp_path / KEY_FILE).read_text()[:40]
    (tmp_path / KEY_FILE).write_text(secret)
    code, found = examine()
    assert (code, faults(found)) == (1, {"checkpoint_key"})
    assert secret not in str(found)


def test_a_broken_bundle_is_a_fault_only_where_none_is_active(examine: Examine, tmp_path: Path, database: TestDatabase) -> None:
    shutil.copytree(PROJECT / "policies" / "shop", tmp_path / "shop")
    with (tmp_path / "shop" / "thresholds.yaml").open("a") as file:
        file.write("surprise: 1\n")
    code, found = examine(PLACET_POLICY_DIR=str(tmp_path / "shop"))
    assert (code, found["policy_bundle"]["status"]) == (0, "note")
    assert "thresholds.yaml:" in found["policy_bundle"]["said"]
    execute(database, "UPDATE placet.tenants SET active_policy_version = NULL")
    code, found = examine(PLACET_POLICY_DIR=str(tmp_path / "shop"))
    assert (code, faults(found), found["policy_active"]["status"]) == (1, {"policy_bundle"}, "note")


def test_a_port_that_another_program_has(examine: Examine) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        code, found = examine(PLACET_PORT=str(port))
    assert (code, faults(found)) == (1, {"port"})
    assert found["port"]["said"] == f"port {port} of 127.0.0.1 is in use by another program"
    assert "PLACET_PORT=" in found["port"]["remedy"]


@pytest.fixture
def answering() -> Iterator[Callable[[dict[str, Any]], int]]:
    """Serve a document at a port of its own, as a service's /readyz would."""
    servers: list[HTTPServer] = []

    def serve(document: dict[str, Any]) -> int:
        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200 if document.get("status") == "ready" else 503)
                self.end_headers()
                self.wfile.write(json.dumps(document).encode())

            def log_message(self, *_arguments: object) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Answers))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1].server_port

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_service_that_runs_is_asked_and_what_a_start_would_mend_is_a_fault_then(
    examine: Examine, database: TestDatabase, answering: Callable[[dict[str, Any]], int]
) -> None:
    execute(database, "UPDATE placet.schema_version SET version_num = '0000'")
    port = answering({"status": "not_ready", "checks": {"database": "ok", "migrations": "at 0000: run `placet migrate`"}})
    code, found = examine(PLACET_PORT=str(port))
    assert (code, faults(found)) == (1, {"migrations", "service"})
    assert found["service"]["said"] == "it isn't ready: migrations: at 0000: run `placet migrate`"
    assert found["port"]["said"] == f"a Placet answers on port {port} of 127.0.0.1"


def test_what_answers_and_is_no_placet_only_has_the_port(examine: Examine, answering: Callable[[dict[str, Any]], int]) -> None:
    code, found = examine(PLACET_PORT=str(answering({"status": "ready"})))
    assert (code, faults(found)) == (1, {"port"})


def test_lines_say_the_same_without_colours_where_no_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PLACET_WORKERS", "many")
    monkeypatch.setattr(sys, "argv", ["placet", "doctor"])
    with pytest.raises(SystemExit) as ended:
        main()
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 1
    assert lines[1:] == [
        "fault  settings: PLACET_WORKERS `many` can't be used",
        "       -> expected a number of processes from 1 to 64",
    ]


def test_old_versions_and_clocks_that_differ() -> None:
    assert doctor.python_version((3, 10, 2)).status is Status.FAULT
    assert doctor_database.server_version(170_004, "17.4").said == "PostgreSQL 17.4 is too old"
    now = datetime(2026, 12, 1, tzinfo=UTC)
    asked = now.timestamp()
    assert doctor_database.clock(now, asked - 1, asked + 1).status is Status.OK
    assert doctor_database.clock(now, asked + 5, asked + 6).said == "the database's clock and this machine's are 5.0 s apart"
    assert doctor_database.clock(now, asked - 9, asked - 4).said == "the database's clock and this machine's are 4.0 s apart"


def test_a_migration_makes_the_partitions_that_a_long_pause_left_out(
    examine: Examine, database: TestDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S10.5, DESIGN: not ready without next month's; what is advised then helps, although the schema is at head."""
    drop = (
        "DO $$ BEGIN EXECUTE 'DROP TABLE placet.audit_rows_' || to_char((now() AT TIME ZONE 'UTC') + interval '1 month', 'YYYY_MM'); END $$"
    )
    execute(database, drop)
    code, found = examine()
    assert (code, found["partitions"]["status"]) == (0, "note")
    assert "placet migrate" in found["partitions"]["remedy"]
    monkeypatch.setattr(sys, "argv", ["placet", "migrate"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    capsys.readouterr()
    assert examine()[1]["partitions"]["status"] == "ok"


@pytest.mark.parametrize("strange", ["DROP TABLE placet.tenants CASCADE", "INSERT INTO placet.schema_version VALUES ('another one')"])
def test_a_schema_that_is_not_ours_proves_nothing(examine: Examine, database: TestDatabase, strange: str) -> None:
    """What couldn't be looked at isn't said to be right: not the role's rights either."""
    execute(database, strange)
    _, found = examine()
    assert found["migrations"]["status"] == "note"
    assert found["migrations"]["said"] == f"the schema is at no revision, and this program needs {head_revision()}"
    assert found.keys().isdisjoint({"role", "partitions", "policy_active", "functions"})


def test_without_an_account_for_the_server_the_rest_is_still_looked_at(examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_arguments: object) -> Path:
        raise NoAccount("PostgreSQL can't run as root; set DATABASE_URL")

    monkeypatch.setattr(doctor, "data_folder", none)
    code, found = examine()
    assert (code, faults(found)) == (1, {"data_folder"})
    assert found["data_folder"]["remedy"] == "set DATABASE_URL"
    assert found["port"]["status"] == "ok"


def test_a_folder_that_may_not_be_looked_for_ends_no_examination(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Below a folder that this account can't enter; `Path.exists` raises there."""

    def refused(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refused)
    found = list(doctor.data_findings(tmp_path / "hidden", embedded=False))
    assert [each.check for each in found] == ["data_folder", "disk_space", "inodes"]
    assert found[0].said == f"`{tmp_path / 'hidden'}` isn't there yet; the first start makes it"


def test_missing_partitions_and_functions_are_named() -> None:
    state = DatabaseState(head_revision(), False, False, True, False)
    found = doctor_database.schema_findings(state, head_revision(), running=True, single_role=False)
    assert {each.check for each in found if each.status is Status.FAULT} == {"partitions", "functions"}
    found = doctor_database.schema_findings(state, head_revision(), running=False, single_role=False)
    assert {each.check for each in found if each.status is Status.NOTE} == {"partitions", "functions"}
