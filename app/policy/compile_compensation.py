"""A tool's `compensation:` -> the call that would make good for it (SPEC S8.3).

An argument that the tool's result gives (`{result.refund_id}`) is planned as unresolved; every other name has to be a variable of the tool,
and where the compensating tool is of the same bundle, its schema has to know the arguments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from app.policy.compile_rules import check_locales
from app.policy.document import CompensationDocument
from app.policy.expressions import ValueType
from app.policy.model import Compensation
from app.policy.shape import read_shape
from app.policy.site import Site, declares
from app.policy.templates import Template, TemplateInvalid, compile_template

IRREVERSIBLE = "irreversible"
_RESULT = re.compile(r"(?<!\{)\{(result\.[A-Za-z0-9_.]+)\}(?!\})")
_NOT_YET = frozenset({"before", "after"})


def compile_compensation(site: Site, written: object, schemas: Mapping[str, Mapping[str, object]]) -> Compensation | None:
    """Compile the section; None where there is none, where it says `irreversible`, or where it has faults, which are added."""
    if written is None or written == IRREVERSIBLE:
        return None
    if not isinstance(written, Mapping):
        site.fault(("compensation",), "`compensation` names no tool", f"a mapping with `tool` and `arguments`, or the word {IRREVERSIBLE}")
        return None
    document = read_shape(site.source, written, ("compensation",), CompensationDocument, site.faults)
    if document is None:
        return None
    if document.message:
        check_locales(site, ("compensation", "message"), document.message)
        for locale, text in document.message.items():
            _template(site, ("compensation", "message", locale), text)
    arguments: list[tuple[str, Template]] = []
    unresolved: list[str] = []
    schema = schemas.get(document.tool)
    for name, value in document.arguments.items():
        pointer = "/" + name.replace("~", "~0").replace("/", "~1")
        path = ("compensation", "arguments", name)
        if schema is not None and not declares(schema, pointer):
            site.fault(path, f"`{name}` isn't an argument of {document.tool}", "an argument that its schema declares")
        template = _template(site, path, value)
        if _results(value):
            unresolved.append(pointer)
        elif template is not None:
            arguments.append((name, template))
    return Compensation(document.tool, tuple(arguments), tuple(unresolved))


def _template(site: Site, path: tuple[str | int, ...], document: object) -> Template | None:
    """Compile a template that may also read the result, whose shape nobody has declared."""
    variables = {name: kind for name, kind in site.environment.variables.items() if name not in _NOT_YET}
    variables |= dict.fromkeys(_results(document), ValueType.STRING)
    try:
        return compile_template(document, variables)
    except TemplateInvalid as error:
        site.fault((*path, *error.path), str(error), "`{path}`s of variables, and `{result.…}` of what the tool gives back")
        return None


def _results(document: object) -> set[str]:
    """Give the paths into the result that a document reads."""
    if isinstance(document, Mapping):
        return {name for value in document.values() for name in _results(value)}
    if isinstance(document, list | tuple):
        return {name for value in document for name in _results(value)}
    return set(_RESULT.findall(document)) if isinstance(document, str) else set()
