"""Records how much of what runs hold they use, and publishes it: ``RunActivityChanged``.

Takes the samples that ``series/recorder.py`` takes. What happened since the last write is in
memory; sums and the begin of idle times are in rows, so that a new leader goes on with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from libs.contracts.messages import NodeSampled, RunActivityChanged
from libs.service.clock import time_of
from libs.service.loop import Loop
from libs.service.metrics import Metrics
from libs.service.prune import PruneRule, aged
from libs.store.port import Op, Order, Store, Tx, Where
from services.monitor.domain.activity import (
    Activity,
    ActivityLimits,
    ActivityState,
    GpuOrRank,
    RankUse,
)
from services.monitor.store import TaskRow

declare = Metrics("monitor")
MEASURED = declare.counter(
    "shiftwork_held_gpu_measured_seconds_total",
    "For how long GPUs that runs hold were measured",
    ["group"],
)
IDLE = declare.counter(
    "shiftwork_held_gpu_idle_seconds_total",
    "For how long GPUs that runs hold were measured below the limit of idle ones",
    ["group"],
)
BUSY = declare.counter(
    "shiftwork_held_gpu_busy_seconds_total",
    "For how long GPUs that runs hold were measured, weighted by their utilization",
    ["group"],
)
# Of a task that the monitor does not know yet.
UNKNOWN_GROUP = "(other)"
ROWS_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class ActivityRow:
    """The sums of one run, and what was last published of it."""

    task_id: str
    attempt: int
    measured_from: datetime
    measured_until: datetime
    measured_gpu_seconds: float
    idle_gpu_seconds: float
    # Since when GPUs and ranks have been idle or quiet: node, index, seconds since 1970.
    idle: tuple[tuple[str, int, float], ...]
    quiet: tuple[tuple[str, int, float], ...]
    published_at: datetime
    published_idle_gpus: int
    published_quiet: bool
    # Its sums have grown since.
    unpublished: bool


@dataclass
class Activities:
    """One leader's records of activity."""

    database: Store
    now: Callable[[], datetime]
    limits: ActivityLimits
    write_seconds: float
    publish_seconds: float
    runs: dict[tuple[str, int], Activity] = field(default_factory=dict[tuple[str, int], Activity])
    # What the row of an earlier leader had is in memory.
    joined: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    def clear(self) -> None:
        """Begin from the rows, as a leader does."""
        self.runs.clear()
        self.joined.clear()

    def take(self, sample: NodeSampled) -> None:
        """Enter one sample."""
        at_s = sample.sampled_at.timestamp()
        percent = {gpu.index: gpu.values.gpu_percent for gpu in sample.gpus}
        ranks: dict[tuple[str, int], list[RankUse]] = {}
        for rank in sample.ranks:
            use = RankUse(rank.rank, rank.gpus, rank.values.cpu_cores)
            ranks.setdefault((rank.task_id, rank.attempt), []).append(use)
        for key, uses in ranks.items():
            found = self.runs.get(key)
            if found is None:
                found = self.runs[key] = Activity(at_s, at_s)
            found.observe(sample.node_id, at_s, uses, percent, self.limits)

    def loop(self) -> Loop:
        """The loop that writes and publishes."""
        return Loop("activity", self.step, tick_seconds=self.write_seconds, wake_on_commit=False)

    async def step(self, epoch: int) -> float | None:
        """Write what happened since the last step, and publish what changed; then the sums of runs
        that are not sampled any more."""
        keys = sorted(self.runs)
        for first in range(0, len(keys), ROWS_AT_ONCE):
            await self._write(keys[first : first + ROWS_AT_ONCE], epoch)
        silent = self.now() - timedelta(seconds=2 * self.write_seconds)
        for key, found in tuple(self.runs.items()):
            if time_of(found.until_s) < silent:
                del self.runs[key]
                self.joined.discard(key)
        async with self.database.transaction(epoch=epoch) as tx:
            rows = await tx.select(
                ActivityRow,
                Where("unpublished", Op.EQ, value=True),
                Where("measured_until", Op.LT, silent),
                order_by=[Order("measured_until")],
                limit=ROWS_AT_ONCE,
            )
            for row in rows:
                self._publish(tx, row, ActivityState(0, 0, None, None))
        return 0.0 if len(rows) == ROWS_AT_ONCE else None

    async def _write(self, keys: list[tuple[str, int]], epoch: int) -> None:
        before = {key: _sums(self.runs[key]) for key in keys}
        async with self.database.transaction(epoch=epoch) as tx:
            await tx.load(ActivityRow, *keys)
            await tx.load(TaskRow, *{(task_id,) for task_id, _ in keys})
            groups = {key: await _group(tx, key[0]) for key in keys}
            for key in keys:
                found = self.runs[key]
                row = await tx.get(ActivityRow, *key)
                if row is not None and key not in self.joined:
                    self._join(found, row)
                found.forget_old(found.until_s - 2 * self.limits.sample_seconds)
                self._record(tx, key, found, row)
        for key in keys:
            found = self.runs[key]
            self.joined.add(key)
            # What came during the commit is written the next time.
            measured_s, idle_s, busy_s = before[key]
            found.measured_gpu_s -= measured_s
            found.idle_gpu_s -= idle_s
            found.busy_gpu_s -= busy_s
            for counter, seconds in ((MEASURED, measured_s), (IDLE, idle_s), (BUSY, busy_s)):
                counter.labels(groups[key]).inc(seconds)

    def _record(
        self, tx: Tx, key: tuple[str, int], found: Activity, row: ActivityRow | None
    ) -> None:
        state, now = found.state(self.limits), self.now()
        until = time_of(found.until_s)
        after = ActivityRow(
            *key,
            measured_from=row.measured_from if row else time_of(found.began_s),
            measured_until=max(until, row.measured_until) if row else until,
            measured_gpu_seconds=found.measured_gpu_s + (row.measured_gpu_seconds if row else 0.0),
            idle_gpu_seconds=found.idle_gpu_s + (row.idle_gpu_seconds if row else 0.0),
            idle=_listed(found.idle),
            quiet=_listed(found.quiet),
            published_at=row.published_at if row else now,
            published_idle_gpus=row.published_idle_gpus if row else 0,
            published_quiet=row.published_quiet if row else False,
            unpublished=True,
        )
        if row is not None and row.measured_until == after.measured_until:
            return
        published = (after.published_idle_gpus, after.published_quiet)
        waited = (now - after.published_at).total_seconds()
        if state.kind != published or waited >= self.publish_seconds:
            self._publish(tx, after, state)
        else:
            tx.put(after)

    def _publish(self, tx: Tx, row: ActivityRow, state: ActivityState) -> None:
        idle_gpus, quiet = state.kind
        tx.put(
            replace(
                row,
                published_at=self.now(),
                published_idle_gpus=idle_gpus,
                published_quiet=quiet,
                unpublished=False,
            )
        )
        tx.emit(
            RunActivityChanged(
                task_id=row.task_id,
                attempt=row.attempt,
                measured_from=row.measured_from,
                measured_until=row.measured_until,
                measured_gpu_seconds=row.measured_gpu_seconds,
                idle_gpu_seconds=row.idle_gpu_seconds,
                gpus=state.gpus,
                idle_gpus=state.idle_gpus,
                idle_since=_time(state.idle_since_s),
                quiet_since=_time(state.quiet_since_s),
            )
        )

    def _join(self, found: Activity, row: ActivityRow) -> None:
        """Go on with idle times that an earlier leader saw, unless too much time is missing."""
        if found.began_s - row.measured_until.timestamp() > 2 * self.limits.sample_seconds:
            return
        for mine, old in ((found.idle, row.idle), (found.quiet, row.quiet)):
            for node_id, index, since_s in old:
                if (node_id, index) in mine:
                    mine[node_id, index] = min(since_s, mine[node_id, index])


def _sums(found: Activity) -> tuple[float, float, float]:
    return found.measured_gpu_s, found.idle_gpu_s, found.busy_gpu_s


async def _group(tx: Tx, task_id: str) -> str:
    row = await tx.get(TaskRow, task_id)
    return row.group if row and row.group else UNKNOWN_GROUP


def _listed(since: Mapping[GpuOrRank, float]) -> tuple[tuple[str, int, float], ...]:
    return tuple((node_id, index, at_s) for (node_id, index), at_s in sorted(since.items()))


def _time(at_s: float | None) -> datetime | None:
    return None if at_s is None else time_of(at_s)


def prune_rule(keep: timedelta) -> PruneRule:
    """Sums of runs that were not sampled for long."""
    return aged("activity", keep, ActivityRow, ["task_id", "attempt"], "measured_until")
