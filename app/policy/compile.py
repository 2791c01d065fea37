"""A bundle's files -> one immutable `Policy`, or every fault with file, line and what was expected (SPEC S6.3).

A bundle is refused whole. A key that isn't understood is a fault, and so is whatever would leave a call that needs a person
without one: nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from app.domain.canonical import CanonicalError, digest
from app.domain.decision import Layer
from app.domain.errors import PolicyFault, PolicyInvalid
from app.policy.compile_authority import compile_approvals, compile_budgets, compile_grants, compile_loop_limits, compile_thresholds
from app.policy.compile_scope import check_limits
from app.policy.compile_tool import compile_tool
from app.policy.document import BundleDocument, ToolDocument
from app.policy.model import Grant, HistoryQuery, Policy, Tool
from app.policy.reading import Bundle, Faults, Source, load_directory, read_bundle
from app.policy.shape import read_shape

__all__ = ["compile_bundle", "load_directory", "validate"]


def compile_bundle(files: Mapping[str, str]) -> Policy:
    """Compile a bundle's files, by name -> text.

    Raises:
        PolicyInvalid: with every fault, at most 50; nothing of the bundle may be used.
    """
    faults = Faults()
    policy = _compile(files, faults)
    if faults.found or policy is None:
        raise PolicyInvalid(tuple(faults.found))
    return policy


def validate(files: Mapping[str, str]) -> tuple[PolicyFault, ...]:
    """Give the faults of a bundle; empty where it can be used."""
    try:
        compile_bundle(files)
    except PolicyInvalid as error:
        return error.faults
    return ()


def _compile(files: Mapping[str, str], faults: Faults) -> Policy | None:
    bundle = read_bundle(files, faults)
    rest = bundle.rest
    document = read_shape(rest, rest.document, (), BundleDocument, faults)
    documents = _read_tools(bundle, faults)
    locales = frozenset(document.bundle.locales) if document else None
    levels = tuple(document.bundle.sensitivity) if document else _levels_in(rest)
    schemas = _schemas_in(bundle)
    tools = _compile_tools(documents, schemas, locales, levels, faults)
    if not bundle.tools:
        faults.add(PolicyFault("tools/", None, "the bundle has no tool", "a file in `tools/` for each tool"))
    if document is None:
        return None
    if "en" not in document.bundle.locales:
        faults.at(rest, ("bundle", "locales"), "`en` isn't among the locales", "`en`, and others as wanted")
    names = frozenset(schemas)
    grants = compile_grants(rest, document, faults)
    thresholds = compile_thresholds(rest, document, names, faults)
    budgets = compile_budgets(rest, document, names, faults)
    approvals = compile_approvals(rest, document, names, faults)
    loop_limits = compile_loop_limits(rest, document, names, faults)
    _check_gates(rest, document, tools, faults)
    if len(tools) == len(bundle.tools):
        _check_actions(rest, grants, tools, faults)
        check_limits(rest, grants, tools, faults)
    try:
        own = digest({"tools": {tool.tool: source.document for source, tool in documents}, "rest": rest.document})
    except CanonicalError as error:
        faults.at(rest, (), str(error), "values that JSON can hold")
        return None
    return Policy(
        name=document.bundle.name, digest=own, tools={tool.name: tool for tool in tools}, grants=grants, thresholds=thresholds,
        budgets=budgets, approvals=approvals, loop_limits=loop_limits, history_keys=_history_keys(tools),
        notes=tuple(faults.notes.found), notes_left_out=faults.notes.left_out,
        sensitivity=levels,
    )  # fmt: skip


def _read_tools(bundle: Bundle, faults: Faults) -> list[tuple[Source, ToolDocument]]:
    found: list[tuple[Source, ToolDocument]] = []
    files: dict[str, str] = {}
    for source in bundle.tools:
        document = read_shape(source, source.document, (), ToolDocument, faults)
        if document is None:
            continue
        if document.tool in files:
            faults.at(source, ("tool",), f"the tool `{document.tool}` is already in `{files[document.tool]}`", "one file for each tool")
            continue
        files[document.tool] = source.file
        found.append((source, document))
    return found


def _compile_tools(
    documents: list[tuple[Source, ToolDocument]],
    schemas: Mapping[str, Mapping[str, object]],
    locales: frozenset[str] | None,
    levels: tuple[str, ...],
    faults: Faults,
) -> list[Tool]:
    """Compile all tools; where the locales aren't known because the bundle's head is broken, each tool's own are taken."""
    found = []
    for source, document in documents:
        known = locales if locales is not None else _locales_in(document)
        tool = compile_tool(source, document, known, schemas, faults, levels)
        if tool is not None:
            found.append(tool)
    return found


