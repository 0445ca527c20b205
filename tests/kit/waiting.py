"""Waiting for something that the code under test does by itself."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(holds: Callable[[], Any], seconds_max: float = 5.0, pause: float = 0.002) -> Any:
    """What ``holds`` returns, as soon as that is true; ``holds`` may be a coroutine function."""
    async with asyncio.timeout(seconds_max):
        while True:
            found = holds()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(pause)
