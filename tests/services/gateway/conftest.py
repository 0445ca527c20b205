"""A running world for every test of the gateway that asks for one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from tests.services.gateway.gateway_harness import World


@pytest_asyncio.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """``@pytest.mark.parametrize("world", [{setting: value}], indirect=True)`` changes settings."""
    options = getattr(request, "param", {})
    async with World(tmp_path, options).running() as running:
        yield running


@pytest_asyncio.fixture
async def admin(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with world.client() as client:
        yield client


@pytest_asyncio.fixture
async def ann(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """A member."""
    async with world.client(await world.member("ann")) as client:
        yield client


@pytest_asyncio.fixture
async def bob(world: World) -> AsyncIterator[httpx.AsyncClient]:
    """Another member."""
    async with world.client(await world.member("bob")) as client:
        yield client
