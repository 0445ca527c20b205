"""The studio's built files: what browsers get, what programs get, and that they ship."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from services.gateway import studio
from tests.services.gateway.gateway_harness import GatewayHarness

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("path", ["/", "/tasks", "/tasks/t1/output", "/nodes", "/no-such-view"])
async def test_a_browser_gets_the_page_for_every_view(harness: GatewayHarness, path: str) -> None:
    async with harness.client(None) as client:
        page = await client.get(path, headers=BROWSER)
        head = await client.head(path, headers=BROWSER)
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    assert page.headers["content-security-policy"] == studio.POLICY
    assert "<script" in page.text
    assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "accept", "status"),
    [
        ("GET", "/tasks", "application/json", 404),
        ("GET", "/tasks", "*/*", 404),
        ("GET", "/v1/no-such-route", "text/html", 401),
        ("GET", "/v1", "text/html", 404),
        ("GET", "/docs/none", "text/html", 404),
        ("POST", "/tasks", "text/html", 404),
        ("DELETE", "/", "text/html", 404),
        ("GET", "/assets/../../__init__.py", "*/*", 404),
        ("GET", "/assets/%2e%2e/%2e%2e/__init__.py", "*/*", 404),
        ("GET", "/assets/none.js", "*/*", 404),
        ("POST", "/v1/session", "text/html", 401),
    ],
)
async def test_programs_and_the_api_get_problems_and_never_the_page(
    harness: GatewayHarness, method: str, path: str, accept: str, status: int
) -> None:
    async with harness.client(None) as client:
        reply = await client.request(method, path, headers={"accept": accept})
    assert reply.status_code == status
    assert reply.headers["content-type"] == "application/problem+json"


async def test_assets_are_compressed_and_kept_for_ever(harness: GatewayHarness) -> None:
    scripts = [path for path in studio.files() if path.endswith(".js")]
    largest = max(scripts, key=lambda path: len(studio.files()[path].body))
    assert largest.startswith("/assets/")
    async with harness.client(None) as client:
        async with client.stream("GET", largest, headers={"accept-encoding": "gzip"}) as packed:
            raw = b"".join([part async for part in packed.aiter_raw()])
        plain = await client.get(largest, headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "Accept-Encoding"
    assert "immutable" in packed.headers["cache-control"]
    assert "javascript" in plain.headers["content-type"]
    assert "content-encoding" not in plain.headers
    assert gzip.decompress(raw) == plain.content
    assert len(raw) < len(plain.content) / 2


async def test_the_policy_has_no_exceptions_and_the_page_needs_none(
    harness: GatewayHarness,
) -> None:
    async with harness.client(None) as client:
        page = await client.get("/", headers=BROWSER)
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
    for forbidden in ("<style", " style=", " onload=", "http://", "https://"):
        assert forbidden not in page.text
    assert page.text.count("<script") == page.text.count('<script type="module" crossorigin src=')


@pytest.mark.slow
def test_the_wheel_has_the_files(tmp_path: Path) -> None:
    """Built from the parts that matter, because a build leaves folders in its source."""
    source = tmp_path / "source"
    for name in ("pyproject.toml", "README.md", "requirements/platform.in"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    for name in ("services/gateway/studio", "libs/service"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    for package in ("services", "services/gateway", "libs"):
        (source / package / "__init__.py").touch()
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "build", "--quiet", "--wheel", "--no-build-isolation", "--python"]
    subprocess.run([*command, sys.executable, "--out-dir", tmp_path, source], check=True)
    wheel = next(tmp_path.glob("*.whl"))
    prefix = "services/gateway/studio/files"
    shipped = {name.removeprefix(prefix) for name in zipfile.ZipFile(wheel).namelist()}
    assert set(studio.files()) <= shipped
