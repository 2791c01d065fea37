"""One worker process: serves the application on a socket that the parent opened, and never outlives the parent.

Everything that a request doesn't need (keys of the first start, the owner's database URL) was taken out of its environment before.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType

import uvicorn

from app.domain.errors import PlacetError
from app.launcher.die_with_parent import follow_parent
from app.settings import load_settings

DRAIN_S = 4  # the parent kills after 5
KEEP_ALIVE_S = 75
READY = b"R"
GC_THRESHOLDS = (50_000, 20, 50)  # DESIGN, "The tail": the collector's full runs were the slowest answers


def main(arguments: list[str]) -> int:
    """Serve until told to stop; return the exit code. Arguments: parent's process id, listening and control descriptors."""
    parent_pid, listening, control = (int(argument) for argument in arguments)
    if not follow_parent(parent_pid, signal.SIGTERM):
        return 1
    parent = socket.socket(fileno=control)
    threading.Thread(target=_leave_with_parent, args=(parent,), name="parent watch", daemon=True).start()

    try:
        settings = load_settings()
        from app.main import create_app  # it imports the whole engine: a bad variable is told before that

        application = create_app(settings)
    except PlacetError as error:
        print(f"placet: {error}", file=sys.stderr)
        return 1
    server = uvicorn.Server(_configuration(application, parent))
    application.state.is_stopping = lambda: server.should_exit  # long polls end, or the drain would wait for them and cut them off

    def stop(_number: int, _frame: FrameType | None) -> None:  # uvicorn raises the signal once more after its own stop
        server.should_exit = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    server.run(sockets=[socket.socket(fileno=listening)])
    return 0


def _configuration(application: object, parent: socket.socket) -> uvicorn.Config:
    async def started() -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        parent.send(READY)

    return uvicorn.Config(
        application,  # type: ignore[arg-type]  # an ASGI application, whatever the framework
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # nothing that a caller sends says who it is
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
        callback_notify=started,
        timeout_notify=10 * 365 * 86_400,  # called at the first tick after start-up, and never again
    )


def _leave_with_parent(parent: socket.socket) -> None:
    """Wait for the end of the parent's socket: it comes with the parent's death, on every system and from whatever signal."""
    while parent.recv(16):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(DRAIN_S + 1)
    os._exit(1)  # whatever still runs must not hold the port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
