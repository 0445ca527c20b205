"""The options of one simulated run, beside the workload and the policy's name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from services.scheduler.lab.record import RunRecord
from services.scheduler.lab.workload import Workload

POLICIES: tuple[str, ...] = (
    *("ours", "fifo", "backfill", "easy", "las", "rotation", "roundrobin", "srpt"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """The numbers of a run; seconds."""

    # The cost of every start after the first.
    restart_cost_s: float = 60.0
    # 0: a preempted job saves first and loses nothing. Otherwise it saves only each time it has
    # worked this long, and does later work again.
    checkpoint_interval_s: float = 0.0
    # The policy may read the users' own limits (``Job.requested_s``).
    with_limits: bool = False
    # Mean time between failures of one node; None: nodes never fail.
    node_mtbf_s: float | None = None
    # How long a failed node is away.
    node_repair_s: float = 3600.0
    # Of everything drawn at random (node failures).
    seed: int = 0


class Drive(Protocol):
    """Replays a workload under one policy; calls ``progress`` with the number of ended jobs."""

    def __call__(
        self,
        workload: Workload,
        policy: str,
        options: Options,
        progress: Callable[[int], None],
    ) -> RunRecord:
        """The whole run, to the end of its last job."""
        ...
