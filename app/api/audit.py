"""`GET /audit/verification`: whether a tenant's chain is whole, for its auditors."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from app.api.access import principal_with
from app.api.services import Services
from app.domain.tool_call import Principal, Role
from app.engine.clock import rfc3339
from app.engine.verify_chain import ChainReport


def routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["audit"])
    auditor = principal_with(services, Role.AUDITOR)

    @router.get("/audit/verification", summary="Verify the audit chain")
    async def verification(principal: Principal = Depends(auditor)) -> dict[str, object]:
        return verification_document(await services.reader.verification(principal.tenant_id))

    return router


def verification_document(report: ChainReport) -> dict[str, object]:
    """Give the verification as API.md 4 shows it."""
    found = report.verification
    document: dict[str, object] = {
        "chain": report.chain,
        "from_sequence": 1,
        "until_sequence": found.head.sequence + 1,
        "rows": found.rows,
        "verified": found.verified,
        "head": {"sequence": found.head.sequence, "hash": found.head.hash},
        "checkpoints": [
            {
                "checkpoint_id": str(each.checkpoint_id),
                "sequence": each.sequence,
                "hash": each.hash,
                "signed_at": rfc3339(each.signed_at),
                "kid": each.kid,
                "valid": valid,
            }
            for each, valid in report.checkpoints
        ],
    }
    broken = found.first_broken
    if broken is not None:
        document["first_broken"] = {
            name: value
            for name, value in (
                ("sequence", broken.sequence),
                ("kind", broken.kind.value),
                ("expected", broken.expected),
                ("actual", broken.actual),
            )
            if value is not None
        }
    return document
