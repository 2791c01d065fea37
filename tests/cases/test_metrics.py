"""Faults of metrics that others shipped: unbounded labels, one worker's numbers, counters that fall."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import string
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cases.stage import Stage, counted, staged, together
from tests.faults.service import Service, eventually

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "MKCOL", "PURGE")
DECISIONS = "placet_decisions_total"


def _series(metrics: dict[str, float], name: str) -> set[str]:
    return {series for series in metrics if series.partition("{")[0].startswith(name)}


async def test_pm_01_scanners_make_no_series(stage: Stage) -> None:
    """500 random paths and methods, with and without a key: one label `unmatched`, methods from a list, memory flat."""
    tenant = await stage.tenant()
    key = await tenant.key()
    await stage.metrics()
    before, memory = await stage.metrics(), stage.resident_kib()

    async def scan(number: int) -> int:
        path = "/" + "".join(random.choices(string.ascii_lowercase + "/-._~%41", k=24)).replace("%", "%41")
        headers = {"authorization": f"Bearer {key}"} if number % 2 else {}
        return (await stage.client.request(METHODS[number % len(METHODS)], path, headers=headers)).status_code

    statuses = list(await asyncio.gather(*(scan(number) for number in range(500))))
    assert set(statuses) <= {400, 404, 405}
    after = await stage.metrics()
    new = _series(after, "placet_request_seconds_count") - _series(before, "placet_request_seconds_count")
    labels = {"".join(sorted(series.partition("{")[2].strip("}").split(","))) for series in new}
    assert all('route="unmatched"' in label for label in labels), labels
    assert len(new) <= 8 * 2  # methods of the list and `other`, times two statuses
    counts = {n: counted(m, "placet_request_seconds_count", route="unmatched") for n, m in (("before", before), ("after", after))}
    assert counts["after"] - counts["before"] == statuses.count(404) + statuses.count(405)
    grown = {pid: stage.resident_kib()[pid] - memory[pid] for pid in memory}
    assert max(grown.values()) < 8_192, grown


async def test_pm_01_a_method_that_nobody_knows(stage: Stage) -> None:
    """`FOO` is refused by the server's parser or counted as `other`; it never becomes a label."""
    for method in (b"FOO", b"get", b"A" * 300, b"GET\xff"):
        async with stage.socket() as (reader, writer):
            writer.write(method + b" /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await writer.drain()
            answer = await asyncio.wait_for(reader.read(200), 5)
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 405")), answer
    metrics = await stage.metrics()
    assert not [series for series in metrics if "FOO" in series or "AAAA" in series or 'method="get"' in series]


async def test_pm_01_what_a_caller_names_is_no_label(stage: Stage) -> None:
    """S11.1: tools that the policy doesn't have are `unknown`, ids are nowhere, decided or refused."""
    tenant = await stage.tenant()
    key = await tenant.key()
    before = await stage.metrics()
    names = [f"tool-{random.randrange(10**9)}" for _ in range(60)]
    await together(tenant.call(name, {}) for name in names)
    await together(stage.get(f"/decisions/{name}", key) for name in names[:20])
    await together(stage.send("POST", "/tool-calls/check", key, f'{{"tool": "{name}"}}'.encode()) for name in names[:20])
    after = await stage.metrics()
    assert counted(after, DECISIONS, tool="unknown") - counted(before, DECISIONS, tool="unknown") == 60
    text = "\n".join(after)
    assert not [name for name in names if name in text]
    assert len(set(after) - set(before)) < 60
    for hidden in (tenant.name, str(tenant.tenant_id), "the-agent", "chat-1"):
        assert hidden not in text


@pytest.mark.parametrize("calls", [40])
async def test_pm_03_every_scrape_shows_the_total_of_all_workers(stage: Stage, calls: int) -> None:
    """40 checks on both workers, then 20 scrapes on new connections: each shows the same total, 40 more than before."""
    tenant = await stage.tenant()
    await tenant.order("A-1001", 100_00)
    before = await stage.metrics()
    answers = await together(
        tenant.call("search_order", {"order_id": "A-1001"}) if number % 4 else tenant.refund("A-1001", "500.00") for number in range(calls)
    )
    assert {answer.status for answer in answers} == {200}
    seen = []
    for _ in range(20):
        async with stage.socket() as (reader, writer):  # a new connection is any worker's
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            text = (await asyncio.wait_for(reader.read(-1), 5)).decode()
        lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("placet_")]
        seen.append({name: float(value) for name, _, value in lines})
    for scrape in seen:
        assert counted(scrape, DECISIONS) - counted(before, DECISIONS) == calls
        assert counted(scrape, DECISIONS, tool="search_order") - counted(before, DECISIONS, tool="search_order") == calls * 3 / 4
        assert counted(scrape, DECISIONS, reason="amount_exceeds_refundable", layer="semantic") >= calls / 4
        layers = counted(scrape, "placet_layer_seconds_count", layer="static") - counted(
            before, "placet_layer_seconds_count", layer="static"
        )
        assert layers == calls
    monotonic = [{name: value for name, value in scrape.items() if "_total" in name and "request" not in name} for scrape in seen]
    assert all(scrape == monotonic[0] for scrape in monotonic)


