"""Reads large bodies of JSON, so that those of one caller delay no other caller's requests.

Parsing a body costs up to 150 ns for each byte, which the event loop cannot spare for a megabyte.
Large bodies are parsed in threads, one at a time of each caller, and each caller pauses between two
of them for a multiple of the time that the first one took. Called by ``api/deps.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from libs.service.loop import pause
from services.gateway.problems import TOO_MANY, ProblemError
from services.gateway.strict_input import json_of

# Smaller bodies are parsed at once, in two milliseconds at most.
LARGE_BYTES = 16_384
# A caller's next large body waits so many times as long as parsing the last one took.
REST_FACTOR = 4.0


@dataclass(slots=True)
class _Caller:
    """How many large bodies of a caller are there, which of them is parsed, and when the next one
    may be."""

    parsing: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0
    rested_at: float = 0.0


class LargeBodies:
    """Admits and parses them."""

    def __init__(self, each_max: int, parsed_max: int) -> None:
        self._each_max = each_max
        self._all = asyncio.Semaphore(parsed_max)
        self._callers: OrderedDict[str, _Caller] = OrderedDict()

    def __len__(self) -> int:
        return len(self._callers)

    @contextlib.asynccontextmanager
    async def of(self, caller: str) -> AsyncGenerator[None]:
        """While a request of this caller with a large body is handled. Raises 429 if there are too
        many already, before anything of the body is read."""
        found = self._callers.setdefault(caller, _Caller())
        self._callers.move_to_end(caller)
        if found.count >= self._each_max:
            detail = (
                f"{caller} sends more than {found.count} large bodies at once; wait for the"
                f" answers, or send {LARGE_BYTES} bytes or less at once"
            )
            headers = {"retry-after": "1", "connection": "close"}
            raise ProblemError(TOO_MANY, detail, headers=headers)
        found.count += 1
        try:
            yield
        finally:
            found.count -= 1
            self._forget()

    async def parse(self, caller: str, body: bytes, values_max: int) -> Any:  # noqa: ANN401 - any JSON
        """The same as ``json_of``, inside ``of``. Waits for the caller's bodies before this one."""
        found = self._callers[caller]
        async with found.parsing:
            # Before the common limit, which a caller that rests does not hold.
            await pause(max(0.0, found.rested_at - time.monotonic()))
            async with self._all:
                value, seconds = await asyncio.to_thread(_timed, body, values_max)
            found.rested_at = time.monotonic() + REST_FACTOR * seconds
        if isinstance(value, ValueError):
            raise value
        return value

    def _forget(self) -> None:
        """Drop callers that wait for nothing, the least recent ones first."""
        while self._callers:
            name, oldest = next(iter(self._callers.items()))
            is_idle = not oldest.count and oldest.rested_at <= time.monotonic()
            if not is_idle:
                return
            del self._callers[name]


def _timed(body: bytes, values_max: int) -> tuple[Any, float]:
    """The value, or why there is none, and the processor's time that it took."""
    begun_at = time.thread_time()
    try:
        found: object = json_of(body, values_max)
    except ValueError as problem:
        found = problem
    return found, time.thread_time() - begun_at
