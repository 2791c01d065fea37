"""How an act is shown: lines for a terminal of 100 columns, or one JSON document a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from app.demo.stage import Told
from app.demo.story import Act

WIDTH = 100
INDENT = 4
ROWS_SHOWN = 3
STYLES: Mapping[str, str] = {"accepted": "green", "modified": "yellow", "needs_user": "yellow", "denied": "red"}


@dataclass(frozen=True, slots=True)
class Played:
    """An act that was played; `otherwise` says what went otherwise than the story has it."""

    number: int
    act: Act
    told: tuple[Told, ...]
    remarks: tuple[str, ...]
    otherwise: str | None


def document(played: Played) -> str:
    """Give an act as one line of JSON: what was asked and answered, with the ids of the decisions."""
    act = played.act
    found: dict[str, Any] = {"act": act.name, "title": act.title, "expected": act.expected, "as_told": played.otherwise is None}
    if played.otherwise is not None:
        found["otherwise"] = played.otherwise
    found["decision_ids"] = [told.answer.get("decision_id") for told in played.told]
    found["answers"] = [_answer(told) for told in played.told]
    if played.remarks:
        found["remarks"] = list(played.remarks)
    return json.dumps(found, ensure_ascii=False)


def _answer(told: Told) -> dict[str, Any]:
    kept = ("decision_id", "decision", "reason", "refused_by", "execution_permitted", "replayed")
    found = {"asked": told.asked} | {name: told.answer[name] for name in kept if name in told.answer}
    hint = told.answer.get("fix_hint")
    return found | ({"message": hint["message"]} if isinstance(hint, Mapping) else {})


class Teller:
    """Writes to a terminal, or to whatever output is piped into: no colours then, and the same lines."""

    def __init__(self, console: Console | None = None) -> None:
        own = console if console is not None else Console(highlight=False)
        own.width = min(own.width, WIDTH) if own.is_terminal else WIDTH
        self._console = own

    def tell(self, played: Played) -> None:
        """Show an act."""
        self._line(Text(f"{played.number:>2}  {played.act.title}", style="bold"), 0)
        self._line(Text(f"expected: {played.act.expected}", style="dim"), INDENT)
        for told in played.told:
            answer = told.answer
            decision = str(answer.get("decision"))
            line = Text(f"{told.asked}: ").append(decision, style=STYLES.get(decision, "")).append(f", {answer.get('reason')}")
            if answer.get("refused_by"):
                line.append(f" (by {answer['refused_by']})")
            if answer.get("replayed"):
                line.append(", replayed: it permits nothing")
            self._line(line, INDENT)
            for detail in details(answer):
                self._line(Text(detail), INDENT + 2)
        for remark in played.remarks:
            self._line(Text(remark), INDENT)
        if played.otherwise is not None:
            self._line(Text(f"this went otherwise: {played.otherwise}", style="bold red"), INDENT)
        self._console.print()

    def say(self, text: str) -> None:
        """Show a line of the demo's own, and an empty one."""
        self._line(Text(text), 0)
        self._console.print()

    def _line(self, text: Text, indent: int) -> None:
        for line in text.wrap(self._console, self._console.width - indent):
            line.rstrip()
            self._console.print(Text(" " * indent).append_text(line), soft_wrap=True)


def details(answer: Mapping[str, Any]) -> Iterator[str]:
    """Give what a reader wants to see of an answer besides its decision, a line each."""
    if answer.get("replayed"):
        return
    hint = answer.get("fix_hint")
    if isinstance(hint, Mapping):
        yield f"“{hint['message']}”"
        for message in other_messages(answer, hint["message"]):
            yield f"“{message}”"
        place = hint.get("fact") or hint.get("field")
        if place is not None and "expected" in hint:
            yield f"{place} is {_json(hint.get('actual'))}, expected {_json(hint['expected'])}"
        if "suggested_arguments" in hint:
            yield f"suggested: {_json(hint['suggested_arguments'])}, which would be {hint.get('suggestion_decision')}"
    risk = answer.get("risk")
    if isinstance(risk, Mapping):
        yield f"risk {risk['score']}, a person is asked at {risk['review_at']}"
    if not answer.get("execution_permitted"):
        return
    effects = answer.get("side_effects")
    if isinstance(effects, Mapping):
        for row in effects["rows"][:ROWS_SHOWN]:
            yield f"would {row['operation']} {row['table']} {_json(row['key'])}: {_json(row.get('before'))} -> {_json(row.get('after'))}"
    for hold in answer.get("holds", ()):
        yield f"held on {hold['account']}: {hold['quantity']['amount']} {hold['quantity'].get('currency') or hold['quantity'].get('unit')}"
    plan = answer.get("compensation")
    if isinstance(plan, Mapping):
        waits = f", once the result gives {', '.join(plan['unresolved'])}" if plan["unresolved"] else ""
        yield f"to make good: {plan['tool']} {_json(plan['arguments'])}{waits}"


def other_messages(answer: Mapping[str, Any], first: str) -> list[str]:
    """Give what the refusing layer's other checks say: a refusal reports each of them (SPEC S3.2)."""
    checks = [check for layer in answer.get("layers", ()) for check in layer["checks"] if check["outcome"] == "denied"]
    return [check["message"] for check in checks if check.get("message") not in (None, first)]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
