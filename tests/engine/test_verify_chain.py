"""Verifying a chain that grows meanwhile (SPEC S10.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.engine.checkpoints import Checkpoints, load_signing_key
from app.engine.verify_chain import verify_chain
from app.storage import audit
from tests.engine.shop import Shop, refund, working


async def test_a_checkpoint_that_is_signed_meanwhile_is_no_break(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of a row behind the head that was read, which would look as if the chain's end had been cut off."""
    real = audit.read_head
    async with working(shop.url) as worker:
        checkpoints = Checkpoints(worker.database, worker.clock, load_signing_key(tmp_path))
        await worker.check(shop.acme.tokens["agent"], refund("c1"))

        async def then_the_chain_grows(*arguments: Any) -> Any:
            found = await real(*arguments)
            monkeypatch.setattr(audit, "read_head", real)
            await worker.check(shop.acme.tokens["agent"], refund("c2", "3.00"))
            assert await checkpoints.sign(shop.acme.tenant_id, "acme") is not None
            return found

        monkeypatch.setattr(audit, "read_head", then_the_chain_grows)
        report = await verify_chain(worker.database, checkpoints, shop.acme.tenant_id)
        assert (report.verification.verified, report.verification.first_broken, report.checkpoints) == (True, None, ())
        after = await verify_chain(worker.database, checkpoints, shop.acme.tenant_id)
    assert after.verification.rows == report.verification.rows + 1
    assert [valid for _, valid in after.checkpoints] == [True]
    # what the order must not cost: a chain whose end was taken away is still found out
    last = after.verification.head.sequence
    await shop.execute(
        f"DELETE FROM placet.audit_rows WHERE tenant_id = '{shop.acme.tenant_id}' AND sequence = {last};"
        f"UPDATE placet.chain_heads SET sequence = {last - 1}, hash = (SELECT hash FROM placet.audit_rows WHERE tenant_id ="
        f" '{shop.acme.tenant_id}' AND sequence = {last - 1}) WHERE tenant_id = '{shop.acme.tenant_id}'"
    )
    async with working(shop.url) as worker:
        cut = await verify_chain(worker.database, checkpoints, shop.acme.tenant_id)
    assert cut.verification.verified is False
    assert cut.verification.first_broken is not None
    assert (cut.verification.first_broken.sequence, cut.verification.first_broken.kind) == (last, "truncated")
