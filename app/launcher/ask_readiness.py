"""The container's health check: ends with 0 if the service of this machine answers `/readyz` with 200, else with 1 and what it said.

Runs every few seconds on a bare Python: the standard library only, and no import of `app`.
"""

from __future__ import annotations

import http.client
import os
import sys

ANSWER_WITHIN_S = 4.0  # less than the health check's own time-out, so that it is this that says what was wrong
SHOWN_BYTES = 2_000


def main() -> int:
    """Ask once; return the exit code."""
    port = int(os.environ.get("PLACET_PORT") or "8080")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_WITHIN_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        told = answer.read(SHOWN_BYTES).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as failure:
        print(f"no answer from port {port}: {failure}")
        return 1
    finally:
        connection.close()
    print(told)
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
