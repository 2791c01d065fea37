"""What a worker remembers of keys and tenants, and when it is old (SPEC S12.1)."""

from __future__ import annotations

import base64
import uuid
from datetime import timedelta

import pytest

from app.domain.errors import NotPermitted, Unauthenticated
from app.domain.tool_call import Role
from app.engine import authority, change_authority
from app.engine.authority import PLATFORM_TENANT, hash_of, tenant_of, token_of
from app.engine.change_authority import SYSTEM, KeySpec
from tests.engine.shop import SHOP_FILES, Shop, SteppedClock, activate, changed, refund, search_order, working


async def test_a_remembered_key_ends_when_it_expires(shop: Shop) -> None:
    """Without a question to the database."""
    clock = SteppedClock()
    async with working(shop.url, clock) as worker:
        spec = KeySpec("brief", "brief", (Role.AGENT,), (), timedelta(seconds=60))
        token = (await worker.writer.make_key(SYSTEM, shop.acme.tenant_id, spec)).token
        assert (await worker.check(token, search_order("c1", session_id="brief")))["decision"] == "accepted"
        clock.step(timedelta(seconds=60))
        with pytest.raises(Unauthenticated):
            await worker.authority.authenticate(token)


async def test_the_secret_alone_opens_nothing(shop: Shop) -> None:
    """A key of acme that points at globex isn't one of globex, and its tenant can't be swapped."""
    token = shop.acme.tokens["agent"]
    swapped = f"{shop.globex.tokens['agent'][:34]}{token[34:]}"
    assert tenant_of(swapped) == shop.globex.tenant_id
    async with working(shop.url) as worker:
        assert (await worker.authority.authenticate(token)).tenant == "acme"
        for wrong in (swapped, token[:-1], token + "A", token.upper(), "placet_", token.replace("placet_", "")):
            with pytest.raises(Unauthenticated):
                await worker.authority.authenticate(wrong)


def test_a_token_names_its_tenant_and_nothing_else() -> None:
    tenant_id = uuid.UUID(int=2**127 + 5)
    token = token_of(tenant_id, b"\xff" * 32)
    assert len(token) == 77
    assert tenant_of(token) == tenant_id
    assert base64.urlsafe_b64decode(token[-43:] + "=") == b"\xff" * 32
    assert len(hash_of(token)) == 32
    for other in ("", "my-own-bootstrap-key-of-24-characters", f"placet_{'1' * 26}_{'A' * 43}", token + "\n"):
        assert tenant_of(other) == PLATFORM_TENANT


async def test_roles_are_read_again_when_authority_moves(shop: Shop) -> None:
    """S12.4: a key whose role was taken decides nothing that commits later."""
    token = shop.acme.tokens["agent"]
    async with working(shop.url) as worker:
        principal = await worker.authority.authenticate(token)
        await shop.execute(f"UPDATE placet.api_keys SET roles = '{{reviewer}}' WHERE key_id = '{shop.acme.key_ids['agent']}'")
        await shop.execute("UPDATE placet.chain_heads SET authority_version = authority_version + 1")
        with pytest.raises(NotPermitted):
            await worker.checker.check(token, principal, refund("c1"))
    assert await shop.value("SELECT count(*) FROM placet.decisions") == 0


async def test_memory_is_bounded_and_what_is_forgotten_is_read_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TENANTS_MAX", "KEYS_MAX", "POLICIES_MAX"):
        monkeypatch.setattr(authority, name, 1)
    await activate(shop, shop.globex, changed(SHOP_FILES, "grants.yaml", ('amount: "15000.00"', 'amount: "10.00"')))
    async with working(shop.url) as worker:
        for turn in range(3):
            ours = await worker.check(shop.acme.tokens["agent"], search_order(f"c{turn}"))
            theirs = await worker.check(shop.globex.tokens["agent"], refund(f"c{turn}"))
            assert (ours["reason"], theirs["reason"]) == ("within_policy", "not_granted")
        assert len(worker.authority.known_tenants()) == 1


async def test_an_unrelated_tenants_change_moves_nothing(shop: Shop) -> None:
    """Only the tenants of the batch are confirmed."""
    async with working(shop.url) as worker:
        await worker.check(shop.acme.tokens["agent"], search_order("c1"))
        before = worker.authority.of(shop.acme.tenant_id)
        await worker.writer.revoke_key(SYSTEM, shop.globex.tenant_id, shop.globex.key_ids["agent"])
        await worker.check(shop.acme.tokens["agent"], search_order("c2"))
        assert worker.authority.of(shop.acme.tenant_id) is before


async def test_an_activation_that_another_overtakes_looks_back_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6.3: which past calls a version has to key depends on the version before it, so that one is asked for again."""
    seen: list[object] = []
    real = change_authority.backfill_history
    async with working(shop.url) as worker:
        first, _ = await worker.writer.store_policy(
            SYSTEM, shop.acme.tenant_id, changed(SHOP_FILES, "bundle.yaml", ("name: shop", "name: one"))
        )
        second, _ = await worker.writer.store_policy(
            SYSTEM, shop.acme.tenant_id, changed(SHOP_FILES, "bundle.yaml", ("name: shop", "name: two"))
        )

        async def overtaken(*arguments: object) -> object:
            seen.append(arguments[2])
            if len(seen) == 1:
                await worker.writer.activate_policy(SYSTEM, shop.acme.tenant_id, first)
            return await real(*arguments)  # type: ignore[arg-type]  # passed on as they came

        monkeypatch.setattr(change_authority, "backfill_history", overtaken)
        await worker.writer.activate_policy(SYSTEM, shop.acme.tenant_id, second)
    assert len(seen) == 3, "the one that was overtaken looked back twice, the other once"
    assert await shop.value("SELECT active_policy_version FROM placet.tenants WHERE tenant_id = $1", shop.acme.tenant_id) == second
