"""Rules and what they say when they don't hold.

A rule says what must hold, and names the argument and what is expected there: a refusal that can't be acted on isn't one.
"""

from __future__ import annotations

from collections.abc import Collection

from app.domain.decision import Reason
from app.domain.hint import CALL_AGAIN, NextAction, NextActionKind
from app.policy.document import RefusalDocument, RuleDocument, Texts
from app.policy.expressions import ValueType
from app.policy.model import Refusal, Rule
from app.policy.reading import Path_
from app.policy.site import Site
from app.policy.templates import Template

BUILT_IN_REASONS = frozenset(reason.value for reason in Reason)


def compile_rules(
    site: Site, path: Path_, documents: list[RuleDocument], taken: set[str], allowed: Collection[str], why: str
) -> tuple[Rule, ...]:
    """Compile a list of rules that may read the allowed variables; `taken` are the names that checks already have."""
    rules = []
    for index, document in enumerate(documents):
        here = (*path, index)
        if document.rule in taken:
            site.fault((*here, "rule"), f"the name `{document.rule}` is taken", "a name for each rule, fact and value of the tool")
        taken.add(document.rule)
        when = site.expression((*here, "when"), document.when, ValueType.BOOL, allowed, why) if document.when is not None else None
        require = site.expression((*here, "require"), document.require, ValueType.BOOL, allowed, why)
        for key in ("field", "expected"):
            if getattr(document.refuse, key) is None:
                message = f"the refusal of `{document.rule}` has no `{key}`"
                site.fault((*here, "refuse"), message, f"`{key}`, so that the caller can correct itself")
        refuse = compile_refusal(site, (*here, "refuse"), document.refuse, allowed, why)
        if require is not None and refuse is not None and (document.when is None or when is not None):
            rules.append(Rule(document.rule, require, refuse, when))
    return tuple(rules)


def compile_refusal(site: Site, path: Path_, document: RefusalDocument, allowed: Collection[str], why: str) -> Refusal | None:
    """Compile what is said of one refusal; None where it has faults."""
    before = len(site.faults.found)
    if document.reason in BUILT_IN_REASONS:
        site.fault((*path, "reason"), f"`{document.reason}` is a reason of the service", "a reason of your own")
    site.reasons.add(document.reason)
    if document.field is not None and not site.has_argument(document.field):
        site.fault((*path, "field"), f"`{document.field}` isn't an argument of the tool", "a JSON Pointer to an argument")
    if document.fact is not None and (document.fact not in site.environment.variables or document.fact not in allowed):
        site.fault((*path, "fact"), f"`{document.fact}` isn't a variable here", "a dotted variable such as `order.status`")
    action = _next_action(site, (*path, "next_action"), document)
    message = compile_texts(site, (*path, "message"), document.message, allowed, why)
    expected = site.template((*path, "expected"), document.expected, "exact", allowed, why) if document.expected is not None else None
    suggest = []
    for pointer, value in document.suggest.items():
        here = (*path, "suggest", pointer)
        if not site.has_argument(pointer):
            site.fault(here, f"`{pointer}` isn't an argument of the tool", "a JSON Pointer to an argument")
        template = site.template(here, value, "exact", allowed, why)
        if template is not None:
            suggest.append((pointer, template))
    if len(site.faults.found) > before:
        return None
    return Refusal(document.reason, message, document.field, document.fact, expected, tuple(suggest), action)


def _next_action(site: Site, path: Path_, document: RefusalDocument) -> NextAction:
    """Read what to do next: only `call_first` names a tool, and only a call to be made again can have other arguments."""
    written = document.next_action
    if written is None:
        return CALL_AGAIN
    kind = NextActionKind(written.kind)
    if kind is NextActionKind.CALL_FIRST and written.tool is None:
        site.fault(path, "`call_first` names no tool", "`tool`, the one to call first")
    elif kind is not NextActionKind.CALL_FIRST and written.tool is not None:
        site.fault((*path, "tool"), f"`{written.kind}` names a tool", "a tool with `call_first` only")
    elif written.tool is not None and written.tool not in site.tools:
        site.fault((*path, "tool"), f"there is no tool `{written.tool}`", _one_of(site.tools))
    if kind in (NextActionKind.WAIT, NextActionKind.STOP) and document.suggest:
        site.fault(path, f"`{written.kind}` doesn't go with `suggest`", "`call_again`, or no `suggest`")
    return NextAction(kind, tool=written.tool)


def compile_texts(site: Site, path: Path_, texts: Texts, allowed: Collection[str], why: str) -> dict[str, Template]:
    """Compile a sentence in each of its locales."""
    check_locales(site, path, texts)
    compiled = {}
    for locale, text in texts.items():
        template = site.template((*path, locale), text, "sentence", allowed, why)
        if template is not None:
            compiled[locale] = template
    return compiled


def check_locales(site: Site, path: Path_, texts: Texts) -> None:
    """Refuse a text without English or in a locale that the bundle doesn't name."""
    if "en" not in texts:
        site.fault(path, "has no text in `en`", "a text in `en`, and in others as wanted")
    for locale in texts:
        if locale not in site.locales:
            site.fault((*path, locale), f"`{locale}` isn't a locale of the bundle", _one_of(site.locales))


def _one_of(names: Collection[str]) -> str:
    return f"one of {', '.join(sorted(names)[:30])}" if names else "there is none yet"
