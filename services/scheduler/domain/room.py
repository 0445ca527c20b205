"""Room for a waiting task: what is coming free anyway, else the least that must be asked to go.

Victims are of strictly lower weight, past their protected minimum (or not started yet, with
nothing to lose), the cheapest first: lowest level, then least work since the last checkpoint.
They are removed until the gang fits; then, in reverse, each that is not needed is spared.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from libs.contracts.messages import ReasonCode
from services.scheduler.domain.handover import tell_to_go
from services.scheduler.domain.lifecycle import LEAVING, RUNNING
from services.scheduler.domain.model import WEIGHTS, PolicySettings, Task
from services.scheduler.domain.order import Waiting
from services.scheduler.domain.place import Slot, slots_of
from services.scheduler.domain.round import Candidate, Round
from services.scheduler.domain.why import reason


def protected_until(task: Task, settings: PolicySettings) -> datetime | None:
    """Until when the run may not be preempted; None if it is not protected."""
    if task.state is not RUNNING or task.run_started_at is None:
        return None
    return task.run_started_at + timedelta(seconds=settings.protected_seconds)


def lost_work(task: Task, now: datetime) -> float:
    """Work since the last checkpoint, in GPU-seconds (node-seconds without GPUs)."""
    if task.state is not RUNNING or task.run_started_at is None:
        return 0.0
    since = task.run_started_at
    if task.checkpoint is not None and task.checkpoint.attempt == task.attempt:
        since = max(since, task.checkpoint.saved_at)
    return max(0.0, (now - since).total_seconds()) * (task.held_gpus or len(task.placements))


def promise(round_: Round, entry: Waiting) -> bool:
    """Keep a place for the task among what is free, coming, or can be made to come."""
    slots = _coming_anyway(round_, entry)
    if slots is None:
        slots = _make(round_, entry)
    if slots is not None:
        round_.promise(slots)
    return slots is not None


def _coming_anyway(round_: Round, entry: Waiting) -> tuple[Slot, ...] | None:
    """A place in what leaving runs set free: those asked for this task first, then nobody's, all.

    In this order, so that a task does not take what others' victims were asked for while its own
    are enough.
    """
    for beneficiaries in ((entry.id,), (entry.id, "")):
        own = [t for each in beneficiaries for t in round_.leaving_for.get(each, ())]
        if own:
            capacity = round_.free.copy()
            for slot in (slot for task in own for slot in slots_of(task)):
                if slot.mask and slot.node_id in round_.coming.free:
                    left = slot.mask & round_.coming.free[slot.node_id]
                    capacity.give((Slot(slot.node_id, left),) if left else ())
                elif round_.coming.covers(slot):
                    capacity.give((slot,))
            slots = capacity.pick(entry.shape)
            if slots is not None:
                return slots
    return round_.coming.pick(entry.shape) if round_.leaving_for else None


def candidates(round_: Round) -> list[Candidate]:
    """All runs that could be asked to go, cheapest first; sorted once per round."""
    if round_.candidates is None:
        round_.candidates = sorted(
            Candidate(WEIGHTS[task.level], lost_work(task, round_.now), task.id, task)
            for task in round_.snapshot.held.values()
            if task.state not in LEAVING
        )
    return round_.candidates


def _may_go(round_: Round, task: Task) -> bool:
    until = protected_until(task, round_.settings)
    if until is not None and until > round_.now:
        round_.wake_at(until)
        return False
    return True


def _make(round_: Round, entry: Waiting) -> tuple[Slot, ...] | None:
    """Ask the least to go that lets the gang fit; None, and nobody asked, if all is not enough."""
    trial = round_.coming.copy()
    removed: list[Task] = []
    fits = False
    for candidate in candidates(round_):
        task = candidate.task
        if candidate.weight >= -entry.minus_weight:
            break
        if task.group != entry.shape.group or task.id in round_.moved:
            continue
        if _may_go(round_, task):
            trial.give(slots_of(task))
            removed.append(task)
            fits = trial.fits(entry.shape)
            if fits:
                break
    if not fits:
        return None
    victims: list[Task] = []
    for task in reversed(removed):
        trial.take(slots_of(task))
        if not trial.fits(entry.shape):
            trial.give(slots_of(task))
            victims.append(task)
    why = reason(ReasonCode.PREEMPTED_BY, names={"task": entry.id, "priority": entry.level.value})
    for task in sorted(victims, key=lambda each: each.id):
        tell_to_go(round_, task, why, beneficiary=entry.id)
    return trial.pick(entry.shape)
