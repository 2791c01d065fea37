"""The stateless decision point beside the endpoint: found where it is, asked what the endpoint is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measuring import cerbos
from benchmarks.measuring.load import HEAD, Target
from benchmarks.measuring.service import CUSTOMER, BenchmarkFailed


def test_it_is_asked_for_the_same_refunds() -> None:
    target = Target([HEAD.format(path=cerbos.PATH, host="127.0.0.1", port=1, token="none").encode()], CUSTOMER, 10, 0, cerbos.BODY)
    head, _, body = target.request().partition(b"\r\n\r\n")
    assert head.startswith(b"POST /api/check/resources HTTP/1.1\r\n")
    asked = json.loads(body)["resources"][0]
    assert (asked["actions"], asked["resource"]["id"], asked["resource"]["attr"]["amount_minor"]) == (["refund"], "S-00000000", 1)
    assert asked["resource"]["attr"]["customer_id"] == CUSTOMER


def test_a_named_program_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(cerbos.VARIABLE, str(tmp_path / "none"))
    with pytest.raises(BenchmarkFailed, match="names no file"):
        cerbos.find_binary()
    program = tmp_path / "cerbos"
    program.touch()
    monkeypatch.setenv(cerbos.VARIABLE, str(program))
    assert cerbos.find_binary() == program
