"""Limits of keys (SPEC 12.2): exact over workers, a minute at a time, and nothing that one key does is another key's wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from app.domain.errors import DecisionUnavailable, RateLimited, TooManyRequests, TooManyUnderWay
from app.domain.limits import WINDOW_S, KeyLimits
from app.domain.tool_call import Principal
from app.engine.clock import Clock
from app.engine.rate_limits import Admission, Defaults, RateLimits, share_of, window_of
from app.engine.record_refusal import RefusalRecorder
from app.storage import rate_limits as stored
from app.storage.database import Database
from tests.engine.shop import Shop, SteppedClock

DEFAULTS = Defaults(30_000, 1_000)
AFTER_THE_MINUTE = timedelta(seconds=WINDOW_S)


@pytest.fixture
def clock() -> SteppedClock:
    """A clock that stands ten seconds after a minute's beginning when a test starts, so that no test runs over its end."""
    now = Clock().now()
    return SteppedClock(window_of(now) + timedelta(seconds=70) - now)


@pytest.fixture
async def databases(shop: Shop) -> AsyncIterator[tuple[Database, Database]]:
    """Two pools: what two workers have."""
    both = Database(shop.url), Database(shop.url)
    yield both
    for each in both:
        await each.close()


def principal(shop: Shop, requests: int | None = None, concurrent: int | None = None, tenant: UUID | None = None) -> Principal:
    """Give the principal of a key of its own."""
    tenant_id = tenant if tenant is not None else shop.acme.tenant_id
    return Principal(tenant_id, "acme", uuid4(), "agent", "agent", frozenset(("agent",)), frozenset(), KeyLimits(requests, concurrent))


async def ask(limits: RateLimits, key: Principal) -> str:
    """Make one request and give how it went."""
    try:
        admission = await limits.admit(key)
    except TooManyRequests as refused:
        return type(refused).__name__
    limits.leave(admission)
    return "admitted"


async def leased(shop: Shop, key: Principal) -> list[int]:
    rows = await shop.rows("SELECT leased FROM placet.request_windows WHERE key_id = $1 ORDER BY window_start", key.key_id)
    return [row["leased"] for row in rows]


async def test_s12_2_two_workers_admit_exactly_the_limit(shop: Shop, databases: tuple[Database, Database], clock: SteppedClock) -> None:
    """200 at once over two workers, 50 allowed: 50, whoever comes first; not one more for the rest of the minute."""
    workers = [RateLimits(each, clock, DEFAULTS) for each in databases]
    key = principal(shop, 50)
    answers = await asyncio.gather(*(ask(workers[number % 2], key) for number in range(200)))
    assert (answers.count("admitted"), answers.count("RateLimited")) == (50, 150)
    assert await leased(shop, key) == [50]
    assert [await ask(each, key) for each in workers] == ["RateLimited", "RateLimited"]


@pytest.mark.parametrize("limit", [1, 3, 199, 200, 999, 1_000, 1_001])
async def test_one_after_the_other_gets_all_of_the_limit(
    shop: Shop, databases: tuple[Database, Database], clock: SteppedClock, limit: int
) -> None:
    limits, key = RateLimits(databases[0], clock, DEFAULTS), principal(shop, limit)
    for _ in range(limit):
        assert await ask(limits, key) == "admitted"
    assert await ask(limits, key) == "RateLimited"
    assert await leased(shop, key) == [limit]


@pytest.mark.parametrize("limit", [5, 1_000])
async def test_workers_in_turn_never_go_over_and_hardly_under(
    shop: Shop, databases: tuple[Database, Database], clock: SteppedClock, limit: int
) -> None:
    """Blocks get smaller near the end, so that none lies unused in one worker while the other has run out."""
    workers = [RateLimits(each, clock, DEFAULTS) for each in databases]
    key = principal(shop, limit)
    answers = [await ask(workers[number % 2], key) for number in range(limit + 20)]
    assert answers.count("admitted") == limit
    assert await leased(shop, key) == [limit]


