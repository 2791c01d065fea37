"""The load generator: a program of its own, since it shares the machine with what it measures. Standard library only.

A plan comes as JSON on standard input; `started` goes out when every connection is open, then one line of JSON with what was measured.
It is bounded in count and time, and speaks HTTP/1.1 only as far as the endpoint answers it: a status line, a content-length, a body.
"""

from __future__ import annotations

import gc
import json
import random
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

REQUESTS_MAX = 400_000
OVERTIME_S = 5.0
SESSION_CALLS = 8
SAMPLES_MAX = 3
PATH = "/tool-calls/check"
ACCEPTED = '"decision":"accepted"'
HEAD = (
    "POST {path} HTTP/1.1\r\nhost: {host}:{port}\r\nauthorization: Bearer {token}\r\n"
    "content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
BODY = (
    '{"tool":"refund","arguments":{"order_id":"S-%(order)08d","amount":%(amount)s,"currency":"EUR","cause":"damaged"},'
    '"session_id":"chat-%(agent)d-%(session)d","call_id":"call-%(number)d","task_id":"task-1",'
    '"on_behalf_of":{"id":"%(customer)s","segment":"standard"}}'
)


@dataclass(slots=True)
class Target:
    """A tenant to send refunds to. `taken` calls were sent before; each has an order of its own until all `orders` were used once."""

    heads: Sequence[bytes]
    customer: str
    orders: int
    taken: int
    body: str = BODY

    def request(self) -> bytes:
        number = self.taken
        self.taken = number + 1
        cents = 1 + number // self.orders
        session = number // SESSION_CALLS
        agent = session % len(self.heads)
        values = {
            "order": number % self.orders, "minor": cents, "amount": f"{cents // 100}.{cents % 100:02d}", "agent": agent,
            "session": session, "number": number, "customer": self.customer,
        }  # fmt: skip
        body = (self.body % values).encode()
        return self.heads[agent] % len(body) + body


@dataclass(slots=True)
class Connection:
    link: socket.socket
    received: bytearray = field(default_factory=bytearray)
    sent_at: int = 0


@dataclass(slots=True)
class Measured:
    """What came of the requests; times in ns of the clock that counts from 1970. `accepted` is what an accepted call's answer holds."""

    accepted: bytes = ACCEPTED.encode()
    ended: list[int] = field(default_factory=list)
    latencies_us: list[float] = field(default_factory=list)
    refused: int = 0
    samples: list[str] = field(default_factory=list)

    def note(self, sent_at: int, head: bytes, body: bytes) -> None:
        now = time.time_ns()
        self.ended.append(now)
        self.latencies_us.append((now - sent_at) / 1000)
        if not head.startswith(b"HTTP/1.1 200 ") or self.accepted not in body:
            self.refused += 1
            if len(self.samples) < SAMPLES_MAX:
                self.samples.append((head.split(b"\r\n", 1)[0] + b" " + body[:400]).decode(errors="replace"))


def split_answer(received: bytearray) -> tuple[bytes, bytes] | None:
    """Give an answer's head and body once all of it has come.

    Raises:
        ValueError: the head has no content-length.
    """
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(received[:end])
    at = head.lower().index(b"content-length:") + 15
    until = head.find(b"\r\n", at)
    length = int(head[at : until if until > 0 else None])
    if len(received) < end + 4 + length:
        return None
    return head, bytes(received[end + 4 :])


def drive(
    connections: Sequence[Connection], targets: Sequence[Target], seconds: float, choose: random.Random, accepted: str = ACCEPTED
) -> Measured:
    """Send one call after another on every connection until the time is up, then wait for the last answers.

    Raises:
        ConnectionError: the service closed a connection.
        TimeoutError: the last answers didn't come.
    """
    measured = Measured(accepted.encode())
    selector = selectors.DefaultSelector()
    pick = choose.choice
    for connection in connections:
        selector.register(connection.link, selectors.EVENT_READ, connection)
        connection.sent_at = time.time_ns()
        connection.link.sendall(pick(targets).request())
    waiting = sent = len(connections)
    until = time.monotonic() + seconds
    while waiting:
        now = time.monotonic()
        if now > until + OVERTIME_S:
            raise TimeoutError(f"{waiting} answers did not come within {OVERTIME_S:g} s")
        for key, _ in selector.select(0.5):
            connection = key.data
            chunk = connection.link.recv(65_536)
            if not chunk:
                raise ConnectionError("the service closed a connection")
            connection.received += chunk
            answer = split_answer(connection.received)
            if answer is None:
                continue
            measured.note(connection.sent_at, *answer)
            connection.received.clear()
            if time.monotonic() < until and sent < REQUESTS_MAX:
                sent += 1
                request = pick(targets).request()
                connection.sent_at = time.time_ns()
                connection.link.sendall(request)
            else:
                waiting -= 1
    return measured


def open_connections(host: str, port: int, count: int) -> list[Connection]:
    """Open keep-alive connections to a service on this machine."""
    assert host in ("127.0.0.1", "::1", "localhost"), "loopback only"
    found = []
    for _ in range(count):
        link = socket.create_connection((host, port), timeout=5)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        found.append(Connection(link))
    return found


def main() -> int:
    plan = json.load(sys.stdin)
    host, port, path = plan["host"], plan["port"], plan.get("path", PATH)
    targets = [
        Target(
            [HEAD.format(path=path, host=host, port=port, token=token).encode() for token in each["tokens"]],
            each["customer"],
            each["orders"],
            each["taken"],
            plan.get("body", BODY),
        )
        for each in plan["targets"]
    ]
    connections = open_connections(host, port, plan["connections"])
    gc.disable()
    print("started", flush=True)
    measured = drive(connections, targets, plan["seconds"], random.Random(plan["seed"]), plan.get("accepted", ACCEPTED))
    print(
        json.dumps(
            {
                "ended": measured.ended,
                "latencies_us": measured.latencies_us,
                "refused": measured.refused,
                "samples": measured.samples,
                "taken": [target.taken for target in targets],
            }
        )
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
