"""What would make good for a permitted call, planned from its arguments (SPEC S8.3, API.md 1.6). It decides nothing.

What only the tool's result will say is named as unresolved and never guessed. Nothing is said about an inverse until a run has shown it.
"""

from __future__ import annotations

from app.policy.expressions import Bindings
from app.policy.model import Compensation
from app.policy.templates import TemplateFailed


def plan_compensation(plan: Compensation, bindings: Bindings) -> dict[str, object]:
    """Give the planned call: `arguments` as far as they are known, and `unresolved` pointers into them. An optional value that wasn't sent
    is left out.
    """
    arguments: dict[str, object] = {}
    unresolved = list(plan.unresolved)
    for name, template in plan.arguments:
        try:
            value = template.json(bindings)
        except TemplateFailed:  # a text that needs what wasn't sent
            unresolved.append("/" + name.replace("~", "~0").replace("/", "~1"))
        else:
            if value is not None:
                arguments[name] = value
    return {"tool": plan.tool, "arguments": arguments, "unresolved": unresolved, "status": "planned"}
