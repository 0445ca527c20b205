"""What the disciplines note of tasks and pools: rows, or parts of them, that ``store.py`` keeps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from libs.contracts.messages import TaskState, TaskStateChanged


@dataclass(frozen=True, slots=True)
class Marks:
    """What the pool's discipline noted of a task: its place in the order of its level.

    The order key is ``key + scale * scaled`` (seconds; the smallest runs first), where ``scale``
    is the pool's load scale: when that changes, no row does.
    """

    # The discipline that made them; another one, or none, makes them anew.
    policy: str = ""
    # Made for a task that waits, or for one that runs.
    waiting: bool = True
    key: float = 0.0
    scaled: float = 0.0
    # The submission that ``key`` begins with; the fairness between users in it; and what the next
    # task of the user begins after.
    base: float = 0.0
    tag: float = 0.0
    user_finish: float = 0.0
    # While it runs: when the key is made anew, and until when its level leaves it alone.
    rekey_at: datetime | None = None
    held_until: datetime | None = None
    # It has the smallest key for a while because it went without service for long.
    granted: bool = False
    # Which tasks the predictor took it to be like when it came.
    kin: int = 0
    # Running time that the statistics know of.
    counted_seconds: float = 0.0


UNMARKED = Marks()


@dataclass(frozen=True, slots=True)
class PoolBook:
    """What a pool's discipline keeps account of, beside its tasks; a row that is rarely written."""

    group: str
    # Node-seconds to spend on preemptions and on grants, counted at these moments; None: never.
    tokens: float = 0.0
    tokens_at: datetime | None = None
    grants: float = 0.0
    grants_at: datetime | None = None
    # The load: the mean age of what is live, smoothed; and the scale that follows from it.
    load: float = 0.0
    sampled_at: datetime | None = None
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A task that has ended: its last word, and what the statistics learn from it."""

    task_id: str
    ended_at: datetime
    last: TaskStateChanged
    run_seconds: float = 0.0

    @property
    def by_itself(self) -> bool:
        """True if it ran to an end of its own, so that its running time says something."""
        return self.last.state in (TaskState.SUCCEEDED, TaskState.FAILED)
