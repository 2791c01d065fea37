"""The first layer: what an operator has stopped is refused before anything else is looked at (SPEC S3.3, S12.3, API.md 3.4).

The operator's words are not an input here, so no answer can tell them.
"""

from __future__ import annotations

from app.domain.decision import Check, Decision, Layer, LayerResult, Outcome, Reason
from app.domain.hint import DenialClass, FixHint, NextAction, NextActionKind, Retryable
from app.domain.tool_call import Principal, ToolCall
from app.domain.wording import say
from app.guards.context import LayerVerdict, Refused

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
    first = found[0]
    assert first.reason is not None and first.message is not None
    hint = FixHint(DenialClass.PERMISSION, Retryable.NEVER, first.message, NextAction(NextActionKind.STOP), attempts_left=0)
    refused = Refused(Decision.DENIED, Layer.FREEZE, first.reason, hint, first.name)
    return LayerVerdict(LayerResult(Layer.FREEZE, Outcome.DENIED, found), refused)
