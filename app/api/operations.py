"""`/healthz`, `/readyz`, `/metrics`: for whoever runs the service; no key, no tenant's data."""

from __future__ import annotations

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from app.api.services import Services
from app.telemetry import CONTENT_TYPE


def routes(services: Services) -> APIRouter:
    router = APIRouter(tags=["operations"])

    @router.get("/healthz", summary="Whether the process answers")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/readyz", summary="Whether the service can decide", responses={503: {"description": "it can't; the checks say why"}})
    async def readyz() -> JSONResponse:
        report = await services.readiness.report()
        document = {"status": "ready" if report.ready else "not_ready", "checks": dict(report.checks)}
        return JSONResponse(document, 200 if report.ready else 503, headers={} if report.ready else {"Retry-After": "2"})

    @router.get("/metrics", summary="Prometheus metrics of all workers", response_class=Response)
    async def metrics() -> Response:
        return Response(services.metrics.render(await services.readiness.gauges()), media_type=CONTENT_TYPE)

    return router
