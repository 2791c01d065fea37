"""The sandbox layer by values: one judgement for what was tried and what is predicted, and for more rows than are shown (SPEC S3.6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from typing import Any

import pytest

from app.domain.decision import Outcome
from app.guards.context import DryRun
from app.guards.pipeline import prepare
from app.guards.sandbox.effects import SandboxVerdict
from app.guards.sandbox.mock import check_mock, predict
from app.guards.sandbox.transaction import check_transaction
from app.policy.compile import compile_bundle
from app.policy.expressions import Bindings
from app.policy.model import Policy, Tool
from tests.guards.judging import FILES, NOW, POLICY, prepared_call

DELETE = POLICY.tools["delete_customer_data"]
MESSAGE: Mapping[str, object] = {"order_id": "A-5010", "subject": "Your lamp", "body": "It was sent."}
PLACE = {"customer_id": "cust-81"}


def bound(tool: str, arguments: Mapping[str, object], policy: Policy = POLICY, **more: Any) -> tuple[Tool, Bindings]:
    prepared = prepared_call(policy, tool=tool, arguments=arguments, on_behalf_of_id="cust-81", **more)
    assert prepared.bindings is not None, prepared.refused
    return policy.tools[tool], prepared.bindings


def deletion(events: int, limit: int = 1000, order: int = 1, **dry_run: Any) -> SandboxVerdict:
    """Judge a deletion of so many events, seen as the database tells it: a hundred, and what stands for the rest."""
    policy = many(limit)
    tool, bindings = bound("delete_customer_data", {"customer_id": "cust-81", "cause": "customer_asked"}, policy)
    pairs = tuple(({**PLACE, "event_number": number, "kind": "viewed"}, None) for number in range(1, min(events, 100) + 1))[::order]
    omitted = {0: (events - 100, "d1")} if events > 100 else {}
    name = (({**PLACE, "name": "Eva"}, {**PLACE, "name": ""}),)
    counts = {"shop.events": (0, 0, events), "shop.customers": (0, 1, 0)}
    found = DryRun((pairs, (), (), name), counts, omitted=omitted)
    return check_transaction(tool, bindings, replace(found, **dry_run), ("en",))


@lru_cache(maxsize=8)
def many(limit: int) -> Policy:
    file = "tools/delete_customer_data.yaml"
    return compile_bundle({**FILES, file: FILES[file].replace("{deleted: 1000}", f"{{deleted: {limit}}}")})


@pytest.mark.parametrize(("events", "shown", "omitted"), [(0, 1, None), (99, 100, None), (100, 100, 1), (101, 100, 2), (1000, 100, 901)])
def test_a_hundred_rows_are_shown_and_all_are_counted(events: int, shown: int, omitted: int | None) -> None:
    found = deletion(events)
    assert found.verdict.refused is None
    assert found.side_effects is not None
    assert len(found.side_effects["rows"]) == shown  # type: ignore[arg-type]
    assert found.side_effects.get("rows_omitted") == omitted
    assert found.side_effects["counts"]["shop.events"]["deleted"] == events  # type: ignore[index]


def test_the_digest_covers_what_is_not_shown() -> None:
    """S7.1: an approval is bound to every row."""
    first = deletion(1000).side_effects
    other = deletion(1000, omitted={0: (900, "d2")}).side_effects
    assert first is not None
    assert other is not None
    assert first["rows"] == other["rows"]
    assert first["digest"] != other["digest"]


def test_rows_are_in_the_order_of_their_keys() -> None:
    """A database gives rows in any order; the next try has to give the same digest."""
    forth, back = deletion(50).side_effects, deletion(50, order=-1).side_effects
    assert forth == back


def test_more_than_is_allowed_is_refused_whoever_would_approve() -> None:
    found = deletion(5000)
    assert found.verdict.refused is not None
    assert (found.verdict.refused.reason, found.verdict.refused.hint.actual, found.verdict.refused.hint.expected) == (
        "blast_radius_exceeded", 5000, {"maximum": 1000},
    )  # fmt: skip
    assert found.side_effects is not None
    assert found.side_effects["rows_omitted"] == 4901


def test_an_invariant_over_rows_that_are_left_out_does_not_hold() -> None:
    """Fails closed where the bundle's validation can't tell what an invariant reads."""
    for require, reason in (("after.size() >= 0", "rule_error"), ('after["shop.customers"].size() == 1', None)):
        policy = many(1000)
        tool = policy.tools["delete_customer_data"]
        assert tool.sandbox is not None
        file = "tools/delete_customer_data.yaml"
        text = FILES[file].replace("  limits:  ", f"  invariants: [{{invariant: seen, require: '{require}'}}]\n  limits:  ")
        assert text != FILES[file]
        tool = compile_bundle({**FILES, file: text}).tools["delete_customer_data"]
        _, bindings = bound("delete_customer_data", {"customer_id": "cust-81", "cause": "customer_asked"})
        pairs = tuple(({**PLACE, "event_number": number, "kind": "viewed"}, None) for number in range(100))
        name = (({**PLACE, "name": "Eva"}, {**PLACE, "name": ""}),)
        counts = {"shop.events": (0, 0, 900), "shop.customers": (0, 1, 0)}
        found = check_transaction(tool, bindings, DryRun((pairs, (), (), name), counts, omitted={0: (800, "d")}), ("en",))
        refused = found.verdict.refused
        assert (refused.reason if refused else None) == reason


def test_a_message_is_predicted_and_not_tried() -> None:
    tool, bindings = bound("send_message", MESSAGE)
    found = check_mock(tool, bindings, ("en",))
    assert [check.outcome for check in found.verdict.result.checks] == [Outcome.ACCEPTED] * 3
    assert found.side_effects == {
        "strategy": "mock",
        "rows": [
            {
                "table": "shop.messages",
                "operation": "insert",
                "key": {"customer_id": "cust-81", "order_id": "A-5010"},
                "before": None,
                "after": {"subject": "Your lamp", "body": "It was sent."},
            }
        ],
        "counts": {"shop.messages": {"inserted": 1, "updated": 0, "deleted": 0}},
        "digest": found.side_effects["digest"] if found.side_effects else "",
    }
    assert not tool.tries_effects


def test_a_prediction_is_a_pure_function_of_the_call() -> None:
    """The clock, the session and the call id don't move the digest; each argument does."""
    tool, bindings = bound("send_message", MESSAGE)
    assert tool.sandbox is not None
    first = check_mock(tool, bindings, ("en",)).side_effects
    later = check_mock(*bound("send_message", MESSAGE, now=NOW + timedelta(days=3), session_id="s2", call_id="c9"), ("zh",)).side_effects
    assert first == later
    for name in MESSAGE:
        other = check_mock(*bound("send_message", {**MESSAGE, name: "A-5009"}), ("en",)).side_effects
        assert first is not None
        assert other is not None
        assert first["digest"] != other["digest"]
    assert predict(tool.sandbox, bindings) == predict(tool.sandbox, bindings)


def test_what_can_not_be_predicted_is_refused() -> None:
    """S3.10: a value that isn't there is no empty effect."""
    tool, bindings = bound("send_message", MESSAGE)
    values = {name: value for name, value in bindings.values.items() if name != "args.body"}
    found = check_mock(tool, tool.environment.bind(values), ("en",))
    assert found.verdict.refused is not None
    assert (found.verdict.refused.reason, found.side_effects) == ("sandbox_failed", None)


def test_nobody_served_is_refused_before_anything_is_predicted() -> None:
    prepared = prepared_call(tool="send_message", arguments=MESSAGE, on_behalf_of_id=None)
    again = prepare(prepared.context, None)
    assert prepared.refused is not None
    assert again.refused is not None
    assert (prepared.refused.layer, prepared.refused.reason) == (again.refused.layer, again.refused.reason) == ("scope", "not_granted")
