"""What `/metrics` shows with one worker and with several, and what a log line may hold (SPEC S11.1, S11.2)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.telemetry import OTHER, SERIES_MAX, UNKNOWN, Metrics, clear_folder

ROOT = Path(__file__).parents[1]


def run(code: str, **environment: str) -> str:
    """Run a program in a process of its own, because where values live is decided once a process."""
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def lines_of(text: str, *starts: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith(starts))


def test_s11_1_every_metric_with_its_labels() -> None:
    metrics = Metrics()
    metrics.decision("refund", "denied", "amount_exceeds_refundable", "semantic")
    metrics.decision("refund", "denied", "amount_exceeds_refundable", "semantic")
    metrics.decision(UNKNOWN, "denied", "tool_unknown", "static")
    metrics.layer("static", 0.00002)
    metrics.layer("static", 0.0001)
    metrics.layer("static", 9)
    metrics.request("/decisions/{decision_id}", "GET", 200, 0.02)
    metrics.batch(3)
    metrics.queue_depth(5)
    metrics.fact_timeout("refund")
    metrics.unavailable("database")
    metrics.unauthenticated()
    metrics.refused_request("body_malformed")
    text = metrics.render({"placet_approvals_waiting": 2, "placet_chain_rows": float("nan")}).decode()
    shown = [line for line in text.splitlines() if line[0] != "#" and "_created" not in line and "_bucket" not in line]
    assert shown == [
        'placet_decisions_total{decision="denied",layer="semantic",reason="amount_exceeds_refundable",tool="refund"} 2.0',
        'placet_decisions_total{decision="denied",layer="static",reason="tool_unknown",tool="unknown"} 1.0',
        'placet_layer_seconds_count{layer="static"} 3.0',
        'placet_layer_seconds_sum{layer="static"} 9.00012',
        'placet_request_seconds_count{method="GET",route="/decisions/{decision_id}",status="200"} 1.0',
        'placet_request_seconds_sum{method="GET",route="/decisions/{decision_id}",status="200"} 0.02',
        "placet_batch_size_count 1.0",
        "placet_batch_size_sum 3.0",
        'placet_fact_timeouts_total{tool="refund"} 1.0',
        'placet_unavailable_total{cause="database"} 1.0',
        "placet_unauthenticated_total 1.0",
        'placet_refused_requests_total{code="body_malformed"} 1.0',
        "placet_queue_depth 5.0",
        "placet_approvals_waiting 2.0",
    ]
    assert lines_of(text, "placet_layer_seconds_bucket")[:4] == [
        'placet_layer_seconds_bucket{layer="static",le="+Inf"} 3.0',
        'placet_layer_seconds_bucket{layer="static",le="0.0001"} 2.0',
        'placet_layer_seconds_bucket{layer="static",le="0.0003"} 2.0',
        'placet_layer_seconds_bucket{layer="static",le="0.001"} 2.0',
    ]
    assert 'placet_layer_seconds_bucket{layer="static",le="1e-05"} 0.0' in text
    assert 'placet_layer_seconds_bucket{layer="static",le="3e-05"} 1.0' in text


def test_pm_01_scanners_make_one_series() -> None:
    metrics = Metrics()
    for number in range(500):
        metrics.request(None, f"FOO{number}", 404, 0.001)
    text = metrics.render({}).decode()
    assert lines_of(text, "placet_request_seconds_count") == [
        'placet_request_seconds_count{method="other",route="unmatched",status="404"} 500.0'
    ]


def test_pm_01_even_a_mistake_of_ours_is_bounded() -> None:
    metrics = Metrics()
    for number in range(SERIES_MAX + 500):
        metrics.fact_timeout(f"tool{number}")
    lines = lines_of(metrics.render({}).decode(), "placet_fact_timeouts_total{")
    assert len(lines) == SERIES_MAX + 1
    assert f'placet_fact_timeouts_total{{tool="{OTHER}"}} 500.0' in lines


def test_a_database_gauge_without_a_name_of_ours_is_a_mistake() -> None:
    with pytest.raises(KeyError):
        Metrics().render({"placet_approvals_for_acme": 1})


WORKER = """
import os, sys
from app.telemetry import Metrics
metrics = Metrics(os.environ["FOLDER"], os.environ["PLACET_WORKER_SLOT"])
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
    metrics.decision("refund", "accepted", "within_policy", "risk")
    metrics.layer("static", 0.002)
