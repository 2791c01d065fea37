"""The scope layer: what the call needs, held against the grants in memory and the caller's own narrowing (SPEC S5, API.md 0.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.decision import ABSENT, Check, Decision, Layer, LayerResult, Outcome, Reason, accepted
from app.domain.hint import DenialClass, FixHint, NextAction, NextActionKind, Retryable
from app.domain.quantity import Quantity
from app.domain.scope import (
    Ceiling,
    Constraint,
    Entry,
    OneOf,
    ScopeError,
    ScopeVerdict,
    concrete_resource,
    decide_scope,
    render_constraint,
    render_entry,
)
from app.guards.context import CallContext, LayerVerdict, Refused
from app.policy.expressions import Bindings
from app.policy.model import Grant
from app.policy.templates import TemplateFailed


@dataclass(frozen=True, slots=True)
class GrantVerdict:
    """The layer's verdict. `needs_approval`: the need is covered, but only by grants that want a person; the walk goes on to that
    answer."""

    verdict: LayerVerdict
    need: Entry | None = None
    rests_on: tuple[str, ...] = ()
    cuts: tuple[Mapping[str, object], ...] = ()
    needs_approval: Refused | None = None


def check_scope(context: CallContext, bindings: Bindings, requested: tuple[Entry, ...] | None) -> GrantVerdict:
    """Decide whether the call's need lies inside policy and `requested`."""
    try:
        need = need_of(context, bindings)
    except (ScopeError, TemplateFailed):
        message = (
            "the arguments name a resource that can't exist: an id is one plain name without `*`, `/`, dots alone or control characters"
        )
        return GrantVerdict(_deny("resource", Reason.NOT_GRANTED, message, None))
    grants = [grant for grant in context.policy.grants if _is_for(grant, context)]
    permits = [named for grant in grants if grant.permit for named in grant.named]
    forbids = [named for grant in grants if not grant.permit for named in grant.named]
    verdict = decide_scope(need, permits, forbids, requested, context.now)
    if verdict.outcome == "permitted":
        checks = tuple(accepted(name.removeprefix("grant:")) for name in verdict.rests_on)
        return GrantVerdict(LayerVerdict(LayerResult(Layer.SCOPE, Outcome.ACCEPTED, checks)), need, verdict.rests_on)
    if verdict.outcome == "needs_approval":
        return _ask(need, verdict)
    return _refuse(context, need, verdict)


def need_of(context: CallContext, bindings: Bindings) -> Entry:
    """Give the one entry that the call needs.

    Raises:
        ScopeError: an argument can't be part of a resource's name.
        TemplateFailed: an argument that the need is made of isn't there.
    """
    need = context.tool.need
    constraints: dict[str, Constraint] = {}
    for name, (kind, template) in need.constraints.items():
        value = template.render(bindings)
        if kind == "max" and isinstance(value, Quantity):
            constraints[name] = Ceiling(value)
        elif kind == "in" and isinstance(value, str):
            constraints[name] = OneOf(frozenset({value}))
        elif kind == "in" and isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            constraints[name] = OneOf(frozenset(value))
        else:
            raise ScopeError(f"the constraint {name} has no value")
    return Entry(need.action, concrete_resource(need.resource.text(bindings)), constraints)


def _is_for(grant: Grant, context: CallContext) -> bool:
    principal = context.principal
    if grant.roles and not grant.roles & principal.roles:
        return False
    if grant.subjects and principal.subject not in grant.subjects:
        return False
    if not grant.segments:
        return True
    segments = context.possible_segments
    # a permit has to hold for whichever segment it may be, a forbid for any
    return all(s in grant.segments for s in segments) if grant.permit else any(s in grant.segments for s in segments)


def _ask(need: Entry, verdict: ScopeVerdict) -> GrantVerdict:
    message = "a person has to approve this call; wait for the answer"
    checks = tuple(Check(name.removeprefix("grant:"), Outcome.NEEDS_USER, Reason.GRANT_NEEDS_APPROVAL) for name in verdict.rests_on)
    hint = FixHint(DenialClass.PERMISSION, Retryable.AFTER_APPROVAL, message, NextAction(NextActionKind.WAIT_FOR_APPROVAL))
    asked = Refused(Decision.NEEDS_USER, Layer.SCOPE, Reason.GRANT_NEEDS_APPROVAL, hint, checks[0].name)
    result = LayerResult(Layer.SCOPE, Outcome.NEEDS_USER, checks)
    return GrantVerdict(LayerVerdict(result), need, verdict.rests_on, (), asked)


def _refuse(context: CallContext, need: Entry, verdict: ScopeVerdict) -> GrantVerdict:
    cut: dict[str, object] = {"action": need.action, "resource": need.resource.text}
    actual: object = ABSENT
    expected: object = ABSENT
    field: str | None = None
    match verdict.outcome:
        case "forbidden":
            reason, message = Reason.FORBIDDEN, "the policy forbids this call"
        case "outside_requested_scope":
            reason, message = Reason.OUTSIDE_REQUESTED_SCOPE, "the call lies outside the requested_scope that was sent with it"
        case _:
            reason, message = Reason.NOT_GRANTED, "nothing in the policy grants this call"
    if verdict.constraint is not None and verdict.nearest is not None:
        wanted = need.constraints.get(verdict.constraint)
        cut |= {"constraint": verdict.constraint, "granted": render_constraint(verdict.nearest)}
        if wanted is not None:
            cut["requested"] = render_constraint(wanted)
        if isinstance(wanted, Ceiling) and isinstance(verdict.nearest, Ceiling):
            limit = verdict.nearest.quantity
            actual, expected = wanted.quantity.as_number(), {"maximum": limit.as_number()}
            field = context.tool.money[0] if context.tool.money else None
            message = f"{message}: {verdict.constraint} is {wanted.quantity.text()}, at most {limit.text()} is granted"
    cut |= {"by": verdict.by, "reason": reason}
    name = verdict.by.removeprefix("grant:")
    return GrantVerdict(_deny(name, reason, message, field, actual, expected), need, (), (cut,))


def _deny(name: str, reason: Reason, message: str, field: str | None, actual: object = ABSENT, expected: object = ABSENT) -> LayerVerdict:
    check = Check(name, Outcome.DENIED, reason, field=field, actual=actual, expected=expected, message=message)
    action = NextAction(NextActionKind.CALL_AGAIN if field is not None else NextActionKind.STOP)
    hint = FixHint(DenialClass.PERMISSION, Retryable.AFTER_CHANGE, message, action, field=field, actual=actual, expected=expected)
    refused = Refused(Decision.DENIED, Layer.SCOPE, reason, hint, name)
    return LayerVerdict(LayerResult(Layer.SCOPE, Outcome.DENIED, (check,)), refused)


def effective_entry(need: Entry, rests_on: tuple[str, ...]) -> dict[str, object]:
    """Give one entry of an answer's `effective_scope`."""
    return {**render_entry(need), "rests_on": list(rests_on)}
