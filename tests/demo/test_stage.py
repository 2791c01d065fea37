"""What the demo makes of an answer: the first place that is another ends an act, and what isn't a decision is no decision (S14.2)."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import pytest
from rich.console import Console

from app.demo.stage import Stage, Told, WentOtherwise, at, checks_that_refused
from app.demo.story import STORY
from app.demo.telling import Played, Teller, details, document
from app.demo.tenant import StoryImpossible

REFUSED: dict[str, Any] = {
    "decision_id": "d1",
    "decision": "denied",
    "reason": "already_refunded",
    "refused_by": "semantic",
    "execution_permitted": False,
    "replayed": False,
    "layers": [
        {
            "name": "semantic",
            "checks": [
                {"name": "a", "outcome": "accepted"},
                {"name": "b", "outcome": "denied", "reason": "already_refunded", "message": "done before"},
                {"name": "c", "outcome": "denied", "reason": "amount_exceeds_refundable", "message": "too much"},
            ],
        }
    ],
    "fix_hint": {"message": "done before", "field": "/order_id", "fact": "history.same", "actual": 1, "expected": {"const": 0}},
}


def stage_answering(status: int, body: object) -> tuple[Stage, list[dict[str, Any]]]:
    sent: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(status, json=body)

    client = httpx.AsyncClient(base_url="http://placet.example", transport=httpx.MockTransport(answer))
    return Stage(client, "s1"), sent


async def test_a_call_names_its_session_its_task_and_the_customer() -> None:
    stage, sent = stage_answering(200, REFUSED)
    assert await stage.refund("A-1", 500.5, "c1", currency="JPY", locale="zh") == REFUSED
    assert sent == [
        {
            "tool": "refund", "arguments": {"order_id": "A-1", "amount": 500.5, "currency": "JPY", "cause": "damaged"}, "locale": "zh",
            "session_id": "s1", "task_id": "s1-c1", "call_id": "c1", "on_behalf_of": {"id": "cust-77", "segment": "standard"},
        }
    ]  # fmt: skip
    assert [told.asked for told in stage.told] == ["refund 500.5 JPY on order A-1"]
    await stage.client.aclose()


async def test_what_is_no_decision_ends_the_act_or_the_story() -> None:
    stage, _ = stage_answering(503, {"detail": "nothing was changed"})
    with pytest.raises(WentOtherwise, match=r"answered 503 \(nothing was changed\) when asked to refund 20\.00 EUR on order A-1"):
        await stage.refund("A-1", 20, "c1")
    stage, _ = stage_answering(200, [1])
    with pytest.raises(WentOtherwise, match="answered 200"):
        await stage.refund("A-1", 20, "c1")
    stage, _ = stage_answering(401, {})
    with pytest.raises(StoryImpossible, match="another database"):
        await stage.refund("A-1", 20, "c1")


def test_the_first_place_that_is_another_is_named() -> None:
    stage, _ = stage_answering(200, {})
    stage.expect(REFUSED, {"decision": "denied", "layers.0.checks.1.name": "b", "fix_hint.expected": {"const": 0}, "permit": None})
    with pytest.raises(WentOtherwise, match=r"^`fix_hint.actual` is `1`, not `2`$"):
        stage.expect(REFUSED, {"decision": "denied", "fix_hint.actual": 2, "reason": "x"})
    with pytest.raises(WentOtherwise, match=r"^`layers.7.name` is absent, not `risk`$"):
        stage.expect(REFUSED, {"layers.7.name": "risk"})
    assert at(REFUSED, "decision.further") is None
    assert checks_that_refused(REFUSED) == ["already_refunded", "amount_exceeds_refundable"]


def test_an_answer_is_told_with_every_check_that_refused() -> None:
    assert list(details(REFUSED)) == ["“done before”", "“too much”", 'history.same is 1, expected {"const": 0}']
    assert list(details({**REFUSED, "replayed": True})) == []


def test_an_act_is_one_line_of_json_and_never_wider_than_the_terminal() -> None:
    played = Played(3, STORY[0], (Told("refund " + "9" * 120, REFUSED),), ("a remark",), "`x` is absent, not `y`")
    read = json.loads(document(played))
    assert (read["act"], read["as_told"], read["otherwise"], read["decision_ids"]) == (
        "hundredfold",
        False,
        "`x` is absent, not `y`",
        ["d1"],
    )
    assert read["answers"][0]["message"] == "done before"
    out = io.StringIO()
    Teller(Console(file=out, highlight=False)).tell(played)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert "    this went otherwise: `x` is absent, not `y`" in lines
    assert "9" * 90 in out.getvalue(), "nothing is cut off"


def test_each_act_has_a_name_of_its_own() -> None:
    assert len({act.name for act in STORY}) == len(STORY)
