"""The SQL of facts and effects: one statement each, its binds read by type from one jsonb parameter.

Arguments only ever bind: the text of a statement is the author's and is never changed but at its `:name`s. What PostgreSQL
can't roll back is refused here by name, and again by what the roles may execute.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from typing import Literal, cast

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from app.domain.errors import PlacetError
from app.policy.expressions import Environment, Expression, ExpressionInvalid, ValueType
from app.policy.model import Effect, Statement

SQL_CHARS_MAX = 8_192
ROWS_MAX = 100
"""Of the rows that one statement touches, how many a dry run gives back; what is beyond them is counted."""

BINDS_MAX = 50
TENANT = "tenant"

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_DENIED_NAMES = frozenset(
    {"nextval", "setval", "set_config", "pg_notify", "pg_terminate_backend", "pg_cancel_backend", "pg_reload_conf", "pg_promote"}
    | {"pg_export_snapshot", "txid_current", "pg_current_xact_id", "pg_stat_file", "query_to_xml", "query_to_xmlschema"}
    | {"query_to_xml_and_xmlschema", "cursor_to_xml", "table_to_xml", "schema_to_xml", "database_to_xml", "pg_switch_wal"}
)
_DENIED_PREFIXES = (
    "dblink", "lo_", "lowrite", "loread",
    "pg_", "ts_", "txid_", "crosstab", "connectby",
)  # fmt: skip
_DENIED_INSIDE = "xml"
"""ts_stat, ts_rewrite and the to_xml family run SQL that they are given as text, which nobody has looked at."""
_SCALAR_READS: Mapping[ValueType, str] = {
    ValueType.STRING: "text",
    ValueType.INT: "bigint",
    ValueType.BOOL: "boolean",
    ValueType.TIMESTAMP: "timestamptz",
    ValueType.DOUBLE: "double precision",
}
_LIST_READS: Mapping[ValueType, str] = {ValueType.STRINGS: "text", ValueType.INTS: "bigint", ValueType.BOOLS: "boolean"}
_SAMPLE_TYPES: Mapping[type, ValueType] = {str: ValueType.STRING, int: ValueType.INT, bool: ValueType.BOOL}
_SAMPLE_LISTS: Mapping[type, ValueType] = {str: ValueType.STRINGS, int: ValueType.INTS, bool: ValueType.BOOLS}
_BINDABLE = (*_SCALAR_READS, *_LIST_READS, ValueType.DYN)
_OPERATIONS: Mapping[type[exp.Expression], Literal["insert", "update", "delete", "merge"]] = {
    exp.Insert: "insert",
    exp.Update: "update",
    exp.Delete: "delete",
    exp.Merge: "merge",
}

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns about statements that are refused here anyway


class StatementInvalid(PlacetError):
    """A statement can't be used. `line` counts from 1 in its SQL; `bind` names the bind that is at fault, with its CEL line."""

    def __init__(self, message: str, line: int = 1, bind: str | None = None) -> None:
        super().__init__(message)
        self.line, self.bind = line, bind


def compile_fact(
    sql: str, binds: Mapping[str, str], environment: Environment, columns: frozenset[str] = frozenset(), shared: bool = False
) -> Statement:
    """Compile one SELECT; its SQL gives at most two rows of one jsonb object, so that a second row is seen.

    Raises:
        StatementInvalid: see the module; or a column of `columns` isn't selected.
    """
    text, tokens, tree = _parse(sql)
    if not isinstance(tree, exp.Select | exp.SetOperation):
        raise StatementInvalid("a fact is one SELECT")
    _refuse_writes(tree)
    if not tree.is_star and (missing := columns - {name.lower() for name in tree.named_selects}):
        raise StatementInvalid(f"the SELECT gives no column `{min(missing)}`")
    bound, expressions, uses_tenant = _bind(text, tokens, binds, environment, shared)
    return Statement(f"SELECT to_jsonb(f) FROM (\n{bound}\n) f LIMIT 2", expressions, uses_tenant)


