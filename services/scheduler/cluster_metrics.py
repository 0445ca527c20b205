"""Metrics for operators: tasks and nodes by state, GPUs used and free, waits, preemptions, lost
work.

The leader's ``Brain`` updates them with each commit; other processes of the scheduler report
nothing. The cost of an update follows the nodes and tasks that changed, and the cost of a scrape
follows what changed since the last one.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector

from libs.contracts.ids import TaskId
from libs.contracts.messages import Checkpoint, ExitKind, Goal, ReasonCode, RunExit, TaskState
from libs.contracts.task_states import TERMINAL
from libs.service.metrics import GaugeFamily, Metrics
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.model.rows import EndedTask, Node, Task

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0

declare = Metrics("scheduler")
QUEUE_WAIT = declare.histogram(
    "shiftwork_queue_wait_seconds",
    "From submission, or the end of the last attempt, to the assignment of nodes, by the priority"
    " at which they were assigned",
    ["group", "priority"],
    buckets=(1, 5, 15, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 4 * HOUR, 12 * HOUR, DAY, 7 * DAY),
)
PREEMPTIONS = declare.counter(
    "shiftwork_preemptions_total",
    "Runs that were asked to leave: `preempted_by`, `slice_over`, `node_drained`, `goal_pause` and"
    " so on",
    ["group", "reason"],
)
CHECKPOINT_SECONDS = declare.histogram(
    "shiftwork_preemption_checkpoint_seconds",
    "From the request to leave to the acknowledged checkpoint; runs that save nothing are not in"
    " it",
    ["group"],
    buckets=(0.5, 1, 2, 5, 10, 20, 30, MINUTE, 2 * MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR),
)

LOST = declare.counter(
    "shiftwork_lost_gpu_seconds_total",
    "Held after the last acknowledged checkpoint by attempts that preemption or a failure ended:"
    " work that is done again",
    ["group", "cause"],
)
TASKS = declare.family(
    "shiftwork_tasks",
    "Tasks that have not ended; those that wait for a group without nodes are of `(other)`",
    ["group", "state"],
)
NODES = declare.family(
    "shiftwork_nodes", "Nodes; a quarantined one is `cordoned`", ["group", "state"]
)
GPUS = declare.family(
    "shiftwork_gpus",
    "GPUs: `used` are held by runs, active or not; `free` may be taken by new runs; `unavailable`"
    " are the rest, of nodes that are cordoned, draining, not ready or broken",
    ["group", "state"],
)

K = TypeVar("K", bound=Hashable)
# The label for tasks that wait for groups without nodes.
OTHER_GROUPS = "(other)"
# The first of these that is true is a node's state.
NODE_STATES = ("not_ready", "draining", "drained", "cordoned", "ready")
GPU_STATES = ("used", "free", "unavailable")
TASK_STATES = tuple(
    state.name.lower()
    for state in TaskState
    if state not in TERMINAL and state is not TaskState.UNSPECIFIED
)


@dataclass
class _Counted:
    """How one node is counted now."""

    group: str
    state: str
    gpus: tuple[int, int, int]


@dataclass(eq=False)
class ClusterMetrics(Collector):
    """The gauges, kept for the leader's index."""

    _index: Index | None = None
    _tasks: Counts[tuple[str, TaskState]] = field(default_factory=Counts[tuple[str, TaskState]])
    _nodes: Counts[tuple[str, str]] = field(default_factory=Counts[tuple[str, str]])
    _gpus: Counts[tuple[str, str]] = field(default_factory=Counts[tuple[str, str]])
    _counted: dict[str, _Counted] = field(default_factory=dict[str, _Counted])
    # Nodes that may have changed since the last scrape.
    _changed: set[str] = field(default_factory=set[str])

    def loaded(self, index: Index) -> None:
        """Count all of a working set: a new leader's, or one that was loaded again."""
        self.clear()
        self._index = index
        self._tasks.update((task.group, task.state) for task in index.tasks.values())
        self._changed.update(index.nodes)

    def leadership_ended(self, index: Index) -> None:
        """Report nothing any more."""
        if index is self._index:
            self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._index = None
        for each in (self._tasks, self._nodes, self._gpus, self._counted, self._changed):
            each.clear()

    def committed(
        self,
        index: Index,
        put: Iterable[object],
        deleted: Iterable[tuple[type[object], tuple[object, ...]]],
    ) -> None:
        """Follow a commit that ``index`` is about to take over."""
        if index is not self._index:
            return
        for row in put:
            self._follow(index, row)
        for kind, key in deleted:
            if kind is Task:
                self._replace(index.tasks.get(TaskId(str(key[0]))), None)
            elif kind is Node:
                self._changed.add(str(key[0]))

    def _follow(self, index: Index, row: object) -> None:
        if isinstance(row, Task):
            old = index.tasks.get(row.id)
            self._replace(old, None if row.state in TERMINAL else row)
            if old is not None:
                _observe(old, row)
        elif isinstance(row, EndedTask):
            old = index.tasks.get(TaskId(row.task_id))
            if old is not None and old.live_attempt is not None:
                _observe_end(old, row.last.exit, row.last.checkpoint)
        elif isinstance(row, Node):
            self._changed.add(row.id)

    def _replace(self, old: Task | None, new: Task | None) -> None:
        for task, number in ((old, -1), (new, 1)):
            if task is not None:
                _add(self._tasks, (task.group, task.state), number)
                for placement in (*task.placements, *task.promised):
                    self._changed.add(placement.node_id)

    def collect(self) -> Iterator[Metric]:
        """The gauges as they are now (prometheus_client calls this at each scrape)."""
        index = self._index
        if index is None:
            return
        for node_id in self._changed:
            self._recount(index, node_id)
        self._changed.clear()
        # A task may name any group: only groups that exist have series of their own.
        groups = sorted({group for group, _ in self._nodes} | index.policies.keys())
        tasks: Counts[tuple[str, str]] = Counts()
        for (group, state), number in self._tasks.items():
            tasks[group if group in groups else OTHER_GROUPS, state.name.lower()] += number
        named = sorted({group for group, _ in tasks} | {*groups})
        yield _filled(TASKS, tasks, named, TASK_STATES)
        yield _filled(NODES, self._nodes, groups, NODE_STATES)
        yield _filled(GPUS, self._gpus, groups, GPU_STATES)

    def _recount(self, index: Index, node_id: str) -> None:
        if (old := self._counted.pop(node_id, None)) is not None:
            self._add(old, -1)
        node = index.nodes.get(node_id)
        if node is not None and not node.removed:
            busy = bool(index.holders.get(node_id))
            used = index.taken(node_id).bit_count()
            new = self._counted[node_id] = _count(node, used, busy=busy)
            self._add(new, 1)

    def _add(self, node: _Counted, sign: int) -> None:
        _add(self._nodes, (node.group, node.state), sign)
        for state, number in zip(GPU_STATES, node.gpus, strict=True):
            _add(self._gpus, (node.group, state), sign * number)


