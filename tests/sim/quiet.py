"""What services log during a simulation: kept in its notes; an error is a complaint."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


@contextlib.contextmanager
def quiet(simulations: Sequence[Simulation]) -> Generator[None]:
    """Route structlog to the last of these simulations."""

    def keep(_: Any, level: str, entry: dict[str, Any]) -> Any:
        if simulations:
            note(simulations[-1], level, entry)
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[keep],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)


def note(sim: Simulation, level: str, entry: dict[str, Any]) -> None:
    """One entry of a log."""
    text = " ".join(f"{key}={value}" for key, value in entry.items())
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if level in {"error", "exception", "critical"}:
        sim.complain(f"logged as {level}: {text}")
    else:
        sim.note(text)
