"""Shiftwork's training API: the calls by which a training script talks to the platform.

Only the public names are here. Importing this package opens no file, no socket and no thread;
that waits for the first call. Off the platform every call works and does nothing.
"""

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

__all__ = [
    "Checkpoint",
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
