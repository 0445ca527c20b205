"""The ASGI application: routes, and every error in one shape. Built by ``main.build``."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from fastapi.telemetry import TelemetryConfig
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from services.gateway import studio
from services.gateway.api import (
    abnormal,
    audit_trail,
    cli_login,
    dead_letters,
    description,
    docs,
    events,
    exec_sessions,
    log_lines,
    login,
    login_page,
    logs,
    nodes,
    notifications,
    people,
    policies,
    queue,
    quotas,
    runs,
    sessions,
    shapes,
    signals,
    tasks,
    tokens,
    usage,
)
from services.gateway.api.deps import PARTS, Context, action_of, answer
from services.gateway.api.failures import STORE_ERRORS, problem_of
from services.gateway.api.guard import Guard, Templates, note_refusal
from services.gateway.permissions import Action
from services.gateway.problems import (
    BY_STATUS,
    INTERNAL,
    MALFORMED,
    ProblemError,
    of_validation,
)

PREFIX = "/v1"
ROUTERS = tuple(
    module.router
    for module in (
        *(tasks, queue, logs, log_lines, events, exec_sessions, nodes, quotas, policies),
        *(people, runs, signals, usage, notifications, tokens, audit_trail),
        *(dead_letters, sessions, login, cli_login, abnormal),
    )
)
DESCRIPTION = (
    "Submit training, watch it, decide about it. Bearer tokens; errors are problem+json with the"
    " field, the value and the fix; lists have limit and cursor; times are RFC 3339 in UTC."
    " Each answer to a GET has an ETag, and x-shiftwork-position: the events from that position on"
    " continue it without a gap."
)
# The frame of a service traces requests. What FastAPI adds by itself, as soon as the environment
# names a collector, exports paths and queries, and lets every caller choose to be exported.
NO_TELEMETRY: TelemetryConfig = {
    "auto_configure": False,
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
}
FIXES = {
    404: "see /docs for the routes that are",
    405: "see /docs for this route's methods",
}


def create_app(parts: Context) -> Guard:
    """The application over these parts."""
    return Guard(application(), parts, templates())


@cache
def application() -> FastAPI:
    """Every route, built once for the process, because building takes half a second. Each request
    brings the parts of its gateway (``deps.context``)."""
    app = FastAPI(
        title="Shiftwork",
        version="1",
        description=DESCRIPTION,
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"4XX": {"model": shapes.Problem}, "5XX": {"model": shapes.Problem}},
        generate_unique_id_function=description.operation_id,
        telemetry=NO_TELEMETRY,
    )
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX)
    generated = app.openapi
    # FastAPI calls this attribute for its route, and keeps what it makes.
    app.openapi = cache(lambda: description.complete(generated()))
    app.add_api_route(
        "/docs", lambda: HTMLResponse(docs.page(app.openapi())), include_in_schema=False
    )
    for kind, handler in HANDLERS.items():
        app.add_exception_handler(kind, handler)
    return app


@cache
def templates() -> Templates:
    """The paths of these routes."""
    routes = [route for router in ROUTERS for route in router.routes]
    public = [
        f"{PREFIX}{route.path}"
        for route in routes
        if isinstance(route, APIRoute) and action_of(route.endpoint)[0] is Action.LOG_IN
    ]
    paths = [f"{PREFIX}{route.path}" for route in routes if isinstance(route, Route)]
    return Templates(paths, public)


def _problem(request: Request, problem: ProblemError) -> Response:
    if login_page.wants_page(request):
        return login_page.page_of(problem)
    response = answer(problem.document(), problem.kind.status, problem.headers)
    response.headers["content-type"] = description.PROBLEM_JSON
    return response


async def _on_problem(request: Request, error: Any) -> Response:  # noqa: ANN401 - as Starlette calls it
    note_refusal(request.scope[PARTS], request.scope, error)
    return _problem(request, error)


async def _on_validation(request: Request, error: Any) -> Response:  # noqa: ANN401 - as Starlette calls it
    body = getattr(request.scope.get("route"), "body_field", None)
    kind = body.field_info.annotation if body is not None else None
    return _problem(request, of_validation(error.errors(), kind))


async def _on_http(request: Request, error: Any) -> Response:  # noqa: ANN401 - as Starlette calls it
    """What the framework refuses by itself: no such route, no such method, no JSON. Where the API
    has no route, the studio may have a file or a view."""
    if error.status_code == 404 and (found := studio.answer(request)) is not None:  # noqa: PLR2004
        return found
    kind = BY_STATUS.get(error.status_code, MALFORMED if error.status_code < 500 else INTERNAL)  # noqa: PLR2004 - HTTP
    fix = FIXES.get(error.status_code, "correct the request")
    detail = f"{request.method} {request.url.path[:200]}: {error.detail}; {fix}"
    return _problem(request, ProblemError(kind, detail, headers=error.headers))


async def _on_failure(request: Request, error: Any) -> Response:  # noqa: ANN401 - as Starlette calls it
    return _problem(request, problem_of(error, request.url.path))


HANDLERS: dict[Any, Any] = {
    ProblemError: _on_problem,
    RequestValidationError: _on_validation,
    HTTPException: _on_http,
    **dict.fromkeys((*STORE_ERRORS, Exception), _on_failure),
}
