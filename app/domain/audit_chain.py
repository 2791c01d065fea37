"""The audit chain: each row's hash covers the hash before it, so a change anywhere shows (SPEC 10.2, API.md 4).

Rows are verified from the very text that was hashed, never from a copy that a database rewrote. The limit, stated because it can't be
mended here: whoever can rewrite every row from some point to the end can hash them anew; only a head or a signed checkpoint that was kept
elsewhere shows that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from app.domain.canonical import digest, digest_text

GENESIS = "sha256:" + "0" * 64
"""What the first row has as `previous_hash`."""

_UNHASHED = frozenset({"hash", "payload"})


class BreakKind(StrEnum):
    """What happened to the first broken row, as far as the rows themselves show it. `older_copy` is found by comparing checkpoints."""

    CHANGED = "changed"
    REMOVED = "removed"
    INSERTED = "inserted"
    SWAPPED = "swapped"
    TRUNCATED = "truncated"
    OLDER_COPY = "older_copy"


@dataclass(frozen=True, slots=True)
class ChainPoint:
    """A row's place and hash: where to start after, a head, or a checkpoint."""

    sequence: int
    hash: str


START = ChainPoint(0, GENESIS)
"""Before the first row of a chain."""


@dataclass(frozen=True, slots=True)
class StoredPayload:
    salt: bytes
    text: str  # canonical


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row as it is kept: `text` is what was hashed; `payload` is None where it was erased or never was."""

    sequence: int
    previous_hash: str
    hash: str
    text: str
    payload: StoredPayload | None = None


@dataclass(frozen=True, slots=True)
class Break:
    """The first broken row. `expected` is what the chain says, `actual` what is stored; None where there is nothing."""

    sequence: int
    kind: BreakKind
    expected: str | None
    actual: str | None


@dataclass(frozen=True, slots=True)
class Verification:
    """`rows` were read and found good, from after the start up to `head`; `first_broken` is None if all were."""

    verified: bool
    rows: int
    head: ChainPoint
    first_broken: Break | None = None


def row_hash(row: Mapping[str, object]) -> str:
    """Give the hash of a row: the digest of all of it but `hash` and `payload`.

    Raises:
        CanonicalError: a value has no canonical form.
    """
    return digest({key: value for key, value in row.items() if key not in _UNHASHED})


def payload_digest(salt: bytes, text: str) -> str:
    """Give the digest that stands for a payload: sha256 of the salt and the canonical text, so that an erased payload can't be guessed."""
    return "sha256:" + hashlib.sha256(salt + text.encode()).hexdigest()


def verify(rows: Iterable[StoredRow], start: ChainPoint = START, known: Sequence[ChainPoint] = ()) -> Verification:
    """Check rows, in the order of their sequence, from after `start`; stop at the first broken one.

    `known` are points kept elsewhere (the head, checkpoints); those before `start` aren't looked at. Rows that were hashed anew are
    found at the next known point, so the row that is named is then the last that could be the first.
    """
    anchors = {point.sequence: point.hash for point in known}
    if anchors.get(start.sequence, start.hash) != start.hash:
        broken = Break(start.sequence, BreakKind.CHANGED, anchors[start.sequence], start.hash)
        return Verification(False, 0, start, broken)
    head, count = start, 0
    stream = iter(rows)
    row = next(stream, None)
    while row is not None:
        after = next(stream, None)
        found = _judge(row, after, stream, head, anchors)
        if found is not None:
            return Verification(False, count, head, found)
        head, count = ChainPoint(row.sequence, row.hash), count + 1
        row = after
    if any(sequence > head.sequence for sequence in anchors):
        place = head.sequence + 1
        return Verification(False, count, head, Break(place, BreakKind.TRUNCATED, anchors.get(place), None))
    return Verification(True, count, head)


@dataclass(frozen=True, slots=True)
class _Claims:
    """What the hashed text says of itself; the columns beside it must agree."""

    sequence: object
    previous_hash: object
    payload_digest: object


def _judge(
    row: StoredRow, after: StoredRow | None, later: Iterable[StoredRow], head: ChainPoint, anchors: Mapping[int, str]
) -> Break | None:
    place = head.sequence + 1
    claims = _sound(row)
    if claims is None or claims.sequence != place or claims.previous_hash != head.hash:
        return _misplaced(row, claims, chain((after,) if after else (), later), head, anchors)
    if row.sequence != place:
        return Break(place, BreakKind.CHANGED, row.hash, None)
    if row.previous_hash != head.hash:
        return Break(place, BreakKind.CHANGED, head.hash, row.previous_hash)
    if anchors.get(place, row.hash) != row.hash:
        return Break(place, BreakKind.CHANGED, anchors[place], row.hash)
    if row.payload is not None:
        payload = payload_digest(row.payload.salt, row.payload.text)
        if payload != claims.payload_digest:
            return Break(place, BreakKind.CHANGED, str(claims.payload_digest), payload)
    if after is None or after.previous_hash == row.hash or place in anchors:
        return None
    return _disowned(row, after, later, head)


def _disowned(row: StoredRow, after: StoredRow, later: Iterable[StoredRow], head: ChainPoint) -> Break | None:
    """Judge a row that is right in itself, but that the next one doesn't follow: one of the two was put in, or it was hashed anew."""
    claims = _sound(after)
    if claims is None:
        return None  # the next one is broken itself, and is judged in its turn
    if claims.previous_hash == head.hash:
        third = next(iter(later), None)
        genuine, forged = (row, after) if third is not None and third.previous_hash == row.hash else (after, row)
        return Break(head.sequence + 1, BreakKind.INSERTED, genuine.hash, forged.hash)
    if claims.sequence == head.sequence + 2 and claims.previous_hash != row.hash:
        return Break(head.sequence + 1, BreakKind.CHANGED, str(claims.previous_hash), row.hash)
    return None


def _misplaced(row: StoredRow, claims: _Claims | None, later: Iterable[StoredRow], head: ChainPoint, anchors: Mapping[int, str]) -> Break:
    """Say what happened where another row was due. The one that was due may come later; that tells a swap from a loss."""
    place = head.sequence + 1
    due = next((other for other in later if other.previous_hash == head.hash and _sound(other) is not None), None)
    if due is not None:
        swapped = claims is not None and (row.sequence > place or claims.sequence == due.sequence)
        return Break(place, BreakKind.SWAPPED if swapped else BreakKind.INSERTED, due.hash, row.hash)
    is_after = row.sequence > place or (claims is not None and isinstance(claims.sequence, int) and claims.sequence > place)
    if is_after:
        next_but_one = claims is not None and claims.sequence == place + 1
        return Break(place, BreakKind.REMOVED, str(claims.previous_hash) if claims and next_but_one else anchors.get(place), None)
    if row.sequence < place or (claims is not None and claims.sequence != place):
        return Break(row.sequence, BreakKind.INSERTED, anchors.get(row.sequence), row.hash)
    if claims is None:
        return Break(place, BreakKind.CHANGED, anchors.get(place, row.hash), digest_text(row.text))
    return Break(place, BreakKind.CHANGED, head.hash, str(claims.previous_hash))


def _sound(row: StoredRow) -> _Claims | None:
    """Give what a row's text says of itself, None if the text isn't the one that was hashed."""
    if digest_text(row.text) != row.hash:
        return None
    try:
        document = json.loads(row.text)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    return _Claims(document.get("sequence"), document.get("previous_hash"), document.get("payload_digest"))
