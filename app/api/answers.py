"""The answers to checks, decisions and failures as models: what the contract says of them, and nothing that runs (`reports` has the rest).

These routes answer with stored or canonical text, which no model touches, so a test holds these models against real answers. A field that
may be absent is never null (API.md 0.1); readers ignore fields that they don't know.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, RootModel

from app.domain.decision import Decision, Layer, Outcome
from app.domain.hint import DenialClass, NextActionKind, Retryable


def _without_null_defaults(schema: dict[str, Any]) -> None:
    for field in schema.get("properties", {}).values():
        if field.get("default", ...) is None:
            del field["default"]


def _one_of(schema: dict[str, Any]) -> None:
    """The formats exclude each other, so a message that reads as two of them is a fault."""
    schema["oneOf"] = schema.pop("anyOf")


def _erasable(schema: dict[str, Any]) -> None:
    """What comes from the payload may be absent, because the payload can be erased."""
    _without_null_defaults(schema)
    schema["required"] = [name for name in schema["required"] if name not in ("layers", "cuts", "holds", "obligations", "limits")]


def absent(description: str, **more: Any) -> Any:
    """Declare a field that may be absent and is never null."""
    return Field(default=None, description=description, **more)


class Answer(BaseModel):
    """What all answers have in common."""

    model_config = ConfigDict(json_schema_extra=_without_null_defaults)


Moment = Annotated[
    str,
    Field(
        pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$",
        description="RFC 3339, UTC, three decimals",
        json_schema_extra={"format": "date-time"},
    ),
]
Digest = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
Pointer = Annotated[str, Field(pattern="^(/.*)?$", description="a JSON Pointer (RFC 6901)")]
ReasonCode = Annotated[
    str, Field(pattern="^[a-z][a-z0-9_]{0,63}$", description="a built-in code or one of the policy's; never renamed or reused")
]


class Quantity(Answer):
    """An exact amount: a decimal string with exactly the currency's digits, or a count in a unit. It has `currency` or `unit`."""

    amount: str = Field(pattern=r"^\d+(\.\d+)?$", examples=["80.00"])
    currency: str = absent("ISO 4217", pattern="^[A-Z]{3}$", examples=["EUR"])
    unit: str = absent("calls, requests, refusals, rounds, tokens, ms, bytes, rows or lines", examples=["calls"])


class ScopeEntry(Answer):
    """One entry of a scope; a scope is the union of its entries."""

    action: str
    resource: str = Field(examples=["order:A-1001"])
    constraints: dict[str, Any] = absent("ceilings (`max`), enumerations (`in`) and a time window; absent is unlimited")
    except_: list[dict[str, Any]] = absent("what is taken out of this entry", alias="except")


class EffectiveScopeEntry(ScopeEntry):
    rests_on: list[str] = Field(description="the grants and approvals that this rests on", examples=[["grant:customer_service"]])


class Cut(Answer):
    """One thing that was asked for and not given."""

    action: str
    resource: str
    constraint: str = absent("the constraint that cut")
    requested: dict[str, Any] = absent("what was asked for")
    granted: dict[str, Any] = absent("what is granted")
    by: str = Field(description="`grant:<name>`, or `default`: nothing granted it; `requested_scope` is the caller's own narrowing")
    reason: ReasonCode
    pointer: str = absent("the place in the request's `requested_scope` that cut it")


class Check(Answer):
    """What one check of a layer said."""

    name: str
    outcome: Outcome
    reason: ReasonCode = absent("why it refused or asks")
    field: Pointer = absent("the argument that it is about")
    fact: str = absent("the fact that `actual` and `expected` speak of", examples=["risk.score"])
    actual: Any = absent("the value as it is")
    expected: dict[str, Any] = absent("the value as it should be: a JSON Schema fragment")
    message: str = absent("one sentence, never to be parsed")


class LayerAnswer(Answer):
    """One layer that ran."""

    name: Layer
    outcome: Outcome
    checks: list[Check]
    duration_us: int = Field(ge=0)


class Hold(Answer):
    """What is held on an account until the outcome is known."""

    hold_id: UUID
    account: str = Field(examples=["order:A-1001"])
    quantity: Quantity
    status: Literal["held"]


