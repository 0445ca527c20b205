"""The interface to the sources of ranks' output. Adapters: ``files`` (the process
runtime), ``kubernetes`` (pods, by the log agents of their nodes), ``memory`` (the simulation).

A source keeps a rank's output until the collector reports that it is stored, so that all other
bytes can be requested again and a crash of the collector loses nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.log_collector.domain import Address, Timestamp


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Bytes wanted: those after ``offset``, at most ``bytes_max``."""

    address: Address
    offset: int
    bytes_max: int
    # The last bytes that the collector has before ``offset``, where it knows them: a source that
    # has to find the place can see that it is the right one.
    before: bytes = b""
    # The answer decides something (an end, what a crash left): it must not come from memory.
    sure: bool = False


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The answer to one request. Shorter ``data`` than requested means: the end so far."""

    data: bytes = b""
    # There is no such output: not yet, or not any more.
    absent: bool = False
    # It is not known now whether there is more. Possible even if the request is ``sure``; missing
    # bytes mean nothing then.
    unsure: bool = False
    # Why it could not be read; empty if it could.
    problem: str = ""
    # The problem is permanent once the run has exited: these bytes will not arrive.
    lost: bool = False
    # When the bytes were written, by offsets in ``data``, where the source knows it. Two answers
    # with the same bytes are the same answer.
    timestamps: Sequence[Timestamp] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Stored:
    """The collector has stored the bytes before ``offset``. ``done``: it reads no more."""

    address: Address
    offset: int
    done: bool


class LogSource(Protocol):
    """The outputs of all ranks that this collector can reach."""

    def tasks(self) -> Sequence[Callable[[], Awaitable[None]]]:
        """What has to run beside the reading as long as the process does; usually nothing."""
        ...

    async def read(
        self, requests: Sequence[ReadRequest], bytes_max: int
    ) -> Sequence[ReadResult | None]:
        """Answer the requests in order; None for those left when ``bytes_max`` was reached."""
        ...

    async def stored(self, stored: Sequence[Stored]) -> None:
        """Accept that output is stored and need not be held. Called at least once in most cases;
        never waits."""
        ...
