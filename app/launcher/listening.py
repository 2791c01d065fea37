"""Opens the port once, in the parent, so a worker that dies loses no connection: its successor takes them from the same queue.

Several workers get a socket each (SO_REUSEPORT, where Linux spreads connections by a hash): with one shared socket whoever wakes
first takes the whole burst. The first bind is an exclusive one, so a port that anybody else has is still refused.
"""

from __future__ import annotations

import errno
import socket
import sys
from dataclasses import dataclass

from app.domain.errors import PlacetError
from app.settings import Listening

BACKLOG = 2048


class PortUnavailable(PlacetError):
    """The address can't be listened on."""


@dataclass(frozen=True, slots=True)
class Listeners:
    sockets: tuple[socket.socket, ...]  # one a worker slot; the same one several times where the system can't spread
    url: str
    port: int

    def close(self) -> None:
        for listener in self.sockets:
            listener.close()


def open_listeners(listening: Listening) -> Listeners:
    """Bind and listen, a socket for each worker.

    Raises: PortUnavailable, nothing stays open then.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(listening.host, listening.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise PortUnavailable(f"PLACET_HOST `{listening.host}` is no address of this machine ({error.strerror})") from None
    first = _socket(family)
    opened = [first]
    try:
        first.bind(address)
        opened.extend(_sibling(first, family) for _ in range(listening.workers - 1))
        for listener in set(opened):
            listener.listen(BACKLOG)
    except OSError as error:
        for listener in opened:
            listener.close()
        raise PortUnavailable(_advice(listening, error)) from None
    host, port = first.getsockname()[:2]
    return Listeners(tuple(opened), f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", port)


def _socket(family: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return listener


def _sibling(first: socket.socket, family: int) -> socket.socket:
    if sys.platform != "linux":
        return first
    first.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # only now: the bind before this one was exclusive
    sibling = _socket(family)
    sibling.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sibling.bind(first.getsockname())
    except OSError:  # a kernel that doesn't let a bound socket be joined: share it
        sibling.close()
        return first
    return sibling


def _advice(listening: Listening, error: OSError) -> str:
    place = f"port {listening.port} of {listening.host}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{place} is in use by another program; stop it, or choose another port: PLACET_PORT={listening.port % 65000 + 1} ./run"
        case errno.EACCES:
            return f"{place} needs rights that this account doesn't have; choose one above 1023: PLACET_PORT=8080 ./run"
        case errno.EADDRNOTAVAIL:
            return f"PLACET_HOST `{listening.host}` is no address of this machine"
    return f"{place} can't be listened on ({error.strerror}); set PLACET_HOST and PLACET_PORT"
