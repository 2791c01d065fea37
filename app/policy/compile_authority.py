"""Grants, thresholds, budgets, approvals and loop limits. A limit of 0 is a limit; an empty list never means everybody."""

from __future__ import annotations

from collections.abc import Collection
from zoneinfo import ZoneInfo

from app.domain.quantity import Quantity, QuantityError, parse_quantity
from app.domain.scope import Entry, ScopeError, parse_entry
from app.policy.currencies import exponent_of
from app.policy.document import BundleDocument, GrantDocument, SelectorDocument, ThresholdSelectorDocument
from app.policy.model import ApprovalRule, Budget, Grant, LoopLimit, Selector, Threshold
from app.policy.reading import Faults, Path_, Source

_ANSWERING = frozenset({"reviewer", "operator"})
_ENTRY = 'an entry such as `{action: refund, resource: "order:*", constraints: {amount: {max: {amount: "80.00", currency: EUR}}}}`'
_QUANTITY = 'a quantity such as `{amount: "1000.00", currency: EUR}` or `{amount: "200", unit: calls}`'


def compile_grants(rest: Source, document: BundleDocument, faults: Faults) -> tuple[Grant, ...]:
    """Compile the grants, in their order."""
    grants = []
    names: set[str] = set()
    levels = tuple(document.bundle.sensitivity)
    for number, level in enumerate(levels):
        if level in levels[:number]:
            faults.at(rest, ("bundle", "sensitivity", number), f"the level `{level}` is named twice", "each level once, the lowest first")
    for index, grant in enumerate(document.grants):
        path: Path_ = ("grants", index)
        _refuse_taken(rest, (*path, "grant"), grant.grant, names, faults)
        to = grant.to
        if to.roles is None and to.subjects is None and to.segments is None:
            faults.at(rest, (*path, "to"), "names nobody", "`roles`, `subjects` or `segments`; what is named must all hold")
        if grant.needs_approval and grant.effect == "forbid":
            faults.at(rest, (*path, "needs_approval"), "a forbid isn't lifted by an approval", "no `needs_approval`, or `effect: permit`")
        entries = (_entry(rest, path, grant, number, levels, faults) for number in range(len(grant.scope)))
        scope = tuple(entry for entry in entries if entry is not None)
        grants.append(
            Grant(
                grant.grant, grant.effect == "permit", grant.needs_approval, frozenset(to.roles or ()), frozenset(to.subjects or ()),
                frozenset(to.segments or ()), scope,
            )
        )  # fmt: skip
    return tuple(grants)


def compile_thresholds(rest: Source, document: BundleDocument, tools: Collection[str], faults: Faults) -> tuple[Threshold, ...]:
    """Compile the risk thresholds: 0 <= review_at <= deny_at <= 1."""
    found = []
    for index, each in enumerate(document.thresholds):
        path: Path_ = ("thresholds", index)
        if each.review_at > each.deny_at:
            message = f"`review_at` {each.review_at} is above `deny_at` {each.deny_at}"
            faults.at(rest, (*path, "review_at"), message, "0 <= review_at <= deny_at <= 1")
        found.append(Threshold(_selector(rest, path, each.for_, tools, faults), each.review_at, each.deny_at))
    return tuple(found)


def compile_budgets(rest: Source, document: BundleDocument, tools: Collection[str], faults: Faults) -> tuple[Budget, ...]:
    """Compile the budgets."""
    found = []
    names: set[str] = set()
    for index, each in enumerate(document.budgets):
        path: Path_ = ("budgets", index)
        _refuse_taken(rest, (*path, "budget"), each.budget, names, faults)
        limit = _limit(rest, (*path, "limit"), each.limit, faults)
        try:
            ZoneInfo(each.time_zone)
        except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError; a folder's name gives an OSError
            faults.at(rest, (*path, "time_zone"), f"there is no time zone `{each.time_zone}`", "a name such as `Europe/Berlin`")
        selector = _selector(rest, path, each.for_, tools, faults)
        if limit is not None:
            found.append(Budget(each.budget, each.level, selector, limit, each.window, each.time_zone, each.on_exceed))
    return tuple(found)


def compile_approvals(rest: Source, document: BundleDocument, tools: Collection[str], faults: Faults) -> tuple[ApprovalRule, ...]:
    """Compile the approval rules; the first that matches counts, so their order stays."""
    found = []
    for index, each in enumerate(document.approvals or ()):
        selector = _selector(rest, ("approvals", index), each.for_, tools, faults)
        if mute := sorted(frozenset(each.roles) - _ANSWERING):
            faults.at(rest, ("approvals", index, "roles"), f"`{mute[0]}` can't answer an approval", " or ".join(sorted(_ANSWERING)))
        found.append(ApprovalRule(selector, each.quorum, tuple(each.roles), each.expires_after_s, each.on_expiry))
    return tuple(found)


def compile_loop_limits(rest: Source, document: BundleDocument, tools: Collection[str], faults: Faults) -> tuple[LoopLimit, ...]:
    """Compile the limits on refusals; those on meta-requests are read by their own routes."""
    found = []
    for index, each in enumerate(document.loop_limits):
        path: Path_ = ("loop_limits", index)
        selector = _selector(rest, path, each.for_, tools, faults)
        if each.refusals_of_a_rule is None:
            continue
        if each.level == "turn":
            message = "`refusals_of_a_rule` in a turn is not supported by this version"
            faults.at(rest, (*path, "level"), message, "`level: task` or `level: session`")
        else:
            found.append(LoopLimit(each.level, selector, each.refusals_of_a_rule))
    return tuple(found)


def _selector(rest: Source, path: Path_, document: SelectorDocument, tools: Collection[str], faults: Faults) -> Selector:
    if document.tool is not None and document.tool not in tools:
        faults.at(rest, (*path, "for", "tool"), f"there is no tool `{document.tool}`", f"one of {', '.join(sorted(tools))}")
    currency = document.currency if isinstance(document, ThresholdSelectorDocument) else None
    if currency is not None and exponent_of(currency) is None:
        message = f"`{currency}` isn't a currency of ISO 4217 with minor units"
        faults.at(rest, (*path, "for", "currency"), message, "a currency such as `EUR`")
    return Selector(document.tool, document.segment, document.principal, currency)


def _entry(rest: Source, path: Path_, grant: GrantDocument, index: int, levels: tuple[str, ...], faults: Faults) -> Entry | None:
    here: Path_ = (*path, "scope", index)
    try:
        return parse_entry(grant.scope[index], exponent_of, levels, forbid=grant.effect == "forbid")
    except ScopeError as error:
        where = (*here, *(int(part) if part.isdigit() else part for part in error.pointer.split("/")[1:]))
        faults.at(rest, where, error.detail, _ENTRY)
        return None


def _limit(rest: Source, path: Path_, document: dict[str, object], faults: Faults) -> Quantity | None:
    try:
        limit = parse_quantity(document, exponent_of)
    except QuantityError as error:
        faults.at(rest, path, str(error), _QUANTITY)
        return None
    if not limit.is_currency and limit.unit != "calls":
        faults.at(rest, path, f"a budget in `{limit.unit}` is not supported by this version", "a currency, or `unit: calls`")
        return None
    return limit


def _refuse_taken(rest: Source, path: Path_, name: str, names: set[str], faults: Faults) -> None:
    if name in names:
        faults.at(rest, path, f"the name `{name}` is taken", "a name for each")
    names.add(name)
