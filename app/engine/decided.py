"""One new decision of a batch, from its verdict to its recorded answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from app.domain.decision import Decision
from app.domain.hint import Retryable, Suggestion
from app.engine.answer import Attempts
from app.engine.ledger import Place
from app.engine.prepare_call import Work
from app.engine.stored_answer import CheckAnswer
from app.guards.context import Balance, Evidence
from app.guards.pipeline import Verdict
from app.policy.model import LoopLimit


@dataclass(slots=True)
class Decided:
    """One new decision of a batch; `answer` is there once it is recorded."""

    work: Work
    place: Place
    verdict: Verdict
    evidence: Evidence | None
    decision_id: UUID
    hold_ids: tuple[UUID, ...]
    limit: LoopLimit | None
    refused_before: int
    refusal_row: dict[str, object] | None = None
    balances: Mapping[str, Balance] = field(default_factory=dict)
    suggestion: Suggestion | None = None
    answer: CheckAnswer | None = None

    @property
    def counts_as_attempt(self) -> bool:
        """Say whether a limited rule refused for good: trying it again counts, whether or not a change could help."""
        refused = self.verdict.refused
        return (
            self.limit is not None
            and refused is not None
            and refused.decision is Decision.DENIED
            and refused.hint.retryable in (Retryable.NEVER, Retryable.AFTER_CHANGE)
        )

    @property
    def attempts(self) -> Attempts | None:
        if self.limit is None or self.verdict.refused is None:
            return None
        return Attempts(self.limit, self.verdict.refused.rule, self.refused_before + self.counts_as_attempt)
