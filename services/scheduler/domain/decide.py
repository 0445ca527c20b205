"""``decide(snapshot, now) -> Plan``: the whole policy, as a table of contents.

1. expire: deadlines that have passed (``deadlines.py``)
2. converge goals: what owners asked for (``goals.py``)
3. drain: nodes that are to be empty (``drain.py``)
4. order: level, submission, id (``order.py``)
5. place: gangs, all or nothing (``place.py``)
6. make room: what is coming free, else the least that must go (``room.py``)
7. explain: a reason for every task that waits

Who may pass whom. Tasks are looked at strictly in order. One that finds no place holds back, for
its own level, every node it could use: a later task of that level starts only on nodes it could
never use, so a large gang is not starved by small ones. Lower levels may run there meanwhile,
because they can be preempted when the rest has come together. A task that waits for its quota, for
its retry time or for nodes that are down holds nothing back.

Everything is deterministic, independent of the order of the input, and a second call on the result
of the first decides nothing new. A task that found no place speaks for all later ones of its level
and shape, so a long queue costs one look-up for each of its tasks.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import datetime

from libs.contracts.messages import Priority, Reason, ReasonCode
from services.scheduler.domain.deadlines import expire
from services.scheduler.domain.drain import drain
from services.scheduler.domain.goals import converge
from services.scheduler.domain.lifecycle import QUEUED
from services.scheduler.domain.model import Assign, Plan, Reject, Task
from services.scheduler.domain.order import Waiting, auto_level, is_auto, waiting
from services.scheduler.domain.place import Slot, placements_of
from services.scheduler.domain.quota import Excess, Need
from services.scheduler.domain.room import promise
from services.scheduler.domain.round import Round
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.domain.why import reason


def decide(snapshot: Snapshot, now: datetime) -> Plan:
    """What to do at this moment. Pure: the same snapshot and ``now`` give the same plan."""
    round_ = Round(snapshot, now)
    expire(round_)
    resumed = converge(round_)
    drain(round_)
    for entry in _in_order(round_, resumed):
        _consider(round_, entry)
    return Plan(
        version=snapshot.version,
        decided_at=now,
        decisions=tuple(round_.decisions),
        explanations=round_.explanations,
        due_at=round_.due_at,
    )


def _in_order(round_: Round, resumed: list[Task]) -> Iterator[Waiting]:
    """The queue with resumed and AUTO tasks merged in; an AUTO task sinks when its level fills."""
    snapshot = round_.snapshot
    late = [waiting(task) for task in resumed if not is_auto(task)]
    autos = [task for task in snapshot.auto.values() if task.id not in round_.moved]
    autos += [task for task in resumed if is_auto(task)]
    late += [_with_level(round_, task) for task in autos]
    heapq.heapify(late)
    for entry in snapshot.queue:
        if entry.id not in round_.moved:
            while late and late[0] < entry:
                yield from _settled(round_, late)
            yield entry
    while late:
        yield from _settled(round_, late)


def _with_level(round_: Round, task: Task) -> Waiting:
    need = round_.snapshot.totals.need(task.shape)
    level = auto_level(task, need, round_.ledger, round_.settings.auto_level_max)
    return waiting(task, level)


def _settled(round_: Round, late: list[Waiting]) -> Iterator[Waiting]:
    """Take the first entry; one whose level has no quota left any more goes back, lower."""
    entry = heapq.heappop(late)
    again = _with_level(round_, entry.task) if is_auto(entry.task) else entry
    if again.minus_weight == entry.minus_weight:
        yield entry
    else:
        heapq.heappush(late, again)


def _consider(round_: Round, entry: Waiting) -> None:
    """Give the task a place, promise it one, or say why it waits."""
    task, shape = entry.task, entry.shape
    if _waits_by_itself(round_, entry):
        return
    key = (entry.minus_weight, shape)
    if key in round_.stuck:
        round_.explain(task, round_.waits(ReasonCode.WAITS_BEHIND_OTHERS, shape))
        return
    eligible = round_.snapshot.totals.eligible(shape)
    held_back = round_.held_back.setdefault(entry.minus_weight, set())
    behind = not held_back.isdisjoint(eligible)
    slots = _place(round_, entry, held_back if behind else set())
    if slots is not None:
        _assign(round_, entry, slots)
    elif not behind and promise(round_, entry):
        need = round_.snapshot.totals.need(shape)
        round_.ledger.charge(task, entry.level, need)
        round_.explain(task, round_.waits(ReasonCode.WAITS_FOR_VICTIMS, shape))
    else:
        round_.stuck.add(key)
        held_back.update(eligible)
        code = ReasonCode.WAITS_BEHIND_OTHERS if behind else ReasonCode.WAITS_FOR_CAPACITY
        round_.explain(task, round_.waits(code, shape))


def _place(round_: Round, entry: Waiting, held_back: set[str]) -> tuple[Slot, ...] | None:
    """A place that is free now and that no earlier task of the level holds back."""
    if not held_back:
        return round_.free.pick(entry.shape)
    if round_.snapshot.totals.eligible(entry.shape) <= held_back:
        return None
    cpu = "/cpu" if entry.shape.gpus == 0 else ""
    nodes = round_.free.nodes
    return round_.free.pick(
        entry.shape,
        lambda node_id: node_id + (cpu if nodes[node_id].gpus else "") not in held_back,
    )


def _waits_by_itself(round_: Round, entry: Waiting) -> bool:
    """True, with the reason noted, if the task cannot start whatever others do."""
    task, shape, totals = entry.task, entry.shape, round_.snapshot.totals
    if _retry_later(task, round_.now):
        round_.wake_at(task.not_before_at)
        round_.explain(task, _retry_reason(task), accepted=task.accepted)
    elif not totals.fits_known(shape):
        _too_big(round_, entry)
    elif not totals.fits_now(shape):
        round_.explain(task, round_.waits(ReasonCode.CLUSTER_TOO_SMALL_NOW, shape))
    else:
        need = totals.need(shape)
        excess = round_.ledger.excess(task, entry.level, need)
        if excess is None:
            return False
        round_.explain(task, quota_reason(excess, need))
    return True


def _retry_later(task: Task, now: datetime) -> bool:
    """A retry waits its time; a task that its owner resumed does not."""
    until = task.not_before_at
    return task.state is QUEUED and until is not None and until > now


def _too_big(round_: Round, entry: Waiting) -> None:
    """No known nodes could hold it: rejected if that is certain and always was so."""
    task, shape = entry.task, entry.shape
    if task.accepted:
        round_.explain(task, round_.waits(ReasonCode.CLUSTER_TOO_SMALL_NOW, shape))
    elif round_.snapshot.inventory_listed:
        why = round_.waits(ReasonCode.NEVER_FITS, shape)
        round_.decide(Reject(task.id, why))
        round_.explanations[task.id] = why
    else:
        why = round_.waits(ReasonCode.WAITS_FOR_INVENTORY, shape)
        round_.explain(task, why, accepted=False)


def _retry_reason(task: Task) -> Reason:
    assert task.not_before_at is not None, "only a task that is to wait is asked"
    return reason(
        ReasonCode.WAITS_FOR_RETRY,
        names={"at": task.not_before_at.isoformat(timespec="seconds")},
        retry=task.retries_used,
        retries_max=task.spec.retry.max_retries,
    )


def quota_reason(excess: Excess, need: Need) -> Reason:
    """Which limit binds, and what the task would take of it."""
    limit = excess.limit
    names = {
        "group": limit.group,
        "user": limit.user,
        "team": limit.team,
        "priority": "" if limit.priority is Priority.UNSPECIFIED else limit.priority.value,
        "unit": limit.unit.value,
    }
    return reason(
        ReasonCode.WAITS_FOR_QUOTA, names=names, limit=limit.limit, need=need.of(limit.unit)
    )


def _assign(round_: Round, entry: Waiting, slots: tuple[Slot, ...]) -> None:
    task = entry.task
    start_deadline_at = round_.after(round_.settings.start_deadline_seconds)
    round_.wake_at(start_deadline_at)
    names = {"node_ids": ", ".join(slot.node_id for slot in slots[:3]), "group": task.group}
    decision = Assign(
        task_id=task.id,
        attempt=task.attempt + 1,
        level=entry.level,
        placements=placements_of(slots, task.spec, round_.snapshot.nodes),
        start_deadline_at=start_deadline_at,
        resume_from=task.checkpoint,
        reason=reason(ReasonCode.PLACED, names=names, nodes=len(slots), gpus=entry.shape.gpus),
    )
    round_.assign(task, slots, decision)
