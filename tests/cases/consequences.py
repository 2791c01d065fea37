"""What a decision, or a bundle that is refused, leaves behind in the database: looked at by the superuser, whatever was answered."""

from __future__ import annotations

from collections.abc import Mapping

from tests.cases.stage import Tenant

ACCEPTED = ("accepted", "within_policy")
INVALID = ("422", "policy_invalid")
NO_POLICY = ("denied", "no_policy")
REFUND = "tools/refund.yaml"


async def stores_nothing(tenant: Tenant, files: Mapping[str, str], file: str) -> str:
    """Assert that a bundle is refused at the save with its place, that nothing of it is kept and that the active version still decides;
    give what was said of it."""
    versions = "SELECT version, digest FROM placet.policy_versions WHERE tenant_id = $1 ORDER BY 1"
    before, active = await tenant.rows(versions), "SELECT active_policy_version FROM placet.tenants WHERE tenant_id = $1"
    now = await tenant.value(active)
    refused = await tenant.stage.post("/policies", await tenant.key("author"), {"files": dict(files)})
    assert refused.said == INVALID, refused.text
    found = [error for error in refused["errors"] if error["detail"].startswith(f"{file}:")]
    assert found, refused.text
    assert await tenant.rows(versions) == before
    assert await tenant.value(active) == now
    assert (await tenant.events())[-1]["event"] == "request.refused"
    assert await tenant.value("SELECT count(*) FROM placet.audit_rows WHERE tenant_id = $1 AND event = 'policy.activated'") == 0
    return "; ".join(error["detail"] for error in found)


async def kept(tenant: Tenant) -> dict[str, object]:
    """Give all that a decision could have led to, but for its own row: amounts, approvals, and what the shop's tables say."""
    found: dict[str, object] = {
        table: await tenant.rows(f"SELECT * FROM placet.{table} WHERE tenant_id = $1 ORDER BY 1, 2, 3")
        for table in ("holds", "approvals", "idempotency_keys", "freezes")
    }
    found["held"] = await tenant.rows("SELECT account, held, spent FROM placet.accounts WHERE tenant_id = $1 AND (held <> 0 OR spent <> 0)")
    for table in ("orders", "refunds", "addresses", "messages", "events", "customers"):
        found[table] = [
            dict(row)
            for row in await tenant.stage.superuser.fetch(f"SELECT * FROM shop.{table} WHERE tenant = $1 ORDER BY 1, 2, 3", tenant.name)
        ]
    return found
