"""`placet demo` against a real service (S14.2): it passes on the example, and says so where a bundle was changed."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from app.cli import main
from app.demo import play
from app.demo.stage import Stage
from app.demo.story import STORY, TOOLS, Act
from app.demo.tenant import DemoTenant, StoryImpossible, make_demo_tenant
from app.launcher.addresses import DatabaseUnsuitable
from app.launcher.embedded_postgres import EmbeddedPostgres
from app.settings import PROJECT, load_settings
from tests.conftest import TestDatabase
from tests.faults.service import Service

Start = Callable[..., Service]


def demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: Path | None, *arguments: str, **environment: str
) -> tuple[int, str, str]:
    """Run the command in this process; return its exit code and what it printed."""
    for name in ("DATABASE_URL", "PLACET_MIGRATION_URL", "PLACET_POLICY_DIR"):
        monkeypatch.delenv(name, raising=False)
    if data is not None:
        monkeypatch.setenv("PLACET_DATA_DIR", str(data))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["placet", "demo", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


def await_sql(url: str, statement: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run())


def acts(output: str) -> dict[str, dict[str, Any]]:
    documents = [json.loads(line) for line in output.splitlines()]
    return {document["act"]: document for document in documents}


@pytest.mark.slow
@pytest.mark.faults
def test_the_readme_shows_what_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], start: Start) -> None:
    """Act by act, but for the one of two calls at once, whose order may differ."""
    service = start()
    code, told, _ = demo(monkeypatch, capsys, service.data, "--url", service.url)
    (shown,) = re.findall(r"```text\n(The tenant .*?)\n```", (PROJECT / "README.md").read_text(), re.DOTALL)
    acts = [act for act in re.split(r"\n\n", shown)[1:-1] if "at the same moment" not in act]
    assert code == 0
    assert len(acts) == 5
    for act in acts:
        assert act in told


@pytest.mark.slow
@pytest.mark.faults
def test_the_story_goes_as_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], start: Start) -> None:
    """S14.2: every act on an order of its own, checked as it is told."""
    service = start()
    code, told, complaint = demo(monkeypatch, capsys, service.data, "--json", "--url", service.url)
    assert (code, complaint) == (0, ""), told
    found = acts(told)
    assert list(found) == [act.name for act in STORY]
    assert all(act["as_told"] for act in found.values())
    assert [each["reason"] for each in found["small"]["answers"]] == ["within_policy", "within_policy", "call_id_reused"]
    assert [each["replayed"] for each in found["small"]["answers"]] == [False, True, False]
    assert sorted(each["execution_permitted"] for each in found["at_once"]["answers"]) == [False, True]
    assert sorted(each["decision"] for each in found["beside"]["answers"]) == ["accepted", "denied"]
    ids = [UUID(each) for act in found.values() for each in act["decision_ids"]]
    assert len(ids) - len(set(ids)) == 1, "the replay is the decision that it replays"


@pytest.mark.slow
@pytest.mark.faults
def test_it_is_told_again_as_another_tenant_and_for_people(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], start: Start
) -> None:
    service = start()
    tenants = set()
    for _ in range(2):
        code, told, _ = demo(monkeypatch, capsys, service.data, "--url", service.url)
        tenants.add(told.splitlines()[0])
        assert code == 0, told
    assert len(tenants) == 2, "a tenant of its own each run"
    code, told, _ = demo(monkeypatch, capsys, service.data, "--url", service.url)
    lines = told.splitlines()
    assert lines[-2].startswith(f"All {len(STORY)} acts went as told. ")
    assert " verified." in lines[-2]
    assert max(len(line) for line in lines) <= 100
    assert not [line for line in lines if line != line.rstrip()]
    assert "\x1b" not in told, "no colours where no terminal is"
    assert "\u201c金额为 1000.00 EUR，订单 A-1002 最多还可退 100.00 EUR\u201d" in told
    assert "to make good: reverse_refund" in told
    assert "placet_" not in told, "no key"


@pytest.mark.slow
@pytest.mark.faults
def test_a_changed_bundle_is_noticed_and_the_rest_is_still_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "shop"
    shutil.copytree(PROJECT / "policies" / "shop", folder)
    thresholds = (folder / "thresholds.yaml").read_text()
    (folder / "thresholds.yaml").write_text(thresholds.replace("{review_at: 0.60, deny_at: 0.95}", "{review_at: 0.90, deny_at: 0.95}", 1))
    service = start(PLACET_POLICY_DIR=str(folder))
    code, told, complaint = demo(monkeypatch, capsys, service.data, "--json", "--url", service.url)
    found = acts(told)
    assert (code, [name for name, act in found.items() if not act["as_told"]]) == (1, ["hundredfold", "whole"])
    assert found["hundredfold"]["otherwise"] == "`fix_hint.suggestion_decision` is `accepted`, not `needs_user`"
    assert found["whole"]["otherwise"] == "`decision` is `accepted`, not `needs_user`"
    assert "didn't go as told" in complaint
    code, told, _ = demo(monkeypatch, capsys, service.data, "--url", service.url)
    assert code == 1
    assert "    this went otherwise: `decision` is `accepted`, not `needs_user`" in told.splitlines()
    assert f"Not as told: act 1, 2 of {len(STORY)}. " in told


@pytest.mark.slow
@pytest.mark.faults
def test_a_service_on_another_database_is_told_from_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], start: Start, database: TestDatabase, postgres: EmbeddedPostgres
) -> None:
    service = start()
    name = database.superuser_url.partition("@/")[2].partition("?")[0]
    await_sql(postgres.dsn(name), f"GRANT CREATE ON DATABASE {name} TO placet_owner")
    url = service.url
    monkeypatch.setattr(sys, "argv", ["placet", "demo", "--url", url])
    monkeypatch.setenv("DATABASE_URL", database.url)
    monkeypatch.setenv("PLACET_MIGRATION_URL", postgres.dsn(name, "placet_owner"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "doesn't know the demo's key, so it uses another database" in capsys.readouterr().err


def test_without_a_service_it_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    code, told, complaint = demo(monkeypatch, capsys, None, PLACET_PORT=str(port))
    assert (code, told) == (1, "")
    assert complaint == (
        f"placet: no Placet answers at http://127.0.0.1:{port}; start it with `./run` (or `placet serve`), or name another with --url\n"
    )


def test_a_port_that_nobody_knows_has_to_be_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, complaint = demo(monkeypatch, capsys, None, PLACET_PORT="0")
    assert code == 1
    assert complaint.startswith("placet: PLACET_PORT is 0")


def use(monkeypatch: pytest.MonkeyPatch, database: TestDatabase, postgres: EmbeddedPostgres) -> str:
    """Let the settings name a test's database, with its owner; give the database's name."""
    name = database.superuser_url.partition("@/")[2].partition("?")[0]
    monkeypatch.setenv("DATABASE_URL", database.url)
    monkeypatch.setenv("PLACET_MIGRATION_URL", postgres.dsn(name, "placet_owner"))
    return name


def test_an_owner_who_may_not_make_the_shop_is_told_what_to_grant(
    monkeypatch: pytest.MonkeyPatch, database: TestDatabase, postgres: EmbeddedPostgres
) -> None:
    name = use(monkeypatch, database, postgres)
    with pytest.raises(DatabaseUnsuitable, match=f"GRANT CREATE ON DATABASE {name} TO placet_owner"):
        asyncio.run(make_demo_tenant(load_settings(), TOOLS))


async def test_another_bundle_than_the_storys_is_named(
    monkeypatch: pytest.MonkeyPatch, database: TestDatabase, postgres: EmbeddedPostgres
) -> None:
    use(monkeypatch, database, postgres)
    with pytest.raises(StoryImpossible, match=r"serves the bundle `shop` with the tools .+needs .*fly.*PLACET_POLICY_DIR="):
        await make_demo_tenant(load_settings(), TOOLS | {"fly"})


async def test_an_answer_of_another_shape_ends_an_act_and_not_the_story() -> None:
    async def looks_too_deep(stage: Stage) -> None:
        answer: dict[str, Any] = {}
        stage.require(answer["risk"]["score"] > 0, "never asked")

    async with httpx.AsyncClient() as client:
        played = await play._act(client, DemoTenant("demo-1", "", ""), 1, Act("deep", "", "", looks_too_deep))
    assert played.otherwise == "an answer isn't of the shape that the act looks into (KeyError: 'risk')"
