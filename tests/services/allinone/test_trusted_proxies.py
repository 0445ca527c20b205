"""The setting ``http_trusted_proxies`` reaches the HTTP server, however the gateway runs."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from libs.service.http import Receive, Scope, Send
from libs.service.run import run_with_http
from libs.service.runner import Runner
from services.allinone.data_folder import DataFolder, Options
from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.machine import Machine
from services.allinone.platform import Platform
from services.gateway.main import WIRING
from services.gateway.settings import GatewaySettings
from tests.kit.memory import MemoryPlatform
from tests.kit.waiting import until

EACH_PROXY = pytest.mark.parametrize(
    ("proxies", "seen"), [("", "http 127.0.0.1"), ("127.0.0.1", "https 192.0.2.9")]
)
FORWARDED = {"x-forwarded-for": "192.0.2.9", "x-forwarded-proto": "https"}


async def shows_the_caller(scope: Scope, receive: Receive, send: Send) -> None:
    """An application that answers with the client's address as the server has it."""
    body = f"{scope['scheme']} {scope['client'][0]}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def runner(settings: GatewaySettings) -> Runner:
    service = MemoryPlatform().build(WIRING, settings)
    return Runner(replace(service, app=shows_the_caller), settings)


@asynccontextmanager
async def running(serving: Awaitable[None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(serving)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answered(url: str) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get(url, headers=FORWARDED)).text


@EACH_PROXY
async def test_a_service_of_its_own_believes_the_proxies_of_its_settings(
    proxies: str, seen: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = GatewaySettings(
        database_url="-", nats_url="-", http_port=port, http_trusted_proxies=proxies
    )
    async with running(run_with_http(runner(settings))):

        async def is_bound() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                return False
            writer.close()
            return True

        await until(is_bound)
        assert await answered(f"http://127.0.0.1:{port}/") == seen


@EACH_PROXY
async def test_up_believes_the_proxies_of_the_environment(
    proxies: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHIFTWORK_GATEWAY_HTTP_TRUSTED_PROXIES", proxies)
    folder, options = DataFolder(tmp_path / "data"), Options(port=0)
    ensure_credentials(folder.data)
    platform = Platform(folder, options, os.getpid())
    machine = Machine(folder, options, "nats://127.0.0.1", {"gateway": "postgresql://"}, "")
    platform._runners["gateway"] = runner(GatewaySettings(database_url="-", nats_url="-"))
    folder.take()
    try:
        async with running(platform._serve(WIRING, machine)):
            await asyncio.wait_for(platform._bound.wait(), 10)
            assert await answered(platform.url) == seen
    finally:
        folder.release()
