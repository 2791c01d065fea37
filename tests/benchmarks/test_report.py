"""The benchmark's arithmetic: what its lines say must be what was measured."""

from __future__ import annotations

import pytest

from benchmarks.measuring.report import CERBOS, Cell, Cpu, Figures, bar_lines, bars, figures, percentile, table


def one(decisions_s: float = 1000.0, p50_ms: float = 1.0, others: float = 0.0) -> Figures:
    return Figures(100, 0, decisions_s, p50_ms, 2 * p50_ms, 300.0, 200.0, 50.0, others)


def test_percentiles_are_nearest_ranks() -> None:
    assert [percentile([10.0, 20.0, 30.0, 40.0], share) for share in (0.01, 0.25, 0.5, 0.51, 0.99, 1.0)] == [10, 10, 20, 30, 40, 40]
    assert percentile([7.0], 0.5) == 7


def test_only_calls_that_ended_inside_the_window_count() -> None:
    found = figures([99, 100, 150, 199, 200], [9e6, 1000.0, 3000.0, 2000.0, 9e6], (100, 200), 1, Cpu(3e-6, 6e-6, 9e-6, 1.0))
    assert found is not None
    assert (found.decisions, found.refused, found.p50_ms, found.p99_ms) == (3, 1, 2.0, 3.0)
    assert found.decisions_s == pytest.approx(3 / 100e-9)
    assert (found.service_us, found.postgres_us, found.load_us) == pytest.approx((1.0, 2.0, 3.0))
    assert found.others_cores == pytest.approx((1.0 - 18e-6) / 100e-9)


def test_an_empty_window_has_no_figures() -> None:
    assert figures([99], [1.0], (100, 200), 0, Cpu(0, 0, 0, 0)) is None


def test_bars_are_medians_of_ratios_of_the_same_round() -> None:
    rounds = {
        Cell("endpoint", 1): [one(p50_ms=3.0), one(p50_ms=1.0), one(p50_ms=4.0)],
        Cell("pgbench", 1): [one(p50_ms=1.0), one(p50_ms=1.0), one(p50_ms=2.0)],
        Cell("endpoint", 64): [one(900.0), one(2000.0), one(1100.0)],
        Cell("pgbench", 64): [one(1000.0), one(1000.0), one(1000.0)],
        Cell("hot tenant", 64): [one(810.0), one(1800.0), one(800.0)],
    }
    found = {bar.name: bar for bar in bars(rounds, [150.0, 201.0])}
    assert [(round(bar.found, 3), bar.met) for bar in found.values()] == [(1.1, True), (2.0, True), (0.9, True), (201.0, False)]
    assert found["64 connections: decisions/s of pgbench's"].rounds == pytest.approx((0.9, 2.0, 1.1))


def test_what_was_not_measured_has_no_bar() -> None:
    assert bars({Cell("endpoint", 64): [one()]}, []) == []


def test_a_missed_bar_says_so() -> None:
    lines = bar_lines(bars({Cell("endpoint", 64): [one(500.0)], Cell("pgbench", 64): [one(1000.0)]}, [120.0])).splitlines()
    assert [line.split()[0] for line in lines] == ["MISSED", "met"]
    assert "0.50   at least 1" in lines[0]


def test_a_busy_machine_is_told() -> None:
    quiet = table({Cell("endpoint", 1): [one()]})
    busy = table({Cell("endpoint", 1): [one(others=1.25)]})
    assert "other programs" not in quiet
    assert busy.splitlines()[-1].startswith("other programs used 1.25 cores meanwhile")


def test_cerbos_is_compared_and_asks_for_nothing() -> None:
    found = bars({Cell("endpoint", 64): [one(1000.0, p50_ms=2.0)], Cell(CERBOS, 64): [one(4000.0, p50_ms=1.0)]}, [])
    assert [(bar.name, bar.found, bar.asked, bar.met) for bar in found] == [
        ("64 connections: decisions/s of Cerbos's", 0.25, None, True),
        ("64 connections: p99 of Cerbos's", 2.0, None, True),
        ("64 connections: CPU a decision of Cerbos's", 1.0, None, True),
    ]
    assert "to compare" in bar_lines(found)
