"""``check(snapshot, plan)``: every way a plan can be wrong, found before it is committed.

Works from the bare rows and shares nothing with ``decide`` but the vocabulary, so that a mistake
in an index or a ranker cannot hide itself. ``loop.py`` refuses a plan with any violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from libs.contracts.messages import Goal, Placement, PreemptMode, Priority, ReasonCode
from libs.contracts.rank_sizes import RankSize, has_own_size, sizes_differ, sizes_of
from services.scheduler.domain.check.conservation import (
    clusters_broken,
    limits_broken,
    taken_twice,
    too_many_crossing,
)
from services.scheduler.domain.check.entitlement import TAKING, Victims
from services.scheduler.domain.check.node_resources import overcommitted
from services.scheduler.domain.check.violations import Fault, Violation
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import (
    Assign,
    Hold,
    Kill,
    Move,
    Plan,
    Preempt,
    Reject,
    Reorder,
)
from services.scheduler.domain.model.lifecycle import QUEUED, TRANSITIONS, Trigger
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import WEIGHTS


def check(snapshot: Snapshot, plan: Plan, *, deep: bool = False) -> list[Violation]:
    """Everything that is wrong with the plan; empty if it may be committed.

    Checks what the plan touches; ``deep`` recounts everything from the bare rows instead of
    trusting the index about which run is where (tests, simulation and replay do).
    """
    found = list(_general(snapshot, plan))
    victims = Victims(snapshot, plan, deep=deep)
    moved: dict[str, Task] = {}
    for decision in plan.decisions:
        task = moved.get(decision.task_id) or snapshot.tasks.get(decision.task_id)
        if task is None:
            found.append(Violation(Fault.UNKNOWN_TASK, decision.task_id))
            continue
        if isinstance(decision, Hold | Reorder):
            found += _noted(snapshot, task, decision)
            if isinstance(decision, Hold) and decision.reserved:
                found += _gang(snapshot, task, decision.reserved)
            continue
        to = TRANSITIONS.get((task.state, decision.trigger))
        if to is None or to is task.state:
            pair = f"{task.state} x {decision.trigger.value}"
            found.append(Violation(Fault.ILLEGAL, task.id, pair))
            continue
        if isinstance(decision, Assign):
            found += _assign(snapshot, plan, task, decision)
        elif isinstance(decision, Preempt | Kill):
            found += _hand_over(snapshot, plan, task, decision, victims)
            if decision.moves_to:
                found += _gang(snapshot, task, decision.moves_to)
        elif isinstance(decision, Reject) and (
            task.accepted
            or (decision.reason.code is ReasonCode.NEVER_FITS and not snapshot.inventory_listed)
        ):
            found.append(Violation(Fault.HASTY_REJECT, task.id))
        moved[task.id] = replace(task, state=to)
    found += taken_twice(snapshot, plan, deep=deep)
    found += overcommitted(snapshot, plan, deep=deep)
    found += limits_broken(snapshot, plan, deep=deep)
    found += clusters_broken(snapshot, plan)
    found += too_many_crossing(snapshot, plan)
    return [_located(snapshot, each) for each in found]


def _located(snapshot: Snapshot, found: Violation) -> Violation:
    """A violation with the group of its task."""
    task = snapshot.tasks.get(found.task_id)
    return found if found.group or task is None else replace(found, group=task.group)


def _noted(snapshot: Snapshot, task: Task, decision: Hold | Reorder) -> Iterator[Violation]:
    """A note leaves the task where it is."""
    if isinstance(decision, Hold):
        if task.state is not QUEUED:
            yield Violation(Fault.ILLEGAL, task.id, f"hold of {task.state}")
    elif task.state is not QUEUED and not task.holds:
        yield Violation(Fault.ILLEGAL, task.id, f"mark of {task.state}")
    elif decision.level is not Priority.UNSPECIFIED and (
        decision.level is task.level or WEIGHTS[decision.level] > _highest(snapshot, task)
    ):
        yield Violation(Fault.LEVEL_ROSE, task.id, f"{task.level} to {decision.level}")


def _highest(snapshot: Snapshot, task: Task) -> int:
    """The weight of the highest level that a run may come to: only its owner raises it."""
    if task.priority in (Priority.AUTO, Priority.UNSPECIFIED):
        return WEIGHTS[task.level]
    policy = snapshot.pools[task.group].policy
    return max(WEIGHTS[task.level], WEIGHTS[policy.demoted(task.priority, task.run_seconds)])


def _general(snapshot: Snapshot, plan: Plan) -> Iterator[Violation]:
    if plan.version != snapshot.version:
        detail = f"{plan.version} is not {snapshot.version}"
        yield Violation(Fault.STALE, detail=detail)
    moves = Counter(
        decision.task_id
        for decision in plan.decisions
        # Resume and start in one plan are two steps of one task, in this order.
        if not isinstance(decision, Hold | Reorder)
        and not (isinstance(decision, Move) and decision.trigger is Trigger.RESUME)
    )
    for task_id, count in moves.items():
        if count > 1:
            yield Violation(Fault.TWICE, task_id)
    for group in plan.scans:
        pool = snapshot.pools[group]
        for task_id in (*pool.unkeyed, *pool.arrived):
            if task_id not in plan.explanations and snapshot.tasks[task_id].state is QUEUED:
                yield Violation(Fault.UNEXPLAINED, task_id)


def _assign(snapshot: Snapshot, plan: Plan, task: Task, decision: Assign) -> Iterator[Violation]:
    if decision.attempt != task.attempt + 1:
        yield Violation(Fault.WRONG_ATTEMPT, task.id, f"{decision.attempt} after {task.attempt}")
    if task.live_attempt is not None or task.placements:
        yield Violation(Fault.TWO_LIVE, task.id)
    if task.goal is not Goal.RUN:
        yield Violation(Fault.NOT_WANTED, task.id, task.goal)
    if task.state is QUEUED and task.not_before_at and task.not_before_at > plan.decided_at:
        resumed = snapshot.tasks[task.id].state is not QUEUED
        if not resumed:
            yield Violation(Fault.TOO_EARLY, task.id)
    if decision.resume_from != task.checkpoint:
        yield Violation(Fault.WRONG_CHECKPOINT, task.id)
    if decision.start_deadline_at <= plan.decided_at:
        yield Violation(Fault.DEADLINE, task.id)
    yield from _gang(snapshot, task, decision.placements)


def _gang(snapshot: Snapshot, task: Task, placements: tuple[Placement, ...]) -> Iterator[Violation]:
    """What is given or promised is exactly the gang, on nodes that may hold it."""
    wanted = [(role.name, index) for role in task.spec.roles for index in range(role.replicas)]
    ranks = [(each.role, each.role_index) for each in placements]
    if ranks != wanted or [each.rank for each in placements] != list(range(len(wanted))):
        yield Violation(Fault.GANG, task.id, f"{len(ranks)} ranks for {len(wanted)}")
        return
    sizes = sizes_of(task.spec)
    # Ranks on nodes of their own can share nothing.
    if len({each.node_id for each in placements}) < len(placements):
        yield from _shared(task, placements, sizes)
    for placement in placements:
        yield from _on_node(snapshot, task, placement, sizes[placement.role].gpus)


def _shared(
    task: Task, placements: tuple[Placement, ...], sizes: Mapping[str, RankSize]
) -> Iterator[Violation]:
    """What several ranks of the gang have, of which only one may have it."""
    # What only one rank of the gang may have: a GPU; a node, for all of its ranks or for a role.
    own: list[tuple[str, str, int]] = []
    differ = sizes_differ(task.spec)
    sized = {role.name for role in task.spec.roles if has_own_size(role)}
    for each in placements:
        own += [(each.node_id, "", gpu) for gpu in each.gpus]
        if not differ:
            own.append((each.node_id, "", -1))
        elif sizes[each.role].spread or sizes[each.role].gpus is None:
            # Roles without a size of their own have a node for each of their ranks.
            own.append((each.node_id, each.role if each.role in sized else "", -1))
    for (node_id, role, gpu), count in Counter(own).items():
        if count > 1:
            ranks = f"{count} ranks of {role}" if role else f"{count} ranks"
            where = f"on {node_id}" if gpu < 0 else f"have GPU {gpu} of {node_id}"
            yield Violation(Fault.GANG, task.id, f"{ranks} {where}")
    # A node without GPUs that a rank has whole, which no GPU shows.
    there = Counter(each.node_id for each in placements)
    without_gpus = (each for each in placements if not each.gpus)
    whole = {each.node_id for each in without_gpus if sizes[each.role].gpus is None}
    for node_id in sorted(whole):
        if there[node_id] > 1:
            detail = f"{there[node_id]} ranks on {node_id}, which one of them has whole"
            yield Violation(Fault.GANG, task.id, detail)


def _on_node(
    snapshot: Snapshot, task: Task, placement: Placement, wanted: int | None
) -> Iterator[Violation]:
    node = snapshot.nodes.get(placement.node_id)
    if node is None or not node.offered or node.group != task.group:
        yield Violation(Fault.NODE, task.id, placement.node_id)
        return
    wanted = node.gpus if wanted is None else wanted
    gpus = set(placement.gpus)
    if len(placement.gpus) != wanted or len(gpus) != wanted:
        yield Violation(Fault.GANG, task.id, f"{len(gpus)} GPUs on {node.id} for {wanted}")
    if not gpus <= set(range(node.gpus)) - set(node.unusable_gpus):
        yield Violation(Fault.GPU, task.id, f"{sorted(gpus)} on {node.id}")
    labels = dict(node.labels)
    for key, value in task.spec.node_selector.items():
        if labels.get(key) != value:
            yield Violation(Fault.NOT_SUITING, task.id, f"{node.id} without {key}={value}")
    tolerated = set(task.spec.tolerations)
    for taint in node.taints:
        if not {taint, taint.partition("=")[0]} & tolerated:
            yield Violation(Fault.NOT_SUITING, task.id, f"{node.id} with {taint}")


def _hand_over(
    snapshot: Snapshot, plan: Plan, task: Task, decision: Preempt | Kill, victims: Victims
) -> Iterator[Violation]:
    now = plan.decided_at
    if decision.attempt != task.live_attempt:
        yield Violation(Fault.WRONG_ATTEMPT, task.id, f"{decision.attempt} is not live")
    if isinstance(decision, Preempt) and decision.deadline_at <= now:
        yield Violation(Fault.DEADLINE, task.id)
    expired = {
        Trigger.START_EXPIRED: task.start_deadline_at,
        Trigger.ACK_EXPIRED: _ack_expires(snapshot, task),
    }
    expires = expired.get(decision.trigger)
    if decision.trigger in expired and (expires is None or expires > now):
        yield Violation(Fault.NOT_EXPIRED, task.id)
    if decision.reason.code is ReasonCode.NODE_DRAINED:
        on = [snapshot.nodes.get(placement.node_id) for placement in task.placements]
        if not any(node is not None and node.draining for node in on):
            yield Violation(Fault.NOT_DRAINED, task.id)
    if decision.reason.code in TAKING:
        yield from victims.wrong(task, decision)


def _ack_expires(snapshot: Snapshot, task: Task) -> datetime | None:
    """When a run that was requested to leave may be forced: earlier if it never listened."""
    deadlines = [task.ack_deadline_at]
    mode = task.spec.preemption.mode
    if task.listens is False and mode in (PreemptMode.SDK, PreemptMode.UNSPECIFIED):
        grace = timedelta(seconds=snapshot.settings.silent_ack_seconds_max)
        deadlines += [task.preempt_requested_at and task.preempt_requested_at + grace]
    return min((at for at in deadlines if at is not None), default=None)
