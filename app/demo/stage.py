"""Where an act plays: calls to the service with the agent's key, and what each answer has to be. An answer that is another ends the act."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from app.demo.tenant import StoryImpossible
from app.domain.errors import PlacetError

ANSWER_WITHIN_S = 10.0
CUSTOMER = "cust-77"

Answer = Mapping[str, Any]


class WentOtherwise(PlacetError):
    """An answer isn't as the story has it."""


@dataclass(frozen=True, slots=True)
class Told:
    """One call of an act, in words, and its answer."""

    asked: str
    answer: Answer


@dataclass(slots=True)
class Stage:
    """One act's calls, in a session of their own. `remarks` are what the act itself found out."""

    client: httpx.AsyncClient
    session: str
    told: list[Told] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    async def refund(self, order: str, amount: float, call: str, *, currency: str = "EUR", **more: str) -> Answer:
        """Ask for a refund of a damaged order."""
        digits = {"JPY": "g", "KWD": ".3f"}.get(currency, ".2f")
        asked = f"refund {amount:{digits}} {currency} on order {order}"
        return await self.ask(
            asked, "refund", {"order_id": order, "amount": amount, "currency": currency, "cause": "damaged"}, call, **more
        )

    async def ask(
        self, asked: str, tool: str, arguments: Mapping[str, object], call: str, *, customer: str = CUSTOMER, locale: str | None = None
    ) -> Answer:
        """Send one call.

        Raises:
            WentOtherwise: there is no decision. StoryImpossible: the key isn't known there.
        """
        body: dict[str, object] = {
            "tool": tool,
            "arguments": arguments,
            "session_id": self.session,
            "task_id": f"{self.session}-{call}",  # each call a task of its own, so that no attempt counts for another
            "call_id": call,
            "on_behalf_of": {"id": customer, "segment": "standard"},
        }
        if locale is not None:
            body["locale"] = locale
        try:
            answer = await self.client.post("/tool-calls/check", content=json.dumps(body), headers={"content-type": "application/json"})
            document = answer.json()
        except (httpx.HTTPError, ValueError) as failure:
            raise WentOtherwise(f"the service gave no answer ({type(failure).__name__}) when asked to {asked}") from None
        if answer.status_code == 401:
            raise StoryImpossible(
                f"the service at {self.client.base_url} doesn't know the demo's key, so it uses another database than this command; set "
                "PLACET_DATA_DIR, or DATABASE_URL and PLACET_MIGRATION_URL, as the service has them"
            )
        if answer.status_code != 200 or not isinstance(document, dict):
            detail = document.get("detail") if isinstance(document, dict) else None
            raise WentOtherwise(f"the service answered {answer.status_code} ({detail}) when asked to {asked}")
        self.told.append(Told(asked, document))
        return document

    def expect(self, answer: Answer, expected: Mapping[str, object]) -> None:
        """Compare what stands at dotted paths of an answer.

        Raises:
            WentOtherwise: naming the first place that is another.
        """
        for path, value in expected.items():
            if (found := at(answer, path)) != value:
                raise WentOtherwise(f"`{path}` is {_shown(found)}, not {_shown(value)}")

    def require(self, holds: bool, otherwise: str) -> None:
        """Go on only if something holds.

        Raises: WentOtherwise, with `otherwise`.
        """
        if not holds:
            raise WentOtherwise(otherwise)


def at(document: object, path: str) -> object:
    """Give what stands at a dotted path; None where nothing does. A number picks from a list."""
    here = document
    for part in path.split("."):
        if isinstance(here, Mapping):
            here = here.get(part)
        elif isinstance(here, list) and part.isdigit() and int(part) < len(here):
            here = here[int(part)]
        else:
            return None
    return here


def checks_that_refused(answer: Answer) -> list[str]:
    """Give the reasons of all checks that refused, in order: a refusing layer reports each."""
    checks = [check for layer in answer.get("layers", ()) for check in layer["checks"]]
    return [check["reason"] for check in checks if check["outcome"] == "denied" and "reason" in check]


def _shown(value: object) -> str:
    return f"`{value}`" if isinstance(value, str) else "absent" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"