def _schemas_in(bundle: Bundle) -> Mapping[str, Mapping[str, object]]:
    """Name all tools with their arguments' schemas, those with faults too: one fault isn't told as several."""
    found: dict[str, Mapping[str, object]] = {}
    for document in (source.document for source in bundle.tools):
        if isinstance(document, Mapping) and "tool" in document:
            schema = document.get("arguments")
            found.setdefault(str(document["tool"]), schema if isinstance(schema, Mapping) else {})
    return found


def _levels_in(rest: Source) -> tuple[str, ...]:
    """Give the levels of a bundle whose head is broken, so that its fault isn't told again at every tool."""
    head = rest.document.get("bundle") if isinstance(rest.document, Mapping) else None
    levels = head.get("sensitivity") if isinstance(head, Mapping) else None
    return tuple(each for each in levels if isinstance(each, str)) if isinstance(levels, list) else ()


def _locales_in(document: ToolDocument) -> frozenset[str]:
    texts = [document.description, *(fact.missing.message for fact in document.facts.values())]
    texts += [rule.refuse.message for rule in (*document.static_rules, *document.rules)]
    return frozenset(locale for text in texts for locale in text)


def _check_gates(rest: Source, document: BundleDocument, tools: Sequence[Tool], faults: Faults) -> None:
    """Refuse a bundle in which a call could need a threshold or a person that nobody named (PS-01, AL-13)."""
    if any(Layer.RISK in tool.layers for tool in tools) and not any(_is_for_all(each.for_) for each in document.thresholds):
        message = "tools are judged by risk, but no threshold is for all calls"
        faults.at(rest, ("thresholds",), message, "an entry of `thresholds` without `for`")
    asks = any(grant.needs_approval for grant in document.grants) or any(each.on_exceed == "needs_user" for each in document.budgets)
    if (asks or document.thresholds) and not any(_is_for_all(each.for_) for each in document.approvals or ()):
        message = "calls can need a person, but no approval rule is for all calls"
        faults.at(rest, ("approvals",), message, "an entry of `approvals` with `for: {}`")


def _check_actions(rest: Source, grants: Sequence[Grant], tools: Sequence[Tool], faults: Faults) -> None:
    """A misspelt action grants nothing, and forbids nothing; what can't be undone is never granted without a person (MR-06)."""
    known = {tool.need.action for tool in tools}
    irreversible = {tool.need.action: tool.name for tool in tools if tool.effect_class == "irreversible"}
    for index, grant in enumerate(grants):
        for entry in grant.scope:
            if entry.action not in known:
                message = f"no tool needs the action `{entry.action}`"
                faults.at(rest, ("grants", index, "scope"), message, f"one of {', '.join(sorted(known))}")
            elif grant.permit and not grant.needs_approval and entry.action in irreversible:
                message = f"`{irreversible[entry.action]}` is irreversible, so it always needs a person"
                faults.at(rest, ("grants", index, "scope"), message, "`needs_approval: true` beside `effect: permit`")


def _is_for_all(selector: object) -> bool:
    return not any(getattr(selector, key, None) is not None for key in ("tool", "segment", "principal", "currency"))


def _history_keys(tools: Collection[Tool]) -> Mapping[str, tuple[HistoryQuery, ...]]:
    keys: dict[str, list[HistoryQuery]] = {}
    for tool in tools:
        for query in tool.history:
            keys.setdefault(query.tool, []).append(query)
    return {name: tuple(queries) for name, queries in keys.items()}