metrics.batch(10)
metrics.queue_depth(7)
os.kill(os.getpid(), 9) if os.environ.get("KILLED") else None
"""
SCRAPE = """
import os
from app.telemetry import Metrics
os.environ["PROMETHEUS_MULTIPROC_DIR"] = os.environ["FOLDER"]  # after the import, which must not matter
print(Metrics.from_environment(os.environ).render({"placet_approvals_waiting": 4}).decode())
"""
TOTAL = 'placet_decisions_total{decision="accepted",layer="risk",reason="within_policy",tool="refund"}'


def test_pm_03_any_worker_shows_the_total_of_all(tmp_path: Path) -> None:
    for slot in "0123":
        run(WORKER, FOLDER=str(tmp_path), PLACET_WORKER_SLOT=slot)
    for slot in "01":
        text = run(SCRAPE, FOLDER=str(tmp_path), PLACET_WORKER_SLOT=slot)
        assert f"{TOTAL} 40.0" in text
        assert 'placet_layer_seconds_count{layer="static"} 40.0' in text
        assert "placet_batch_size_count 4.0" in text
        assert "placet_approvals_waiting 4.0" in text


def test_pm_04_a_restarted_worker_goes_on_and_files_stay_few(tmp_path: Path) -> None:
    for _ in range(10):
        finished = subprocess.run(
            [sys.executable, "-c", WORKER],
            env=os.environ | {"PYTHONPATH": str(ROOT), "FOLDER": str(tmp_path), "PLACET_WORKER_SLOT": "0", "KILLED": "1"},
            timeout=60,
            check=False,
        )
        assert finished.returncode == -9
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counter_0.db", "gauge_livesum_0.db", "histogram_0.db"]
    text = run(SCRAPE, FOLDER=str(tmp_path), PLACET_WORKER_SLOT="1")
    assert f"{TOTAL} 100.0" in text
    assert "placet_queue_depth 7.0" in text
    text = run(SCRAPE, FOLDER=str(tmp_path), PLACET_WORKER_SLOT="0")
    assert "placet_queue_depth 0.0" in text, "a gauge of a dead worker doesn't live on in its successor"
    assert text.count("\nplacet_queue_depth ") == 1


def test_pm_04_a_new_service_starts_from_nothing(tmp_path: Path) -> None:
    run(WORKER, FOLDER=str(tmp_path), PLACET_WORKER_SLOT="0")
    (tmp_path / "keep.txt").write_text("not ours")
    clear_folder(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["keep.txt"]
    assert TOTAL not in run(SCRAPE, FOLDER=str(tmp_path), PLACET_WORKER_SLOT="0")
    clear_folder(str(tmp_path / "made" / "new"))
    assert (tmp_path / "made" / "new").is_dir()


def test_a_file_that_a_killed_worker_just_opened_does_not_fail_the_scrape(tmp_path: Path) -> None:
    run(WORKER, FOLDER=str(tmp_path), PLACET_WORKER_SLOT="0")
    (tmp_path / "counter_9.db").touch()
    assert f"{TOTAL} 10.0" in run(SCRAPE, FOLDER=str(tmp_path), PLACET_WORKER_SLOT="1")


def test_a_file_that_is_taken_away_during_a_scrape_does_not_fail_it(tmp_path: Path) -> None:
    """The launcher removes a dead worker's gauges whenever it notices the death."""
    (tmp_path / "gauge_livesum_0.db").symlink_to(tmp_path / "gone")  # listed, and not there when it is looked at
    told = run(
        "from app.telemetry import Metrics; print(Metrics.from_environment(__import__('os').environ).render({}).decode())",
        PROMETHEUS_MULTIPROC_DIR=str(tmp_path),
        PLACET_WORKER_SLOT="1",
    )
    assert "placet_queue_depth 0.0" in told


def test_a_slot_is_a_plain_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`a_b` is no slot"):
        Metrics(str(tmp_path), "a_b")


LOG = """
import logging, sys
from app.telemetry import configure_logging
configure_logging(sys.argv[1] if len(sys.argv) > 1 else "INFO")
import structlog
log = structlog.get_logger("app.engine")
log.debug("hidden")
log.info("decided", decision_id="d-1", headers={"Authorization": "Bearer sk-secret", "host": "x"}, api_key="sk-secret", sizes=(1, 2))
logging.getLogger("uvicorn.error").warning("GET with Bearer sk-secret at postgresql://placet:sk-secret@db/placet")
try:
    raise RuntimeError("postgresql://placet:sk-secret@db/placet")
except RuntimeError:
    log.exception("failed", raw=b"bearer sk-secret")
"""


def test_s11_2_log_lines_are_json_without_secrets() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", LOG], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True
    )
    assert finished.stdout == ""
    assert "sk-secret" not in finished.stderr
    first, second, third = (json.loads(line) for line in finished.stderr.splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "decided",
        "decision_id": "d-1",
        "headers": {"Authorization": "[redacted]", "host": "x"},
        "api_key": "[redacted]",
        "sizes": [1, 2],
        "level": "info",
    }
    assert second["event"] == "GET with Bearer [redacted] at postgresql://[redacted]@db/placet"
    assert second["level"] == "warning"
    assert third["exception"].endswith("RuntimeError: postgresql://[redacted]@db/placet")
    assert third["raw"] == "bearer [redacted]"


FAILURES = """
import sys
import asyncpg
import structlog
from app.telemetry import configure_logging
configure_logging("INFO")
log = structlog.get_logger("app.engine")

def told(name, failing):
    try:
        failing()
    except Exception as error:
        log.error(name, exc_info=error)

def of_the_database():
    error = asyncpg.UniqueViolationError('duplicate key value "hunter2"')
    error.detail, error.table_name, error.constraint_name = "Key (name)=(hunter2) already exists.", "people", "people_name"
    raise error

def in_a_chain():
    try:
        int("hunter2")
    except ValueError as error:
        raise RuntimeError("the amount can't be read") from error

told("quoting", lambda: int("hunter2"))
told("key", lambda: {}["hunter2"])
told("database", of_the_database)
told("chain", in_a_chain)
"""


def test_s11_2_an_error_says_where_it_was_raised_and_not_the_value_that_it_quotes() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", FAILURES], env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True
    )
    told = {line["event"]: line["exception"] for line in map(json.loads, finished.stderr.splitlines())}
    assert "hunter2" not in finished.stderr
    assert told["quoting"].endswith("ValueError")
    assert told["key"].endswith("KeyError")
    assert told["database"].endswith("UniqueViolationError: SQLSTATE 23505, constraint people_name, table people")
    assert told["chain"].endswith("RuntimeError: the amount can't be read")
    assert "in in_a_chain\nValueError\n\nTraceback" in told["chain"]
