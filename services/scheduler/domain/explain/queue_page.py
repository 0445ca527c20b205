"""A page of the queue: the waiting tasks in the order in which ``decide`` gives them nodes.

Called for the ListQueue query in the leader itself. It evaluates nothing: the order is what the
index keeps (``waiting_order.py``), and why a task waits is what the last round that evaluated it
noted. A page costs a search in each order class and its own tasks, however many wait.

Inside a group the order is that of ``walk.py``: what a guarantee covers, then the level, then tasks
whose nodes are promised, then the discipline's key, then the id. Tasks that no round has evaluated
yet come last.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import islice
from math import inf
from typing import NamedTuple

from libs.contracts.messages import Priority, WaitingTask
from services.scheduler.domain.allocate import chosen_level
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.pool import Pool, units_of
from services.scheduler.domain.limits.virtual_clusters import UNCOVERED
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import WEIGHTS, Key
from services.scheduler.domain.queue.entry import rank_of
from services.scheduler.domain.queue.queues import AUTO
from services.scheduler.domain.queue.waiting_order import OrderClass

# After every true rank: tasks that no round has evaluated.
RANK_NEW = 1
# So many of these are listed; there are more for a moment at most.
NEW_MAX = 1_000


class Place(NamedTuple):
    """A place in the queue, which stays where it is while tasks come and go."""

    group: str
    # The moment of the listing's first page, in seconds since the epoch: all its pages compare
    # keys as of then. Where keys depend on the time, their order does not.
    at: float
    rank: int = -(2**31)
    key: float = -inf
    task_id: str = ""


class _Listed(NamedTuple):
    """A waiting task in the order of its group."""

    rank: int
    key: float
    task_id: str
    level: Priority


class _Source(NamedTuple):
    """Tasks that are in order among themselves, and how many of them come before the page."""

    tasks: Iterator[_Listed]
    before: int


class QueuePage(NamedTuple):
    """Some tasks of the queue; ``next``: where the page after it begins; None: none follows."""

    tasks: list[WaitingTask]
    next: Place | None


def queue_page(index: Index, group: str, after: Place | None, limit: int, now: float) -> QueuePage:
    """At most ``limit`` (1 or more) tasks behind a place of a group, or of all groups by name."""
    found: list[WaitingTask] = []
    last = place = after or Place("", now)
    names = [group] if group else sorted(index.pools)
    for name in names:
        pool = index.pools.get(name)
        if pool is None or name < place.group:
            continue
        begin = place if name == place.group else Place(name, place.at)
        position, listed = _listed(index, pool, begin)
        until = _promised_until(pool)
        for number, each in enumerate(listed, start=position):
            if len(found) == limit:
                return QueuePage(found, last)
            task = index.tasks[each.task_id]
            found.append(_waiting(index, task, each, number, until.get(task.id)))
            last = Place(name, place.at, *each[:3])
    return QueuePage(found, None)


def _listed(index: Index, pool: Pool, after: Place) -> tuple[int, Iterator[_Listed]]:
    """The tasks of a pool behind a place, and the position of the first of them."""
    sources = [
        _few(_promised(pool), after),
        *(
            _of_class(index, pool, of, keys, after)
            for of, keys in pool.waiting_order.classes.items()
        ),
        _few(_new(pool), after),
    ]
    position = 1 + sum(each.before for each in sources)
    return position, heapq.merge(*(each.tasks for each in sources))


def _few(listed: list[_Listed], after: Place) -> _Source:
    """Tasks that are few enough to be sorted for each page."""
    listed.sort()
    before = bisect_right(listed, after[2:], key=lambda each: each[:3])
    return _Source(iter(listed[before:]), before)


def _promised(pool: Pool) -> list[_Listed]:
    """Tasks that nodes are kept for come before all others of their rank."""
    found: list[_Listed] = []
    for task in pool.promised.values():
        cluster = pool.clusters.of(task) if pool.clusters else ""
        rank = _rank(pool, WEIGHTS[task.level], pool.size(task), cluster)
        found.append(_Listed(rank, -inf, task.id, task.level))
    return found


def _new(pool: Pool) -> list[_Listed]:
    return [
        _Listed(RANK_NEW, task.submitted_at.timestamp(), task.id, pool.level(task))
        for task in islice(pool.unkeyed.values(), NEW_MAX)
    ]


def _rank(pool: Pool, weight: int, size: float, cluster: str) -> int:
    """The rank of a task now, as ``Allocation.entry`` computes it in a round."""
    depth = pool.clusters.depth(cluster, size) if pool.clusters else UNCOVERED
    return rank_of(weight, depth)


def _of_class(index: Index, pool: Pool, of: OrderClass, keys: list[Key], after: Place) -> _Source:
    """The tasks of one order class behind a place: a search, and no more tasks than are taken."""
    tasks = index.tasks
    weight, level = of.weight, None
    if weight == AUTO:
        # What AUTO comes to is the same for all of the class.
        most = index.settings.auto_level_max
        level = chosen_level(tasks[keys[0][1]], index.totals, index.quota_usage, most)
        weight = WEIGHTS[level]
    size = units_of(of.shape, pool.width) if of.shape is not None else 0.0
    rank = _rank(pool, weight, size, of.scope[0])
    now_key = _key_as_of(pool, of.scope[1], after.at)
    if rank != after.rank:
        begin = len(keys) if rank < after.rank else 0
    else:
        begin = bisect_right(
            keys, (after.key, after.task_id), key=lambda each: (now_key(each[0]), each[1])
        )
    listed = (
        _Listed(rank, now_key(keys[at][0]), keys[at][1], level or pool.level(tasks[keys[at][1]]))
        for at in range(begin, len(keys))
    )
    return _Source(listed, begin)


def _key_as_of(pool: Pool, owner: str, at: float) -> Callable[[float], float]:
    """From the key of a queue to the key in the order of a round at a moment."""
    discipline = pool.discipline
    if not discipline.by_user:
        return lambda key: key
    finish, moment = pool.finishes.get(owner, 0.0), datetime.fromtimestamp(at, UTC)
    return lambda key: discipline.order(pool, key, finish, moment)


def _promised_until(pool: Pool) -> dict[str, datetime]:
    """When the runs that leave for a task are ended by force, the last of them; by task."""
    found: dict[str, datetime] = {}
    for run in pool.leaving.values():
        forced = run.forced_at(pool.settings.silent_ack_seconds_max)
        if run.preempted_for and forced is not None:
            known = found.get(run.preempted_for)
            found[run.preempted_for] = forced if known is None else max(known, forced)
    return found


def _waiting(
    index: Index, task: Task, listed: _Listed, position: int, until: datetime | None
) -> WaitingTask:
    need = index.totals.need(task.shape)
    return WaitingTask(
        task_id=task.id,
        name=task.spec.name,
        owner=task.owner,
        team=task.team,
        group=task.group,
        position=position,
        priority=task.priority,
        level=listed.level,
        gpus=need.gpus,
        nodes=need.nodes,
        submitted_at=task.submitted_at,
        waiting_since=task.unserved_since or task.submitted_at,
        reason=task.reason,
        not_before_at=task.not_before_at,
        promised_nodes=len({each.node_id for each in task.promised}),
        promised_until=until if task.promised else None,
        granted=task.marks.granted,
    )
