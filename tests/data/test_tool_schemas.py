"""596 real tool definitions become tools as an integrator writes them: published name, description and schema, pasted (SPEC S3.4, S6.3).

Each server's tools are one bundle, stored over HTTP. What nothing asserts in them is told with file, line and pointer, and nothing else is.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from app.policy.compile import compile_bundle
from app.policy.notes import NOTES_MAX
from tests.api.serving import Client
from tests.data.suites import rows
from tests.engine.shop import Shop

BUNDLE = {
    "bundle.yaml": "bundle: {name: published, format: 1}\n",
    "grants.yaml": 'grants:\n  - {grant: all, effect: permit, to: {roles: [agent]}, scope: [{action: use, resource: "file:**"}]}\n',
}
ANNOTATIONS = {
    "a default is not filled in; it is only an annotation": 273,
    "not asserted; the schema is read as draft 2020-12": 151,
    "example_value is not asserted; it is only an annotation": 56,
    "optional is not asserted; it is only an annotation": 54,
    "int32 is not asserted; it is only an annotation": 4,
    "json is not asserted; it is only an annotation": 2,
}
"""All that is only an annotation in the 596 schemas, and how often."""


@pytest.fixture(scope="module")
def published(shared_dir: Path) -> list[dict[str, Any]]:
    return rows(shared_dir, "tool_schemas")


def test_what_is_said_to_be_all_is_all(published: list[dict[str, Any]]) -> None:
    assert len(published) == 596


async def test_all_596_register_with_what_is_only_an_annotation_listed(client: Client, shop: Shop, published: list[dict[str, Any]]) -> None:
    """S6.3: over HTTP, each note with the line that it stands in."""
    registered, told = 0, Counter[str]()
    for files in bundles(published).values():
        answer = await client.ask("POST", "/policies", shop.acme.tokens["author"], {"files": files})
        assert answer.status_code == 201, answer.text
        registered += len(files) - len(BUNDLE)
        found = answer.json()
        assert found["notes_left_out"] == 0, "or the count below isn't of all"
        for note in found["notes"]:
            told[note["message"]] += 1
            keyword = note["pointer"].rpartition("/")[2]
            assert files[note["file"]].splitlines()[note["line"] - 1].lstrip().startswith(f'"{keyword}":'), note
    assert registered == 596
    assert told == ANNOTATIONS


async def test_a_published_tool_is_decided_by_its_schema(client: Client, shop: Shop, published: list[dict[str, Any]]) -> None:
    """S3.4: under the name that its server gave it."""
    files = bundles(published)["mcp/notion"]
    stored = (await client.ask("POST", "/policies", shop.acme.tokens["author"], {"files": files})).json()
    await client.ask("POST", f"/policies/{stored['version']}/activation", shop.acme.tokens["operator"])

    async def check(call_id: str, arguments: Mapping[str, object]) -> dict[str, Any]:
        body = {"tool": "API-retrieve-a-block", "arguments": arguments, "session_id": "s", "call_id": call_id}
        return dict((await client.ask("POST", "/tool-calls/check", shop.acme.tokens["agent"], body)).json())

    right = await check("c1", {"block_id": "c02fc1d3-db8b-45c5-a222-27595b15aea7"})
    assert (right["decision"], right["reason"]) == ("accepted", "within_policy")
    wrong = await check("c2", {})
    assert (wrong["decision"], wrong["reason"], wrong["fix_hint"]["field"]) == ("denied", "schema_invalid", "/block_id")


def test_each_required_argument_is_asked_for(published: list[dict[str, Any]]) -> None:
    """S3.4: of every tool, so that none of the 596 is registered and asserts nothing."""
    asked = 0
    for row in published:
        (files,) = bundles([row]).values()
        tool = compile_bundle(files).tools[row["name"]]
        missing = {each.pointer for each in tool.arguments.violations({}) if each.rule == "required"}
        expected = {f"/{name}" for name in row["parameters"].get("required", [])}
        assert missing == expected or (len(expected) > 20 and missing < expected), row["id"]
        asked += len(missing)
    assert asked > 500


def test_notes_beyond_the_limit_are_counted() -> None:
    properties = {f"a{number}": {"type": "string", "default": ""} for number in range(NOTES_MAX - 60)}
    files = {**BUNDLE, **{f"tools/{name}.yaml": tool_file(name, "x", {"type": "object", "properties": properties}) for name in ("a", "b")}}
    policy = compile_bundle(files)
    assert (len(policy.notes), policy.notes_left_out) == (NOTES_MAX, 2 * len(properties) - NOTES_MAX)


def bundles(published: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Give a bundle for each source of the tools."""
    found: dict[str, dict[str, str]] = {}
    for row in published:
        files = found.setdefault(row["source"], dict(BUNDLE))
        files[f"tools/{row['id']}.yaml"] = tool_file(row["name"], row["description"], row["parameters"])
    return found


def tool_file(name: str, description: str, parameters: Mapping[str, Any]) -> str:
    """Write a tool's file, its schema as the JSON that was published, a keyword a line."""
    lines = [f"tool: {name}", f"description: {json.dumps({'en': description})}", "effect_class: read"]
    lines += [f"arguments: {json.dumps(parameters, indent=1)}", 'scope: {action: use, resource: "file:all"}']
    return "\n".join(lines) + "\n"
