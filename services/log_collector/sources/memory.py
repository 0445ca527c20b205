"""Outputs in memory, for the simulation, which writes with ``append``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from services.log_collector.domain import OutputKey
from services.log_collector.sources.port import ReadRequest, ReadResult, Stored


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

    async def read(
        self, requests: Sequence[ReadRequest], bytes_max: int
    ) -> Sequence[ReadResult | None]:
        """Answer the requests in order; None for those left when ``bytes_max`` was reached."""
        answers: list[ReadResult | None] = []
        left = bytes_max
        for request in requests:
            if left <= 0:
                answers.append(None)
                continue
            output = self.outputs.get(request.address.key)
            if output is None:
                answers.append(ReadResult(absent=True))
                continue
            end = request.offset + min(left, request.bytes_max)
            result = ReadResult(bytes(output[request.offset : end]))
            left -= len(result.data)
            answers.append(result)
        return answers

    async def stored(self, stored: Sequence[Stored]) -> None:
        """Nothing to do: it keeps everything."""
