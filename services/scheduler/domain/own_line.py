"""First come, first served inside a user, where a discipline orders by user (``rotation``).

A task waits while an earlier one of its owner and level waits for nodes that it could use. Else the
owner's later small tasks would fill every node that comes free, and because no task takes nodes
from its own owner's runs, a gang of the owner would wait for as long as they keep coming. Tasks of
other users are not held back. Called by ``share.py`` for each task that comes up.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator

from libs.contracts.messages import ReasonCode
from services.scheduler.domain.lanes import Key
from services.scheduler.domain.model.lifecycle import QUEUED
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.order import Entry, Outcome
from services.scheduler.domain.pool import Pool
from services.scheduler.domain.round import Round
from services.scheduler.domain.waits import is_stopped, retry_later


class OwnLine:
    """The waiting tasks of one pool by owner, in one round."""

    def __init__(self, round_: Round, pool: Pool) -> None:
        self._round = round_
        self._pool = pool
        # Tasks that the lanes do not have, by owner: those without marks, those that are back from
        # a pause, and those whose promises were taken back.
        self._late: dict[str, list[Key]] = {}

    def begin(self, late: Iterable[Task]) -> None:
        """Take note of the tasks that are looked at by themselves in the walk that begins."""
        self._late.clear()
        if self._pool.discipline.by_user:
            for task in late:
                self.add(task)

    def add(self, task: Task) -> None:
        """Take note of one more."""
        pool = self._pool
        in_lanes = task.state is QUEUED and pool.marked(task) and not task.promised
        if pool.discipline.by_user and not in_lanes:
            insort(self._late.setdefault(task.owner, []), self._key(task))

    def _key(self, task: Task) -> Key:
        return self._pool.key(self._round.marks_of(task)), task.id

    def stops(self, entry: Entry, entry_of: Callable[[Task], Entry]) -> Outcome | None:
        """What becomes of a task behind an earlier one of its owner, with the reason noted."""
        if not self.behind(entry, entry_of):
            return None
        why = self._round.waits(ReasonCode.WAITS_BEHIND_OTHERS, entry.shape)
        self._round.explain(entry.task, why)
        return Outcome.BEHIND

    def behind(self, entry: Entry, entry_of: Callable[[Task], Entry]) -> bool:
        """True if an earlier task of the owner waits for nodes that this one could use."""
        if not self._pool.discipline.by_user:
            return False
        totals = self._round.totals
        return any(
            each.rank == entry.rank
            and each.level is entry.level
            and totals.competes(entry.shape, each.shape)
            for each in self._earlier(entry.task, entry_of)
        )

    def _earlier(self, task: Task, entry_of: Callable[[Task], Entry]) -> Iterator[Entry]:
        """For each kind of earlier task of the owner, the first that nothing but nodes stops."""
        tasks, own = self._round.index.tasks, self._key(task)
        rows = [queue.keys for queue in self._pool.lanes.owned(task.owner)]
        for keys in (*rows, *([key] for key in self._late.get(task.owner, ()))):
            for key in keys:
                if key >= own:
                    break
                each = tasks[key[1]]
                if self._gone(each):
                    continue
                entry = entry_of(each)
                if not is_stopped(self._round, self._pool, entry):
                    yield entry
                # The next of a queue are of the same level and shape, and stopped by the same.
                break

    def _gone(self, task: Task) -> bool:
        """True if it waits no longer, or for its retry."""
        round_ = self._round
        moved = task.id in round_.moved and task.state is QUEUED
        return task.id in round_.served or moved or retry_later(task, round_.now)
