"""A stateless policy decision point beside the endpoint: Cerbos, where the npm package `@cerbos/cerbos-linux-x64` is installed.

It answers from what it is sent: no facts, no holds, no dry run, and its audit log is written in the background. So it is no rival to be
beaten but a scale: what a decision costs that remembers nothing. Its audit log is on, as the endpoint's is.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.measuring.service import CUSTOMER, PAID_MINOR, PROJECT, BenchmarkFailed

BINARY = Path("@cerbos/cerbos-linux-x64/cerbos-linux-x64")
VARIABLE = "CERBOS_BINARY"
START_WITHIN_S = 20.0
STOP_WITHIN_S = 10.0
PATH = "/api/check/resources"
ACCEPTED = "EFFECT_ALLOW"
BODY = (
    '{"requestId":"call-%(number)d","principal":{"id":"agent-%(agent)d","roles":["agent"],"attr":{"customer_id":"%(customer)s"}},'
    '"resources":[{"actions":["refund"],"resource":{"kind":"order","id":"S-%(order)08d","attr":{"currency":"EUR","amount_minor":%(minor)d,'
    '"cause":"damaged","status":"delivered","paid_currency":"EUR","paid_minor":' + str(PAID_MINOR) + ',"refunded_minor":0,'
    '"customer_id":"' + CUSTOMER + '"}}}]}'
)  # fmt: skip
_CONFIGURATION = """\
server: {{httpListenAddr: "127.0.0.1:{http}", grpcListenAddr: "127.0.0.1:{grpc}"}}
storage: {{driver: disk, disk: {{directory: "{folder}/policies", watchForChanges: false}}}}
telemetry: {{disabled: true}}
audit: {{enabled: true, accessLogsEnabled: true, decisionLogsEnabled: true, backend: local, local: {{storagePath: "{folder}/audit"}}}}
"""
_POLICY = """\
apiVersion: api.cerbos.dev/v1
resourcePolicy:
  version: default
  resource: order
  rules:
    - actions: [refund]
      effect: EFFECT_ALLOW
      roles: [agent]
      condition:
        match:
          all:
            of:
              - expr: R.attr.customer_id == P.attr.customer_id
              - expr: R.attr.currency == R.attr.paid_currency
              - expr: R.attr.status in ["paid", "shipped", "delivered"]
              - expr: R.attr.amount_minor <= R.attr.paid_minor - R.attr.refunded_minor
              - expr: R.attr.amount_minor <= 1500000
"""


def find_binary() -> Path | None:
    """Give the program: the one that CERBOS_BINARY names, or that of a node_modules folder in the project, above it, or of npm itself.

    Raises:
        BenchmarkFailed: CERBOS_BINARY names no file.
    """
    named = os.environ.get(VARIABLE)
    if named is not None:
        if not Path(named).is_file():
            raise BenchmarkFailed(f"`{VARIABLE}` names no file; set it to the program, or leave it out")
        return Path(named)
    places = [folder / "node_modules" for folder in (PROJECT, *PROJECT.parents)]
    npm = shutil.which("npm")
    if npm is not None:
        places.append(Path(npm).parent.parent / "lib" / "node_modules")
    return next((found for place in places if (found := place / BINARY).is_file()), None)


class Cerbos:
    """The program in a process of its own, with its policy and audit log in a folder of the run."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self._binary = binary
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.host, self.port = "127.0.0.1", 0

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            BenchmarkFailed: it didn't.
        """
        policies = self._folder / "policies"
        policies.mkdir(parents=True)
        (policies / "order.yaml").write_text(_POLICY, encoding="utf-8")
        self.port, grpc = _free_ports()
        configuration = self._folder / "cerbos.yaml"
        configuration.write_text(_CONFIGURATION.format(http=self.port, grpc=grpc, folder=self._folder), encoding="utf-8")
        log = self._folder / "cerbos.log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(self._binary), "server", f"--config={configuration}"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_WITHIN_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchmarkFailed(f"cerbos did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_WITHIN_S)
        self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.host}:{self.port}/_cerbos/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.URLError):
            return False


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]
