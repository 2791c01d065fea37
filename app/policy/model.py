"""What a compiled policy is: immutable values that the guards evaluate. Built by `compile` only, never by hand elsewhere.

Nothing here reads a clock, a socket or a database. Rules see typed, dotted variables (`args.amount.minor`,
`order.status`, `history.same_refund.count`, `account.order.held.minor`), so a misspelt name fails when the bundle is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from app.domain.decision import Layer
from app.domain.hint import CALL_AGAIN, NextAction
from app.domain.quantity import Quantity
from app.domain.scope import Constraint, Entry, NamedEntry
from app.policy.arguments import ArgumentReader
from app.policy.expressions import Environment, Expression
from app.policy.notes import PolicyNote
from app.policy.templates import Template

EffectClass = Literal["read", "write", "money", "permission", "irreversible"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """What to say when a rule doesn't hold or a fact has no row."""

    reason: str
    message: Mapping[str, Template]  # locale -> template; "en" is always there
    field: str | None = None  # JSON Pointer into the arguments
    fact: str | None = None  # dotted variable, e.g. `order.status`, whose value is `actual`; else `field`'s value is
    expected: Template | None = None  # gives a JSON Schema fragment
    suggest: tuple[tuple[str, Template], ...] = ()  # JSON Pointer -> the value to put there
    next_action: NextAction = CALL_AGAIN


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement whose binds are read from one jsonb parameter, `$1`."""

    sql: str  # every `:name` is replaced by a typed read of `$1`, e.g. `($1->>'order_id')::text`
    binds: tuple[tuple[str, Expression], ...]  # `:tenant` is bound by the engine and not listed here
    uses_tenant: bool


ColumnType = Literal["string", "int", "bool", "timestamp", "money"]


@dataclass(frozen=True, slots=True)
class FactColumn:
    name: str
    type: ColumnType
    minor_column: str | None = None  # for money: the SQL columns that it is read from
    currency_column: str | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """A named, parameterised query of at most one row."""

    name: str
    statement: Statement
    columns: tuple[FactColumn, ...]
    missing: Refusal


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Earlier calls of `tool` whose arguments are the same at every pointer of `match`; rules see `.count`."""

    name: str
    tool: str
    match: tuple[str, ...]
    statuses: frozenset[str]  # permitted | succeeded | unknown | refused | waiting | failed | expired
    within_s: int
    level: Literal["tenant", "session", "task"] = "tenant"


@dataclass(frozen=True, slots=True)
class Value:
    """A named amount that rules and templates use."""

    name: str
    minor: Expression
    currency: Expression


@dataclass(frozen=True, slots=True)
class Rule:
    """What must hold. `when` false: the rule doesn't apply."""

    name: str
    require: Expression
    refuse: Refusal
    when: Expression | None = None


@dataclass(frozen=True, slots=True)
class HoldRule:
    """What a permitted call reserves on a resource's account until its outcome."""

    name: str
    on: Template  # -> str, e.g. `order:A-1001`
    quantity: Template  # -> Quantity
    limit: Template  # -> Quantity


@dataclass(frozen=True, slots=True)
class Effect:
    table: str  # schema-qualified
    operation: Literal["insert", "update", "delete", "merge"]
    statement: Statement  # its SQL returns (old jsonb, new jsonb) of every row it touched


@dataclass(frozen=True, slots=True)
class Watch:
    key: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Invariant:
    name: str
    require: Expression  # sees `before` and `after`: map(table -> list of rows)
    reads: frozenset[str] | None = None  # the tables that it reads; None where that can't be told


@dataclass(frozen=True, slots=True)
class Prediction:
    """One row that a tool is known to change: what the strategy `mock` says instead of asking the database."""

    table: str
    operation: Literal["insert", "update", "delete"]
    key: Template
    before: Template | None
    after: Template | None


@dataclass(frozen=True, slots=True)
class SandboxPlan:
    strategy: Literal["transaction", "mock"]
    effects: tuple[Effect, ...]  # of `transaction`
    predictions: tuple[Prediction, ...]  # of `mock`
    watch: Mapping[str, Watch]  # table -> the columns that are shown, and that a digest covers
    invariants: tuple[Invariant, ...]
    limits: Mapping[str, Mapping[str, int]]  # table -> inserted|updated|deleted -> most rows; what isn't named is 0


@dataclass(frozen=True, slots=True)
class RiskFactor:
    name: str
    weight: Decimal
    value: Expression  # a double


@dataclass(frozen=True, slots=True)
class Selector:
    """Whom or what an entry is for; None matches all. More named selectors win."""

    tool: str | None = None
    segment: str | None = None
    principal: str | None = None
    currency: str | None = None  # of a threshold only

    @property
    def weight(self) -> int:
        return sum(part is not None for part in (self.tool, self.segment, self.principal, self.currency))


