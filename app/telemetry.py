"""Every metric, label and log setting (SPEC S11.1, S11.2).

Labels are bounded: a tool's name counts only if the policy has it, and nothing else that a caller sends becomes a label. With several
workers each writes the file of its slot in PROMETHEUS_MULTIPROC_DIR and any of them adds the files up; the parent empties the folder
before it starts the first worker (`clear_folder`), and one slot is never two living processes.
"""

from __future__ import annotations

import glob
import logging
import math
import os
import re
import sys
import traceback
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client import values as prometheus_values
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from app.domain.credentials import without_credentials
from app.domain.redaction import under_name

CONTENT_TYPE = CONTENT_TYPE_LATEST
UNKNOWN = "unknown"
"""The label of a tool that the policy doesn't have."""
UNMATCHED = "unmatched"
OTHER = "other"
SERIES_MAX = 2_000
"""Most label combinations of one metric; past it everything new is counted under `other`."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

DATABASE_GAUGES: Mapping[str, str] = {
    "placet_approvals_waiting": "approvals that wait for a person",
    "placet_holds_open": "holds whose outcome isn't known",
    "placet_chain_rows": "audit rows of all chains",
    "placet_policy_version": "the highest active policy version",
    "placet_database_up": "1 if the database answered this scrape",
}
"""Values that only the database knows, asked for at each scrape, so that they're the same whichever worker answers."""

