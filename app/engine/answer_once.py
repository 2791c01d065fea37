"""Answers a repeated POST of one Idempotency-Key as the first was answered, so that its effect happens once (API.md 0.1).

The claim commits before the effect begins and the answer after it ended. A request that died between them leaves a key that is claimed
and unanswered; after TAKE_OVER_AFTER the same request may take it over, and only then can an effect happen again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from app.domain.errors import IdempotencyInProgress, IdempotencyKeyReused
from app.engine.clock import Clock
from app.storage import idempotency as stored
from app.storage.database import Database
from app.storage.idempotency import Claim

TAKE_OVER_AFTER = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    status: int
    body: str


class AnswerOnce:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def claim(self, tenant_id: UUID, subject: str, key: str, route: str, body_digest: str) -> Claim | StoredAnswer:
        """Take the key, or give the answer that was stored under it.

        Raises:
            IdempotencyKeyReused: the key came before with another body or route.
            IdempotencyInProgress: the request that came first isn't answered yet.
        """
        now = self._clock.now()
        claim = Claim(tenant_id, subject, key, route, body_digest, now)
        async with self._database.transaction([tenant_id]) as connection:
            known = await stored.claim_key(connection, claim, now - TAKE_OVER_AFTER)
        if known is None:
            return claim
        if known.body_digest != stored.FREE and (known.route, known.body_digest) != (route, body_digest):
            raise IdempotencyKeyReused("this Idempotency-Key came before with another body or route; use a new one for a new request")
        if known.status is None or known.answer is None:
            raise IdempotencyInProgress("the first request with this Idempotency-Key isn't answered yet; send it again in a moment")
        return StoredAnswer(known.status, known.answer)

    async def finish(self, claim: Claim, status: int, body: str) -> None:
        """Store the answer that a repetition gets; `body` must hold no secret."""
        async with self._database.transaction([claim.tenant_id]) as connection:
            await stored.store_answer(connection, claim, status, body)

    async def free(self, claim: Claim) -> None:
        """Give the key back: the request failed here, and may be sent again."""
        async with self._database.transaction([claim.tenant_id]) as connection:
            await stored.free_key(connection, claim)
