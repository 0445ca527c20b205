"""``explain(snapshot, task, now)``: why a task stands where it stands, with the numbers of now.

The stored reason says which rule binds; this adds the place in line, who makes room for it, and
what would let it start. Called by the Explain command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime

from libs.contracts.messages import ExplainReply, Priority, ReasonCode, TaskState, Unit
from libs.contracts.reasons import level_name
from services.scheduler.domain.lifecycle import LEAVING, QUEUED
from services.scheduler.domain.model import WEIGHTS, Node, Shape, Task
from services.scheduler.domain.order import auto_level, is_auto, waiting
from services.scheduler.domain.quota import Ledger
from services.scheduler.domain.room import protected_until
from services.scheduler.domain.snapshot import Snapshot

VICTIMS_SHOWN_MAX = 1000
NODES_NAMED_MAX = 3


def explain(snapshot: Snapshot, task: Task, now: datetime) -> ExplainReply:
    """The answer about a task that has not ended."""
    position, length = _place_in_line(snapshot, task)
    victims = sorted(
        each.id
        for each in snapshot.held.values()
        if each.state in LEAVING and each.preempted_for == task.id
    )
    return ExplainReply(
        state=task.state,
        reason=task.reason,
        position=position,
        queue_length=length,
        victims=tuple(victims[:VICTIMS_SHOWN_MAX]) if task.state is QUEUED else (),
        remedies=tuple(_remedies(snapshot, task, now)),
        explained_at=now,
    )


def _place_in_line(snapshot: Snapshot, task: Task) -> tuple[int, int]:
    """The task's place among the waiting tasks of its group from 1, and how many there are."""
    if task.state is not QUEUED:
        return 0, 0
    ledger = Ledger(snapshot.limits, snapshot.held.values())
    own = waiting(task, _level(snapshot, ledger, task))[:3]
    line = [entry[:3] for entry in snapshot.queue if entry.shape.group == task.group]
    line += [
        waiting(each, _level(snapshot, ledger, each))[:3]
        for each in snapshot.auto.values()
        if each.group == task.group
    ]
    return 1 + sum(each < own for each in line), len(line)


def _level(snapshot: Snapshot, ledger: Ledger, task: Task) -> Priority:
    """The level the task waits at: what AUTO comes to now, or its own."""
    if not is_auto(task):
        return task.priority
    need = snapshot.totals.need(task.shape)
    return auto_level(task, need, ledger, snapshot.settings.auto_level_max)


def _remedies(snapshot: Snapshot, task: Task, now: datetime) -> Iterator[str]:
    if task.attempts_without_progress >= snapshot.settings.no_progress_attempts:
        yield (
            f"save checkpoints more often: {task.attempts_without_progress} attempts in a row"
            " ended without a newer one"
        )
    if task.state is TaskState.PAUSED:
        yield "resume it"
    if task.state is QUEUED:
        remedy = _REMEDIES.get(task.reason.code)
        if remedy is not None:
            yield from remedy(snapshot, task, now)


def _capacity(snapshot: Snapshot, task: Task, now: datetime) -> Iterator[str]:
    """What would have to come free, and who could be asked."""
    shape = task.shape
    fitting = _fitting_now(snapshot, shape)
    yield f"{max(0, shape.nodes - fitting)} more of its {shape.nodes} nodes come free"
    below = [
        each
        for each in snapshot.held.values()
        if each.group == task.group and each.state not in LEAVING
    ]
    own = _level(snapshot, Ledger(snapshot.limits, snapshot.held.values()), task)
    lower = [each for each in below if WEIGHTS[each.level] < WEIGHTS[own]]
    if below and len(lower) < len(below):
        levels = sorted(
            {each.level for each in below if each not in lower}, key=WEIGHTS.__getitem__
        )
        yield (
            f"a priority above {level_name(levels[0])} could preempt some of the"
            f" {len(below) - len(lower)} running tasks that are not below it"
        )
    ends = [protected_until(each, snapshot.settings) for each in lower]
    soon = sorted(end for end in ends if end is not None and end > now)
    if soon:
        moment = soon[0].isoformat(timespec="seconds")
        yield f"{len(soon)} lower runs may be preempted from {moment}"
    cordoned = _not_offered(snapshot, shape)
    if cordoned:
        yield f"nodes that are cordoned or not ready come back: {_named(cordoned)}"


