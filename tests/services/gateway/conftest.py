"""A running gateway for every gateway test that requests the fixture."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.services.gateway.gateway_harness import GatewayHarness


@pytest_asyncio.fixture
async def harness(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[GatewayHarness]:
    """Other settings: ``@pytest.mark.parametrize("harness", [{name: value}], indirect=True)``."""
    options = getattr(request, "param", {})
    async with GatewayHarness(tmp_path, options).running() as running:
        yield running


@pytest_asyncio.fixture
async def admin(harness: GatewayHarness) -> AsyncIterator[httpx.AsyncClient]:
    async with harness.client() as client:
        yield client


@pytest_asyncio.fixture
async def ann(harness: GatewayHarness) -> AsyncIterator[httpx.AsyncClient]:
    """A member."""
    async with harness.client(await harness.member("ann")) as client:
        yield client


@pytest_asyncio.fixture
async def bob(harness: GatewayHarness) -> AsyncIterator[httpx.AsyncClient]:
    """Another member."""
    async with harness.client(await harness.member("bob")) as client:
        yield client
