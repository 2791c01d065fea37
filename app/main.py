"""Composition root: settings -> engine -> application. Only the worker and tests import it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog
from fastapi import FastAPI
from starlette.routing import Route

from app.api import approvals, audit, decisions, freezes, keys, openapi, operations, policies, problems
from app.api.requests import RecordedRequests
from app.api.services import Services
from app.api.tool_calls import ROUTE, CheckRoute
from app.domain.errors import DecisionUnavailable
from app.engine.answer_once import AnswerOnce
from app.engine.authority import PLATFORM_TENANT, Authority
from app.engine.change_authority import AuthorityWriter
from app.engine.check_tool_call import ToolCallChecker
from app.engine.checkpoints import Checkpoints, load_signing_key
from app.engine.clock import Clock
from app.engine.rate_limits import Defaults, RateLimits
from app.engine.read_back import Reader
from app.engine.readiness import Readiness
from app.engine.record_refusal import RefusalRecorder
from app.settings import Settings
from app.storage.database import Database
from app.storage.readiness import ensure_partitions
from app.storage.schema import head_revision
from app.telemetry import Metrics, configure_logging

PARTITIONS_EVERY_S = 6 * 3600
CHECKPOINTS_EVERY_S = 60
FORGET_EVERY_S = 600

_log = structlog.get_logger(__name__)


def create_app(settings: Settings) -> FastAPI:
    """Build the application; what it opens is opened and closed in its lifespan."""
    configure_logging(settings.log_level)
    url = settings.database.url
    assert url is not None, "the launcher gives every worker a database"
    clock = Clock()
    database = Database(url)
    metrics = Metrics.from_environment(os.environ)
    authority = Authority(database, clock)
    assert settings.folders.data is not None, "the launcher gives every worker the data folder"
    checkpoints = Checkpoints(database, clock, load_signing_key(settings.folders.data))
    services = Services(
        authority=authority,
        checker=ToolCallChecker(authority, clock, url, metrics),
        writer=AuthorityWriter(database, clock),
        reader=Reader(database, checkpoints, clock),
        once=AnswerOnce(database, clock),
        recorder=RefusalRecorder(database, clock),
        limits=RateLimits(database, clock, _defaults(settings)),
        readiness=Readiness(database, head_revision(), single_role=settings.database.single_role),
        metrics=metrics,
    )
    return build_app(services, database, checkpoints)


def build_app(services: Services, database: Database, checkpoints: Checkpoints) -> FastAPI:
    """Put the routes together over given services."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        with suppress(DecisionUnavailable):  # the database may come later; then the first request pays for what is learned here
            await services.authority.refresh([PLATFORM_TENANT])
        services.checker.lanes.start()
        keepers = (
            asyncio.create_task(_repeat(PARTITIONS_EVERY_S, lambda: _make_partitions(database), "partitions_not_made")),
            asyncio.create_task(_repeat(CHECKPOINTS_EVERY_S, lambda: _sign(services.authority, checkpoints), "checkpoint_not_signed")),
            asyncio.create_task(_repeat(FORGET_EVERY_S, services.limits.forget_old, "windows_not_forgotten")),
        )
        yield
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        await services.checker.lanes.close()
        await database.close()

    application = FastAPI(
        title="Placet",
        version="0.1.0",
        summary="Policy decisions for agents' tool calls",
        lifespan=lifespan,
        docs_url=None,  # these pages load scripts from elsewhere; /openapi.json is what there is
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the Host header that was sent
    )
    application.state.is_stopping = lambda: False  # the worker knows better; whoever waits is answered when it stops
    application.router.routes.append(Route(ROUTE, CheckRoute(services), methods=["POST"], include_in_schema=False))
    for module in (decisions, approvals, freezes, keys, policies, audit, operations):
        application.include_router(module.routes(services))
    problems.install(application)
    openapi.serve_contract(application)
    application.add_middleware(RecordedRequests, services=services)
    return application


def contract() -> dict[str, Any]:
    """Give the OpenAPI document; describing the routes needs nothing that they are served with."""
    nothing: Any = None
    return build_app(nothing, nothing, nothing).openapi()


def _defaults(settings: Settings) -> Defaults:
    limits, worker = settings.limits, settings.worker_slot or 0
    return Defaults(limits.requests_per_minute, limits.concurrent, worker, max(settings.listening.workers, worker + 1))


async def _make_partitions(database: Database) -> None:
    async with database.transaction([PLATFORM_TENANT]) as connection:
        await ensure_partitions(connection)


async def _sign(authority: Authority, checkpoints: Checkpoints) -> None:
    for tenant in authority.known_tenants():
        await checkpoints.sign(tenant.tenant_id, tenant.name)


async def _repeat(every_s: float, work: Callable[[], Awaitable[None]], failed: str) -> None:
    """Do `work` now and then; a failure is only a late try: readiness and the verification say so."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await work()
        except Exception as error:  # isolation: the task has to live as long as the worker
            _log.warning(failed, error=type(error).__name__)
