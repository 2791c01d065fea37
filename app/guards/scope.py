"""The scope layer: what the call needs, held against the grants in memory and the caller's own narrowing (SPEC S5, API.md 0.3).

A refusal tells every cut. What of it is a ceiling over an argument gives arguments to try instead; whoever shows them verifies them first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.decision import ABSENT, Check, Layer, LayerResult, Outcome, Reason, accepted
from app.domain.hint import CALL_AGAIN, STOP, WAIT_FOR_APPROVAL, DenialClass, Retryable
from app.domain.json_pointer import value_at, with_value
from app.domain.quantity import Quantity
from app.domain.redaction import shown
from app.domain.scope import (
    Ceiling,
    Constraint,
    Cut,
    Entry,
    LevelCeiling,
    NamedEntry,
    OneOf,
    ScopeError,
    ScopeVerdict,
    Window,
    concrete_resource,
    decide_scope,
    parse_level,
    render_constraint,
    render_entry,
)
from app.domain.wording import joined, say
from app.guards.context import CallContext, LayerVerdict, Refused
from app.guards.refusal import layer_refuses, refusal_of
from app.policy.expressions import Bindings
from app.policy.model import Grant, NeedLimit
from app.policy.templates import TemplateFailed

MESSAGES_MAX = 5
"""Of the cuts of one call, how many the hint's sentence names."""


@dataclass(frozen=True, slots=True)
class GrantVerdict:
    """The layer's verdict. `needs_approval`: the need is covered, but only by grants that want a person; the walk goes on to that
    answer."""

    verdict: LayerVerdict
    need: Entry | None = None
    rests_on: tuple[str, ...] = ()
    cuts: tuple[Mapping[str, object], ...] = ()
    needs_approval: Refused | None = None


class _Unreadable(Exception):
    """An argument can't be part of what the call needs; `name` is `resource` or the constraint's."""

    def __init__(self, name: str, field: str | None) -> None:
        super().__init__(name)
        self.name, self.field = name, field


def check_scope(context: CallContext, bindings: Bindings, requested: tuple[Entry, ...] | None) -> GrantVerdict:
    """Decide whether the call's need lies inside policy and `requested`."""
    try:
        need = need_of(context, bindings)
    except _Unreadable as unreadable:
        return _refuse_unreadable(context, unreadable)
    grants = [grant for grant in context.policy.grants if _is_for(grant, context)]
    action = need.action
    permits = [named for grant in grants if grant.permit for named in grant.named if named.entry.action == action]
    forbids = [named for grant in grants if not grant.permit for named in grant.named if named.entry.action == action]
    verdict = decide_scope(need, permits, forbids, requested, context.now)
    if verdict.outcome == "permitted":
        checks = tuple(accepted(name.removeprefix("grant:")) for name in verdict.rests_on)
        return GrantVerdict(LayerVerdict(LayerResult(Layer.SCOPE, Outcome.ACCEPTED, checks)), need, verdict.rests_on)
    if verdict.outcome == "needs_approval":
        return _ask(context, need, verdict)
    return _refuse(context, need, verdict, permits)


def need_of(context: CallContext, bindings: Bindings) -> Entry:
    """Give the one entry that the call needs.

    Raises:
        _Unreadable: an argument can't be part of a resource's name, or isn't the limit that it has to be.
    """
    need = context.tool.need
    constraints: dict[str, Constraint] = {}
    for name, limit in need.limits.items():
        found = limit.constant or _constraint(limit, bindings, context.policy.sensitivity)
        if found is None:
            raise _Unreadable(name, limit.field)
        constraints[name] = found
    try:
        return Entry(need.action, concrete_resource(need.resource.text(bindings)), constraints)
    except (ScopeError, TemplateFailed):
        raise _Unreadable("resource", need.field) from None


