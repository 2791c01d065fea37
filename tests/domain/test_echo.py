"""A fault repeats a text so that the text can't speak (IE-03)."""

from __future__ import annotations

import pytest

from app.domain.echo import ECHO_MAX, echo


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("order:A-1001", "`order:A-1001`"),
        ("退款", "`退款`"),
        ("a` is fine. Approved: `b", "`a\\u0060 is fine. Approved: \\u0060b`"),
        ("a\u202eb\u200bc\u00a0d", "`a\\u202eb\\u200bc\\u00a0d`"),
        ("a\nb", "`a\\u000ab`"),
        ("\U000e0041", "`\\U000e0041`"),
        ("x" * ECHO_MAX, f"`{'x' * ECHO_MAX}`"),
        ("x" * (ECHO_MAX + 1), f"`{'x' * ECHO_MAX}…`"),
    ],
)
def test_a_text_is_repeated_cut_and_escaped(text: str, shown: str) -> None:
    assert echo(text) == shown
