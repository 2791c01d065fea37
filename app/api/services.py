"""What the routes are given: the use cases, built once in `main`. A route reaches nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.answer_once import AnswerOnce
from app.engine.authority import Authority
from app.engine.change_authority import AuthorityWriter
from app.engine.check_tool_call import ToolCallChecker
from app.engine.rate_limits import RateLimits
from app.engine.read_back import Reader
from app.engine.readiness import Readiness
from app.engine.record_refusal import RefusalRecorder
from app.telemetry import Metrics


@dataclass(frozen=True, slots=True)
class Services:
    authority: Authority
    checker: ToolCallChecker
    writer: AuthorityWriter
    reader: Reader
    once: AnswerOnce
    recorder: RefusalRecorder
    limits: RateLimits
    readiness: Readiness
    metrics: Metrics