def _behind(snapshot: Snapshot, task: Task, now: datetime) -> Iterator[str]:
    position, _ = _place_in_line(snapshot, task)
    yield f"the {position - 1} tasks before it start or leave the queue"
    yield from _capacity(snapshot, task, now)


def _fitting_now(snapshot: Snapshot, shape: Shape) -> int:
    """How many of the gang's nodes could be had at once."""
    count = 0
    while count < shape.nodes and snapshot.capacity.pick(shape._replace(nodes=count + 1)):
        count += 1
    return count


def _not_offered(snapshot: Snapshot, shape: Shape) -> list[Node]:
    return [
        node
        for node in snapshot.nodes.values()
        if node.group == shape.group and not node.removed and not node.offered
    ]


def _named(nodes: list[Node]) -> str:
    names = sorted(node.id for node in nodes)
    more = f" and {len(names) - NODES_NAMED_MAX} more" if len(names) > NODES_NAMED_MAX else ""
    return ", ".join(names[:NODES_NAMED_MAX]) + more


def _quota(snapshot: Snapshot, task: Task, _now: datetime) -> Iterator[str]:
    ledger = Ledger(snapshot.limits, snapshot.held.values())
    need = snapshot.totals.need(task.shape)
    excess = ledger.excess(task, _level(snapshot, ledger, task), need)
    if excess is None:
        yield "nothing: it is looked at again at once"
        return
    limit, amount = excess.limit, need.of(excess.limit.unit)
    unit = "nodes" if limit.unit is Unit.NODES else "GPUs"
    missing = excess.held + amount - limit.limit
    if amount <= limit.limit:
        yield f"{missing} of the {excess.held} {unit} held under this quota come free"
    yield f"raise the quota from {limit.limit} to {excess.held + amount} {unit}"


def _retry(_snapshot: Snapshot, task: Task, now: datetime) -> Iterator[str]:
    if task.not_before_at is not None:
        seconds = max(0.0, (task.not_before_at - now).total_seconds())
        yield f"the retry time comes in {seconds:.0f} s"
    yield "pause and resume it to try at once"


def _too_small(snapshot: Snapshot, task: Task, _now: datetime) -> Iterator[str]:
    away = _not_offered(snapshot, task.shape)
    if away:
        yield f"nodes that are cordoned or not ready come back: {_named(away)}"
    sick = [
        node
        for node in snapshot.nodes.values()
        if node.group == task.group and node.offered and node.unusable_gpus
    ]
    if sick:
        yield f"GPUs that must not be used become usable: on {_named(sick)}"
    if not away and not sick:
        yield f"nodes are added to group {task.group}"


def _inventory(_snapshot: Snapshot, _task: Task, _now: datetime) -> Iterator[str]:
    yield "the launcher lists its nodes"


def _victims(snapshot: Snapshot, task: Task, now: datetime) -> Iterator[str]:
    leaving = [each for each in snapshot.held.values() if each.state in LEAVING]
    own = [each for each in leaving if each.preempted_for == task.id] or leaving
    ends = [each.ack_deadline_at for each in own if each.ack_deadline_at is not None]
    yield f"{len(own)} runs that are leaving end"
    if ends:
        seconds = max(0.0, (max(ends) - now).total_seconds())
        yield f"at the latest in {seconds:.0f} s they are ended by force"


_REMEDIES: dict[ReasonCode, Callable[[Snapshot, Task, datetime], Iterator[str]]] = {
    ReasonCode.WAITS_FOR_CAPACITY: _capacity,
    ReasonCode.WAITS_FOR_QUOTA: _quota,
    ReasonCode.WAITS_BEHIND_OTHERS: _behind,
    ReasonCode.WAITS_FOR_VICTIMS: _victims,
    ReasonCode.WAITS_FOR_RETRY: _retry,
    ReasonCode.WAITS_FOR_INVENTORY: _inventory,
    ReasonCode.CLUSTER_TOO_SMALL_NOW: _too_small,
}
