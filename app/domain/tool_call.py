"""A tool call as it was asked for, and who asked.

Who asked comes from the credential and from nothing else: no field of `ToolCall` may ever choose a tenant, a role or a limit (SPEC S12.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from app.domain.limits import DEFAULT_LIMITS, KeyLimits
from app.domain.wording import ENGLISH, Locales

if TYPE_CHECKING:
    from uuid import UUID  # only the type: nothing in the domain makes an id


class Role(StrEnum):
    """What a key may do (SPEC S2)."""

    AGENT = "agent"
    EXECUTOR = "executor"
    REVIEWER = "reviewer"
    USER = "user"
    AUDITOR = "auditor"
    AUTHOR = "author"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls, as the credential says. `owner` is the person behind the key; `segments` are those that the key may name."""

    tenant_id: UUID
    tenant: str
    key_id: UUID
    subject: str
    owner: str
    roles: frozenset[str]
    segments: frozenset[str]
    limits: KeyLimits = DEFAULT_LIMITS


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call, its envelope checked. Numbers in `arguments` are exact: int where whole, else Decimal, never a float.

    `requested_scope` holds raw scope documents (API.md 0.3), empty meaning nothing and None meaning the call's need. `approval_id` is
    the text of a UUID in lower case.
    """

    tool: str
    arguments: Mapping[str, object]
    session_id: str
    call_id: str
    task_id: str | None = None
    turn: int | None = None
    state_version: int | None = None
    requested_scope: tuple[Mapping[str, object], ...] | None = None
    on_behalf_of_id: str | None = None
    segment: str | None = None
    approval_id: str | None = None
    locale: str | None = None  # as it was sent; `locales` are what it means
    locales: Locales = ENGLISH
