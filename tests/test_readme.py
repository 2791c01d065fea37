"""What README.md says of the project is held against the project: its tool compiles and decides, its routes are those of the contract, its
paths exist, its variables are those of the settings."""

from __future__ import annotations

import re

from ruamel.yaml import YAML

from app.domain.decision import Decision, Layer
from app.guards.pipeline import decide
from app.policy.compile import compile_bundle
from app.policy.model import Policy
from app.settings import EXPECTED, PROJECT
from tests.guards.judging import FILES, evidence_for, prepared_call

README = (PROJECT / "README.md").read_text()
TOOL_FILE = "tools/delay_delivery.yaml"
WITHIN = {"order_id": "A-1004", "days": 14}
GRANT = '      - {action: cancel_order, resource: "order:*"}\n'


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL)
    assert found is not None, f"README has no section `{title}`"
    return found[1]


def tool_text() -> str:
    (tool,) = re.findall(r"```yaml\n(.*?)```", section("Adding a tool"), re.DOTALL)
    assert f"policies/shop/{TOOL_FILE}" in tool
    return str(tool)


def shop_with_the_new_tool() -> Policy:
    (grant,) = re.findall(r"`- (\{action: delay_delivery.*\})`", section("Adding a tool"))
    grants = files_without_the_grant()["grants.yaml"]
    assert GRANT in grants
    return compile_bundle({**FILES, TOOL_FILE: tool_text(), "grants.yaml": grants.replace(GRANT, f"{GRANT}      - {grant}\n")})


def files_without_the_grant() -> dict[str, str]:
    """Give the shop as it is before its reader has followed the README."""
    lines = [line for line in FILES["grants.yaml"].splitlines(keepends=True) if "action: delay_delivery" not in line]
    return {**FILES, "grants.yaml": "".join(lines)}


def test_the_tool_that_is_added_decides_as_it_says() -> None:
    policy = shop_with_the_new_tool()
    within = prepared_call(policy, tool="delay_delivery", arguments=WITHIN)
    assert within.refused is None
    for status, decision in (("paid", Decision.ACCEPTED), ("shipped", Decision.DENIED)):
        verdict = decide(within, evidence_for(within, order={"status": status}))
        assert verdict.decision is decision
    beyond = prepared_call(policy, tool="delay_delivery", arguments={**WITHIN, "days": 15})
    assert beyond.refused is not None
    assert (beyond.refused.layer, beyond.refused.reason) == (Layer.STATIC, "schema_invalid")
    ungranted = prepared_call(
        compile_bundle({**files_without_the_grant(), TOOL_FILE: tool_text()}), tool="delay_delivery", arguments=WITHIN
    )
    assert ungranted.refused is not None
    assert (ungranted.refused.layer, ungranted.refused.reason) == (Layer.SCOPE, "not_granted")


def test_the_routes_are_those_of_the_contract() -> None:
    told = {
        (method, path) for method, path in re.findall(r"`(GET|POST|DELETE|PUT|PATCH) (/[^`?]*)", section("Routes").split("```console")[0])
    }
    contract = YAML(typ="safe").load((PROJECT / "openapi" / "openapi.yaml").read_text())
    served = {(method.upper(), path) for path, operations in contract["paths"].items() for method in operations if method != "parameters"}
    assert told == served | {("GET", "/openapi.json")}


def test_the_paths_exist() -> None:
    named = set(re.findall(r"`((?:app|docs|policies|openapi|benchmarks|tests|deploy)/[\w/.-]*)`", README))
    assert len(named) > 25
    assert [path for path in sorted(named) if not (PROJECT / path).exists()] == []


def test_the_variables_are_those_of_the_settings() -> None:
    told = set(re.findall(r"^\| (.*?) \|", section("Configuration"), re.MULTILINE))
    named = {name for cell in told for name in re.findall(r"`((?:PLACET|DATABASE)_\w+)`", cell)}
    assert named == set(EXPECTED) - {"PLACET_CHECKOUT", "PLACET_WORKER_SLOT"}, "what `run` and the launcher set is left out"
