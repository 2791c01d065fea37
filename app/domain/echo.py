"""How a fault repeats the text that it is about: in backticks, cut, and so that the text can't leave them (IE-03).

A model reads faults as the guard's words. So nothing of a caller's text may end the quotation, or be there without being seen.
"""

from __future__ import annotations

ECHO_MAX = 64


def echo(text: str) -> str:
    """Give a text in backticks: at most ECHO_MAX characters of it; a backtick, and what can't be seen, as an escape."""
    shown = text[:ECHO_MAX]
    if not shown.isprintable() or "`" in shown:
        shown = "".join(_escaped(each) for each in shown)
    return f"`{shown}`" if len(text) <= ECHO_MAX else f"`{shown}…`"


def _escaped(character: str) -> str:
    if character.isprintable() and character != "`":
        return character
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