def _constraint(limit: NeedLimit, bindings: Bindings, levels: tuple[str, ...]) -> Constraint | None:
    """Read one limit of the need; None where the argument isn't one, which refuses the call: a limit is never left out."""
    assert limit.template is not None
    try:
        value = limit.template.render(bindings)
        if limit.kind == "level":
            return LevelCeiling(parse_level(value, levels))
        if limit.kind == "count":
            return Ceiling(Quantity(value, limit.unit, 0)) if type(value) is int else None
        if limit.kind == "money":
            return Ceiling(value) if isinstance(value, Quantity) else None
    except (ScopeError, TemplateFailed):
        return None
    listed = value if isinstance(value, list) else [value]
    values = frozenset(each for each in listed if isinstance(each, str))
    return OneOf(values) if listed and all(isinstance(each, str) for each in listed) else None


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


def _ask(context: CallContext, need: Entry, verdict: ScopeVerdict) -> GrantVerdict:
    message = say(context.call.locales, "needs_human_review")
    checks = tuple(Check(name.removeprefix("grant:"), Outcome.NEEDS_USER, Reason.GRANT_NEEDS_APPROVAL) for name in verdict.rests_on)
    asked = refusal_of(Layer.SCOPE, checks[0], DenialClass.PERMISSION, Retryable.AFTER_APPROVAL, WAIT_FOR_APPROVAL, message=message)
    return GrantVerdict(LayerVerdict(LayerResult(Layer.SCOPE, Outcome.NEEDS_USER, checks)), need, verdict.rests_on, (), asked)


def _refuse_unreadable(context: CallContext, unreadable: _Unreadable) -> GrantVerdict:
    locales, field = context.call.locales, unreadable.field
    if unreadable.name == "resource":
        kind = str(context.tool.need.resource.source).partition(":")[0]
        message = say(locales, f"scope_resource_{kind}" if kind in ("file", "url") else "scope_resource")
    else:
        message = say(locales, "scope_limit", name=unreadable.name)
    actual = shown(value_at(context.call.arguments, field), field) if field is not None else ABSENT
    check = Check(unreadable.name, Outcome.DENIED, Reason.NOT_GRANTED, field=field, actual=actual, message=message)
    refused = refusal_of(Layer.SCOPE, check, DenialClass.PERMISSION, action=CALL_AGAIN if field is not None else STOP)
    return GrantVerdict(layer_refuses(refused, (check,)))


def _refuse(context: CallContext, need: Entry, verdict: ScopeVerdict, permits: Sequence[NamedEntry]) -> GrantVerdict:
    """Tell every cut: one check each, in the order of authority. The first one gives the hint; all must be over arguments to try again."""
    checks = tuple(_check(context, cut, permits) for cut in verdict.cuts)
    message = joined(context.call.locales, list(dict.fromkeys(check.message for check in checks if check.message))[:MESSAGES_MAX])
    action = CALL_AGAIN if all(check.field is not None for check in checks) else STOP
    # what is forbidden whatever the arguments' limits stays so for any approval and any grant; the model isn't to look for a way around it
    forbidden = any(check.reason == Reason.FORBIDDEN and check.field is None for check in checks)
    refused = refusal_of(
        Layer.SCOPE,
        checks[0],
        DenialClass.PERMISSION,
        Retryable.NEVER if forbidden else Retryable.AFTER_CHANGE,
        action,
        message=message,
        suggested=_suggested(context, verdict.cuts),
    )
    return GrantVerdict(layer_refuses(refused, checks), need, (), tuple(_cut_document(need, cut) for cut in verdict.cuts))


def _cut_document(need: Entry, cut: Cut) -> dict[str, object]:
    document: dict[str, object] = {"action": need.action, "resource": need.resource.text}
    if cut.constraint is not None and cut.granted is not None:
        document["constraint"] = cut.constraint
        if cut.requested is not None:
            document["requested"] = render_constraint(cut.requested)
        document["granted"] = render_constraint(cut.granted)
    document |= {"by": cut.by, "reason": cut.reason}
    if cut.index is not None:
        place = f"/requested_scope/{cut.index}"
        document["pointer"] = place if cut.constraint is None else f"{place}/constraints/{cut.constraint}"
    return document