async def test_a_restart_does_not_give_the_minute_back(shop: Shop, databases: tuple[Database, Database], clock: SteppedClock) -> None:
    key = principal(shop, 2_000)
    first = RateLimits(databases[0], clock, DEFAULTS)
    assert [await ask(first, key) for _ in range(15)] == ["admitted"] * 15
    second = RateLimits(databases[1], clock, DEFAULTS)  # the first is gone, and with it the 5 requests left of its second block
    spent = 0
    while await ask(second, key) == "admitted":
        spent += 1
    assert spent == 2_000 - 20


async def test_a_new_minute_is_a_new_limit(shop: Shop, databases: tuple[Database, Database], clock: SteppedClock) -> None:
    limits, key = RateLimits(databases[0], clock, DEFAULTS), principal(shop, 2)
    assert [await ask(limits, key) for _ in range(3)] == ["admitted", "admitted", "RateLimited"]
    clock.step(AFTER_THE_MINUTE)
    assert [await ask(limits, key) for _ in range(3)] == ["admitted", "admitted", "RateLimited"]
    assert await leased(shop, key) == [2, 2]


async def test_what_is_left_of_a_block_lapses_with_its_minute(
    shop: Shop, databases: tuple[Database, Database], clock: SteppedClock
) -> None:
    limits, key = RateLimits(databases[0], clock, DEFAULTS), principal(shop, 2_000)
    assert (await limits.admit(key)).standing.remaining == 1_999
    clock.step(AFTER_THE_MINUTE)
    assert (await limits.admit(key)).standing.remaining == 1_999
    assert await leased(shop, key) == [10, 10]


async def test_the_standing_counts_down(shop: Shop, databases: tuple[Database, Database], clock: SteppedClock) -> None:
    limits, key = RateLimits(databases[0], clock, DEFAULTS), principal(shop, 30_000, 7)
    seen = [(await limits.admit(key)).standing for _ in range(3)]
    assert [each.remaining for each in seen] == [29_999, 29_998, 29_997]
    assert {(each.requests_per_minute, each.concurrent) for each in seen} == {(30_000, 7)}
    assert all(1 <= each.resets_in_s <= 50 for each in seen)
    assert await leased(shop, key) == [150]  # one round trip for as many requests


