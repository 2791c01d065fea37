"""Makes the contract's example exchanges for real, and holds what comes against what is written.

What differs from run to run (ids, hashes, times, secrets, cursors) is held against its form only, and has to be the same wherever the
examples say that it is the same: each written one stands for one real one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import httpx

from app.api.examples import FOLDER, Exchange
from tests.api.serving import Client

FORMS: Mapping[str, str] = {
    "moment": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z",
    "id": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "digest": r"sha256:[0-9a-f]{64}",
    "secret": r"placet_[A-Za-z0-9_-]{30,}",
    "trace": r"\b[0-9a-f]{32}\b",
    "wait": r"\b\d+ ms\b",
    "cursor": r"\b(?=[A-Za-z0-9_-]*[A-Z])[A-Za-z0-9_-]{27}(?![A-Za-z0-9_-])",
}
VARIES = re.compile("|".join(f"(?P<{name}>{form})" for name, form in FORMS.items()))
PAIRED = frozenset({"id", "digest", "secret", "cursor"})
MEASURED = frozenset({"duration_us", "retry_after_s", "retry_after_ms"})
LAYERS_US: Mapping[str, int] = {"static": 38, "scope": 6, "semantic": 912, "sandbox": 2150, "risk": 21, "holds": 480}
LEFT_S = 31  # of a limit's window, as the examples say
OUTAGE_MS = 5000  # an outage's wait is shorter, and always the same
BASE = datetime(2026, 12, 1, 9, tzinfo=UTC)


class Pairs:
    """Which written value stands for which real one."""

    def __init__(self) -> None:
        self._real: dict[str, str] = {}
        self._written: dict[str, str] = {}
        self._moments: dict[str, str] = {}

    def real(self, node: Any) -> Any:
        """Give a written document as it is to be sent."""
        if isinstance(node, str):
            return VARIES.sub(lambda found: self._real.get(found[0], found[0]), node)
        if isinstance(node, dict):
            return {name: self.real(item) for name, item in node.items()}
        return [self.real(item) for item in node] if isinstance(node, list) else node

    def differences(self, written: Any, real: Any, place: str = "") -> Iterator[str]:
        """Give each place where a real answer isn't what is written."""
        if isinstance(written, dict) and isinstance(real, dict):
            for name in sorted({*written, *real}):
                if name not in written or name not in real:
                    yield f"{place}/{name}: only {'written' if name in written else 'real'}"
                elif name in MEASURED:
                    if type(written[name]) is not type(real[name]):
                        yield f"{place}/{name}: {real[name]!r} for {written[name]!r}"
                else:
                    yield from self.differences(written[name], real[name], f"{place}/{name}")
        elif isinstance(written, list) and isinstance(real, list) and len(written) == len(real):
            for number, (one, other) in enumerate(zip(written, real, strict=True)):
                yield from self.differences(one, other, f"{place}/{number}")
        elif isinstance(written, str) and isinstance(real, str):
            yield from self._text_differences(written, real, place)
        elif written != real or type(written) is not type(real):
            yield f"{place}: {real!r} for {written!r}"

    def _text_differences(self, written: str, real: str, place: str) -> Iterator[str]:
        ours, theirs = list(VARIES.finditer(written)), list(VARIES.finditer(real))
        if VARIES.sub(_form, written) != VARIES.sub(_form, real):
            yield f"{place}: {real!r} for {written!r}"
            return
        for one, other in zip(ours, theirs, strict=True):
            if one.lastgroup in PAIRED and not self._pair(one[0], other[0]):
                yield f"{place}: {other[0]} for {one[0]}, which stands for {self._real.get(one[0])}"

    def _pair(self, written: str, real: str) -> bool:
        return self._real.setdefault(written, real) == real and self._written.setdefault(real, written) == written

    def write(self, node: Any, moment: datetime, field: str = "") -> Any:
        """Give a real document as it is written: what varies is replaced by what looks like it, the same for the same."""
        if isinstance(node, str):
            return VARIES.sub(lambda found: self._write_one(found, moment, field), node)
        if isinstance(node, list):
            return [self.write(item, moment, field) for item in node]
        if isinstance(node, dict):
            found = {name: self.write(item, moment, name) for name, item in node.items()}
            if "duration_us" in found:
                found["duration_us"] = LAYERS_US.get(found["name"], 9)
            if found.get("code") == "rate_limited":
                found["retry_after_s"] = LEFT_S
            if found.get("retry_after_ms", 0) > OUTAGE_MS:
                found["retry_after_ms"] = LEFT_S * 1000
            return found
        return node

    def _write_one(self, found: re.Match[str], moment: datetime, field: str) -> str:
        text, number = found[0], len(self._real) + 1
        if found.lastgroup == "moment":
            if field == "resets_at":
                return "2026-12-01T23:00:00.000Z"
            away = timedelta(minutes=round((datetime.fromisoformat(text) - datetime.now(UTC)) / timedelta(minutes=1)))
            return self._moments.setdefault(text, (moment + away).isoformat(timespec="milliseconds").replace("+00:00", "Z"))
        if found.lastgroup == "wait":
            return f"{LEFT_S * 1000} ms" if int(text.split()[0]) > OUTAGE_MS else text
        if found.lastgroup == "trace":
            return "4bf92f3577b34da6a3ce929d0e0e4736"
        if text in self._real or text in self._written:
            return self._written.get(text, text)
        made = hashlib.sha256(str(number).encode()).hexdigest()
        written = {
            "id": f"01a230d5-{made[:4]}-7{made[4:7]}-8{made[7:10]}-{made[10:22]}",
            "digest": f"sha256:{made}",
            "secret": f"placet_EXAMPLE_shown_once_and_stored_nowhere_{number:03}",
            "cursor": f"AAAAAAAAAA{made[:17].upper()}",
        }[found.lastgroup or ""]
        assert self._pair(written, text)
        return written


async def make(
    client: Client, token: str | None, exchange: Exchange, path: str, method: str, pairs: Pairs, content: Any = None
) -> httpx.Response:
    """Make an exchange's request; `content` stands for its body."""
    for name, value in exchange.path.items():
        path = path.replace(f"{{{name}}}", quote(pairs.real(value), safe=""))
    body = exchange.raw.encode() if exchange.raw is not None else pairs.real(exchange.body)
    more: dict[str, Any] = {"params": pairs.real(dict(exchange.query)), "headers": dict(exchange.headers)}
    if content is not None:
        return await client.ask(method.upper(), path, token, content=content, **more)
    return await client.ask(method.upper(), path, token, body, **more)


def differences(exchange: Exchange, answer: httpx.Response, pairs: Pairs) -> list[str]:
    """Give what is not as it is written."""
    if answer.status_code != exchange.status:
        return [f"{answer.status_code} for {exchange.status}: {answer.text[:300]}"]
    if isinstance(exchange.answer, str):  # of a text, some lines are written
        return [f"not there: {line}" for line in exchange.answer.splitlines() if line not in answer.text.splitlines()]
    return list(pairs.differences(exchange.answer, answer.json()))


def record(file: str, name: str, answer: Any) -> None:
    """Write an answer into a file of examples."""
    place = FOLDER / f"{file}.json"
    written = json.loads(place.read_text(encoding="utf-8"))
    next(each for each in written if each["name"] == name)["answer"] = answer
    place.write_text(json.dumps(written, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _form(found: re.Match[str]) -> str:
    return f"<{found.lastgroup}>"
