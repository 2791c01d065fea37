"""What of a call and its answer is kept, and what is made of it again: redacted documents, and the replay (SPEC S10.3, S3.9).

The agent gets the arguments that it may run as they are. Everything else that is answered, and all that is stored, is without secrets:
whoever adds a field to an answer that a caller's text can reach names it in `_SAID`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import jiter

from app.domain.credentials import REDACTED, without_credentials
from app.domain.hint import Suggestion
from app.domain.redaction import put_back, redacted, scrubbed, secrets_of
from app.domain.wording import locales_of
from app.encoding import canonical_text
from app.engine.prepare_call import Work
from app.engine.stored_answer import CheckAnswer
from app.guards.pipeline import Verdict
from app.storage.decision_batch import Known

_SAID = ("layers", "cuts", "fix_hint", "compensation")
_NAMED = ("effective_scope", "holds")
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A call's arguments as they are kept, and the texts that were taken out of them."""

    arguments: Mapping[str, object]
    secrets: frozenset[str] = _NONE


def kept_call(work: Work) -> KeptCall:
    """Take the secrets out of a call's arguments; nearly always there are none, and they are the same object."""
    sent = work.call.arguments
    kept = redacted(sent)
    if kept is sent:
        return KeptCall(sent)
    return KeptCall(cast("Mapping[str, object]", kept), secrets_of(sent, kept))


def clean_verdict(verdict: Verdict, kept: KeptCall) -> Verdict:
    """Give a verdict whose side effects show no secret; their digest stays that of the real ones."""
    effects = verdict.side_effects
    if effects is None:
        return verdict
    rows = redacted(effects["rows"])  # the rest are names of tables, which may well be called `tokens`
    if kept.secrets:
        rows = scrubbed(rows, kept.secrets)
    return verdict if rows is effects["rows"] else replace(verdict, side_effects={**effects, "rows": rows})


def clean_suggestion(work: Work, suggestion: Suggestion | None) -> Suggestion | None:
    """Give a suggestion if a replay can give it as well: one that brings a secret of its own isn't made."""
    if suggestion is None:
        return None
    kept = redacted(suggestion.arguments)
    if kept is suggestion.arguments or put_back(kept, work.call.arguments) == suggestion.arguments:
        return suggestion
    return None


def clean_answer(document: dict[str, object], verdict: Verdict, kept: KeptCall) -> None:
    """Take secrets out of what an answer says; `effective_arguments` and `suggested_arguments` stay as they are."""
    if verdict.refused is not None or kept.secrets:
        for name in _SAID:
            if name in document:
                document[name] = _scrubbed_but_suggested(document[name], kept.secrets)
    names = {hold.shown for hold in verdict.holds if hold.account.startswith("resource:")}
    if verdict.need is not None:
        names.add(verdict.need.resource.text)
    if kept.secrets or any(clean_name(name) != name for name in names):
        for name in _NAMED:
            if name in document:
                document[name] = scrubbed(document[name], kept.secrets)


def clean_name(name: str) -> str:
    """Give a resource or account as it may be shown: without what has a credential's form; long ids are kept."""
    return without_credentials(name, dense=False)


def kept_answer(document: Mapping[str, object], kept: KeptCall) -> Mapping[str, object]:
    """Give an answer as it is stored; the very same object where that is what was answered."""
    changed: dict[str, object] = {}
    if kept.secrets and "effective_arguments" in document:
        changed["effective_arguments"] = kept.arguments
    hint = document.get("fix_hint")
    if isinstance(hint, Mapping) and "suggested_arguments" in hint:
        suggested = redacted(hint["suggested_arguments"])
        if suggested is not hint["suggested_arguments"]:
            changed["fix_hint"] = {**hint, "suggested_arguments": suggested}
    return {**document, **changed} if changed else document


def kept_request(work: Work, kept: KeptCall) -> dict[str, object]:
    """Give the request as it is kept: what was sent, under the names that it was sent with, without secrets."""
    call = work.call
    scope = call.requested_scope
    document: dict[str, object] = {
        "tool": call.tool,
        "arguments": dict(kept.arguments),
        "session_id": call.session_id,
        "call_id": call.call_id,
    }
    optional: tuple[tuple[str, object | None], ...] = (
        ("task_id", call.task_id),
        ("turn", call.turn),
        ("state_version", call.state_version),
        ("approval_id", call.approval_id),
        ("locale", call.locale),
        ("requested_scope", scrubbed(redacted(list(scope)), kept.secrets) if scope is not None else None),
    )
    document |= {name: value for name, value in optional if value is not None}
    behalf = {name: value for name, value in (("id", call.on_behalf_of_id), ("segment", call.segment)) if value is not None}
    if behalf:
        document["on_behalf_of"] = behalf
    return document


def replayed_answer(work: Work, known: Known) -> CheckAnswer:
    """Give the stored decision again; it permits nothing, because the first answer already did.

    The secrets that weren't stored are those of the call that asks again: it has the same digest.
    """
    assert work.authority is not None
    payload = jiter.from_json(known.payload.encode(), float_mode="decimal") if known.payload is not None else {}
    document = {**payload.get("answer", {"decision_id": str(known.decision_id)}), "execution_permitted": False}
    call = work.call
    if known.payload is not None and REDACTED in known.payload:
        _put_back(document, call.arguments)
    return CheckAnswer(
        canonical_text(document),
        call.tool,
        call.call_id,
        str(document.get("reason", "")),
        document.get("fix_hint"),
        True,
        work.authority.name,
        known.sequence,
        known.hash,
        locales_of(payload.get("request", {}).get("locale")),  # of the first answer, as its stored sentences
    )


def _put_back(document: dict[str, Any], sent: Mapping[str, object]) -> None:
    if "effective_arguments" in document:
        document["effective_arguments"] = put_back(document["effective_arguments"], sent)
    hint = document.get("fix_hint", {})
    if "suggested_arguments" in hint:
        document["fix_hint"] = {**hint, "suggested_arguments": put_back(hint["suggested_arguments"], sent)}


def _scrubbed_but_suggested(said: object, secrets: frozenset[str]) -> object:
    if not isinstance(said, Mapping) or "suggested_arguments" not in said:
        return scrubbed(said, secrets)
    rest = {name: scrubbed(value, secrets) for name, value in said.items() if name != "suggested_arguments"}
    return {name: rest.get(name, value) for name, value in said.items()}