class Limit(Answer):
    """What remains of a budget, or of the attempts at a rule."""

    name: str = Field(examples=["budget:refunds_per_agent_day"])
    level: Literal["tenant", "segment", "principal", "session", "task", "turn"]
    limit: Quantity
    spent: Quantity
    held: Quantity = absent("what open calls hold; budgets only")
    remaining: Quantity
    resets_at: Moment = absent("when the window ends; absent for `total`")


class RowChange(Answer):
    """One row that the dry run changed; columns as they are stored."""

    table: str
    operation: Literal["insert", "update", "delete"]
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class RowCounts(Answer):
    inserted: int
    updated: int
    deleted: int


class SideEffects(Answer):
    """What the call would do, as the dry run saw it."""

    strategy: Literal["transaction"]
    rows: list[RowChange]
    counts: dict[str, RowCounts]
    digest: Digest


class RiskFactor(Answer):
    name: str
    value: float
    weight: float
    contribution: float


class Risk(Answer):
    """The score and the pair of thresholds that it was held against."""

    score: float = Field(ge=0, le=1)
    review_at: float
    deny_at: float
    thresholds_for: dict[str, Any] = Field(description="the selector that set the pair; {} is the whole tenant")
    factors: list[RiskFactor]


class PendingApproval(Answer):
    """The approval that the call waits for."""

    approval_id: UUID
    status: Literal["pending"]
    wait_url: str = Field(examples=["/approvals/01a230d5-2fd8-7907-9af2-55e55f2a8983?wait_s=60"])
    expires_at: Moment


class NextStep(Answer):
    kind: NextActionKind
    tool: str = absent("the tool to call first")
    approval_id: UUID = absent("the approval to wait for")


class Hint(Answer):
    """What a model needs to correct itself."""

    denial_class: DenialClass
    retryable: Retryable = Field(description="`never` and `after_change` settle the call id; the other two don't")
    field: Pointer = absent("the argument to change")
    fact: str = absent("the fact that `actual` and `expected` speak of")
    actual: Any = absent("the value as it is")
    expected: dict[str, Any] = absent("the value as it should be: a JSON Schema fragment")
    retry_after_ms: int = absent("how long to wait before the same call may be sent again", ge=0)
    message: str = Field(description="one sentence, never to be parsed")
    next_action: NextStep
    suggested_arguments: dict[str, Any] = absent("arguments that no layer refuses")
    suggestion_verified: Literal[True] = absent("always true: a suggestion was tried in every layer")
    suggestion_decision: Decision = absent("the decision that the suggestion would get")
    attempts_left: int = absent("how often this rule may still refuse this task", ge=0)


class ToolResultContent(Answer):
    """What the model reads."""

    guard_rejected: Literal[True]
    reason: str
    fix_hint: str
    field: Pointer = absent("the argument to change")
    actual: Any = absent("the value as it is")
    expected: dict[str, Any] = absent("the value as it should be")
    suggested_arguments: dict[str, Any] = absent("arguments that no layer refuses")
    next_action: str


class GenericToolResult(Answer):
    """`format=generic`: a tool message with the content as an object."""

    role: Literal["tool"]
    tool_call_id: str = absent("the call's id, where it could be read")
    tool_name: str = absent("the tool's name, where it could be read")
    is_error: Literal[True]
    content: ToolResultContent


ContentText = Annotated[str, Field(description="the content of `generic`, as JSON text")]


class OpenAIToolResult(Answer):
    """`format=openai`: the tool message of the Chat Completions API."""

    role: Literal["tool"]
    tool_call_id: str = absent("the call's id, where it could be read")
    content: ContentText


class OpenAIResponsesToolResult(Answer):
    """`format=openai_responses`: the input item of the Responses API."""

    type: Literal["function_call_output"]
    call_id: str = absent("the call's id, where it could be read")
    output: ContentText


class ToolResultText(Answer):
    type: Literal["text"]
    text: ContentText


class AnthropicToolResult(Answer):
    """`format=anthropic`: the content block of the Messages API."""

    type: Literal["tool_result"]
    tool_use_id: str = absent("the call's id, where it could be read")
    is_error: Literal[True]
    content: list[ToolResultText] = Field(min_length=1, max_length=1)


class MCPToolResult(Answer):
    """`format=mcp`: the result of the Model Context Protocol's `tools/call`."""

    content: list[ToolResultText] = Field(min_length=1, max_length=1)
    isError: Literal[True]  # noqa: N815  # the protocol's name


