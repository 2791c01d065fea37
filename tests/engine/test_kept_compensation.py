"""A planned compensation repeats what the caller sent, so it is shown and stored without secrets (S10.3)."""

from __future__ import annotations

from app.domain.decision import Decision
from app.engine.kept_documents import KeptCall, clean_answer
from app.guards.pipeline import Verdict

SECRET = "tok-5f0c2a9d7e1b"


def test_a_secret_of_the_call_is_not_in_what_would_make_good() -> None:
    document: dict[str, object] = {
        "effective_arguments": {"order_id": "A-1001", "note": SECRET},
        "compensation": {
            "tool": "undo",
            "arguments": {"order_id": "A-1001", "why": f"because {SECRET}"},
            "unresolved": [],
            "status": "planned",
        },
    }
    clean_answer(document, Verdict(Decision.ACCEPTED, "within_policy", ()), KeptCall({}, frozenset({SECRET})))
    assert SECRET not in str(document["compensation"])
    assert "A-1001" in str(document["compensation"])
    assert SECRET in str(document["effective_arguments"]), "what may run stays as it is"
