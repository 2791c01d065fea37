"""The audit chain shows every tampering, and says which row is the first (S10.2, S10.3, API.md 4)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.audit_chain import (
    GENESIS,
    START,
    Break,
    BreakKind,
    ChainPoint,
    StoredPayload,
    StoredRow,
    Verification,
    payload_digest,
    row_hash,
    verify,
)
from app.domain.canonical import canonical, digest_text

LENGTH = 9
NOWHERE = "sha256:" + "e" * 64


def row_of(sequence: int, previous_hash: str, **content: object) -> StoredRow:
    salt, payload = bytes([sequence % 256]) * 16, canonical({"request": {"n": sequence}})
    row = {
        "chain": "acme",
        "sequence": sequence,
        "event": "tool_call.decided",
        "decision": "denied",
        "risk_score": Decimal("0.5"),
        "payload_digest": payload_digest(salt, payload),
        "previous_hash": previous_hash,
        **content,
    }
    return StoredRow(sequence, previous_hash, row_hash(row), canonical(row), StoredPayload(salt, payload))


def chain_of(length: int, since: int = 1, previous: str = GENESIS) -> list[StoredRow]:
    rows: list[StoredRow] = []
    for sequence in range(since, since + length):
        rows.append(row_of(sequence, rows[-1].hash if rows else previous))
    return rows


def point(row: StoredRow) -> ChainPoint:
    return ChainPoint(row.sequence, row.hash)


def renumbered(rows: list[StoredRow]) -> list[StoredRow]:
    """Give the rows with sequence columns without a gap, as a careful attacker would leave them."""
    return [replace(row, sequence=place) for place, row in enumerate(rows, rows[0].sequence)]


def altered(row: StoredRow) -> StoredRow:
    """Change what a row says; its hash stays."""
    return replace(row, text=row.text.replace('"denied"', '"accepted"'))


def rehashed(row: StoredRow, previous_hash: str | None = None) -> StoredRow:
    """Change what a row says and hash it anew."""
    return row_of(row.sequence, previous_hash or row.previous_hash, decision="accepted")


def broken(rows: list[StoredRow], *known: ChainPoint) -> Break:
    found = verify(rows, START, known)
    assert not found.verified
    assert found.first_broken is not None
    assert found.rows == found.head.sequence
    return found.first_broken


ROWS = chain_of(LENGTH)


def test_the_two_rows_of_the_contract_chain() -> None:
    """API.md 4: rows 44 and 45, computed there by another implementation."""
    first = {
        "chain": "acme",
        "sequence": 44,
        "event": "approval.answered",
        "occurred_at": "2026-12-01T09:01:32.004Z",
        "actor": {"subject": "dana", "roles": ["reviewer"]},
        "session_id": "chat-481",
        "task_id": "task-17",
        "decision_id": "01a230d5-2fd8-73a5-aeae-7e049fc8875c",
        "approval_id": "01a230d5-2fd8-7907-9af2-55e55f2a8983",
        "answer": "narrowed",
        "payload_digest": "sha256:3e08ef6bae4553b45e310463d3cad56216fe169b552054c2fece9e46cf3a0a15",
        "previous_hash": "sha256:89c792ce1da1129669834a578db7d46c5e85e35ec5a8bbe239a6823709502170",
        "hash": "sha256:5b4275a0fde5b74f198088ca8d7863a80226f2cc2bb7d47c312f0b05340e9e32",
    }
    second = {
        "chain": "acme",
        "sequence": 45,
        "event": "tool_call.decided",
        "occurred_at": "2026-12-01T09:01:32.310Z",
        "actor": {"subject": "support-agent", "roles": ["agent"]},
        "session_id": "chat-481",
        "task_id": "task-17",
        "tool": "refund",
        "resources": ["order:A-1001"],
        "decision_id": "01a230d6-7b16-7c00-b35e-7299d051e6fe",
        "decision": "modified",
        "reason": "narrowed_by_approval",
        "risk_score": Decimal("0.4432"),
        "policy_version": 7,
        "approval_id": "01a230d5-2fd8-7907-9af2-55e55f2a8983",
        "payload_digest": "sha256:af6547e6c676683c5ebec7a3276cc678c71f266f31d0ea76b15309b0d3dea8fe",
        "previous_hash": "sha256:5b4275a0fde5b74f198088ca8d7863a80226f2cc2bb7d47c312f0b05340e9e32",
        "hash": "sha256:008c525d3b399ff2148654b5dfe18e16e97c0160c336be321c680b313ac0a242",
    }
    stored = []
    for row in (first, second):
        assert row_hash(row) == row["hash"]
        assert row_hash({**row, "payload": {"request": {}}}) == row["hash"]
        text = canonical({key: value for key, value in row.items() if key != "hash"})
        stored.append(StoredRow(row["sequence"], row["previous_hash"], row["hash"], text))  # type: ignore[arg-type]  # a literal above
    start = ChainPoint(43, stored[0].previous_hash)
    assert verify(stored, start) == Verification(True, 2, point(stored[1]))
    accepted = replace(stored[1], text=stored[1].text.replace('"modified"', '"accepted"'))
    assert verify([stored[0], accepted], start).first_broken == Break(45, BreakKind.CHANGED, stored[1].hash, digest_text(accepted.text))


def test_a_whole_chain_verifies() -> None:
    assert verify(ROWS) == Verification(True, LENGTH, point(ROWS[-1]))
    assert verify(iter(ROWS), START, [point(ROWS[3]), point(ROWS[-1])]) == Verification(True, LENGTH, point(ROWS[-1]))
    assert verify(ROWS[4:], point(ROWS[3]), [point(ROWS[0]), point(ROWS[3])]) == Verification(True, LENGTH - 4, point(ROWS[-1]))
    assert verify([]) == Verification(True, 0, START)


def test_erased_payloads_leave_the_chain_whole() -> None:
    """S10.3."""
    assert verify([replace(row, payload=None) for row in ROWS]).verified


def test_a_payload_is_salted_and_its_digest_covers_both() -> None:
    assert payload_digest(b"ab", "c") == digest_text("abc")
    assert payload_digest(b"1", "x") != payload_digest(b"2", "x")
    assert payload_digest(b"", "é") == digest_text("é")


@pytest.mark.parametrize("place", range(1, LENGTH + 1))
class TestEachRow:
    """Each kind of tampering, at each row: the first, the last and those between."""

    def test_changed(self, place: int) -> None:
        rows = ROWS.copy()
        rows[place - 1] = altered(rows[place - 1])
        assert broken(rows) == Break(place, BreakKind.CHANGED, ROWS[place - 1].hash, digest_text(rows[place - 1].text))

    def test_changed_and_hashed_anew_alone(self, place: int) -> None:
        rows = ROWS.copy()
        rows[place - 1] = rehashed(rows[place - 1])
        expected = Break(place, BreakKind.CHANGED, ROWS[place - 1].hash, rows[place - 1].hash)
        if place < LENGTH:
            assert broken(rows) == expected
        assert broken(rows, point(ROWS[-1])) == expected  # nothing follows the last row: only the head that was kept shows it

    def test_changed_hash_column(self, place: int) -> None:
        rows = ROWS.copy()
        rows[place - 1] = replace(rows[place - 1], hash=NOWHERE)
        assert broken(rows) == Break(place, BreakKind.CHANGED, NOWHERE, ROWS[place - 1].hash)

    def test_changed_previous_hash_column(self, place: int) -> None:
        rows = ROWS.copy()
        rows[place - 1] = replace(rows[place - 1], previous_hash=NOWHERE)
        assert broken(rows) == Break(place, BreakKind.CHANGED, ROWS[place - 1].previous_hash, NOWHERE)

    def test_changed_payload(self, place: int) -> None:
        rows = ROWS.copy()
        forged = StoredPayload(b"x" * 16, "{}")
        rows[place - 1] = replace(rows[place - 1], payload=forged)
        expected = json.loads(ROWS[place - 1].text)["payload_digest"]
        assert broken(rows) == Break(place, BreakKind.CHANGED, expected, payload_digest(forged.salt, forged.text))

    def test_removed(self, place: int) -> None:
        rows = ROWS[: place - 1] + ROWS[place:]
        if place < LENGTH:
            assert broken(rows) == Break(place, BreakKind.REMOVED, ROWS[place - 1].hash, None)
            assert broken(renumbered(rows)) == Break(place, BreakKind.REMOVED, ROWS[place - 1].hash, None)
        else:
            assert broken(rows, point(ROWS[-1])) == Break(place, BreakKind.TRUNCATED, ROWS[place - 1].hash, None)

    def test_inserted(self, place: int) -> None:
        forged = row_of(place, ROWS[place - 1].previous_hash, decision="accepted")
        rows = [*ROWS[: place - 1], forged, *ROWS[place - 1 :]]
        expected = Break(place, BreakKind.INSERTED, ROWS[place - 1].hash, forged.hash)
        assert broken(rows) == expected
        assert broken(renumbered(rows)) == expected

    def test_inserted_after_with_the_same_sequence(self, place: int) -> None:
        forged = row_of(place, ROWS[place - 1].previous_hash, decision="accepted")
        rows = [*ROWS[:place], forged, *ROWS[place:]]
        if place < LENGTH:
            assert broken(rows) == Break(place, BreakKind.INSERTED, ROWS[place - 1].hash, forged.hash)
        else:  # nothing follows either of the two: only the head that was kept says which it is
            assert (broken(rows).sequence, broken(rows).kind) == (place, BreakKind.INSERTED)
            assert broken(rows, point(ROWS[-1])) == Break(place, BreakKind.INSERTED, ROWS[-1].hash, forged.hash)

    def test_inserted_rubbish(self, place: int) -> None:
        for text in ("rubbish", "[]", "7"):
            forged = StoredRow(place, ROWS[place - 1].previous_hash, digest_text(text), text)
            rows = renumbered([*ROWS[: place - 1], forged, *ROWS[place - 1 :]])
            assert broken(rows) == Break(place, BreakKind.INSERTED, ROWS[place - 1].hash, forged.hash)

    def test_a_row_repeated(self, place: int) -> None:
        rows = [*ROWS[:place], ROWS[place - 1], *ROWS[place:]]
        assert broken(rows) == Break(place, BreakKind.INSERTED, ROWS[place - 1].hash, ROWS[place - 1].hash)
        assert broken(renumbered(rows)) == broken(rows)

    def test_swapped(self, place: int) -> None:
        for other in range(place + 1, LENGTH + 1):
            rows = ROWS.copy()
            rows[place - 1], rows[other - 1] = rows[other - 1], rows[place - 1]
            expected = Break(place, BreakKind.SWAPPED, ROWS[place - 1].hash, ROWS[other - 1].hash)
            assert broken(renumbered_from_one(rows)) == expected
            assert broken(rows) == expected  # an export whose lines were swapped

    def test_truncated(self, place: int) -> None:
        expected = ROWS[place - 1].hash if place == LENGTH else None
        assert broken(ROWS[: place - 1], point(ROWS[-1])) == Break(place, BreakKind.TRUNCATED, expected, None)

    def test_everything_from_a_row_on_hashed_anew_shows_at_a_point_that_was_kept(self, place: int) -> None:
        """The honest limit (S10.2): rows alone can't show it; a head or a checkpoint after the change does."""
        rows = ROWS[: place - 1]
        for row in ROWS[place - 1 :]:
            rows.append(rehashed(row, rows[-1].hash if rows else GENESIS))
        assert verify(rows).verified
        assert verify(rows, START, [point(row) for row in ROWS[: place - 1]]).verified
        assert broken(rows, point(ROWS[-1])) == Break(LENGTH, BreakKind.CHANGED, ROWS[-1].hash, rows[-1].hash)
        assert broken(rows, *map(point, ROWS)) == Break(place, BreakKind.CHANGED, ROWS[place - 1].hash, rows[place - 1].hash)