async def test_waiting_requests_share_one_lease(
    shop: Shop, databases: tuple[Database, Database], clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.storage import rate_limits as stored

    asked: list[int] = []
    real = stored.lease_requests

    async def counted(*values: object, waiting: int, **more: object) -> stored.Lease:
        asked.append(waiting)
        return await real(*values, waiting=waiting, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(stored, "lease_requests", counted)
    limits, key = RateLimits(databases[0], clock, DEFAULTS), principal(shop, 100)
    assert await asyncio.gather(*(ask(limits, key) for _ in range(60))) == ["admitted"] * 60
    assert asked == [60]


async def test_one_that_gives_up_takes_no_lease_from_the_others(
    shop: Shop, databases: tuple[Database, Database], clock: SteppedClock
) -> None:
    """The first asker's client leaves while the lease is asked for."""
    limits, key = RateLimits(databases[0], clock, DEFAULTS), principal(shop, 2)
    first, second = asyncio.create_task(ask(limits, key)), asyncio.create_task(ask(limits, key))
    await asyncio.sleep(0)
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    assert (await second, limits.under_way(key.key_id)) == ("admitted", 0)


@pytest.mark.parametrize(("own", "refused"), [(KeyLimits(0, None), RateLimited), (KeyLimits(None, 0), TooManyUnderWay)])
async def test_zero_stops_the_first_one_without_the_database(shop: Shop, clock: SteppedClock, own: KeyLimits, refused: type) -> None:
    """Waiting wouldn't help, so nothing says how long."""
    nowhere = Database("postgresql://placet_app@127.0.0.1:9/nowhere")
    limits = RateLimits(nowhere, clock, DEFAULTS)
    with pytest.raises(refused) as raised:
        await limits.admit(replace(principal(shop), limits=own))
    assert raised.value.retry_after_s is None
    assert str(raised.value).endswith("is 0); ask an operator for another")
    await nowhere.close()


async def test_without_a_database_nobody_is_admitted(shop: Shop, clock: SteppedClock) -> None:
    """S3.10: closed, also for those that wait together, and nobody stays counted."""
    nowhere = Database("postgresql://placet_app@127.0.0.1:9/nowhere")
    limits, key = RateLimits(nowhere, clock, DEFAULTS), principal(shop, 50)
    found = await asyncio.gather(*(limits.admit(key) for _ in range(10)), return_exceptions=True)
    assert {type(each) for each in found} == {DecisionUnavailable}
    assert limits.under_way(key.key_id) == 0
    await nowhere.close()


async def test_only_so_many_at_once(shop: Shop, databases: tuple[Database, Database], clock: SteppedClock) -> None:
    limits, key = RateLimits(databases[0], clock, DEFAULTS), principal(shop, 100, 3)
    inside: list[Admission] = [await limits.admit(key) for _ in range(3)]
    with pytest.raises(TooManyUnderWay) as refused:
        await limits.admit(key)
    assert (refused.value.retry_after_s, refused.value.standing.remaining) == (1, 97)
    assert await ask(limits, principal(shop, 100, 3)) == "admitted"  # another key
    limits.leave(inside.pop())
    assert await ask(limits, key) == "admitted"
    for each in inside:
        limits.leave(each)
    assert limits.under_way(key.key_id) == 0
    assert limits._under_way == {}


async def test_who_waits_for_a_lease_is_under_way(shop: Shop, databases: tuple[Database, Database], clock: SteppedClock) -> None:
    limits, key = RateLimits(databases[0], clock, DEFAULTS), principal(shop, 100, 4)
    answers = await asyncio.gather(*(ask(limits, key) for _ in range(10)))
    assert (answers.count("admitted"), answers.count("TooManyUnderWay")) == (4, 6)
    assert await leased(shop, key) == [4]  # who was refused for another reason has spent nothing


@pytest.mark.parametrize(
    ("limit", "workers", "shares"), [(128, 1, [128]), (128, 2, [64, 64]), (10, 4, [3, 3, 2, 2]), (1, 3, [1, 1, 1]), (0, 3, [0, 0, 0])]
)
def test_each_worker_takes_its_share(limit: int, workers: int, shares: list[int]) -> None:
    """The shares add up to the limit, but none is nothing unless the limit is."""
    assert [share_of(limit, worker, workers) for worker in range(workers)] == shares


async def test_one_keys_flood_is_nobody_elses(shop: Shop, databases: tuple[Database, Database], clock: SteppedClock) -> None:
    """TA-07: another key of the tenant, and another tenant, get what is theirs meanwhile."""
    limits = RateLimits(databases[0], clock, DEFAULTS)
    noisy, beside, elsewhere = principal(shop, 10), principal(shop, 40), principal(shop, 40, tenant=shop.globex.tenant_id)
    answers = await asyncio.gather(*(ask(limits, key) for _ in range(40) for key in (noisy, beside, noisy, noisy, elsewhere)))
    assert answers.count("RateLimited") == 110
    assert [await leased(shop, key) for key in (noisy, beside, elsewhere)] == [[10], [40], [40]]


async def test_memory_is_bounded_and_what_is_forgotten_stays_counted(
    shop: Shop, databases: tuple[Database, Database], clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.engine import rate_limits

    monkeypatch.setattr(rate_limits, "KEYS_MAX", 3)
    limits, key = RateLimits(databases[0], clock, DEFAULTS), principal(shop, 2)
    assert [await ask(limits, key) for _ in range(3)] == ["admitted", "admitted", "RateLimited"]
    for _ in range(4):
        await ask(limits, principal(shop, 5))
    assert len(limits._quotas) == 3
    assert await ask(limits, key) == "RateLimited"


async def test_old_windows_are_forgotten_and_no_other(shop: Shop, databases: tuple[Database, Database], clock: SteppedClock) -> None:
    """All tenants' at once; the service itself may delete nothing."""
    limits = RateLimits(databases[0], clock, DEFAULTS)
    mine, theirs = principal(shop, 5), principal(shop, 5, tenant=shop.globex.tenant_id)
    for key in (mine, theirs):
        await ask(limits, key)
        for age in ("59 minutes", "61 minutes", "2 days"):
            await shop.execute(
                "INSERT INTO placet.request_windows (tenant_id, key_id, window_start, leased)"
                f" VALUES ('{key.tenant_id}', '{key.key_id}', now() - interval '{age}', 1)"
            )
    await limits.forget_old()
    assert [await leased(shop, key) for key in (mine, theirs)] == [[1, 1], [1, 1]]


async def refusals(shop: Shop, tenant_id: UUID) -> list[tuple[str, int]]:
    rows = await shop.rows(
        "SELECT body::jsonb->>'code' AS code, (body::jsonb->>'requests')::int AS requests FROM placet.audit_rows"
        " WHERE tenant_id = $1 AND event = 'request.refused' ORDER BY sequence",
        tenant_id,
    )
    return [(row["code"], row["requests"]) for row in rows]


async def test_a_flood_is_one_row_a_minute(shop: Shop, databases: tuple[Database, Database], clock: SteppedClock) -> None:
    """S10.1: over all workers; the next minute's row says how many its worker refused since its last one."""
    recorders = [RefusalRecorder(each, clock) for each in databases]
    key = principal(shop, 0)

    async def flood() -> None:
        for _ in range(10):
            for recorder in recorders:
                await recorder.limited(key, "/keys", "rate_limited", None)

    await flood()
    assert await refusals(shop, shop.acme.tenant_id) == [("rate_limited", 1)]
    await recorders[1].limited(key, "/keys", "too_many_requests_under_way", None)
    clock.step(AFTER_THE_MINUTE)
    await flood()
    assert await refusals(shop, shop.acme.tenant_id) == [("rate_limited", 1), ("too_many_requests_under_way", 1), ("rate_limited", 10)]
    clock.step(AFTER_THE_MINUTE)
    await recorders[1].limited(key, "/keys", "rate_limited", None)
    assert (await refusals(shop, shop.acme.tenant_id))[-1] == ("rate_limited", 21)


async def test_what_has_its_row_waits_for_no_decision(
    shop: Shop, databases: tuple[Database, Database], clock: SteppedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain's head, which every decision of the tenant needs, is locked last (docs/transaction.md), and only for a row."""
    key = principal(shop, 0)
    real = stored.mark_recorded
    marked: list[bool] = []

    async def head_is_free(*arguments: Any) -> bool:
        async with shop.superuser() as other:
            await other.execute(f"SELECT FROM placet.chain_heads WHERE tenant_id = '{shop.acme.tenant_id}' FOR UPDATE NOWAIT")
        marked.append(await real(*arguments))
        return marked[-1]

    monkeypatch.setattr(stored, "mark_recorded", head_is_free)
    for each in databases:
        await RefusalRecorder(each, clock).limited(key, "/keys", "rate_limited", None)
    assert marked == [True, False]
    assert await refusals(shop, shop.acme.tenant_id) == [("rate_limited", 1)]


async def test_a_row_that_cannot_be_written_waits_for_the_next_minute(
    shop: Shop, clock: SteppedClock, databases: tuple[Database, Database]
) -> None:
    nowhere = Database("postgresql://placet_app@127.0.0.1:9/nowhere")
    recorder, key = RefusalRecorder(nowhere, clock), principal(shop, 0)
    for _ in range(5):
        await recorder.limited(key, "/keys", "rate_limited", None)
    recorder._database = databases[0]
    await recorder.limited(key, "/keys", "rate_limited", None)
    assert await refusals(shop, shop.acme.tenant_id) == []
    clock.step(AFTER_THE_MINUTE)
    await recorder.limited(key, "/keys", "rate_limited", None)
    assert await refusals(shop, shop.acme.tenant_id) == [("rate_limited", 7)]
    await nowhere.close()


def test_a_window_is_the_minute_that_a_moment_is_in() -> None:
    moment = datetime.fromisoformat("2026-12-01T10:59:59.999+00:00")
    assert window_of(moment).isoformat() == "2026-12-01T10:59:00+00:00"
    assert (window_of(moment) + timedelta(seconds=WINDOW_S)).isoformat() == "2026-12-01T11:00:00+00:00"
