"""Whether a run uses what it holds: idle GPUs, and runs that do nothing. Pure.

A GPU is idle while its utilization is below a limit. A rank is quiet while it uses next to no
processor time and all of its GPUs that are measured are idle: without one, the processors alone
count. Both count once they have lasted. A GPU that is not measured is neither idle nor busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ActivityLimits:
    """What idle and quiet mean."""

    idle_percent: float
    idle_seconds: float
    quiet_cores: float
    quiet_seconds: float
    # The longest time for which one sample speaks.
    sample_seconds: float


@dataclass(frozen=True, slots=True)
class RankUse:
    """One rank in a sample: its GPUs on the node, and the processors that it used if known."""

    rank: int
    gpus: Sequence[int]
    cpu_cores: float | None


@dataclass(frozen=True, slots=True)
class ActivityState:
    """What counts at a moment. Times are seconds since 1970."""

    gpus: int
    idle_gpus: int
    idle_since_s: float | None
    quiet_since_s: float | None

    @property
    def kind(self) -> tuple[int, bool]:
        """What is published when it changes."""
        return (self.idle_gpus, self.quiet_since_s is not None)


# A GPU or rank of a run: the node and its index there.
GpuOrRank = tuple[str, int]


@dataclass
class Activity:
    """What the samples of one run show."""

    began_s: float
    until_s: float
    measured_gpu_s: float = 0.0
    idle_gpu_s: float = 0.0
    # The same time, weighted by the utilization.
    busy_gpu_s: float = 0.0
    # When each was sampled last, and since when it has been idle or quiet.
    gpus: dict[GpuOrRank, float] = field(default_factory=dict[GpuOrRank, float])
    ranks: dict[GpuOrRank, float] = field(default_factory=dict[GpuOrRank, float])
    idle: dict[GpuOrRank, float] = field(default_factory=dict[GpuOrRank, float])
    quiet: dict[GpuOrRank, float] = field(default_factory=dict[GpuOrRank, float])

    def observe(
        self,
        node_id: str,
        at_s: float,
        ranks: Sequence[RankUse],
        gpu_percent: Mapping[int, float | None],
        limits: ActivityLimits,
    ) -> None:
        """Enter one sample of a node with ranks of the run."""
        self.until_s = max(self.until_s, at_s)
        for use in ranks:
            for gpu in use.gpus:
                self._observe_gpu((node_id, gpu), at_s, gpu_percent.get(gpu), limits)
            place = (node_id, use.rank)
            self.ranks[place] = at_s
            held = {(node_id, gpu) for gpu in use.gpus}
            gpu_busy = any(gpu in self.gpus and gpu not in self.idle for gpu in held)
            if use.cpu_cores is None or use.cpu_cores >= limits.quiet_cores or gpu_busy:
                self.quiet.pop(place, None)
            else:
                self.quiet.setdefault(place, at_s)

    def _observe_gpu(
        self, place: GpuOrRank, at_s: float, percent: float | None, limits: ActivityLimits
    ) -> None:
        if percent is None:
            self.gpus.pop(place, None)
            self.idle.pop(place, None)
            return
        passed = min(max(0.0, at_s - self.gpus.get(place, at_s)), limits.sample_seconds)
        self.gpus[place] = at_s
        self.measured_gpu_s += passed
        self.busy_gpu_s += passed * percent / 100
        if percent < limits.idle_percent:
            self.idle_gpu_s += passed
            self.idle.setdefault(place, at_s)
        else:
            self.idle.pop(place, None)

    def forget_old(self, before_s: float) -> None:
        """Leave out what has not been sampled since a moment."""
        for sampled, since in ((self.gpus, self.idle), (self.ranks, self.quiet)):
            for place in [place for place, at_s in sampled.items() if at_s < before_s]:
                del sampled[place]
                since.pop(place, None)

    def state(self, limits: ActivityLimits) -> ActivityState:
        """What counts at the last sample."""
        idle = [at for at in self.idle.values() if self.until_s - at >= limits.idle_seconds]
        quiet_s: float | None = None
        if self.ranks and self.ranks.keys() == self.quiet.keys():
            # The run is quiet since the last of its ranks is.
            last = max(self.quiet.values())
            quiet_s = last if self.until_s - last >= limits.quiet_seconds else None
        return ActivityState(len(self.gpus), len(idle), min(idle, default=None), quiet_s)
