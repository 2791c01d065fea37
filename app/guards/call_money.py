"""What a call's money is: the tool's first money argument, else what its first hold takes. Budgets count it, thresholds
ask its currency."""

from __future__ import annotations

from app.domain.quantity import Quantity
from app.policy.currencies import exponent_of
from app.policy.expressions import Bindings
from app.policy.model import Tool
from app.policy.templates import TemplateFailed


def money_of(tool: Tool, bindings: Bindings) -> Quantity | None:
    """Give the call's money, or None where it moves none. A hold's amount is known once the facts are read."""
    if tool.money:
        name = "args" + tool.money[0].replace("/", ".")
        minor, currency = bindings.values.get(f"{name}.minor"), bindings.values.get(f"{name}.currency")
        exponent = exponent_of(currency) if isinstance(currency, str) else None
        return Quantity(minor, str(currency), exponent) if type(minor) is int and exponent is not None else None
    if not tool.holds:
        return None
    try:
        taken = tool.holds[0].quantity.render(bindings)
    except TemplateFailed:
        return None
    return taken if isinstance(taken, Quantity) else None