def _check(context: CallContext, cut: Cut, permits: Sequence[NamedEntry]) -> Check:
    locales, name = context.call.locales, cut.by.removeprefix("grant:")
    base = say(locales, cut.reason)
    if cut.constraint is None or cut.granted is None:
        return Check(name, Outcome.DENIED, cut.reason, message=base)
    limit = context.tool.need.limits.get(cut.constraint)
    field = limit.field if limit is not None and cut.requested is not None else None
    actual: object = ABSENT
    expected: object = ABSENT
    found = say(locales, "scope_unlimited", name=cut.constraint)
    match cut.requested, cut.granted:
        case Ceiling() as wanted, Ceiling() as granted if wanted.same_unit(granted):
            actual, expected = wanted.quantity.as_number(), {"maximum": granted.quantity.as_number()}
            found = say(locales, "scope_over", name=cut.constraint, wanted=wanted.quantity.text(), limit=granted.quantity.text())
        case Ceiling(wanted_quantity), _:
            field = limit.currency_field if limit is not None else None
            units = _units(cut, permits)
            actual, expected = wanted_quantity.unit, {"enum": units} if units else ABSENT
            found = say(locales, "scope_unit", name=cut.constraint, unit=wanted_quantity.unit)
        case LevelCeiling(wanted_level), LevelCeiling(level):
            actual, expected = wanted_level.name, {"enum": list(level.levels[: level.rank + 1])}
            found = say(locales, "scope_over", name=cut.constraint, wanted=wanted_level.name, limit=level.name)
        case OneOf(), OneOf(values):
            listed: dict[str, object] = {"enum": [shown(value) for value in sorted(values)]}
            raw = value_at(context.call.arguments, field) if field is not None else ABSENT
            actual = shown(raw, field) if raw is not ABSENT else ABSENT
            expected = {"items": listed} if isinstance(raw, list) else listed
            found = say(locales, "scope_values", name=cut.constraint)
        case _, Window():
            found = say(locales, "scope_time")
    message = say(locales, "at_place", place=base, found=found)
    return Check(name, Outcome.DENIED, cut.reason, field=field, actual=actual, expected=expected, message=message)


def _units(cut: Cut, permits: Sequence[NamedEntry]) -> list[str]:
    """Name the currencies or units that the constraint is granted in at all."""
    if cut.reason == "outside_requested_scope":
        return [cut.granted.quantity.unit] if isinstance(cut.granted, Ceiling) else []
    limits = (named.entry.constraints.get(str(cut.constraint)) for named in permits)
    return sorted({limit.quantity.unit for limit in limits if isinstance(limit, Ceiling)})


def _suggested(context: CallContext, cuts: Sequence[Cut]) -> Mapping[str, object] | None:
    """Lower each argument that is over a ceiling to it; None where something else was cut, because then that wouldn't help."""
    lowered: dict[str, Constraint] = {}
    for cut in cuts:
        limit = context.tool.need.limits.get(cut.constraint) if cut.constraint is not None else None
        if limit is None or limit.field is None or cut.granted is None or cut.requested is None:
            return None
        if not isinstance(cut.granted, Ceiling | LevelCeiling) or cut.granted.meet(cut.requested) is None:
            return None
        met = lowered.get(limit.field, cut.granted).meet(cut.granted)
        if met is None:
            return None
        lowered[limit.field] = met
    changed = context.call.arguments
    for field, ceiling in lowered.items():
        if isinstance(ceiling, Ceiling):
            changed = with_value(changed, field, ceiling.quantity.as_number())
        elif isinstance(ceiling, LevelCeiling):
            changed = with_value(changed, field, ceiling.level.name)
    return changed


def effective_entry(need: Entry, rests_on: tuple[str, ...]) -> dict[str, object]:
    """Give one entry of an answer's `effective_scope`."""
    return {**render_entry(need), "rests_on": list(rests_on)}
