"""Where a waiting task stands: its level, its place in the order, and why it waits at this moment.

``explain.py``, ``remedies.py`` and ``forecast.py`` begin here. The place is found in the queues'
sorted keys, one bisection for each queue, so it does not matter how many tasks wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from libs.contracts.messages import Reason, ReasonCode
from services.scheduler.domain import slices
from services.scheduler.domain.clusters import UNCOVERED
from services.scheduler.domain.disciplines.base import Filling
from services.scheduler.domain.lanes import AUTO, Key, Queue
from services.scheduler.domain.model import WEIGHTS, Task
from services.scheduler.domain.order import Entry, rank_of
from services.scheduler.domain.pool import Pool
from services.scheduler.domain.round import Round
from services.scheduler.domain.share import Sharing
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.domain.waits import waits_by_itself

# Of tasks that came since the last round, so many get the place that they will have; those beyond
# count by their submission.
FRESH_MARKED_MAX = 200


@dataclass(frozen=True, slots=True)
class Standing:
    """A waiting task among the others of its pool, now."""

    round: Round
    sharing: Sharing
    pool: Pool
    entry: Entry
    # Why it waits, as it is now.
    why: Reason
    # Waiting tasks before it: by a higher level or a guarantee, and of its own rank.
    above: int
    before: int

    @property
    def task(self) -> Task:
        """The task."""
        return self.entry.task

    def ahead(self) -> Iterator[Entry]:
        """The tasks before it, in no order; those that are promised their nodes apart."""
        tasks, own = self.round.index.tasks, self.entry
        for queue, rank in _queues(self.sharing, self.pool):
            for key, task_id in queue.keys[: _place(self.sharing, queue, rank, own)]:
                yield self.sharing.entry(tasks[task_id], key)
        for entry in _fresh(self.sharing, self.pool):
            if entry[:3] < own[:3]:
                yield entry

    def around(self, most: int) -> list[Entry] | None:
        """The tasks of its rank and those before, those behind it too; None: more than so many."""
        tasks, rank = self.round.index.tasks, self.entry.rank
        found = [entry for entry in _fresh(self.sharing, self.pool) if entry.rank <= rank]
        queues = [queue for queue, of in _queues(self.sharing, self.pool) if of <= rank]
        if len(found) + sum(len(queue.keys) for queue in queues) > most:
            return None
        for queue in queues:
            found += [self.sharing.entry(tasks[task_id], key) for key, task_id in queue.keys]
        return [entry for entry in found if entry.id != self.entry.id]


def stand(snapshot: Snapshot, task: Task, now: datetime) -> Standing:
    """Find a queued task's place."""
    round_ = Round(snapshot, now)
    pool = snapshot.pools[task.group]
    sharing = Sharing(round_, pool, [], [])
    if not pool.marked(task):
        slices.mark_waiting(round_, pool, task)
    entry = sharing.entry(task)
    if task.promised:
        entry = entry._replace(level=task.level, rank=rank_of(WEIGHTS[task.level], entry.depth))
    above, before = _count(sharing, pool, entry)
    return Standing(round_, sharing, pool, entry, _why(round_, pool, entry, before), above, before)


def reach(round_: Round, pool: Pool, entry: Entry, ratio: float) -> float:
    """Runs of the level with a larger key may be taken for the task, as ``passes.py`` reckons.

    ``ratio``: the size of the runs that would have to go, for the task's own.
    """
    discipline, marks = pool.discipline, round_.marks_of(entry.task)
    lead = discipline.lead(round_.now)
    if marks.granted:
        return entry.key + lead
    return discipline.reach(pool, entry.task, marks, entry.key, ratio) + lead


def run_key(round_: Round, pool: Pool, run: Task) -> float:
    """A run's key in the order of its level."""
    return slices.order(round_, pool, run, pool.key(round_.marks_of(run)))


def _count(sharing: Sharing, pool: Pool, own: Entry) -> tuple[int, int]:
    above = before = 0
    for queue, rank in _queues(sharing, pool):
        count = _place(sharing, queue, rank, own)
        if rank < own.rank:
            above += count
        else:
            before += count
    entries = _fresh(sharing, pool)
    promised = [each for each in pool.promised.values() if each.id != own.id]
    entries += [
        sharing.entry(each)._replace(rank=rank_of(WEIGHTS[each.level], UNCOVERED), key=own.key - 1)
        for each in promised
    ]
    for entry in entries:
        above += entry.rank < own.rank
        before += entry.rank == own.rank and entry[:3] < own[:3]
    return above, before


def _queues(sharing: Sharing, pool: Pool) -> Iterator[tuple[Queue, int]]:
    """Every queue with the rank that all of its tasks have now."""
    tasks = sharing.round.index.tasks
    for weight, rows in pool.lanes.rows.items():
        for row in rows.values():
            for key, task_id, queue in row:
                if weight != AUTO and not pool.clusters:
                    yield queue, rank_of(weight, UNCOVERED)
                else:
                    yield queue, sharing.entry(tasks[task_id], key).rank


def _place(sharing: Sharing, queue: Queue, rank: int, own: Entry) -> int:
    """How many tasks of a queue come before one."""
    if rank != own.rank:
        return len(queue.keys) if rank < own.rank else 0
    if not sharing.pool.discipline.by_user:
        return bisect_left(queue.keys, (own.key, own.id))
    tasks = sharing.round.index.tasks

    def ordered(raw: Key) -> Key:
        return sharing.entry(tasks[raw[1]], raw[0])[1:3]

    return bisect_left(queue.keys, (own.key, own.id), key=ordered)


def _fresh(sharing: Sharing, pool: Pool) -> list[Entry]:
    """Tasks that no round has looked at yet, where they will stand."""
    round_ = sharing.round
    found: list[Entry] = []
    for task in pool.fresh.values():
        if task.id not in round_.marks and len(round_.marks) < FRESH_MARKED_MAX:
            slices.mark_waiting(round_, pool, task)
        known = task.id in round_.marks
        found.append(sharing.entry(task, None if known else task.submitted_at.timestamp()))
    return found


def _why(round_: Round, pool: Pool, entry: Entry, before: int) -> Reason:
    """What stops the task now; what only others do to it, as the last round found it."""
    if entry.task.promised:
        return round_.waits(ReasonCode.WAITS_FOR_VICTIMS, entry.shape)
    if waits_by_itself(round_, pool, entry) is not None:
        return round_.explanations[entry.id]
    code = entry.task.reason.code
    if code not in (ReasonCode.WAITS_FOR_CAPACITY, ReasonCode.WAITS_BEHIND_OTHERS):
        strict = pool.discipline.filling is not Filling.GREEDY
        behind = strict and before > 0
        code = ReasonCode.WAITS_BEHIND_OTHERS if behind else ReasonCode.WAITS_FOR_CAPACITY
    return round_.waits(code, entry.shape)
