"""The port: opened once, refused when taken, shared fairly between workers (S14.1)."""

from __future__ import annotations

import contextlib
import socket
import sys

import pytest

from app.launcher.listening import Listeners, PortUnavailable, open_listeners
from app.settings import Listening

CONNECTIONS = 64


def port_of(listeners: Listeners) -> int:
    return int(listeners.sockets[0].getsockname()[1])


def test_any_free_port_is_told() -> None:
    with contextlib.closing(open_listeners(Listening("127.0.0.1", 0, 1))) as listeners:
        assert listeners.url == f"http://127.0.0.1:{port_of(listeners)}"


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("others", [1, 2])
def test_a_taken_port_is_refused_even_by_one_that_shares_it_among_its_workers(workers: int, others: int) -> None:
    with contextlib.closing(open_listeners(Listening("127.0.0.1", 0, others))) as taken:
        with pytest.raises(PortUnavailable) as refused:
            open_listeners(Listening("127.0.0.1", port_of(taken), workers))
        assert str(refused.value) == (
            f"port {port_of(taken)} of 127.0.0.1 is in use by another program; stop it, or choose another port: "
            f"PLACET_PORT={port_of(taken) % 65000 + 1} ./run"
        )


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_a_host_that_is_not_here_names_the_variable(host: str) -> None:
    with pytest.raises(PortUnavailable, match=f"PLACET_HOST `{host}` is no address of this machine"):
        open_listeners(Listening(host, 0, 1))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux spreads connections between sockets of one port")
def test_a_burst_of_connections_reaches_both_workers() -> None:
    with contextlib.closing(open_listeners(Listening("127.0.0.1", 0, 2))) as listeners, contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(listeners))))
        counts = [_accept_all(listener) for listener in listeners.sockets]
    assert sum(counts) == CONNECTIONS
    assert min(counts) >= CONNECTIONS // 8  # fewer has a chance of 1 in 10^10


def _accept_all(listener: socket.socket) -> int:
    listener.setblocking(False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            listener.accept()[0].close()
            count += 1
    return count
