"""Failed logins as pages for people: browsers come to these routes by following links.

``app`` uses it for its errors. Programs, which do not ask for HTML, get problem+json.
"""

from __future__ import annotations

import html

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from services.gateway.problems import ProblemError

PATHS = frozenset({"/v1/login/oidc", "/v1/login/oidc/callback", "/v1/login/cli"})
BEGIN = "/v1/login/oidc"
CSP = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Shiftwork: not logged in</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 10vh auto; max-width: 34rem }}</style>
<h1>You are not logged in</h1>
<p>{detail}</p>
<p><a href="{begin}">Log in again</a></p>
</html>
"""


def wants_page(request: Request) -> bool:
    """True for a browser that goes to an address of the login."""
    return (
        request.method == "GET"
        and request.url.path in PATHS
        and "text/html" in request.headers.get("accept", "")
    )


def page_of(problem: ProblemError) -> Response:
    """The reason, and the way back."""
    page = PAGE.format(detail=html.escape(problem.detail), begin=BEGIN)
    headers = {**problem.headers, "cache-control": "no-store", "content-security-policy": CSP}
    return HTMLResponse(page, problem.kind.status, headers)
