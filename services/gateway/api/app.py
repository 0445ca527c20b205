"""The ASGI application: routes, and every error in one shape. Built by ``main.build``."""

from __future__ import annotations

import traceback
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response

from libs.store.port import ConflictError, StoreUnavailableError, UnfitValueError
from services.gateway.api import (
    dead_letters,
    docs,
    events,
    logs,
    nodes,
    people,
    policies,
    quotas,
    runs,
    shapes,
    tasks,
)
from services.gateway.api.deps import Context, answer
from services.gateway.api.guard import Guard, note_refusal
from services.gateway.problems import (
    BY_STATUS,
    CONFLICT,
    INTERNAL,
    INVALID,
    MALFORMED,
    UNAVAILABLE,
    ProblemError,
    of_validation,
)

PROBLEM_JSON = "application/problem+json"
DESCRIPTION = (
    "Submit training, watch it, decide about it. Bearer tokens; errors are problem+json with the"
    " field, the value and the fix; lists have limit and cursor; times are RFC 3339 in UTC."
)
FIXES = {
    404: "see /docs for the routes that are",
    405: "see /docs for this route's methods",
}
_log = structlog.stdlib.get_logger(__name__)


def create_app(parts: Context) -> Guard:
    """The application over these parts."""
    app = FastAPI(
        title="Shiftwork",
        version="1",
        description=DESCRIPTION,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"4XX": {"model": shapes.Problem}, "5XX": {"model": shapes.Problem}},
    )
    app.state.gateway = parts
    for module in (tasks, logs, events, nodes, quotas, policies, people, runs, dead_letters):
        app.include_router(module.router, prefix="/v1")
    app.add_api_route(
        "/docs", lambda: HTMLResponse(docs.page(app.openapi())), include_in_schema=False
    )
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return Guard(app, parts)


def _problem(problem: ProblemError) -> Response:
    response = answer(problem.document(), problem.kind.status, problem.headers)
    response.headers["content-type"] = PROBLEM_JSON
    return response


async def _on_problem(request: Request, error: Any) -> Response:  # noqa: ANN401 - as Starlette calls it
    note_refusal(request.app.state.gateway, request.scope, error)
    return _problem(error)


async def _on_validation(request: Request, error: Any) -> Response:  # noqa: ANN401 - as Starlette calls it
    del request
    return _problem(of_validation(error.errors()))


async def _on_http(request: Request, error: Any) -> Response:  # noqa: ANN401 - as Starlette calls it
    """What the framework refuses by itself: no such route, no such method, no JSON."""
    kind = BY_STATUS.get(error.status_code, MALFORMED if error.status_code < 500 else INTERNAL)  # noqa: PLR2004 - HTTP
    fix = FIXES.get(error.status_code, "correct the request")
    detail = f"{request.method} {request.url.path[:200]}: {error.detail}; {fix}"
    return _problem(ProblemError(kind, detail, headers=error.headers))


async def _on_store_unavailable(request: Request, error: Any) -> Response:  # noqa: ANN401 - as Starlette calls it
    _log.warning("database not reached", path=request.url.path, problem=str(error))
    detail = "the gateway's database does not answer now; try again"
    return _problem(ProblemError(UNAVAILABLE, detail, headers={"retry-after": "1"}))


async def _on_conflict(request: Request, error: Any) -> Response:  # noqa: ANN401 - as Starlette calls it
    _log.info("two changes met", path=request.url.path, problem=str(error))
    return _problem(ProblemError(CONFLICT, "somebody else changed the same thing; look again"))


async def _on_unfit(request: Request, error: Any) -> Response:  # noqa: ANN401 - as Starlette calls it
    _log.warning("a value cannot be stored", path=request.url.path, problem=str(error))
    return _problem(ProblemError(INVALID, "a value in the request cannot be stored; change it"))


async def _on_failure(request: Request, error: Any) -> Response:  # noqa: ANN401 - as Starlette calls it
    # As text: the values of variables, which may be secrets, stay out of the log.
    told = "".join(traceback.format_exception(error))
    _log.error("a route failed", path=request.url.path, traceback=told)
    return _problem(ProblemError(INTERNAL, "this is a defect of the gateway; its log has more"))


HANDLERS: dict[Any, Any] = {
    ProblemError: _on_problem,
    RequestValidationError: _on_validation,
    HTTPException: _on_http,
    StoreUnavailableError: _on_store_unavailable,
    ConflictError: _on_conflict,
    UnfitValueError: _on_unfit,
    Exception: _on_failure,
}
