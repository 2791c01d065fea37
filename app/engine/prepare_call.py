"""What can be said of a call before its transaction: freezes, static and scope, computed early, and what it will read, lock and count by.

It counts only once the transaction has found the authority unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

from app.domain.decision import ABSENT, Layer, LayerResult
from app.domain.json_pointer import value_at
from app.domain.scope import Entry
from app.domain.tool_call import Principal, ToolCall
from app.encoding import canonical_text
from app.guards.context import CallContext, LayerVerdict, Refused
from app.guards.freeze import check_freeze
from app.guards.pipeline import Prepared, prepare
from app.guards.static import refuse_unknown_tool
from app.policy.expressions import Bindings, Expression, ExpressionFailed
from app.policy.model import HistoryQuery, Policy, Statement
from app.storage.decision_batch import HistoryAsk

if TYPE_CHECKING:
    from app.engine.authority import TenantAuthority

SERVED = "on_behalf_of.id"


@dataclass(slots=True)
class Work:
    """A call on its way through a lane. `authority` and what follows are computed again when the authority moves."""

    token: str = field(repr=False)
    principal: Principal
    call: ToolCall
    requested: tuple[Entry, ...] | None
    digest: str
    now: datetime
    authority: TenantAuthority | None = None
    frozen: LayerVerdict | None = None
    prepared: Prepared | None = None
    refused_early: tuple[LayerResult, Refused] | None = None
    queried_keys: Mapping[str, str] = field(default_factory=dict)  # by the history query's name
    suggested: Work | None = None  # the call that an early refusal suggests, prepared too, so that its accounts are locked
    own_keys: tuple[str, ...] = ()  # what this call will be counted by, whoever's query it is

    @property
    def tool_known(self) -> bool:
        return self.policy is not None and self.call.tool in self.policy.tools

    @property
    def policy(self) -> Policy | None:
        return self.authority.policy if self.authority is not None else None


def prepare_call(work: Work) -> None:
    """Look for a freeze, then walk static and scope, under the work's authority; and so with what an early refusal suggests, once."""
    _prepare(work)
    refused = work.prepared.refused if work.prepared is not None else None
    work.suggested = suggested_call(work, refused.suggested) if refused is not None and refused.suggested is not None else None


def suggested_call(work: Work, arguments: Mapping[str, object]) -> Work | None:
    """Prepare the same call with other arguments; None where an early layer refuses them too, whatever that would suggest."""
    suggested = replace(work, call=replace(work.call, arguments=arguments), suggested=None)
    _prepare(suggested)
    return suggested if suggested.prepared is not None and suggested.prepared.refused is None else None


def _prepare(work: Work) -> None:
    policy = work.policy
    work.frozen = check_freeze(work.authority.freezes, work.principal, work.call) if work.authority is not None else None
    if work.frozen is not None:  # nothing of the call is looked at, claimed or counted
        work.prepared, work.refused_early = None, None
        work.queried_keys, work.own_keys = {}, ()
        return
    tool = policy.tools.get(work.call.tool) if policy is not None else None
    if policy is None or tool is None:
        verdict = refuse_unknown_tool(has_policy=policy is not None, locales=work.call.locales)
        assert verdict.refused is not None
        work.prepared, work.refused_early = None, (verdict.result, verdict.refused)
        work.queried_keys, work.own_keys = {}, ()
        return
    work.refused_early = None
    work.prepared = prepare(CallContext(work.call, work.principal, policy, tool, work.now), work.requested)
    queries = (*tool.history, *policy.history_keys.get(tool.name, ()))
    keys = {id(query): history_key(query, work.call) for query in {id(query): query for query in queries}.values()}
    work.queried_keys = {query.name: keys[id(query)] for query in tool.history}
    work.own_keys = tuple(sorted({keys[id(query)] for query in policy.history_keys.get(tool.name, ())}))


def history_key(query: HistoryQuery, call: ToolCall) -> str:
    """Give the key (hex) by which a call is counted for a query: the tool, the level's id and the values at the query's pointers."""
    values: list[object] = []
    for pointer in query.match:
        value = value_at(call.arguments, pointer)
        values.append([] if value is ABSENT else [value])
    level: list[str] = []
    if query.level != "tenant":
        level = [call.session_id] if query.level == "session" else [call.session_id, call.task_id or ""]
    text = canonical_text([query.tool, query.level, level, list(query.match), values])
    return sha256(text.encode()).digest()[:16].hex()


def statement_values(statement: Statement, bindings: Bindings, tenant: str) -> Mapping[str, object]:
    """Evaluate a statement's binds; `on_behalf_of.id` by itself is null where nobody is served.

    Raises:
        ExpressionFailed: a bind has no value.
    """
    values: dict[str, object] = {name: _bound(expression, bindings) for name, expression in statement.binds}
    if statement.uses_tenant:
        values["tenant"] = tenant
    return values


def facts_wanted(work: Work) -> Mapping[str, tuple[str, Mapping[str, object]]] | None:
    """Give the SQL and values of a call's facts, or None where a bind has no value, so that the facts can't be read."""
    prepared = work.prepared
    assert prepared is not None and prepared.bindings is not None
    wanted: dict[str, tuple[str, Mapping[str, object]]] = {}
    try:
        for fact in prepared.context.tool.facts:
            wanted[fact.name] = (fact.statement.sql, statement_values(fact.statement, prepared.bindings, work.principal.tenant))
    except ExpressionFailed:
        return None
    return wanted


def history_asks(index: int, work: Work) -> list[HistoryAsk]:
    """Give what is to be counted for the history queries of a call's tool."""
    assert work.prepared is not None
    return [
        HistoryAsk(
            index,
            query.name,
            work.principal.tenant_id,
            work.queried_keys[query.name],
            work.now - timedelta(seconds=query.within_s),
            query.statuses,
        )
        for query in work.prepared.context.tool.history
    ]


def needs_state(work: Work) -> bool:
    """Say whether the call got past the layers that need no state, and its tool has layers that do."""
    prepared = work.prepared
    return prepared is not None and prepared.refused is None and Layer.SEMANTIC in prepared.context.tool.layers


def _bound(expression: Expression, bindings: Bindings) -> object:
    value = expression.evaluate(bindings)
    if value == "" and expression.source.strip() == SERVED:
        return None  # null is no row's owner; an empty text may be that of an order without one (OB-02)
    return value.isoformat() if isinstance(value, datetime) else value
