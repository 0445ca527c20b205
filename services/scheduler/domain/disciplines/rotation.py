"""``rotation``: users take turns by their recent use, after the HAI Platform's documented rule.

Between users: the one that had the least of the pool for its share comes first; use counts half
after each half-life. Inside a user first come, first served, and no task takes the nodes of another
of the same user and level. A run is not preempted during its slice, which is short the first time;
after it any task that comes before it may take its nodes.

The use of a user is one number in seconds, ``OrderKey.user_finish``: *time + half-life x
log2(use)*, with the use in seconds of the whole pool per share. The use of all users decays at one
rate, so these numbers need no upkeep and their order changes only when a user is served. A slice is
counted when it begins, as of its end; a run that ends earlier is charged for the whole slice until
then. The order keys of the user's tasks carry the number, so a new leader knows it while any of
them lives.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from math import floor, log, log2

from services.scheduler.domain.disciplines.interface import Discipline, PoolView
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import OrderKey

# Users whose use differs by less than a sixteenth of a half-life (4 %) come in order of submission.
STEPS = 16
# Users whose use differs by this many half-lives or more: one of them counts as without use.
APART_MAX = 64
# After its slice, the use of a run is counted in this many parts of a slice, none of them shorter.
PARTS_PER_SLICE = 8
PART_SECONDS_MIN = 60.0
# One step outweighs every difference of submissions.
STEP_SECONDS = 1e10


def charged(finish: float, began: float, seconds: float, share: float, half_life: float) -> float:
    """The use of a user after a slice that begins at ``began``, counted as of its end.

    ``share`` is the part of the pool it takes, for the user's weight.
    """
    used = share * half_life / log(2) * (1.0 - 2.0 ** (-seconds / half_life))
    if used <= 0.0:
        return finish
    of_slice = began + seconds + half_life * log2(used)
    high, low = max(finish, of_slice), min(finish, of_slice)
    return high + half_life * log2(1.0 + 2.0 ** ((low - high) / half_life))


class UserRotation(Discipline):
    """Users rotate on time slices."""

    __slots__ = ()
    name: str = "rotation"
    by_user: bool = True

    def waiting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """Its submission: the order among the tasks of its owner."""
        del pool, now
        return OrderKey(
            policy=self.name,
            key=task.submitted_at.timestamp(),
            user_finish=finish,
            counted_seconds=task.marks.counted_seconds,
        )

    def starting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """It is not preempted for a slice, a short one if it never had one."""
        numbers = pool.policy.rotation
        new = task.run_seconds < numbers.first_slice_seconds
        length = numbers.first_slice_seconds if new else numbers.slice_seconds
        begun = self._counted(pool, task, now, finish, length)
        return replace(begun, held_until=begun.rekey_at)

    def slice_over(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """From now on others may take its nodes; its further use is counted part by part."""
        numbers = pool.policy.rotation
        part = max(numbers.slice_seconds / PARTS_PER_SLICE, PART_SECONDS_MIN)
        length = min(numbers.first_slice_seconds, part)
        return self._counted(pool, task, now, finish, length)

    def _counted(
        self, pool: PoolView, task: Task, now: datetime, finish: float, length: float
    ) -> OrderKey:
        weight = max(pool.policy.shares.of(task.owner, task.team), 1e-6)
        share = pool.size(task) / max(pool.units, pool.size(task), 1e-9) / weight
        half_life = pool.policy.rotation.half_life_seconds
        return OrderKey(
            policy=self.name,
            waiting=False,
            key=task.submitted_at.timestamp(),
            user_finish=charged(finish, now.timestamp(), length, share, half_life),
            rekey_at=now + timedelta(seconds=length),
            counted_seconds=task.marks.counted_seconds,
        )

    def order(self, pool: PoolView, key: float, finish: float, now: datetime) -> float:
        """First by the use of the owner, in steps; then by submission."""
        step = pool.policy.rotation.half_life_seconds / STEPS
        steps = floor(finish / step) - floor(now.timestamp() / step)
        most = STEPS * APART_MAX
        return key + STEP_SECONDS * min(max(steps, -most), most)

    def spares(self, task: Task, run: Task) -> bool:
        """True for runs of the same owner."""
        return task.owner == run.owner


ROTATION = UserRotation()
