"""Shiftwork's training API: the calls by which a training script talks to the platform; and
``Client`` and ``AsyncClient``, the API for programs.

Only the public names are here. Importing this package opens no file, no socket and no thread;
that waits for the first call. Off the platform every call works and does nothing.
"""

from typing import TYPE_CHECKING, Any

from shiftwork.context import Checkpoint
from shiftwork.training import (
    Superseded,
    checkpoint_saved,
    exit_preempted,
    life_state,
    rank,
    ready,
    report,
    resume_from,
    set_life_state,
    set_priority,
    should_preempt,
    world_size,
    yield_now,
)

__version__ = "0.1.0"

if TYPE_CHECKING:
    from shiftwork.client import AsyncClient, Client

__all__ = [
    "AsyncClient",
    "Checkpoint",
    "Client",
    "Superseded",
    "__version__",
    "checkpoint_saved",
    "exit_preempted",
    "life_state",
    "rank",
    "ready",
    "report",
    "resume_from",
    "set_life_state",
    "set_priority",
    "should_preempt",
    "world_size",
    "yield_now",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever has this name
    """``Client`` and ``AsyncClient``, which need the HTTP stack, are loaded when they are used."""
    if name in ("AsyncClient", "Client"):
        from shiftwork import client  # noqa: PLC0415 - see above

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