def compile_effect(
    sql: str, binds: Mapping[str, str], environment: Environment, shared: bool = False, many: Mapping[str, Sequence[str]] | None = None
) -> Effect:
    """Compile one INSERT, UPDATE, DELETE or MERGE; its SQL gives one jsonb list of `[old, new]`, null where there is none.

    The list has at most ROWS_MAX + 1 pairs. `many`: the tables of which more rows may change, with their watched columns; of such a table
    it has ROWS_MAX, ordered, and then an object: how many rows are `omitted`, and a `digest` over the watched columns of all.

    Raises:
        StatementInvalid: see the module.
    """
    text, tokens, tree = _parse(sql)
    operation = _OPERATIONS.get(type(tree))
    if operation is None:
        raise StatementInvalid("an effect is one INSERT, UPDATE, DELETE or MERGE")
    if tree.args.get("returning"):
        raise StatementInvalid("an effect has no RETURNING; the rows that it touched are captured anyway")
    for clause in tree.find_all(exp.With):
        if clause.find(exp.DML):
            raise StatementInvalid("a WITH clause of an effect only reads; write one statement for each write")
    for query in tree.find_all(exp.Query):
        _refuse_writes(query)
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    if not isinstance(target, exp.Table) or not target.db or target.catalog:
        raise StatementInvalid("name the table with its schema, such as `shop.orders`")
    bound, expressions, uses_tenant = _bind(text, tokens, binds, environment, shared)
    table = f"{target.db}.{target.name}"
    returning = f"WITH e AS (\n{bound}\nRETURNING to_jsonb(old) AS o, to_jsonb(new) AS n)"
    wrapped = _capped_with_digest(returning, many[table]) if many and table in many else _capped(returning)
    return Effect(table, operation, Statement(wrapped, expressions, uses_tenant))


def _capped(returning: str) -> str:
    pairs = f"SELECT jsonb_build_array(o, n) AS p FROM e LIMIT {ROWS_MAX + 1}"
    return f"{returning} SELECT coalesce(jsonb_agg(p), '[]'::jsonb) FROM ({pairs}) c"


def _capped_with_digest(returning: str, columns: Sequence[str]) -> str:
    shown = {side: ", ".join(f"'{name}', {side}->'{name}'" for name in columns) for side in ("o", "n")}
    sides = ", ".join(f"CASE WHEN {side} IS NOT NULL THEN jsonb_build_object({shown[side]}) END AS w{side}" for side in ("o", "n"))
    every = "encode(sha256(convert_to(jsonb_agg(jsonb_build_array(wo, wn) ORDER BY wo, wn)::text, 'UTF8')), 'hex')"
    first = f"SELECT jsonb_build_array(o, n) AS p FROM w ORDER BY wo, wn LIMIT {ROWS_MAX}"
    return (
        f"{returning}, w AS (SELECT o, n, {sides} FROM e), s AS (SELECT count(*) AS total FROM w) "
        f"SELECT coalesce((SELECT jsonb_agg(p) FROM ({first}) f), '[]'::jsonb) || CASE WHEN total > {ROWS_MAX} THEN "
        f"jsonb_build_array(jsonb_build_object('omitted', total - {ROWS_MAX}, 'digest', (SELECT {every} FROM w))) "
        "ELSE '[]'::jsonb END FROM s"
    )


def _parse(sql: str) -> tuple[str, list[Token], exp.Expression]:
    if not sql.strip() or len(sql) > SQL_CHARS_MAX or "\x00" in sql:
        raise StatementInvalid(f"a statement has 1 to {SQL_CHARS_MAX} characters")
    try:
        tokens = list(sqlglot.tokenize(sql, dialect="postgres"))
        while tokens and tokens[-1].token_type == TokenType.SEMICOLON:
            last = tokens.pop()
            sql = sql[: last.start] + sql[last.end + 1 :]
        trees = sqlglot.parse(sql, dialect="postgres")
    except SqlglotError as error:
        details = getattr(error, "errors", None) or [{}]
        message = details[0].get("description") or str(error).splitlines()[0]
        raise StatementInvalid(f"not a statement of PostgreSQL: {message}", int(details[0].get("line") or 1)) from None
    if len(trees) != 1 or trees[0] is None:
        raise StatementInvalid("write exactly one statement")
    _refuse_functions(sql, tokens)
    if "{#" in sql:
        raise StatementInvalid("`{#` begins a comment for some readers and not for PostgreSQL; leave it out")
    _refuse_catalogs(cast("exp.Expression", trees[0]))
    return sql, tokens, cast("exp.Expression", trees[0])


def _refuse_functions(sql: str, tokens: list[Token]) -> None:
    """Look at the tokens, not at the tree: a name before a parenthesis is a call however it is parsed."""
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        if token.token_type in (TokenType.PARAMETER, TokenType.PLACEHOLDER) or re.match(r"\$[0-9]", sql[token.start : token.start + 2]):
            raise StatementInvalid(f"write `:name` for a bind, not `{sql[token.start : token.start + 8].strip()}`", token.line)
        if re.match(r"[uU]&[\"']", sql[token.start : token.start + 3]):
            raise StatementInvalid('an identifier or string with escapes (`U&"…"`) can\'t be checked', token.line)
        name = token.text.lower()
        called = following is not None and following.token_type == TokenType.L_PAREN and token.token_type != TokenType.STRING
        if called and (name in _DENIED_NAMES or name.startswith(_DENIED_PREFIXES) or _DENIED_INSIDE in name):
            raise StatementInvalid(f"`{name}` can't be rolled back or reaches outside, and may not be called", token.line)