@pytest.mark.parametrize("place", range(1, LENGTH - 1))
def test_removed_and_the_next_linked_over_the_gap(place: int) -> None:
    """AC-10: the next row is re-linked and hashed anew; its own sequence tells."""
    linked = row_of(place + 1, ROWS[place - 1].previous_hash)
    found = broken([*ROWS[: place - 1], linked, *ROWS[place + 1 :]])
    assert (found.sequence, found.kind) == (place, BreakKind.REMOVED)


def renumbered_from_one(rows: list[StoredRow]) -> list[StoredRow]:
    return [replace(row, sequence=place) for place, row in enumerate(rows, 1)]


def test_several_rows_removed_name_the_first() -> None:
    found = broken(ROWS[:2] + ROWS[5:])
    assert found == Break(3, BreakKind.REMOVED, None, None)
    assert broken(ROWS[:2] + ROWS[5:], point(ROWS[2])).expected == ROWS[2].hash


def test_a_start_that_contradicts_a_checkpoint_is_broken() -> None:
    found = verify(ROWS[4:], point(ROWS[3]), [ChainPoint(4, NOWHERE)])
    assert found == Verification(False, 0, point(ROWS[3]), Break(4, BreakKind.CHANGED, NOWHERE, ROWS[3].hash))


def test_a_whole_chain_of_another_start_is_not_this_one() -> None:
    other = chain_of(3, previous=NOWHERE)
    assert broken(other) == Break(1, BreakKind.CHANGED, GENESIS, NOWHERE)


