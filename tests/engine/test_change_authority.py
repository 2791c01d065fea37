"""What changes authority when it is cut off in the middle, or takes long (SPEC S6.3, S12.1)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from app.domain.errors import Conflict
from app.engine import change_authority
from app.engine.authority import PLATFORM_TENANT
from app.engine.change_authority import SYSTEM, AuthorityWriter
from app.policy.model import Policy
from tests.engine.shop import SHOP_FILES, Shop, activate, changed, working

LIVING = "SELECT key_id FROM placet.api_keys WHERE bootstrap AND revoked_at IS NULL"
OLD, NEW = "bootstrap-key-number-one-of-two", "bootstrap-key-number-two-of-two"


class Killed(BaseException):
    """The process ends here."""


async def test_a_start_that_was_killed_while_it_replaced_the_bootstrap_key_is_finished_by_the_next(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S12.1: else the key that was to be replaced, which may be why, would open everything for ever."""
    async with working(shop.url) as worker:
        await worker.writer.set_bootstrap_key(OLD)
        with monkeypatch.context() as killing:

            async def killed(*_arguments: object) -> None:
                raise Killed

            killing.setattr(AuthorityWriter, "revoke_key", killed)
            with pytest.raises(Killed):
                await worker.writer.set_bootstrap_key(NEW)
        assert len(await shop.rows(LIVING)) == 2
        assert await worker.writer.set_bootstrap_key(NEW) is None
        assert len(await shop.rows(LIVING)) == 1
        assert (await worker.authority.authenticate(NEW)).tenant_id == PLATFORM_TENANT
        with pytest.raises(Conflict, match="revoked"):
            await worker.writer.set_bootstrap_key(OLD)
        assert await worker.writer.set_bootstrap_key(None) is None, "there is one"


async def test_no_transaction_is_open_while_a_bundle_is_compiled(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one takes longer than the server lets a transaction be idle, and a pool's connection may not wait for it."""
    open_meanwhile: list[int] = []
    real = change_authority.compiled
    question = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"

    async def watched(files: Mapping[str, str]) -> Policy:
        open_meanwhile.append(await shop.value(question))
        return await real(files)

    await activate(shop, shop.acme, changed(SHOP_FILES, "bundle.yaml", ("name: shop", "name: one")))
    async with working(shop.url) as worker:
        version, _ = await worker.writer.store_policy(SYSTEM, shop.acme.tenant_id, SHOP_FILES)
        monkeypatch.setattr(change_authority, "compiled", watched)
        await worker.writer.activate_policy(SYSTEM, shop.acme.tenant_id, version)
    assert open_meanwhile == [0, 0]


async def test_a_stored_version_that_is_no_longer_taken_can_be_replaced(shop: Shop) -> None:
    """S6.3: an upgrade may have made the compiler stricter than what took the version that is active."""
    await shop.execute(f"UPDATE placet.policy_versions SET files = '{{}}' WHERE tenant_id = '{shop.acme.tenant_id}'")
    version = await activate(shop, shop.acme, SHOP_FILES)
    assert await shop.value("SELECT active_policy_version FROM placet.tenants WHERE tenant_id = $1", shop.acme.tenant_id) == version
