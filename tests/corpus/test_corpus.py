"""Whole decisions as data: policy + state + calls -> decision, hint, holds, audit row, asked over HTTP.

A file has `given` (what each call starts from) and `cases`. A case may change the policy (`policy: {file: [[old, new], ..]}`) and the state
(`state: {orders: {A-1001: {status: cancelled}}}`), and asks one call after the other; a call overlays `given`, null takes a field away.
`expect` and `audit` name what matters: an object's named fields, a list whole. `holds` is all that the call holds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from app.settings import Settings
from tests.api.serving import serving
from tests.engine.shop import SHOP_FILES, Shop, activate, changed

HERE = Path(__file__).parent
KEYS = {"orders": "order_id", "customers": "customer_id"}
FIELDS = frozenset({"case", "policy", "state", "calls"})
CALL_FIELDS = frozenset({"as", "call", "expect", "holds", "audit", "absent"})


def read_cases() -> list[Any]:
    found = []
    for path in sorted(HERE.glob("*.yaml")):
        document = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
        assert set(document) == {"given", "cases"}, path
        for case in document["cases"]:
            assert set(case) <= FIELDS, (path, case["case"])
            found.append(pytest.param(document["given"], case, id=f"{path.stem}: {case['case']}"))
    return found


def merged(base: Any, patch: Any) -> Any:
    """Overlay (RFC 7396)."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(base) if isinstance(base, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def differences(expected: Any, actual: Any, place: str = "") -> list[str]:
    """Name each place where `actual` isn't what was expected."""
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping):
            return [f"{place}: expected an object, is {actual!r}"]
        missing = [f"{place}/{name}: is absent" for name in expected if name not in actual]
        return missing + [
            each for name, value in expected.items() if name in actual for each in differences(value, actual[name], f"{place}/{name}")
        ]
    if isinstance(expected, list):
        if not isinstance(actual, list) or len(actual) != len(expected):
            return [f"{place}: expected {expected!r}, is {actual!r}"]
        return [each for number, value in enumerate(expected) for each in differences(value, actual[number], f"{place}/{number}")]
    return (
        []
        if (type(expected) is type(actual) and expected == actual) or _same_number(expected, actual)
        else [f"{place}: expected {expected!r}, is {actual!r}"]
    )


def _same_number(expected: Any, actual: Any) -> bool:
    return all(type(each) in (int, float) for each in (expected, actual)) and expected == actual


async def set_stage(shop: Shop, case: Mapping[str, Any]) -> None:
    files: Mapping[str, str] = SHOP_FILES
    for file, replacements in case.get("policy", {}).items():
        files = changed(files, file, *((old, new) for old, new in replacements))
    if files is not SHOP_FILES:
        await activate(shop, shop.acme, files)
    async with shop.superuser() as superuser:
        for table, rows in case.get("state", {}).items():
            for key, columns in rows.items():
                for column, value in columns.items():
                    statement = f"UPDATE shop.{table} SET {column} = $1 WHERE tenant = 'acme' AND {KEYS[table]} = $2"
                    assert await superuser.execute(statement, value, key) == "UPDATE 1", (table, key)


@pytest.mark.parametrize(("given", "case"), read_cases())
async def test_decisions(settings: Settings, shop: Shop, given: Mapping[str, Any], case: Mapping[str, Any]) -> None:
    await set_stage(shop, case)
    async with serving(settings, shop) as client:
        for number, asked in enumerate(case["calls"]):
            assert set(asked) <= CALL_FIELDS
            body = merged({**given, "call_id": f"call_{number:02}"}, asked.get("call", {}))
            answer = await client.ask("POST", "/tool-calls/check", shop.acme.tokens[asked.get("as", "agent")], body)
            assert answer.status_code == 200, answer.text
            found = answer.json()
            wrong = differences(asked.get("expect", {}), found)
            assert wrong == [], f"call {number}: {json.dumps(found)}"
            for name in asked.get("absent", ()):
                assert name not in found, name
            await check_what_is_kept(shop, asked, found)
        assert (await client.ask("GET", "/audit/verification", shop.acme.tokens["auditor"])).json()["verified"] is True


async def check_what_is_kept(shop: Shop, asked: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Check a call's holds and its audit row; a call that isn't permitted never holds anything."""
    holds = await shop.rows(
        "SELECT account, unit, quantity FROM placet.holds WHERE decision_id = $1::uuid ORDER BY account", found["decision_id"]
    )
    shown = {hold["account"]: hold["quantity"] for hold in found["holds"]}
    if "holds" in asked:
        assert shown == asked["holds"]
    if not found["execution_permitted"] and not found["replayed"]:
        assert (shown, holds) == ({}, [])
    assert len(holds) == len(shown)
    body = await shop.value("SELECT body FROM placet.audit_rows WHERE decision_id = $1::uuid", found["decision_id"])
    row = json.loads(body)
    expected = {
        "event": "tool_call.decided",
        "decision": found["decision"],
        "reason": found["reason"],
        "sequence": found["audit"]["sequence"],
    }
    assert differences({**expected, **asked.get("audit", {})}, row) == []
