"""What another policy would do now: compares two plans for the same snapshot. Pure.

Called by the query DryRunPolicy. Both plans must come from a full scan, so that they name every
task that waits, moves or is moved.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from libs.contracts.messages import (
    PolicyEffect,
    PolicyOutlook,
    PolicyRound,
    Priority,
    Verdict,
)
from services.scheduler.domain.model.decisions import Assign, Hold, Kill, Plan, Preempt, Reorder
from services.scheduler.domain.model.rows import Task

WAIT = "wait"
SINK = "sink"
# The most important effects first.
_GRAVITY = ("kill", "reject", "preempt", "assign", "move", SINK)


@dataclass(frozen=True, slots=True)
class DryRun:
    """The difference between two plans."""

    effects: tuple[PolicyEffect, ...]
    # How many effects are left out.
    more: int
    outlooks: tuple[PolicyOutlook, ...]


@dataclass(slots=True)
class _Round:
    """One group's sums while they are added up."""

    starts: int = 0
    promised: set[str] = field(default_factory=set[str])
    preemptions: int = 0
    waiting: int = 0
    gpus_held: int = 0
    gpus_handed_over: int = 0
    gpu_seconds_at_risk: float = 0.0

    def message(self) -> PolicyRound:
        return PolicyRound(
            starts=self.starts,
            promised=len(self.promised),
            preemptions=self.preemptions,
            waiting=self.waiting,
            gpus_held=self.gpus_held,
            gpus_handed_over=self.gpus_handed_over,
            gpu_seconds_at_risk=round(self.gpu_seconds_at_risk, 3),
        )


def diff(before: Plan, after: Plan, tasks: Mapping[str, Task], *, effects_max: int) -> DryRun:
    """Every task that the plans treat differently, the most important first; and sums by group.

    Another placement of a task, or other numbers in the reason why it waits, are no difference. A
    task that neither plan names is unchanged in both.
    """
    now, then = verdicts(before, tasks), verdicts(after, tasks)
    changed = [
        task_id for task_id in tasks if _essence(now.get(task_id)) != _essence(then.get(task_id))
    ]
    changed.sort(key=lambda task_id: (_gravity(now.get(task_id), then.get(task_id)), task_id))
    effects = tuple(
        _effect(tasks[task_id], now.get(task_id), then.get(task_id))
        for task_id in changed[:effects_max]
    )
    return DryRun(effects, len(changed) - len(effects), _outlooks(before, after, tasks, now, then))


def verdicts(plan: Plan, tasks: Mapping[str, Task]) -> dict[str, Verdict]:
    """The verdict of a plan on each task that it names: its decision, or why it waits."""
    found = {
        task_id: Verdict(kind=WAIT, reason=reason)
        for task_id, reason in plan.explanations.items()
        if task_id in tasks
    }
    for decision in plan.decisions:
        if isinstance(decision, Hold):
            found[decision.task_id] = Verdict(kind=WAIT, reason=decision.reason)
        elif isinstance(decision, Reorder):
            # A new position in the order is not reported, another level is.
            if decision.level not in {Priority.UNSPECIFIED, tasks[decision.task_id].level}:
                found[decision.task_id] = Verdict(kind=SINK, reason=decision.reason)
        else:
            beneficiary = decision.beneficiary if isinstance(decision, Preempt | Kill) else ""
            found[decision.task_id] = Verdict(
                kind=decision.kind, reason=decision.reason, beneficiary=beneficiary
            )
    return found


def _essence(verdict: Verdict | None) -> tuple[object, ...]:
    if verdict is None:
        return ("", None, "")
    code = verdict.reason.code if verdict.reason else None
    return (verdict.kind, code, verdict.beneficiary)


def _gravity(now: Verdict | None, then: Verdict | None) -> int:
    kinds = {verdict.kind for verdict in (now, then) if verdict is not None}
    ranks = [place for place, kind in enumerate(_GRAVITY) if kind in kinds]
    return min(ranks, default=len(_GRAVITY))


def _effect(task: Task, now: Verdict | None, then: Verdict | None) -> PolicyEffect:
    return PolicyEffect(
        task_id=task.id,
        name=task.spec.name,
        owner=task.owner,
        group=task.group,
        state=task.state,
        nodes=task.spec.nodes,
        now=now or Verdict(),
        then=then or Verdict(),
    )


def _outlooks(
    before: Plan,
    after: Plan,
    tasks: Mapping[str, Task],
    now: Mapping[str, Verdict],
    then: Mapping[str, Verdict],
) -> tuple[PolicyOutlook, ...]:
    sums_now, sums_then = _rounds(before, tasks, now), _rounds(after, tasks, then)
    return tuple(
        PolicyOutlook(group=group, now=sums_now[group].message(), then=sums_then[group].message())
        for group in sorted({*sums_now, *sums_then})
    )


def _rounds(
    plan: Plan, tasks: Mapping[str, Task], verdicts: Mapping[str, Verdict]
) -> defaultdict[str, _Round]:
    """The sums of one plan by group."""
    found: defaultdict[str, _Round] = defaultdict(_Round)
    for task in tasks.values():
        found[task.group].gpus_held += task.held_gpus
    for task_id, verdict in verdicts.items():
        found[tasks[task_id].group].waiting += verdict.kind == WAIT
    for decision in plan.decisions:
        task = tasks[decision.task_id]
        sums = found[task.group]
        if isinstance(decision, Assign):
            sums.starts += 1
            sums.gpus_held += sum(len(place.gpus) for place in decision.placements)
        elif isinstance(decision, Preempt | Kill):
            sums.preemptions += 1
            sums.gpus_handed_over += task.held_gpus
            sums.gpu_seconds_at_risk += task.held_gpus * _unsaved(task, plan.decided_at)
            if decision.beneficiary:
                sums.promised.add(decision.beneficiary)
    return found


def _unsaved(task: Task, now: datetime) -> float:
    """Seconds of running since what the live run would resume from was saved."""
    since = task.run_started_at
    if since is None:
        return 0.0
    if task.checkpoint is not None:
        since = max(since, task.checkpoint.saved_at)
    return max(0.0, (now - since).total_seconds())
