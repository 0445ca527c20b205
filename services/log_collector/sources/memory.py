"""Outputs in memory, for the simulation: whoever plays the runtime writes with ``append``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from services.log_collector.domain import OutputKey
from services.log_collector.sources.port import Ask, Got, Kept


class MemorySource:
    """Outputs by key."""

    def __init__(self) -> None:
        self.outputs: dict[OutputKey, bytearray] = {}

    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """Nothing has to run beside it."""
        return ()

    def append(self, key: OutputKey, data: bytes) -> None:
        """What a rank writes."""
        self.outputs.setdefault(key, bytearray()).extend(data)

    async def read(self, asks: Sequence[Ask], bytes_max: int) -> Sequence[Got | None]:
        """Answer the asks in their order; None for those left when ``bytes_max`` was reached."""
        answers: list[Got | None] = []
        left = bytes_max
        for ask in asks:
            if left <= 0:
                answers.append(None)
                continue
            output = self.outputs.get(ask.address.key)
            if output is None:
                answers.append(Got(absent=True))
                continue
            end = ask.offset + min(left, ask.bytes_max)
            got = Got(bytes(output[ask.offset : end]))
            left -= len(got.data)
            answers.append(got)
        return answers

    async def kept(self, kept: Sequence[Kept]) -> None:
        """Nothing to do: it keeps everything."""