def _add(counts: Counts[K], key: K, number: int) -> None:
    """Add to a count, and remove a count of 0: groups come and go."""
    counts[key] += number
    if not counts[key]:
        del counts[key]


def _count(node: Node, used: int, *, busy: bool) -> _Counted:
    draining = node.draining
    holds = (not node.ready, draining and busy, draining, not node.schedulable, True)
    state = next(state for state, true in zip(NODE_STATES, holds, strict=True) if true)
    idle = max(0, node.gpus - used)
    free = max(0, idle - len(node.unusable_gpus)) if node.offered else 0
    return _Counted(node.group, state, (used, free, idle - free))


def _observe(old: Task, new: Task) -> None:
    if new.attempt > old.attempt and new.assigned_at is not None:
        queued_at = old.unserved_since or old.submitted_at
        wait = (new.assigned_at - queued_at).total_seconds()
        QUEUE_WAIT.labels(new.group, new.level.name.lower()).observe(max(0.0, wait))
    if old.live_attempt is not None and new.live_attempt is None:
        _observe_end(old, new.exit, new.checkpoint)
    # The exit of a run may be recorded together with its last checkpoint.
    since = new.preempt_requested_at or old.preempt_requested_at
    if since is None or new.attempt != old.attempt:
        return
    if old.preempt_requested_at is None:
        PREEMPTIONS.labels(new.group, new.reason.code.name.lower()).inc()
    saved = new.checkpoint
    is_first = old.checkpoint is None or old.checkpoint.saved_at < since
    if saved is not None and saved != old.checkpoint and is_first and saved.saved_at >= since:
        latency = (saved.saved_at - since).total_seconds()
        CHECKPOINT_SECONDS.labels(new.group).observe(latency)


def _observe_end(old: Task, ended: RunExit | None, saved: Checkpoint | None) -> None:
    """Count what the end of a run destroyed. The exit may be recorded with its last checkpoint."""
    cause = _cause_of_loss(old, ended)
    if not cause or ended is None or old.assigned_at is None:
        return
    since = old.assigned_at
    if saved is not None and saved.attempt == old.live_attempt:
        since = max(since, saved.saved_at)
    seconds = max(0.0, (ended.exited_at - since).total_seconds())
    LOST.labels(old.group, cause).inc(seconds * old.held_gpus)


# Requests after which an end loses nothing: the owner wanted it, or its time was over.
_WANTED = frozenset({
    *(ReasonCode.GOAL_PAUSE, ReasonCode.GOAL_STOP, ReasonCode.MODE_CHANGED),
    *(ReasonCode.MAX_RUN_TIME, ReasonCode.DEBUG_ENDED),
})  # fmt: skip


def _cause_of_loss(old: Task, ended: RunExit | None) -> str:
    """Why the work since the last checkpoint of a run is lost, as in the usage ledger; empty: it
    is not. There the first request counts, and here the last."""
    if ended is None or ended.yielded or old.debugging or ended.kind is ExitKind.OK:
        return ""
    starts = (ReasonCode.START_EXPIRED, ReasonCode.START_ATTEMPTS_USED_UP)
    if ended.kind in (ExitKind.FAILED, ExitKind.LOST) or old.reason.code in starts:
        return "failure"
    end = old.end_reason.code if old.end_reason else old.reason.code
    return "" if end in _WANTED or old.goal is not Goal.RUN else "preemption"


def _filled(
    what: GaugeFamily,
    counts: Mapping[tuple[str, str], int],
    groups: Iterable[str],
    states: Iterable[str],
) -> Metric:
    """A gauge with every state of every group, those with the value 0 included."""
    family = what.empty()
    for group, state in product(groups, states):
        family.add_metric([group, state], counts.get((group, state), 0))
    return family


METRICS = ClusterMetrics()
"""The process's only one: it leads the scheduler at most once."""
REGISTRY.register(METRICS)