async def _kill_workers(service: Service, stage: Stage, times: int) -> list[float]:
    """Kill one worker after the other; give the decisions' total after each kill and each return."""
    totals = [await stage.counted(DECISIONS)]
    for number in range(times):
        before = service.workers
        os.kill(before[number % len(before)], signal.SIGKILL)
        assert await asyncio.to_thread(eventually, lambda old=before: len(service.workers) == 2 and set(service.workers) != set(old), 30.0)
        assert await asyncio.to_thread(eventually, service.healthy)
        for _ in range(4):
            async with staged(service) as again:
                totals.append(await again.counted(DECISIONS))
        async with staged(service) as again:
            tenant = await again.tenant()
            assert (await tenant.call("search_order", {"order_id": "A-1001"})).status == 200
            totals.append(await again.counted(DECISIONS))
    return totals


@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, 10])
async def test_pm_04_killed_workers_and_a_restart(own_service: Callable[[], Service], kills: int) -> None:
    """Counters never fall while workers are killed, the files stay as many as workers, gauges are the database's; after a restart of the
    service nothing old comes back."""
    service = own_service()
    service.wait_for(r"listening on (http://\S+)")
    files = sorted((service.data / "run").glob("metrics-*"))
    assert len(files) == 1
    async with staged(service) as stage:
        tenant = await stage.tenant()
        await tenant.order("A-1001", 129_90)
        await tenant.order("A-1002", 100_00)
        for number in range(5):
            assert (await tenant.refund("A-1001", f"129.{number}0"))["decision"] == "needs_user"
        assert (await tenant.refund("A-1002", "20.00"))["decision"] == "accepted"
        totals = await _kill_workers(service, stage, kills)
    assert totals == sorted(totals)
    assert (totals[0], totals[-1]) == (6, 6 + kills)
    await _gauges_are_the_databases(service)
    assert len(_files(service)) <= 3 * 2  # a slot has one file for each kind of value
    service.signal(signal.SIGTERM)
    assert await asyncio.to_thread(service.end) == 0
    again = own_service()
    again.wait_for(r"listening on (http://\S+)")
    async with staged(again) as stage:
        assert await stage.counted(DECISIONS) == 0
    await _gauges_are_the_databases(again)
    assert len(_files(again)) <= 3 * 2


def _files(service: Service) -> list[Path]:
    return sorted((service.data / "run").glob("metrics-*/*.db"))


async def _gauges_are_the_databases(service: Service) -> None:
    async with staged(service) as stage:
        pending = await stage.superuser.fetchval("SELECT count(*) FROM placet.approvals WHERE status = 'pending'")
        held = await stage.superuser.fetchval("SELECT count(*) FROM placet.holds WHERE status = 'held'")
        assert (pending, held) == (5, 2)
        for _ in range(6):
            metrics = await stage.metrics()
            assert (metrics["placet_approvals_waiting"], metrics["placet_holds_open"]) == (pending, held)
            assert counted(metrics, "placet_queue_depth") == 0
