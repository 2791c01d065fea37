"""What of a caller's value may be shown again: enough to correct a call, never a credential (CWE-532, CWE-209).

`shown` is for hints and checks. A value under a name that means a secret, or that looks like a credential, is replaced; long text is cut.
"""

from __future__ import annotations

import re
import unicodedata

REDACTED = "[redacted]"
TEXT_MAX = 120

_SECRET_NAMES = (
    "password", "passwd", "passphrase", "secret", "token", "apikey", "authorization", "cookie", "privatekey", "credential", "sessionkey",
    "accesskey", "bearer",
)  # fmt: skip
_SECRET_VALUE = re.compile(
    r"(?i)(\b(sk|pk|rk)[-_](live|test|proj|ant)?[-_]?[a-z0-9_-]{8,}|\bgh[pousr]_[a-z0-9]{16,}|\bgithub_pat_|\bxox[abposr]-|\bAKIA[0-9A-Z]{12,}|"
    r"\bplacet_[a-z0-9_-]{16,}|-----BEGIN|\beyJ[a-z0-9_-]{8,}\.|\bbearer\s+[a-z0-9._~+/-]{8,}|\bglpat-|://[^/\s:@]+:[^/\s@]+@)"
)
_DENSE = re.compile(r"(?=[A-Za-z0-9+/_=-]*[0-9])(?=[A-Za-z0-9+/_=-]*[a-z])(?=[A-Za-z0-9+/_=-]*[A-Z])[A-Za-z0-9+/_=-]{32,}")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


def is_secret_name(name: str) -> bool:
    """Say whether a property of that name holds a secret; case, separators and invisible characters don't matter."""
    plain = "".join(c for c in unicodedata.normalize("NFKC", name).casefold() if c.isalnum())
    return any(word in plain for word in _SECRET_NAMES)


def shown(value: object, pointer: str | None = None) -> object:
    """Give `value` as it may be shown to the one who sent it: the same number, a short clean text, or `[redacted]`."""
    if pointer is not None and any(is_secret_name(part) for part in pointer.split("/")):
        return REDACTED
    if isinstance(value, str):
        if _SECRET_VALUE.search(value) or _DENSE.search(value):
            return REDACTED
        cut = value if len(value) <= TEXT_MAX else value[:TEXT_MAX] + "…"
        return "".join(c if unicodedata.category(c) not in _HIDDEN else f"\\u{ord(c):04x}" for c in cut)
    if isinstance(value, dict | list | tuple):
        return f"[{'an object' if isinstance(value, dict) else 'a list'}]"
    return value