_LAYER_BUCKETS = (0.00001, 0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PENDING_MAX = 256
_SLOT = re.compile(r"[A-Za-z0-9]{1,32}")


class Metrics:
    """The metrics of one process: make one, before anything is recorded; the kind of storage is process-wide in prometheus_client."""

    def __init__(self, folder: str | None = None, slot: str | None = None) -> None:
        """Keep values in memory, or with `folder` in the files of worker `slot` (letters and digits) there.

        A worker that takes over a slot goes on with its counters; its gauges start at 0.
        """
        self._folder = folder or None
        self._registry = CollectorRegistry()
        _choose_storage(self._folder, slot)
        self._decisions = self._counter("placet_decisions", "decisions", ("tool", "decision", "reason", "layer"))
        self._layers = self._histogram("placet_layer_seconds", "time in one layer of one call", _LAYER_BUCKETS, ("layer",))
        self._requests = self._histogram("placet_request_seconds", "time to answer", _REQUEST_BUCKETS, ("route", "method", "status"))
        self._batches = self._histogram("placet_batch_size", "calls decided in one transaction", _BATCH_BUCKETS, ())
        self._fact_timeouts = self._counter("placet_fact_timeouts", "facts that didn't answer in time", ("tool",))
        self._unavailable = self._counter("placet_unavailable", "calls that no decision could be recorded for", ("cause",))
        self._unauthenticated = self._counter("placet_unauthenticated", "requests without a valid key", ())
        self._refused = self._counter("placet_refused_requests", "requests that were answered with a problem", ("code",))
        self._queue = Gauge("placet_queue_depth", "calls that wait for a batch", registry=self._registry, multiprocess_mode="livesum")
        self._queue.set(0)
        self._children: dict[tuple[Any, ...], Any] = {}
        self._series: dict[object, int] = {}
        self._pending: dict[tuple[str, int], int] = {}
        self._pending_sums: dict[str, float] = {}
        self._pending_count = 0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Metrics:
        """Make the metrics that PROMETHEUS_MULTIPROC_DIR and PLACET_WORKER_SLOT ask for: in files if the folder is set."""
        return cls(environment.get("PROMETHEUS_MULTIPROC_DIR"), environment.get("PLACET_WORKER_SLOT"))

    def decision(self, tool: str, decision: str, reason: str, layer: str) -> None:
        """Count one decision. `tool` is a name of the policy or UNKNOWN; `layer` is the one that refused, else the last that ran."""
        self._child(self._decisions, tool, decision, reason, layer).inc()

    def layer(self, layer: str, seconds: float) -> None:
        """Observe the time that one layer took; kept here until `batch` or `render`, because it is called for each layer of each call."""
        index = bisect_left(_LAYER_BUCKETS, seconds)
        key = (layer, index)
        self._pending[key] = self._pending.get(key, 0) + 1
        self._pending_sums[layer] = self._pending_sums.get(layer, 0.0) + seconds
        self._pending_count += 1
        if self._pending_count >= _PENDING_MAX:
            self._flush()

    def batch(self, size: int) -> None:
        """Observe a finished batch."""
        self._batches.observe(size)
        self._flush()

    def queue_depth(self, depth: int) -> None:
        """Say how many calls of this worker wait."""
        self._queue.set(depth)

    def request(self, route: str | None, method: str, status: int, seconds: float) -> None:
        """Observe an answered request by its route's template; None is UNMATCHED."""
        self._child(self._requests, route or UNMATCHED, method if method in METHODS else OTHER, status).observe(seconds)

    def fact_timeout(self, tool: str) -> None:
        """Count a fact that didn't answer in time."""
        self._child(self._fact_timeouts, tool).inc()

    def unavailable(self, cause: str) -> None:
        """Count a call that no decision could be recorded for; `cause` is one of our own words."""
        self._child(self._unavailable, cause).inc()

    def unauthenticated(self) -> None:
        """Count a request without a valid key."""
        self._unauthenticated.inc()

    def refused_request(self, code: str) -> None:
        """Count a problem answer by its code (`problems.code_of`)."""
        self._child(self._refused, code).inc()

    def render(self, database_gauges: Mapping[str, float]) -> bytes:
        """Give all workers' metrics as Prometheus text, with the values of DATABASE_GAUGES that were read; NaN isn't shown.

        Raises:
            KeyError: a name that DATABASE_GAUGES doesn't have.
        """
        self._flush()
        registry = self._registry
        if self._folder is not None:
            registry = CollectorRegistry()
            registry.register(_Folder(self._folder))
        own = CollectorRegistry()
        own.register(_Given(database_gauges))
        return generate_latest(registry) + generate_latest(own)

    def _counter(self, name: str, text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(name, text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: Iterable[float], labels: tuple[str, ...]) -> Histogram:
        return Histogram(name, text, labels, registry=self._registry, buckets=tuple(buckets))

    def _child(self, metric: Counter | Histogram, *labels: object) -> Any:
        """Give the metric with its labels bound; binding costs more than counting, so it is done once."""
        key = (metric, *labels)
        child = self._children.get(key)
        if child is None:
            known = self._series.get(metric, 0)
            if known >= SERIES_MAX:
                return metric.labels(*(OTHER for _ in labels))
            self._series[metric] = known + 1
            child = self._children[key] = metric.labels(*labels)
        return child

    def _flush(self) -> None:
        """Add what `layer` kept. One addition a bucket instead of one a call: with files an addition costs a microsecond."""
        for (layer, index), count in self._pending.items():
            self._child(self._layers, layer)._buckets[index].inc(count)
        for layer, seconds in self._pending_sums.items():
            self._child(self._layers, layer)._sum.inc(seconds)
        self._pending.clear()
        self._pending_sums.clear()
        self._pending_count = 0


class _Folder:
    """Adds up the files of all workers."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def collect(self) -> Iterable[Metric]:
        # a worker that is killed, or just starting, may leave a file without its first bytes; reading it would fail the scrape
        files = [name for name in sorted(glob.glob(os.path.join(glob.escape(self._folder), "*.db"))) if _is_filled(name)]
        metrics: Iterable[Metric] = MultiProcessCollector.merge(files, accumulate=True)  # type: ignore[no-untyped-call]  # as the library has it
        return metrics


def _is_filled(file: str) -> bool:
    try:
        return os.path.getsize(file) > 0
    except FileNotFoundError:  # the launcher took a dead worker's gauges away meanwhile
        return False


class _Given:
    """Shows values that were read from the database for this scrape."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self._families = [
            GaugeMetricFamily(name, DATABASE_GAUGES[name], value=value) for name, value in sorted(values.items()) if not math.isnan(value)
        ]

    def collect(self) -> Iterable[Metric]:
        return self._families


def clear_folder(folder: str) -> None:
    """Make the folder and remove the files of an earlier service; only the parent may call it, before any worker lives."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    for name in glob.glob(os.path.join(glob.escape(folder), "*.db")):
        os.unlink(name)


def configure_logging(level: str = "INFO") -> None:
    """Write every log line, the libraries' too, as one JSON object to stderr; secrets are taken out first (CWE-532)."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level.lower()),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                _without_values,
                _without_secrets,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        library = logging.getLogger(name)
        library.handlers.clear()
        library.propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # metrics count requests; a line for each would cost more than deciding


_ERRORS_MAX = 8
_QUOTING = (ValueError, LookupError)
"""Errors whose messages quote the value that they fail on; those of the database do too."""


def _without_values(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Write an exception out: where each error of the chain was raised, and what it says where that can't be what a caller sent (AS-04)."""
    given = event.pop("exc_info", None)
    if isinstance(given, tuple):
        given = given[1]
    error = sys.exc_info()[1] if given is True or given == 1 else given
    if isinstance(error, BaseException):
        event["exception"] = _told(error)
    return event


def _told(error: BaseException) -> str:
    chain: list[str] = []
    found: BaseException | None = error
    while found is not None and len(chain) < _ERRORS_MAX:
        name = type(found).__qualname__
        place = "".join(traceback.format_tb(found.__traceback__))
        said = _said(found)
        chain.append(f"Traceback (most recent call last):\n{place}{name}{': ' if said else ''}{said}")
        if isinstance(found, BaseExceptionGroup):
            chain += [_told(each) for each in found.exceptions[:_ERRORS_MAX]]
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return "\n\n".join(reversed(chain))


def _said(error: BaseException) -> str:
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate is not None:
        names = {what: getattr(error, f"{what}_name", None) for what in ("constraint", "table", "column")}
        return f"SQLSTATE {sqlstate}" + "".join(f", {what} {name}" for what, name in names.items() if name)
    if isinstance(error, _QUOTING) or type(error).__module__.partition(".")[0] in ("sqlalchemy", "asyncpg"):
        return ""
    return str(error)


def _without_secrets(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {key: _cleaned(under_name(str(key), value)) for key, value in event.items()}


def _cleaned(value: object) -> object:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {without_credentials(str(key)): _cleaned(under_name(str(key), item)) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_cleaned(item) for item in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return _cleaned(repr(value))


def _choose_storage(folder: str | None, slot: str | None) -> None:
    """Decide where values live. prometheus_client decides it once at import from the environment and by pid, so it is set here again."""
    if folder is None:
        prometheus_values.ValueClass = prometheus_values.MutexValue
        return
    name = slot if slot is not None else f"p{os.getpid()}"
    if _SLOT.fullmatch(name) is None:
        raise ValueError(f"`{name}` is no slot; use letters and digits")  # the collector splits file names at `_`
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder  # MmapedValue reads it for each new value
    os.makedirs(folder, mode=0o700, exist_ok=True)
    prometheus_values.ValueClass = prometheus_values.MultiProcessValue(lambda: name)  # type: ignore[no-untyped-call]  # as the library has it
