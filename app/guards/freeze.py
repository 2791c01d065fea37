"""The first layer: what an operator has stopped is refused before anything else is looked at (SPEC S3.3, S12.3, API.md 3.4).

The operator's words are not an input here, so no answer can tell them.
"""

from __future__ import annotations

from dataclasses import replace

from app.domain.decision import Check, Layer, Outcome, Reason
from app.domain.hint import STOP, DenialClass, Retryable
from app.domain.tool_call import Principal, ToolCall
from app.domain.wording import say
from app.guards.context import LayerVerdict
from app.guards.refusal import layer_refuses, refusal_of

Frozen = frozenset[tuple[str, str]]
"""What is frozen in a tenant now: (kind, target), the tenant itself by its name."""


def check_freeze(frozen: Frozen, principal: Principal, call: ToolCall) -> LayerVerdict | None:
    """Refuse a call that a freeze is for, naming each; the widest one gives the reason. None where there is none."""
    if not frozen:
        return None
    stands = (
        ("tenant", principal.tenant, Reason.TENANT_FROZEN),
        ("principal", principal.subject, Reason.PRINCIPAL_FROZEN),
        ("session", call.session_id, Reason.SESSION_FROZEN),
        ("tool", call.tool, Reason.TOOL_FROZEN),
    )
    found = tuple(
        Check(f"{kind}:{target}", Outcome.DENIED, reason, message=say(call.locales, reason))
        for kind, target, reason in stands
        if (kind, target) in frozen
    )
    if not found:
        return None
    refused = refusal_of(Layer.FREEZE, found[0], DenialClass.PERMISSION, Retryable.NEVER, STOP)
    return layer_refuses(replace(refused, hint=replace(refused.hint, attempts_left=0)), found)
