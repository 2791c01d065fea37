"""The contract's examples: exchanges with the example shop, one file for each operation, and two for the failures that many share.

They are no prose: a test makes each request of a served service and holds the answer against the one that is written here, ids, hashes and
times aside, and a test refuses an operation without one. Ids are the same wherever they mean the same thing, so exchanges build on the ones
before them, in the order of OPERATIONS. `answer` is written by that test (PLACET_RECORD_EXAMPLES=1), never by hand.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

OPERATIONS = (
    *("set_freeze", "check_tool_call", "list_freezes", "lift_freeze", "list_decisions", "read_decision", "list_approvals"),
    *("read_approval", "make_tenant", "make_key", "list_keys", "rotate_key", "revoke_key", "store_policy", "list_policies"),
    *("activate_policy", "verification", "healthz", "readyz", "metrics"),
)
PROBLEMS = "problems"
CHECK_PROBLEMS = "check_problems"
FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its answer.

    `asked_by` is a role, `platform` for the platform's operator, a situation that a test has to bring about (`situation`), or None: no
    key. `raw` stands for a body that isn't JSON.
    """

    operation: str
    name: str
    summary: str
    status: int
    answer: Any = None
    asked_by: str | None = None
    situation: str | None = None
    path: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = ...
    raw: str | None = None

    @property
    def accepted(self) -> bool:
        return self.status < 300


@lru_cache
def exchanges(name: str) -> tuple[Exchange, ...]:
    """Give the exchanges of an operation, or of PROBLEMS or CHECK_PROBLEMS, in the order to make them in."""
    written: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return tuple(Exchange(**{"operation": name, **each}) for each in written)


def answers_of(operation: str, status: int) -> Iterator[Exchange]:
    """Give the exchanges of an operation that end with a status."""
    return (each for each in exchanges(operation) if each.status == status)
