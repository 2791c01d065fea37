"""What the guards are given: the call with its policy, and the evidence that was read for it. Values only, no I/O.

A guard sees nothing that isn't here; what isn't here can't change a decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from app.domain.decision import Decision, Layer, LayerResult
from app.domain.hint import FixHint
from app.domain.quantity import Quantity
from app.domain.tool_call import Principal, ToolCall
from app.policy.arguments import ArgumentReading
from app.policy.model import Policy, Tool


@dataclass(frozen=True, slots=True)
class CallContext:
    """One call, before any state is read. `now` is the moment of the decision (aware, UTC)."""

    call: ToolCall
    principal: Principal
    policy: Policy
    tool: Tool
    now: datetime

    @property
    def segment(self) -> str | None:
        """The end user's segment, if the key may name it."""
        return self.call.segment if self.call.segment in self.principal.segments else None

    @property
    def possible_segments(self) -> tuple[str | None, ...]:
        """The segments to judge by: the one named, or, when none was that the key may name, all that it may; the strictest counts.

        A key that lists none may belong to any that the policy knows.
        """
        if self.segment is not None:
            return (self.segment,)
        return tuple(sorted(self.principal.segments)) or (None, *self.policy.segments)


def base_values(context: CallContext, reading: ArgumentReading) -> dict[str, object]:
    """Give the variables that every expression of the tool may use, by their dotted names."""
    call = context.call
    return {
        **reading.values,
        "on_behalf_of.id": call.on_behalf_of_id or "",
        "on_behalf_of.segment": context.segment or "",
        "principal.subject": context.principal.subject,
        "principal.roles": sorted(context.principal.roles),
        "tenant": context.principal.tenant,
        "session_id": call.session_id,
        "task_id": call.task_id or "",
        "now": context.now.astimezone(UTC),
    }


@dataclass(frozen=True, slots=True)
class Balance:
    """An account: sums in minor units of `unit`, which is None until something was held on it."""

    unit: str | None
    held: int
    spent: int


@dataclass(frozen=True, slots=True)
class FactsRead:
    """The rows of a call's facts (None: there is no row), or the SQLSTATE of what went wrong."""

    rows: Mapping[str, Mapping[str, object] | None]
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class DryRun:
    """What the effects did before they were rolled back, or the SQLSTATE and names of what stopped them.

    `rows`: for each statement the (old, new) pairs, None for the side that isn't there. `counts`: table -> (inserted, updated, deleted).
    `omitted`: the statement's index -> how many of its rows aren't in `rows`, and the digest of all of them.
    """

    rows: tuple[tuple[tuple[Mapping[str, object] | None, Mapping[str, object] | None], ...], ...] = ()
    counts: Mapping[str, tuple[int, int, int]] | None = None
    failed: str | None = None
    constraint: str = ""
    table: str = ""
    column: str = ""
    omitted: Mapping[int, tuple[int, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was read for one call, at one moment. `dry_run` is None until the effects were tried."""

    facts: FactsRead
    history: Mapping[str, int]
    balances: Mapping[str, Balance]  # by account
    dry_run: DryRun | None = None
    facts_us: int = 0  # how long the reads took, for the whole batch
    dry_run_us: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """A layer's no, or its call for a person (`needs_user`)."""

    decision: Decision
    layer: Layer
    reason: str
    hint: FixHint
    rule: str  # the check that refused: what attempts are counted by
    suggested: Mapping[str, object] | None = None  # arguments to try instead, not yet verified


@dataclass(frozen=True, slots=True)
class NewHold:
    """An amount to reserve. `account` is the stored name, `shown` the one that answers use."""

    account: str
    shown: str
    quantity: Quantity


@dataclass(frozen=True, slots=True)
class LayerVerdict:
    """What a guard gives back: its part of the answer, and whether it ends the walk."""

    result: LayerResult
    refused: Refused | None = None