def test_a_sequence_column_that_its_text_does_not_know_is_broken() -> None:
    rows = [*ROWS[:-1], replace(ROWS[-1], sequence=LENGTH + 5)]
    assert broken(rows) == Break(LENGTH, BreakKind.CHANGED, ROWS[-1].hash, None)


def _drop(rows: list[StoredRow], at: int) -> list[StoredRow]:
    return rows[:at] + rows[at + 1 :]


def _repeat(rows: list[StoredRow], at: int) -> list[StoredRow]:
    return rows[: at + 1] + rows[at:]


def _alter(rows: list[StoredRow], at: int) -> list[StoredRow]:
    return [*rows[:at], altered(rows[at]), *rows[at + 1 :]]


def _rehash(rows: list[StoredRow], at: int) -> list[StoredRow]:
    return [*rows[:at], rehashed(rows[at]), *rows[at + 1 :]]


def _exchange(rows: list[StoredRow], at: int) -> list[StoredRow]:
    other = (at + 3) % len(rows)
    low, high = min(at, other), max(at, other)
    return [*rows[:low], rows[high], *rows[low + 1 : high], rows[low], *rows[high + 1 :]]


@given(
    st.lists(st.tuples(st.sampled_from([_drop, _repeat, _alter, _rehash, _exchange]), st.integers(0, 99)), min_size=1, max_size=4),
    st.booleans(),
)
def test_no_mixture_of_tampering_verifies_against_the_head(
    steps: list[tuple[Callable[[list[StoredRow], int], list[StoredRow]], int]], number_again: bool
) -> None:
    """Whatever is done, either every row is as it was, or the first one that isn't comes at or after the first that is named."""
    rows = ROWS.copy()
    for step, at in steps:
        rows = step(rows, at % len(rows)) if rows else rows
    if number_again:
        rows = renumbered_from_one(rows)
    found = verify(rows, START, [point(ROWS[-1])])
    assert found.verified == (rows == ROWS)
    if not found.verified:
        good = next((index for index, (mine, theirs) in enumerate(zip(rows, ROWS, strict=False)) if mine != theirs), min(len(rows), LENGTH))
        assert found.rows <= good + 1