class ToolResult(RootModel[GenericToolResult | OpenAIToolResult | OpenAIResponsesToolResult | AnthropicToolResult | MCPToolResult]):
    """The refusal as a message for the model, in the format that `format` asks for."""

    model_config = ConfigDict(json_schema_extra=_one_of)


class ChainPlace(Answer):
    """Where the decision stands in the tenant's audit chain."""

    chain: str = Field(examples=["acme"])
    sequence: int = Field(ge=1)
    hash: Digest


class PlannedCompensation(Answer):
    """The call that would make good for this one, as far as its arguments are known before it has run."""

    tool: str
    arguments: dict[str, Any]
    unresolved: list[Pointer] = Field(description="of `arguments`, that only the tool's result will give")
    status: Literal["planned"]


class _Decided(Answer):
    decision_id: UUID
    decision: Decision
    execution_permitted: bool = Field(description="the only field that permits: true once, in the first answer of `accepted` or `modified`")
    reason: ReasonCode
    refused_by: Layer = absent("the layer that refused; only where `decision` is `denied`")
    layers: list[LayerAnswer] = Field(description="what ran, in order")
    cuts: list[Cut]
    holds: list[Hold]
    obligations: list[dict[str, Any]]
    limits: list[Limit]
    effective_arguments: dict[str, Any] = absent("the arguments that may run; absent on `denied` and `needs_user`")
    effective_scope: list[EffectiveScopeEntry] = absent("the scope that the call runs in; absent on `denied` and `needs_user`")
    side_effects: SideEffects = absent("absent where no dry run was made")
    risk: Risk = absent("absent where no risk was computed")
    compensation: PlannedCompensation = absent("what would make good; only where the call may run and the tool names one")
    approval: PendingApproval = absent("only where `decision` is `needs_user`")
    fix_hint: Hint = absent("only where the call may not run")
    policy_version: int = absent("the policy's version; absent where the tenant has none", ge=1)
    decided_at: Moment
    audit: ChainPlace


class ToolCallDecision(_Decided):
    """May the call run? A decision is a value: 200, whatever it says."""

    replayed: bool = Field(description="true if this call id was decided before; a replay permits nothing")
    tool_result: ToolResult = absent("the refusal as a message for the model; only where there is a `fix_hint`")


class ToolCallRequestRecord(Answer):
    """The request as it was kept: what was sent, under the names that it was sent with."""

    tool: str
    arguments: dict[str, Any]
    session_id: str
    call_id: str
    task_id: str = absent("one goal inside the session")
    turn: int = absent("which of the model's responses asked")
    state_version: int = absent("the version of the task's state that the model saw")
    requested_scope: list[dict[str, Any]] = absent("what the caller narrowed to")
    on_behalf_of: dict[str, str] = absent("the end user whom the agent served")
    approval_id: str = absent("the approval that the request pointed at")
    locale: str = absent("the language that was asked for")


class DecisionRecord(_Decided):
    """A decision read back. It permits nothing. Once its payload was erased, only what the row itself says is left."""

    model_config = ConfigDict(json_schema_extra=_erasable)

    execution_permitted: Literal[False]
    status: Literal["refused", "permitted", "waiting"]
    attempt: int = Field(ge=0, description="how often the call id had been decided, itself included")
    request: ToolCallRequestRecord = absent("the request; absent once it was erased")
    payload_erased_at: Moment = absent("when request and answer were erased")


class ProblemError(Answer):
    pointer: Pointer = Field(description="from the root of the body; `/query/...` and `/header/...` for the rest of the request")
    detail: str


class Problem(Answer):
    """What went wrong (RFC 9457). `code` is for programs; `detail` is never to be parsed."""

    type: str = Field(examples=["/problems/request_invalid"])
    title: str
    status: int = Field(ge=400, le=599)
    detail: str
    code: str = Field(pattern="^[a-z][a-z0-9_]*$", examples=["request_invalid"])
    errors: list[ProblemError] = absent("each place that is wrong, 20 at most")
    retryable: Retryable
    retry_after_s: int = absent("as in the header Retry-After", ge=0)
    trace_id: str = Field(pattern="^[0-9a-f]{32}$", description="of the request's `traceparent`, else made here")


class CheckProblem(Problem):
    """A problem on a check route: nothing may run, and the model is told what to do."""

    execution_permitted: Literal[False]
    fix_hint: Hint
    tool_result: ToolResult
