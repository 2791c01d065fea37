"""What authors write: the shape of a tool's file and of the bundle's other sections (API.md 5).

Strict and closed: a key that isn't here is a fault. What this version can't honour is refused as long as ignoring it would
loosen a decision; sections that only later routes read are kept as data.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints
from pydantic_core import PydanticCustomError

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]
"""A tool is called what its own server calls it; the same pattern is in the request's `tool`."""
Pointer = Annotated[str, StringConstraints(pattern=r"^(/[^/]{1,128}){1,8}$")]
Table = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]{0,62}\.[a-z_][a-z0-9_]{0,62}$")]
Column = Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_]{0,62}$")]
Cel = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
Locale = Annotated[str, StringConstraints(pattern=r"^[a-z]{2}(-[A-Z]{2})?$")]
Texts = dict[Locale, Text]
Verb = Literal["inserted", "updated", "deleted"]
Role = Literal["agent", "executor", "reviewer", "user", "auditor", "author", "operator"]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Seconds = Annotated[int, Field(ge=1, le=366 * 86_400)]


def _exact(value: object) -> object:
    return Decimal(value) if type(value) is int else value


Number = Annotated[Decimal, BeforeValidator(_exact)]


def _supported(*known: str) -> BeforeValidator:
    """Refuse what the contract knows and this version can't do, by name."""

    def check(value: object) -> object:
        if value not in known:
            context = {"value": value if isinstance(value, str) else "this", "known": " or ".join(known)}
            raise PydanticCustomError("unsupported", "`{value}` is not supported by this version", context)
        return value

    return BeforeValidator(check)


def _unsupported(value: object) -> object:
    raise PydanticCustomError("unsupported", "this is not supported by this version", {"known": "no such key"})


Unsupported = Annotated[Any, BeforeValidator(_unsupported)]


class Document(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=False)


class NextActionDocument(Document):
    kind: Literal["call_again", "call_first", "wait", "stop"]
    tool: ToolName | None = None


class RefusalDocument(Document):
    reason: Name
    field: Pointer | None = None
    fact: str | None = None
    expected: dict[str, Any] | None = None
    suggest: dict[Pointer, Any] = {}
    next_action: NextActionDocument | None = None
    message: Texts


class MoneyColumnDocument(Document):
    money: Column
    currency: Column


class FactDocument(Document):
    sql: str
    bind: dict[str, Cel] = {}
    columns: Annotated[dict[Column, Any], Field(min_length=1, max_length=50)]
    missing: RefusalDocument
    shared: bool = False


class HistoryDocument(Document):
    tool: ToolName
    match: Annotated[list[Pointer], Field(min_length=1, max_length=16)]
    statuses: Annotated[list[Literal["permitted", "succeeded", "unknown", "refused", "waiting", "failed", "expired"]], Field(min_length=1)]
    within_s: Seconds
    level: Literal["tenant", "session", "task"] = "tenant"


class HoldDocument(Document):
    on: Text
    quantity: Text
    limit: Text
    settle: Annotated[Literal["release"], _supported("release")] = "release"
    shared: bool = False  # one account for all calls, on purpose


class ValueDocument(Document):
    minor: Cel
    currency: Cel


class RuleDocument(Document):
    rule: Name
    when: Cel | None = None
    require: Cel
    refuse: RefusalDocument


class StatementDocument(Document):
    sql: str
    bind: dict[str, Cel] = {}
    shared: bool = False


class WatchDocument(Document):
    key: Annotated[list[Column], Field(min_length=1, max_length=16)]
    columns: Annotated[list[Column], Field(max_length=64)]


class InvariantDocument(Document):
    invariant: Name
    require: Cel


class PredictionDocument(Document):
    table: Table
    operation: Literal["insert", "update", "delete"]
    key: Annotated[dict[Column, Any], Field(min_length=1, max_length=16)]
    before: Annotated[dict[Column, Any], Field(min_length=1, max_length=64)] | None = None
    after: Annotated[dict[Column, Any], Field(min_length=1, max_length=64)] | None = None


class SandboxDocument(Document):
    """`transaction` has statements and what to watch of them, `mock` has predictions; `compile_sandbox` refuses a mixture."""

    strategy: Annotated[Literal["transaction", "mock"], _supported("transaction", "mock")]
    statements: Annotated[list[StatementDocument], Field(max_length=20)] = []
    watch: dict[Table, WatchDocument] = {}
    predict: Annotated[list[PredictionDocument], Field(max_length=100)] = []
    invariants: Annotated[list[InvariantDocument], Field(max_length=50)] = []
    limits: dict[Table, dict[Verb, Count]]


class FactorDocument(Document):
    factor: Name
    weight: Annotated[Number, Field(ge=-1, le=1)]
    value: Cel


class RiskDocument(Document):
    factors: Annotated[list[FactorDocument], Field(min_length=1, max_length=50)]


class OutcomeDocument(Document):
    within_s: Seconds
    if_missing: Literal["keep_holds", "release_holds"] = "keep_holds"


