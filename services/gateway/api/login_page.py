"""Pages of the login for people: browsers come to these routes by following links.

``app`` shows failed logins with it, ``cli_login`` its codes. Programs, which do not ask for HTML,
get problem+json.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from services.gateway.oidc import BEGIN, CALLBACK
from services.gateway.problems import ProblemError

CODE = "/v1/login/cli"
PATHS = frozenset({BEGIN, CALLBACK, CODE})
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    ),
}
FRAME = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Shiftwork: {title}</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 10vh auto; max-width: 34rem }}
code {{ font-size: 2rem; letter-spacing: .1em }}</style>
{body}
</html>
"""
NOT_LOGGED_IN = """<h1>You are not logged in</h1>
<p>{detail}</p>
<p><a href="{begin}">Log in again</a></p>"""


def wants_page(request: Request) -> bool:
    """True for a browser that goes to an address of the login."""
    return (
        request.method == "GET"
        and request.url.path in PATHS
        and "text/html" in request.headers.get("accept", "")
    )


def page(
    title: str,
    body: str,
    status: int = HTTPStatus.OK,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A page that loads nothing. ``body`` is HTML, with what others wrote escaped."""
    text = FRAME.format(title=title, body=body)
    return HTMLResponse(text, status, {**(headers or {}), **HEADERS})


def page_of(problem: ProblemError) -> Response:
    """The reason, and the way back."""
    body = NOT_LOGGED_IN.format(detail=html.escape(problem.detail), begin=BEGIN)
    return page("not logged in", body, problem.kind.status, problem.headers)
