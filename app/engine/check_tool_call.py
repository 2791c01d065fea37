"""The use case of `POST /tool-calls/check`: from a parsed call to its stored decision.

A call is prepared here, queued in a lane, decided with its batch by `decide_batch` in the order of docs/transaction.md, and answered
after COMMIT. When the authority has moved meanwhile, the batch is prepared again. Rules live in `guards`, SQL in `storage`.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from app.domain.errors import DecisionUnavailable, NotPermitted, RequestInvalid, Unauthenticated
from app.domain.scope import Entry, ScopeError, parse_scope
from app.domain.tool_call import Principal, Role, ToolCall
from app.encoding import canonical_digest
from app.engine.authority import Authority, PolicyUnusable, TenantAuthority
from app.engine.clock import Clock
from app.engine.decide_batch import AuthorityMoved, decide_batch
from app.engine.decided import Decided
from app.engine.lane import Lanes, Waiting
from app.engine.prepare_call import Work, prepare_call
from app.engine.stored_answer import CheckAnswer
from app.policy.currencies import exponent_of
from app.policy.model import Policy
from app.storage.database import BatchConnection
from app.telemetry import UNKNOWN, Metrics

AUTHORITY_TRIES_MAX = 3


class ToolCallChecker:
    """Checks calls in the lanes of one worker."""

    def __init__(self, authority: Authority, clock: Clock, database_url: str, metrics: Metrics) -> None:
        self._authority = authority
        self._clock = clock
        self._metrics = metrics
        self.lanes = Lanes(lambda: BatchConnection(database_url), self._decide, metrics)

    async def check(self, token: str, principal: Principal, call: ToolCall) -> CheckAnswer:
        """Decide one call of an authenticated principal.

        Raises:
            NotPermitted: the key has no agent role.
            RequestInvalid: `requested_scope` isn't a scope.
            Unauthenticated: the key was revoked in the meantime.
            DecisionUnavailable: no decision could be recorded; nothing was kept, or it will be replayed.
        """
        require_role(principal, Role.AGENT)
        # the body took its time: only a key that is known now may be paired with what is known of its tenant now
        principal = await self._authority.authenticate(token)
        try:
            authority = self._authority.of(principal.tenant_id)
        except PolicyUnusable:  # no decision's transaction will find out that another version is active now
            principal = await self._authority.authenticate(token, fresh=True)
            authority = self._authority.of(principal.tenant_id)
        requested = parse_requested_scope(call, authority.policy)
        work = Work(
            token, principal, call, requested, canonical_digest({"tool": call.tool, "arguments": dict(call.arguments)}), self._clock.now()
        )
        self._prepare(work, authority)
        key = (principal.tenant_id, call.session_id, call.call_id)
        who = (principal.tenant_id, principal.subject)
        answer = await self.lanes.ask(key, who, call.tool if work.tool_known else "", work)
        assert isinstance(answer, CheckAnswer)
        return answer

    def _prepare(self, work: Work, authority: TenantAuthority) -> None:
        work.authority = authority
        prepare_call(work)

    async def _decide(self, connection: BatchConnection, batch: Sequence[Waiting]) -> None:
        """Decide a batch; when the authority that the calls were prepared under has moved, prepare them again and start over."""
        for _ in range(AUTHORITY_TRIES_MAX):
            open_calls = [waiting for waiting in batch if not waiting.answer.done()]
            works = [waiting.work for waiting in open_calls]
            assert all(isinstance(work, Work) for work in works)
            if not open_calls:
                return
            try:
                answers = await decide_batch(connection, works, self._clock, self.lanes.slow_down)  # type: ignore[arg-type]  # asserted above
            except AuthorityMoved as moved:
                stayed = [each for each in open_calls if _tenant_of(each) not in moved.tenants]
                if stayed:  # one tenant's changes are not another's wait
                    await self._decide(connection, stayed)
                batch = [each for each in open_calls if _tenant_of(each) in moved.tenants]
                await self._prepare_again(batch, moved.tenants)
                continue
            for waiting, answer in zip(open_calls, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer.answer if isinstance(answer, Decided) else answer)
            for answer in answers:
                if isinstance(answer, Decided):
                    self._count(answer)
            return
        raise DecisionUnavailable  # the authority moved at every try

    def _count(self, decided: Decided) -> None:
        verdict, layers = decided.verdict, decided.verdict.layers
        tool = decided.work.call.tool if decided.work.tool_known else UNKNOWN
        layer = verdict.refused.layer if verdict.refused is not None else layers[-1].name
        self._metrics.decision(tool, verdict.decision, verdict.reason, layer)
        for each in layers:
            self._metrics.layer(each.name, each.duration_us / 1_000_000)

    async def _prepare_again(self, batch: Sequence[Waiting], tenants: frozenset[UUID]) -> None:
        await self._authority.refresh(tenants)
        for waiting in batch:
            work = waiting.work
            assert isinstance(work, Work)
            if work.principal.tenant_id not in tenants:
                continue
            try:
                work.principal = await self._authority.authenticate(work.token)
                require_role(work.principal, Role.AGENT)
                authority = self._authority.of(work.principal.tenant_id)
                work.requested = parse_requested_scope(work.call, authority.policy)  # the new policy may have other levels
            except (Unauthenticated, NotPermitted, RequestInvalid, PolicyUnusable) as refusal:
                if not waiting.answer.done():
                    waiting.answer.set_exception(refusal)
                continue
            work.now = self._clock.now()
            self._prepare(work, authority)


def _tenant_of(waiting: Waiting) -> UUID:
    assert isinstance(waiting.work, Work)
    return waiting.work.principal.tenant_id


def require_role(principal: Principal, *roles: Role) -> None:
    """Refuse a principal that has none of `roles`.

    Raises:
        NotPermitted: naming the roles that would do.
    """
    if not any(role in principal.roles for role in roles):
        raise NotPermitted(f"this needs a key with the role {' or '.join(roles)}; this key has {', '.join(sorted(principal.roles))}")


def parse_requested_scope(call: ToolCall, policy: Policy | None) -> tuple[Entry, ...] | None:
    """Read the scope that the caller narrows to, under the policy's levels of sensitivity.

    Raises:
        RequestInvalid: naming the place in the body.
    """
    if call.requested_scope is None:
        return None
    try:
        return parse_scope(call.requested_scope, exponent_of, policy.sensitivity if policy is not None else (), simplify=False)
    except ScopeError as error:
        raise RequestInvalid(((f"/requested_scope{error.pointer}", error.detail),)) from None