def _refuse_catalogs(tree: exp.Expression) -> None:
    for table in tree.find_all(exp.Table):
        if table.db.lower() in ("pg_catalog", "information_schema", "placet") or table.name.lower().startswith("pg_"):
            raise StatementInvalid(f"`{table.name}` isn't state; facts and effects use the tables of the state only")


def _refuse_writes(query: exp.Query) -> None:
    for part in query.find_all(exp.Query, exp.DML):
        if isinstance(part, exp.DML):
            raise StatementInvalid("a SELECT with a writing WITH clause isn't a read")
        if part.args.get("locks"):
            raise StatementInvalid("rows of the state are read without locking; leave out FOR UPDATE and FOR SHARE")
        if part.args.get("into"):
            raise StatementInvalid("SELECT INTO makes a table; leave out INTO")


def _bind(
    text: str, tokens: list[Token], binds: Mapping[str, str], environment: Environment, shared: bool
) -> tuple[str, tuple[tuple[str, Expression], ...], bool]:
    """Replace every `:name` by a typed read of `$1`, from the end so that offsets stay."""
    if TENANT in binds:
        raise StatementInvalid("`:tenant` is bound by the service; give the bind another name", bind=TENANT)
    if len(binds) > BINDS_MAX:
        raise StatementInvalid(f"a statement has at most {BINDS_MAX} binds")
    places = [(token, name) for token in tokens if (name := _placeholder(text, token))]
    used = {name for _, name in places}
    for token, name in places:
        if name not in binds and name != TENANT:
            raise StatementInvalid(f"`:{name}` isn't bound; add it to `bind` (for a slice, write a blank after the colon)", token.line)
    if unused := [name for name in binds if name not in used]:
        raise StatementInvalid(f"the bind `{unused[0]}` isn't used; remove it or write `:{unused[0]}`", bind=unused[0])
    if TENANT not in used and not shared:
        raise StatementInvalid("the statement reads all tenants; compare a column with `:tenant`, or mark it `shared: true`")
    expressions = tuple((name, _compile_bind(name, source, environment)) for name, source in binds.items())
    reads = {name: _read(name, _type_of(name, expression, environment)) for name, expression in expressions}
    reads[TENANT] = _read(TENANT, ValueType.STRING)
    for token, name in reversed(places):
        text = text[: token.start] + reads[name] + text[token.start + 1 + len(name) :]
    return text, expressions, TENANT in used


def _placeholder(text: str, token: Token) -> str | None:
    if token.token_type != TokenType.COLON:
        return None
    found = _NAME.match(text, token.start + 1)
    return found[0] if found else None


def _compile_bind(name: str, source: str, environment: Environment) -> Expression:
    if not _NAME.fullmatch(name):
        raise StatementInvalid(f"`{name}` can't be the name of a bind; use small letters, digits and _", bind=name)
    try:
        return environment.compile(source, _BINDABLE)
    except ExpressionInvalid as error:
        raise StatementInvalid(f"bind `{name}`: {error}", error.line, bind=name) from None


def _type_of(name: str, expression: Expression, environment: Environment) -> ValueType:
    if expression.result is not ValueType.DYN:
        return expression.result
    sample = environment.sample(expression.source.strip())  # an optional argument: its schema says what it is when it is there
    kind = _SAMPLE_LISTS.get(type(sample[0])) if isinstance(sample, list) else _SAMPLE_TYPES.get(type(sample))
    if kind is None:
        raise StatementInvalid(f"bind `{name}` has no type; convert it, such as `string({expression.source})`", bind=name)
    return kind


def _read(name: str, kind: ValueType) -> str:
    if kind in _SCALAR_READS:
        return f"($1::jsonb->>'{name}')::{_SCALAR_READS[kind]}"
    # null stays null, an empty list stays an empty array
    items = f"ARRAY(SELECT x::{_LIST_READS[kind]} FROM jsonb_array_elements_text($1::jsonb->'{name}') x)"
    return f"(CASE WHEN jsonb_typeof($1::jsonb->'{name}') = 'array' THEN {items} END)"