@dataclass(frozen=True, slots=True)
class Threshold:
    selector: Selector
    review_at: Decimal
    deny_at: Decimal


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit over all calls that the selector matches, counted per `level` and window."""

    name: str
    level: Literal["tenant", "segment", "principal", "session", "task"]
    selector: Selector
    limit: Quantity  # in a currency: counts a call's money; in `calls`: counts 1 a call
    window: Literal["total", "minute", "hour", "day", "month"]
    time_zone: str
    on_exceed: Literal["deny", "needs_user"]


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    selector: Selector
    quorum: int
    roles: tuple[str, ...]
    expires_after_s: int
    on_expiry: str  # "refused"


@dataclass(frozen=True, slots=True)
class LoopLimit:
    level: Literal["task", "session"]
    selector: Selector
    refusals_of_a_rule: int


@dataclass(frozen=True, slots=True)
class Grant:
    name: str
    permit: bool  # False: a forbid
    needs_approval: bool
    roles: frozenset[str]  # empty: any. What is named must all hold
    subjects: frozenset[str]
    segments: frozenset[str]
    scope: tuple[Entry, ...]
    named: tuple[NamedEntry, ...] = field(init=False)  # the entries of `scope` as the decision asks for them

    def __post_init__(self) -> None:
        object.__setattr__(self, "named", tuple(NamedEntry(self.name, entry, self.needs_approval) for entry in self.scope))


@dataclass(frozen=True, slots=True)
class NeedLimit:
    """How arguments become one constraint of the need: a constant, or what the template gives.

    `field` is the JSON Pointer of the argument that it is made of, where it is one; `currency_field` that of its currency.
    """

    kind: Literal["constant", "money", "count", "level", "in"]
    template: Template | None
    unit: str = ""  # of a count
    field: str | None = None
    currency_field: str | None = None
    constant: Constraint | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """How a call's arguments become the scope that it needs. `field` is the argument that the resource is made of, where it is one."""

    action: str
    resource: Template
    limits: Mapping[str, NeedLimit]
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Compensation:
    """The call that makes good for an executed one; `unresolved` are JSON Pointers into its arguments that wait for the result."""

    tool: str
    arguments: tuple[tuple[str, Template], ...]
    unresolved: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    description: Mapping[str, str]
    effect_class: EffectClass
    layers: frozenset[Layer]  # static and scope always; semantic, sandbox, risk as the class needs or the tool asks
    arguments: ArgumentReader
    money: tuple[str, ...]  # pointers of the money arguments; the first one, else the first hold's quantity, is the call's money
    unbound: frozenset[str]
    need: Need
    environment: Environment
    static_rules: tuple[Rule, ...]  # see args only
    facts: tuple[Fact, ...]
    history: tuple[HistoryQuery, ...]
    values: tuple[Value, ...]
    rules: tuple[Rule, ...]
    holds: tuple[HoldRule, ...]
    sandbox: SandboxPlan | None
    risk: tuple[RiskFactor, ...]
    outcome_within_s: int
    digest: str  # of the tool's file, canonical; approvals are bound to it
    compensation: Compensation | None = None  # None also where the tool says that it is irreversible

    @property
    def tries_effects(self) -> bool:
        """Say whether the database is asked for a dry run."""
        return self.sandbox is not None and self.sandbox.strategy == "transaction"


@dataclass(frozen=True, slots=True)
class Policy:
    name: str
    digest: str  # of all files
    tools: Mapping[str, Tool]
    grants: tuple[Grant, ...]
    thresholds: tuple[Threshold, ...]
    budgets: tuple[Budget, ...]
    approvals: tuple[ApprovalRule, ...]
    loop_limits: tuple[LoopLimit, ...]
    history_keys: Mapping[str, tuple[HistoryQuery, ...]]  # tool -> the queries, of any tool, that count its calls
    notes: tuple[PolicyNote, ...] = ()  # what is only an annotation
    notes_left_out: int = 0
    sensitivity: tuple[str, ...] = ()  # the levels, lowest first
    segments: tuple[str, ...] = field(init=False)  # every segment that something in the policy names

    def __post_init__(self) -> None:
        selectors = [each.selector for each in self.thresholds] + [each.selector for each in self.budgets]
        selectors += [each.selector for each in self.approvals] + [each.selector for each in self.loop_limits]
        named = {selector.segment for selector in selectors if selector.segment is not None}
        named |= {segment for grant in self.grants for segment in grant.segments}
        object.__setattr__(self, "segments", tuple(sorted(named)))
