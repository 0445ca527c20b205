"""The HTTP part of a service lets go of everything when its service ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket

import pytest

from libs.service.http import serve_http


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_on_its_way_in_is_closed_too(turns: int) -> None:
    """However many turns of the loop have gone into accepting it when the server ends."""
    bound = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(
        serve_http(
            None, host="127.0.0.1", port=0, ready=lambda: (True, ""), on_bound=bound.set_result
        )
    )
    port = await bound
    await asyncio.sleep(0.05)
    with socket.create_connection(("127.0.0.1", port)) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        client.settimeout(0.5)
        with contextlib.suppress(ConnectionResetError):  # it was never accepted
            assert await asyncio.to_thread(client.recv, 1) == b""
    gc.collect()
