"""Signed checkpoints: a chain's end, signed with a key that is never in the database (SPEC S10.2).

Whoever can write every row can also compute every hash anew; what they can't do is sign. A chain that was rewritten before a
checkpoint no longer agrees with it. What came after the newest checkpoint is only as safe as the database.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from app.domain.audit_chain import ChainPoint
from app.domain.canonical import canonical
from app.engine.clock import Clock, rfc3339
from app.storage import audit
from app.storage.audit import Checkpoint
from app.storage.database import Database

ALGORITHM = "Ed25519"
TYPE = "placet-checkpoint+jws"
KEY_FILE = "checkpoint-key.json"


@dataclass(frozen=True, slots=True)
class SigningKey:
    """An Ed25519 key; `kid` is its RFC 7638 thumbprint."""

    key: OKPKey

    @property
    def kid(self) -> str:
        return str(self.key.thumbprint())


def load_signing_key(folder: Path) -> SigningKey:
    """Read the key from the data folder, or make it at the first start; only the owner of the folder may read it."""
    path = folder / KEY_FILE
    if not path.exists():
        made = OKPKey.generate_key("Ed25519")
        draft = folder / f".{KEY_FILE}.{os.getpid()}"
        # nobody else's from its first moment on: names here can be guessed, and the folder may have to be entered by others
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            os.fchmod(file.fileno(), 0o600)  # also what an earlier start left
            file.write(canonical(made.as_dict(private=True)))
            file.flush()
            os.fsync(file.fileno())  # a key that signed must be there after a power cut
        with suppress(FileExistsError):  # another worker may have been first
            os.link(draft, path)
        draft.unlink()
    return SigningKey(OKPKey.import_key(json.loads(path.read_text())))


class Checkpoints:
    """Makes and checks the checkpoints of tenants' chains."""

    def __init__(self, database: Database, clock: Clock, key: SigningKey) -> None:
        self._database = database
        self._clock = clock
        self._key = key

    async def sign(self, tenant_id: UUID, chain: str) -> Checkpoint | None:
        """Sign the end of a chain; None if it hasn't moved since the last checkpoint."""
        async with self._database.transaction([tenant_id]) as connection:
            head = await audit.read_head(connection, tenant_id)
            last = await audit.newest_checkpoint(connection, tenant_id)
            if head is None or head.sequence == 0 or (last is not None and last.sequence >= head.sequence):
                return None
            signed_at = self._clock.now()
            claims = {"chain": chain, "sequence": head.sequence, "hash": head.hash, "signed_at": rfc3339(signed_at)}
            token = jws.serialize_compact(
                {"alg": ALGORITHM, "kid": self._key.kid, "typ": TYPE}, canonical(claims).encode(), self._key.key, algorithms=[ALGORITHM]
            )
            made = Checkpoint(self._clock.new_id(), head.sequence, head.hash, signed_at, self._key.kid, token)
            await audit.insert_checkpoint(connection, tenant_id, made)
        return made

    def is_valid(self, checkpoint: Checkpoint, chain: str) -> bool:
        """Say whether a stored checkpoint was signed by this key for this chain, and says what its row says."""
        try:
            signed = jws.deserialize_compact(checkpoint.token, self._key.key, algorithms=[ALGORITHM])
        except (JoseError, ValueError):
            return False
        claims = {
            "chain": chain,
            "sequence": checkpoint.sequence,
            "hash": checkpoint.hash,
            "signed_at": rfc3339(checkpoint.signed_at),
        }
        return signed.headers().get("typ") == TYPE and signed.payload == canonical(claims).encode()


def point_of(checkpoint: Checkpoint) -> ChainPoint:
    """Give the point of the chain that a checkpoint vouches for."""
    return ChainPoint(checkpoint.sequence, checkpoint.hash)
