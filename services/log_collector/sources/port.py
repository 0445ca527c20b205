"""Where ranks' output comes from, as the collector sees it. Adapters: ``files`` (the process
runtime), ``memory`` (the simulation).

A source keeps a rank's whole output until the run's folder is cleared away, so every byte can be
asked for again; that is why a crash of the collector loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from services.log_collector.domain import Address


@dataclass(frozen=True, slots=True)
class Ask:
    """Bytes wanted: those after ``offset``, at most ``bytes_max``."""

    address: Address
    offset: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Got:
    """The answer to one ask: what was there. ``data`` shorter than asked means: the end so far."""

    data: bytes = b""
    # There is no such output: not yet, or not any more.
    absent: bool = False
    # Why it could not be read; empty if it could.
    problem: str = ""


class LogSource(Protocol):
    """The outputs of all ranks that this collector can reach."""

    async def read(self, asks: Sequence[Ask], bytes_max: int) -> Sequence[Got | None]:
        """Answer the asks in their order; None for those left when ``bytes_max`` was reached."""
        ...
