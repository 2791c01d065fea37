"""A decision as it is answered, the first time or again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.wording import ENGLISH, Locales


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """The stored document's canonical text, and what belongs to one answer alone: whether it is a replay, and its place in the chain.

    A replay permits nothing: its document says `execution_permitted` false, whatever was decided (SPEC S3.9). `locales` are those of the
    call that was decided, also in a replay that asks for others, so that the message for the model is in one language.
    """

    document: str
    tool: str
    call_id: str
    reason: str
    fix_hint: Mapping[str, object] | None
    replayed: bool
    chain: str
    sequence: int
    hash: str
    locales: Locales = ENGLISH
