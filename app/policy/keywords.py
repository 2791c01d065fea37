"""The keywords of JSON Schema: which hold schemas, which constrain, which only describe, and what an unknown one may have meant.

An unknown keyword that may have been meant as a constraint is never taken for an annotation: dropping it would loosen the policy.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

KNOWN_FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri", "uri-reference"}
    | {"iri", "iri-reference", "uri-template", "json-pointer", "relative-json-pointer", "regex", "uuid"}
)
HOLDS_ONE = frozenset(
    {"additionalProperties", "unevaluatedProperties", "propertyNames", "items", "unevaluatedItems", "contains", "not", "if", "then", "else"}
    | {"contentSchema"}
)
HOLDS_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
HOLDS_MAP = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
REFUSED = frozenset({"$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$vocabulary"})
"""What makes a reference mean something else than a place in the document."""

_DESCRIBES = frozenset({"title", "description", "examples", "deprecated", "$comment"})
_ANNOTATES = frozenset({"contentEncoding", "contentMediaType", "contentSchema", "readOnly", "writeOnly"})
_CONSTRAINS = (HOLDS_ONE | HOLDS_LIST | HOLDS_MAP) - _ANNOTATES | frozenset(
    {"$ref", "type", "enum", "const", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum", "maxLength", "minLength"}
    | {"pattern", "maxItems", "minItems", "uniqueItems", "maxContains", "minContains", "maxProperties", "minProperties", "required"}
    | {"dependentRequired"}
)
_KNOWN = _CONSTRAINS | _DESCRIBES | _ANNOTATES | REFUSED | {"default", "format", "$schema"}
_ELSEWHERE: Mapping[str, str] = {
    "dependencies": "`dependentRequired` or `dependentSchemas`",
    "additionalItems": "`items` beside `prefixItems`",
    "divisibleBy": "`multipleOf`",
    "extends": "`allOf`",
    "disallow": "`not`",
    "min": "`minimum`, `minLength` or `minItems`",
    "max": "`maximum`, `maxLength` or `maxItems`",
    "minValue": "`minimum`",
    "maxValue": "`maximum`",
    "regex": "`pattern`",
    "formatMinimum": "a rule of `static_rules`",
    "formatMaximum": "a rule of `static_rules`",
    "formatExclusiveMinimum": "a rule of `static_rules`",
    "formatExclusiveMaximum": "a rule of `static_rules`",
}
"""Constraints of older drafts and of other dialects, and what asserts the same here."""
_PLAINLY: Mapping[str, str] = {key.lower(): key for key in sorted(_CONSTRAINS | {"format"})}
_LIKENESS = 0.8
"""How like a constraint's name an unknown keyword has to be, from 0 to 1, to be taken for a misspelling: `maxLenght` is, `optional` not."""
_DRAFT = re.compile(r"https?://json-schema\.org/draft/2020-12/schema#?\Z")
_SHOWN_MAX = 64


def meant_by(key: str) -> str | None:
    """Say which constraint an unknown keyword may stand for; None where it is known, the author's own (`x-`), or like none."""
    if key in _KNOWN or key.startswith("x-"):
        return None
    if key in _ELSEWHERE:
        return _ELSEWHERE[key]
    near = difflib.get_close_matches(key.lower().replace("_", "").replace("-", ""), _PLAINLY, 1, _LIKENESS)
    return f"`{_PLAINLY[near[0]]}`" if near else None


def unasserted(key: str, value: object) -> str | None:
    """Say of a keyword that nothing asserts it; None where something does, and of what only describes or is the author's own (`x-`)."""
    match key:
        case "format" if isinstance(value, str) and value not in KNOWN_FORMATS:
            return f"{short(value)} is not asserted; it is only an annotation"
        case "default":
            return "a default is not filled in; it is only an annotation"
        case "$schema" if not (isinstance(value, str) and _DRAFT.match(value)):
            return "not asserted; the schema is read as draft 2020-12"
    if key in _ANNOTATES or not (key in _KNOWN or key.startswith("x-")):
        return f"{short(key)} is not asserted; it is only an annotation"
    return None


def short(text: str) -> str:
    """Give the beginning of an author's text for a message."""
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"
