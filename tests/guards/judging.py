"""Judges one call by values alone: a policy, a call, what was read. What the other guard tests start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from app.domain.scope import parse_scope
from app.domain.tool_call import Principal, Role, ToolCall
from app.guards.context import Balance, CallContext, DryRun, Evidence, FactsRead
from app.guards.pipeline import Prepared, Verdict, decide, judge_semantic, prepare
from app.policy.compile import compile_bundle, load_directory
from app.policy.currencies import exponent_of
from app.policy.model import Policy
from app.settings import PROJECT

FILES: Mapping[str, str] = load_directory(PROJECT / "policies" / "shop")
POLICY: Policy = compile_bundle(FILES)
NOW = datetime(2026, 12, 1, 9, tzinfo=UTC)
AGENT = Principal(
    UUID(int=1), "acme", UUID(int=2), "support-agent", "ops", frozenset({Role.AGENT}), frozenset({"standard", "trusted_buyer"})
)
ARGUMENTS: Mapping[str, object] = {"order_id": "A-1001", "amount": 20, "currency": "EUR", "cause": "damaged"}
ORDER: Mapping[str, object] = {"status": "delivered", "currency": "EUR", "paid_minor": 12990, "refunded_minor": 0}
CUSTOMER: Mapping[str, object] = {"complaints": 0}
EMPTY = Balance(None, 0, 0)


def policy_with(*changes: tuple[str, str, str]) -> Policy:
    """Compile the shop's bundle with texts (file, old, new) replaced."""
    files = dict(FILES)
    for file, old, new in changes:
        assert old in files[file], f"{old!r} isn't in {file}"
        files[file] = files[file].replace(old, new)
    return compile_bundle(files)


def prepared_call(
    policy: Policy = POLICY,
    *,
    tool: str = "refund",
    arguments: Mapping[str, object] | None = None,
    principal: Principal = AGENT,
    segment: str | None = "standard",
    requested: list[dict[str, Any]] | None = None,
    now: datetime = NOW,
    **call: Any,
) -> Prepared:
    merged = {**ARGUMENTS, **(arguments or {})} if tool == "refund" else dict(arguments or {"order_id": "A-1001"})
    fields: dict[str, Any] = {"session_id": "chat-1", "call_id": "c1", "on_behalf_of_id": "cust-77", "segment": segment, **call}
    asked = ToolCall(tool=tool, arguments=merged, **fields)
    scope = None if requested is None else parse_scope(requested, exponent_of)
    return prepare(CallContext(asked, principal, policy, policy.tools[tool], now), scope)


def evidence_for(
    prepared: Prepared,
    *,
    order: Mapping[str, object] | None = ORDER,
    customer: Mapping[str, object] | None = CUSTOMER,
    failed: str | None = None,
    history: int = 0,
    held: Balance = EMPTY,
    budget: Balance = EMPTY,
    dry_run: DryRun | None = None,
) -> Evidence:
    balances = dict.fromkeys(prepared.accounts.resources.values(), held)
    balances |= {each.account: budget for each in prepared.accounts.budgets}
    rows: Mapping[str, Any] = {} if failed else {"order": order, "customer": customer}
    counts = {query.name: history for query in prepared.context.tool.history}
    return Evidence(FactsRead(rows, failed), counts, balances, dry_run)


def ran(before: int = 0, after: int = 2000, counts: Mapping[str, tuple[int, int, int]] | None = None, **order: object) -> DryRun:
    """Give a dry run of the refund that changed the order's refunded sum."""
    old = {"order_id": "A-1001", **ORDER, **order, "refunded_minor": before}
    new = {**old, "refunded_minor": after}
    refund = {"order_id": "A-1001", "amount_minor": after - before, "currency": "EUR"}
    counts = {"shop.orders": (0, 1, 0), "shop.refunds": (1, 0, 0)} if counts is None else counts
    return DryRun((((old, new),), ((None, refund),)), counts)


def judge(policy: Policy = POLICY, *, evidence: Mapping[str, Any] | None = None, **call: Any) -> Verdict:
    """Give the verdict; without a dry run of its own the call gets one that its amount explains."""
    prepared = prepared_call(policy, **call)
    read = evidence_for(prepared, **(evidence or {}))
    if read.dry_run is None and prepared.refused is None and _passes_semantic(prepared, read):
        assert prepared.bindings is not None
        minor = prepared.bindings.values.get("args.amount.minor", 0)
        order = dict((evidence or {}).get("order") or ORDER)
        before = int(str(order["refunded_minor"]))
        read = replace(read, dry_run=ran(before, before + int(str(minor)), paid_minor=order["paid_minor"]))
    return decide(prepared, read)


def amount(text: str) -> dict[str, object]:
    return {"amount": Decimal(text)}


def _passes_semantic(prepared: Prepared, evidence: Evidence) -> bool:
    found = judge_semantic(prepared, evidence)
    return found is None or found.verdict.refused is None
