"""Agents that ask for refunds without a pause, as runtimes do, and write down every answer that reached them.

A call whose answer was lost, or that was told 503, is sent again under its own call id until it is answered: what a client has in hand is
what the service must be able to show afterwards. The clients run in a thread of their own, so that a test may stop and kill meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from types import TracebackType
from typing import Any

GIVES_UP_S = 10.0  # a client that waited this long for one answer closes its connection
AFTER_FAILURE_S = 0.02
FINISH_S = 20.0
ASKS_AGAIN = 0.05  # the share of calls that are sent once more although they were accepted


@dataclass(frozen=True, slots=True)
class Agent:
    """Who asks: one subject's key, the orders to choose from, and the most that one call asks for, in cents."""

    tenant: str
    subject: str
    token: str
    orders: tuple[str, ...]
    amount_max: int


@dataclass(frozen=True, slots=True)
class Call:
    agent: Agent
    session_id: str
    call_id: str
    order_id: str
    amount_minor: int

    def body(self) -> bytes:
        # the amount is written as its own digits: no binary float comes near it
        return (
            f'{{"tool":"refund","session_id":"{self.session_id}","call_id":"{self.call_id}",'
            f'"arguments":{{"order_id":"{self.order_id}","amount":{self.amount_minor // 100}.{self.amount_minor % 100:02d},'
            f'"currency":"EUR","cause":"damaged"}},"on_behalf_of":{{"id":"cust-77","segment":"standard"}}}}'
        ).encode()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client holds in its hand: a decision with its place in the audit chain."""

    call: Call
    decision_id: str
    decision: str
    reason: str
    sequence: int
    hash: str
    holds: frozenset[tuple[str, str, str]]  # hold's id, account as shown, amount
    replayed: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request: when it was sent and answered (monotonic seconds), and how; `status` None where the connection failed."""

    started: float
    ended: float
    status: int | None
    failure: str = ""

    @property
    def took_s(self) -> float:
        return self.ended - self.started


@dataclass(slots=True)
class _Connection:
    """One keep-alive connection, opened when it is needed and thrown away after any failure."""

    port: int
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None

    async def ask(self, token: str, body: bytes) -> tuple[int, bytes]:
        """Send one check.

        Raises: OSError, EOFError or TimeoutError; the connection is closed then.
        """
        try:
            async with asyncio.timeout(GIVES_UP_S):
                return await self._ask(token, body)
        except BaseException:
            self.close()
            raise

    async def _ask(self, token: str, body: bytes) -> tuple[int, bytes]:
        if self.reader is None or self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writer.write(
            b"POST /tool-calls/check HTTP/1.1\r\nhost: placet\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b" % (token.encode(), len(body), body)
        )
        status_line, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        answer = await self.reader.readexactly(int(headers["content-length"]))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return int(status_line.split()[1]), answer

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


@dataclass(slots=True)
class Load:
    """A client for each of `agents`, which pauses `pause_s` after each answer. Use it as a context: the clients finish when it ends."""

    port: int
    agents: Sequence[Agent]
    pause_s: float
    seed: int = 0
    answers: list[Answer] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # answers that nobody may get
    _answered_at: dict[int, float] = field(default_factory=dict)  # by client: when its newest answered request had been sent
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Load:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Let every client have the answer to its last call, then end."""
        self._stop.set()
        assert self._thread is not None
        self._thread.join(FINISH_S + GIVES_UP_S)
        assert not self._thread.is_alive(), "a client never got its last answer"

    def everybody_answered_since(self, moment: float) -> bool:
        """Say whether each client had an answer (200) to a request that it sent after `moment`."""
        return len(self._answered_at) == len(self.agents) and all(sent >= moment for sent in self._answered_at.values())

    def statuses(self) -> Counter[int | None]:
        return Counter(attempt.status for attempt in self.attempts)

    def between(self, start: float, end: float) -> list[Attempt]:
        """Give the attempts that were under way at some time between the two moments."""
        return [attempt for attempt in self.attempts if attempt.ended > start and attempt.started < end]

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as clients:
            for number, agent in enumerate(self.agents):
                clients.create_task(self._client(number, agent))

    async def _client(self, number: int, agent: Agent) -> None:
        connection = _Connection(self.port)
        accepted: list[Answer] = []
        random = Random(f"{self.seed}/{number}")
        for call in _calls(number, agent, random):
            if self._stop.is_set():
                break
            answer = await self._until_answered(number, connection, call)
            if answer is None:
                continue
            if answer.decision == "accepted":
                accepted.append(answer)
            if accepted and random.random() < ASKS_AGAIN:
                await self._until_answered(number, connection, random.choice(accepted).call)
            await asyncio.sleep(self.pause_s)
        connection.close()

    async def _until_answered(self, number: int, connection: _Connection, call: Call) -> Answer | None:
        body, stopped_at = call.body(), 0.0
        while True:
            started = time.monotonic()
            try:
                status, document = await connection.ask(call.agent.token, body)
            except (OSError, EOFError, TimeoutError) as failure:
                self.attempts.append(Attempt(started, time.monotonic(), None, type(failure).__name__))
            else:
                self.attempts.append(Attempt(started, time.monotonic(), status))
                if status == 200:
                    told = json.loads(document)
                    answer = _answer_of(call, told)
                    if told["execution_permitted"] is not (answer.decision == "accepted" and not answer.replayed):
                        self.wrong.append(f"{call.call_id} {answer.decision}, replayed {answer.replayed}: {told['execution_permitted']}")
                    self.answers.append(answer)
                    self._answered_at[number] = started
                    return answer
                if status != 503 or json.loads(document)["execution_permitted"] is not False:
                    self.wrong.append(f"{status} {document[:400]!r}")
                    return None
            if self._stop.is_set():
                stopped_at = stopped_at or time.monotonic()
                if time.monotonic() > stopped_at + FINISH_S:
                    self.wrong.append(f"{call.call_id} was never answered")
                    return None
            await asyncio.sleep(AFTER_FAILURE_S)


def _calls(number: int, agent: Agent, random: Random) -> Iterator[Call]:
    """Give calls without end, each with its own id; a session serves twenty."""
    count = 0
    while True:
        session = f"{agent.subject}-{number}-{count // 20}"
        yield Call(agent, session, f"call-{number}-{count}", random.choice(agent.orders), random.randint(1, agent.amount_max))
        count += 1


def _answer_of(call: Call, document: dict[str, Any]) -> Answer:
    holds = frozenset((hold["hold_id"], hold["account"], hold["quantity"]["amount"]) for hold in document["holds"])
    audit = document["audit"]
    told = (document["decision_id"], document["decision"], document["reason"])
    return Answer(call, *told, audit["sequence"], audit["hash"], holds, document["replayed"])
