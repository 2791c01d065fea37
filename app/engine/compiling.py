"""Compiles bundles beside the loop: a large one takes seconds, and nobody's decision may wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping

from app.policy.compile import compile_bundle
from app.policy.model import Policy

_ONE_AT_A_TIME = threading.Lock()


async def compiled(files: Mapping[str, str]) -> Policy:
    """Compile a bundle's files in a thread, one bundle at a time.

    Raises:
        PolicyInvalid: with every fault; nothing of the bundle may be used.
    """
    return await asyncio.to_thread(_compile, files)


def _compile(files: Mapping[str, str]) -> Policy:
    with _ONE_AT_A_TIME:
        return compile_bundle(files)