class CompensationDocument(Document):
    tool: Name
    arguments: Annotated[dict[str, Any], Field(max_length=50)]
    message: Texts = {}


class ScopeDocument(Document):
    action: Name
    resource: Text
    constraints: dict[Name, dict[Literal["max", "in"], Any]] = {}


class ToolMoneyDocument(Document):
    currency: Text


class ToolDocument(Document):
    tool: ToolName
    description: dict[Locale, Annotated[str, StringConstraints(min_length=1, max_length=10_000)]]  # a tool's own may be long
    effect_class: Literal["read", "write", "money", "permission", "irreversible"]
    layers: list[Literal["static", "scope", "semantic", "sandbox", "risk"]] | None = None
    capabilities: list[Name] = []
    arguments: dict[str, Any]
    money: dict[Pointer, ToolMoneyDocument] = {}
    scales: dict[Pointer, Count] = {}
    unbound: list[Pointer] = []
    sensitive: Unsupported = None
    scope: ScopeDocument
    static_rules: Annotated[list[RuleDocument], Field(max_length=100)] = []
    facts: Annotated[dict[Name, FactDocument], Field(max_length=20)] = {}
    history: Annotated[dict[Name, HistoryDocument], Field(max_length=20)] = {}
    holds: Annotated[dict[Name, HoldDocument], Field(max_length=10)] = {}
    values: Annotated[dict[Name, ValueDocument], Field(max_length=50)] = {}
    rules: Annotated[list[RuleDocument], Field(max_length=100)] = []
    sandbox: SandboxDocument | None = None
    risk: RiskDocument | None = None
    permit: dict[str, Any] = {}
    outcome: OutcomeDocument = OutcomeDocument(within_s=900)
    executor: dict[str, Any] = {}
    compensation: Any = None  # a CompensationDocument, or the word irreversible


class SelectorDocument(Document):
    tool: ToolName | None = None
    segment: Name | None = None
    principal: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None


class ThresholdSelectorDocument(SelectorDocument):
    """Only a threshold asks for the currency: a budget has one of its own."""

    currency: Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")] | None = None


class BundleHeadDocument(Document):
    name: Name
    format: Literal[1]
    locales: Annotated[list[Locale], Field(min_length=1, max_length=20)] = ["en"]
    sensitivity: Annotated[list[Name], Field(max_length=32)] = []


class GrantToDocument(Document):
    roles: Annotated[list[Role], Field(min_length=1)] | None = None
    subjects: Annotated[list[str], Field(min_length=1)] | None = None
    segments: Annotated[list[Name], Field(min_length=1)] | None = None


class GrantDocument(Document):
    grant: Name
    effect: Literal["permit", "forbid"]
    needs_approval: bool = False
    to: GrantToDocument
    scope: Annotated[list[dict[str, Any]], Field(min_length=1)]


class ThresholdDocument(Document):
    for_: Annotated[ThresholdSelectorDocument, Field(alias="for")] = ThresholdSelectorDocument()
    review_at: Annotated[Number, Field(ge=0, le=1)]
    deny_at: Annotated[Number, Field(ge=0, le=1)]


class BudgetDocument(Document):
    budget: Name
    level: Literal["tenant", "segment", "principal", "session", "task"]
    for_: Annotated[SelectorDocument, Field(alias="for")] = SelectorDocument()
    limit: dict[str, Any]
    window: Literal["total", "minute", "hour", "day", "month"]
    time_zone: str = "UTC"
    on_exceed: Annotated[Literal["deny", "needs_user"], _supported("deny", "needs_user")]


class LoopLimitDocument(Document):
    level: Literal["turn", "task", "session"]
    for_: Annotated[SelectorDocument, Field(alias="for")] = SelectorDocument()
    refusals_of_a_rule: Count | None = None
    meta_requests: Count | None = None
    repeats_of_type: Count | None = None
    model_escalations: Count | None = None
    review_rounds: Count | None = None
    added_cost: dict[str, Any] | None = None
    added_latency_s: Count | None = None


class ApprovalDocument(Document):
    for_: Annotated[SelectorDocument, Field(alias="for")] = SelectorDocument()
    quorum: Annotated[int, Field(ge=1, le=20)]
    roles: Annotated[list[Role], Field(min_length=1)]
    expires_after_s: Seconds
    on_expiry: Literal["refused"]


class BundleDocument(Document):
    bundle: BundleHeadDocument
    trust: dict[str, Any] = {}
    grants: list[GrantDocument]
    thresholds: list[ThresholdDocument] = []
    budgets: list[BudgetDocument] = []
    loop_limits: list[LoopLimitDocument] = []
    approvals: Annotated[list[ApprovalDocument], Field(min_length=1)] | None = None
    models: list[dict[str, Any]] = []
    reviewers: list[dict[str, Any]] = []
    workspaces: list[dict[str, Any]] = []
    meta_requests: dict[str, Any] = {}
    notifications: list[dict[str, Any]] = []
