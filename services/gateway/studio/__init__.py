"""The studio's files, as browsers load them. Their source is ``studio/``; ``make studio`` builds
them into ``files``, so that a platform serves them without Node."""

from __future__ import annotations

import gzip
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

FILES = Path(__file__).with_name("files")
PAGE = "/index.html"
# Names below it contain a hash of the content.
ASSETS = "/assets/"
# What belongs to programs: nobody finds the studio there.
OTHERS = ("/v1", "/docs")
# No exceptions: nothing inlined, nothing from another host, and no other page around it.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " font-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)
GZIP_BYTES_MIN = 512
FOR_EVER = "public, max-age=31536000, immutable"
CHECKED = "no-cache"


@dataclass(frozen=True, slots=True)
class File:
    """A built file; ``packed`` is empty if compression gains nothing."""

    body: bytes
    packed: bytes
    headers: Mapping[str, str]


@cache
def files() -> Mapping[str, File]:
    """By path. Read once: they are less than a megabyte."""
    return {
        f"/{path.relative_to(FILES).as_posix()}": _file(path)
        for path in sorted(FILES.rglob("*"))
        if path.is_file()
    }


def _file(path: Path) -> File:
    body = path.read_bytes()
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    text = kind.startswith("text/") or kind in {"application/javascript", "image/svg+xml"}
    packed = gzip.compress(body, mtime=0) if text and len(body) >= GZIP_BYTES_MIN else b""
    in_assets = path.relative_to(FILES).parts[0] == ASSETS.strip("/")
    headers = {
        "content-type": f"{kind}; charset=utf-8" if text else kind,
        "cache-control": FOR_EVER if in_assets else CHECKED,
        "content-security-policy": POLICY,
        "cross-origin-opener-policy": "same-origin",
        "vary": "Accept-Encoding",
    }
    return File(body, packed, headers)


def wants_page(path: str, headers: Headers) -> bool:
    """True for a browser that opens a view of the studio: which one, the page itself knows."""
    is_others = any(path == each or path.startswith(f"{each}/") for each in OTHERS)
    return not is_others and "text/html" in headers.get("accept", "")


def answer(request: Request) -> Response | None:
    """A built file, or the page for the address of a view; None if the studio has no such thing."""
    if request.method not in {"GET", "HEAD"}:
        return None
    found = files().get(request.url.path)
    if found is None and wants_page(request.url.path, request.headers):
        found = files().get(PAGE)
    if found is None:
        return None
    if found.packed and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.packed, headers={**found.headers, "content-encoding": "gzip"})
    return Response(found.body, headers=dict(found.headers))
