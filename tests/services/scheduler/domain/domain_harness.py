"""The pure core on a virtual clock: a test drives people, runs and nodes, decisions become rows,
and an index follows them.

After every round the plan is checked in depth and compared with what an index decides that is
rebuilt from the bare rows: the slow, obviously right way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from libs.contracts.messages import (
    CheckpointSaved,
    ExitKind,
    Goal,
    GoalChanged,
    ModeChanged,
    Priority,
    PriorityChanged,
    RunMode,
    TaskState,
)
from libs.contracts.task_states import TERMINAL
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.limits.virtual_clusters import UNCOVERED
from services.scheduler.domain.model import observations
from services.scheduler.domain.model.changes import Change, applied, state_changed
from services.scheduler.domain.model.decisions import Decision, Hold, Plan, Reorder
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.rows import EndedTask, Inventory, Limit, Node, Task
from services.scheduler.domain.model.values import Shape
from services.scheduler.domain.queue.queues import Branch, Tree
from tests.kit.builders import (
    a_checkpoint,
    exited_event,
    listened_event,
    some_nodes,
    started_event,
    submitted_event,
)
from tests.kit.clock import START, at
from tests.services.scheduler.domain.explain.copies import copy_of

H = TypeVar("H", bound="DomainHarness")
# At one time a small cluster comes to rest in a few rounds, or never.
ROUNDS_MAX = 40
# Deadlines that are processed while time advances; then the clock jumps.
STOPS_MAX = 30
ALMOST = 1e-6


def acts(decision: Decision) -> bool:
    """True if it does more than explain why a task waits."""
    if isinstance(decision, Hold):
        return decision.reserved is not None
    return True


def brief(decision: Decision) -> str:
    """A decision in a line."""
    promised = [each.node_id for each in getattr(decision, "reserved", None) or ()]
    extra = getattr(decision, "beneficiary", "") or promised
    return f"{decision.kind} {decision.task_id} {decision.reason.code.name} {extra or ''}".strip()


def difference(found: list[Decision], wanted: list[Decision]) -> str:
    """What only one of two plans decides; all of both if that is only the order."""
    ours = [brief(each) for each in found if each not in wanted]
    theirs = [brief(each) for each in wanted if each not in found]
    if ours or theirs:
        return f"decided {ours}, rebuilt {theirs}"
    return f"order: {[brief(each) for each in found]}, rebuilt {[brief(each) for each in wanted]}"


class DomainHarness:
    """One cluster and its tasks."""

    def __init__(
        self,
        nodes: Iterable[Node],
        *,
        settings: PolicySettings | None = None,
        policies: Iterable[GroupPolicy] = (),
        limits: Iterable[Limit] = (),
        oracle: bool = True,
    ) -> None:
        self.settings = settings or PolicySettings()
        self.index = Index(self.settings)
        self.index.apply(put=[*policies, *nodes, *limits, Inventory("process", (), START)])
        self.seconds = 0.0
        self.due: float | None = None
        self.oracle = oracle
        self.log: list[str] = []
        # Stretches of running, by task: (start, end).
        self.runs: dict[str, list[tuple[float, float]]] = {}
        self._revision = 1
        self._saved: dict[str, int] = {}

    @property
    def now(self) -> datetime:
        return at(self.seconds)

    @property
    def tasks(self) -> dict[str, Task]:
        return self.index.tasks

    # Rounds.

    def plan(self) -> Plan:
        """One plan, checked and compared; nothing is committed."""
        snapshot = Snapshot.view(self.index)
        plan = decide(snapshot, self.now)
        faults = check(snapshot, plan, deep=True)
        assert not faults, [str(fault) for fault in faults]
        if self.oracle:
            self._compare(plan)
        return plan

    def _compare(self, plan: Plan) -> None:
        fresh = copy_of(self.index)
        expected = decide(Snapshot.view(fresh), self.now)
        found = [each for each in plan.decisions if acts(each)]
        wanted = [each for each in expected.decisions if acts(each)]
        assert found == wanted, f"at {self.seconds}: {difference(found, wanted)}"
        expected_holds = {
            each.task_id: each for each in expected.decisions if isinstance(each, Hold)
        }
        for each in plan.decisions:
            if isinstance(each, Hold):
                rebuilt = expected_holds.get(each.task_id)
                assert rebuilt == each, f"{brief(each)}, rebuilt {rebuilt and brief(rebuilt)}"
        assert plan.ledgers == expected.ledgers

    def rounds(self) -> None:
        """Run rounds until nothing more is decided at the current time."""
        for _ in range(ROUNDS_MAX):
            plan = self.plan()
            self.index.settle(plan)
            self.due = None if plan.due_at is None else (plan.due_at - START).total_seconds()
            if not plan.decisions and not plan.ledgers:
                return
            self.commit(plan)
        raise AssertionError(f"no rest: {plan.decisions}")

    def commit(self, plan: Plan) -> None:
        rows: dict[str, Task] = {}
        gone: list[Task] = []
        for decision in plan.decisions:
            task = rows.get(decision.task_id) or self.tasks[decision.task_id]
            after = applied(task, decision, plan.decided_at).task
            self.note(f"{decision.kind} {decision.task_id} {decision.reason.code.name}", decision)
            rows[after.id] = after
            if after.state in TERMINAL:
                gone.append(rows.pop(after.id))
        self.index.apply(
            put=[*plan.ledgers, *rows.values(), *(self._ended(task) for task in gone)],
            deleted=[(Task, (task.id,)) for task in gone],
        )

    def note(self, text: str, decision: Decision | None = None) -> None:
        if not isinstance(decision, Hold | Reorder):
            self.log.append(f"{self.seconds:.1f} {text}")

    def _ended(self, task: Task) -> EndedTask:
        last = state_changed(task, TaskState.RUNNING, self.now)
        return EndedTask(task.id, self.now, last, task.run_seconds)

    def until(self, seconds: float) -> None:
        """Let time pass; what comes due on the way is done when it comes."""
        for _ in range(STOPS_MAX):
            if self.due is None or self.due > seconds:
                break
            self.seconds = max(self.seconds, self.due)
            self.rounds()
        self.seconds = seconds
        self.rounds()

    # What people, runs and nodes do.

    def put(self, *rows: object) -> None:
        self.index.apply(put=rows)

    def submit(self, task: Task) -> None:
        change = observations.on_submitted(submitted_event(task), None, self.now)
        self.put(replace(change.task, expected_seconds=task.expected_seconds))

    def fact(self, outcome: observations.ChangeOrDrop) -> None:
        if not isinstance(outcome, Change):
            return
        after = outcome.task
        if after.state in TERMINAL:
            self.index.apply(put=[self._ended(after)], deleted=[(Task, (after.id,))])
        else:
            self.put(after)

    def start(self, task_id: str, *, ago: float = 0.0, listens: bool = True) -> None:
        """The run's processes exist; its program listens at once, or never did so far."""
        task = self.tasks[task_id]
        event = started_event(task, now=self.seconds - ago)
        self.runs.setdefault(task_id, []).append((self.seconds, -1.0))
        self.fact(observations.on_run_started(task, event, self.now))
        if listens:
            self.listen(task_id)

    def listen(self, task_id: str) -> None:
        """The program polls for the first time whether to leave."""
        task = self.tasks[task_id]
        self.fact(observations.on_run_listened(task, listened_event(task, now=self.seconds)))

    def save(self, task_id: str) -> None:
        task = self.tasks[task_id]
        number = self._saved[task_id] = self._saved.get(task_id, 0) + 1
        saved = a_checkpoint(number, attempt=task.attempt, saved=self.seconds)
        event = CheckpointSaved(task_id=task_id, attempt=task.attempt, checkpoint=saved)
        self.fact(observations.on_checkpoint_saved(task, event))

    def exit(self, task_id: str, kind: ExitKind) -> None:
        task = self.tasks[task_id]
        if self.runs.get(task_id) and self.runs[task_id][-1][1] < 0:
            began = self.runs[task_id].pop()[0]
            self.runs[task_id].append((began, self.seconds))
        event = exited_event(task, kind, now=self.seconds)
        self.fact(observations.on_run_exited(task, event, self.now, self.settings))

    def want(self, task_id: str, goal: Goal, *, now: bool = False) -> None:
        self._revision += 1
        event = GoalChanged(
            task_id=task_id, goal=goal, revision=self._revision, changed_at=self.now, now=now
        )
        self.fact(observations.on_goal_changed(self.tasks[task_id], event, self.now, self.settings))

    def mode(self, task_id: str, mode: RunMode) -> None:
        self._revision += 1
        event = ModeChanged(
            task_id=task_id, mode=mode, revision=self._revision, changed_at=self.now
        )
        self.fact(observations.on_mode_changed(self.tasks[task_id], event, self.now))

    def rank(self, task_id: str, priority: Priority) -> None:
        self._revision += 1
        event = PriorityChanged(
            task_id=task_id, priority=priority, revision=self._revision, changed_at=self.now
        )
        self.fact(observations.on_priority_changed(self.tasks[task_id], event, self.now))


def at_ten_seconds(
    kind: type[H],
    policy: GroupPolicy | str,
    *tasks: Task,
    nodes: int | list[Node] = 2,
    limits: tuple[Limit, ...] = (),
    protected: float = 0.0,
) -> H:
    """One node group and these tasks; nothing is decided yet, and no plan compared."""
    group = GroupPolicy("default", policy=policy) if isinstance(policy, str) else policy
    harness = kind(
        some_nodes(nodes) if isinstance(nodes, int) else nodes,
        settings=PolicySettings(protected_seconds=protected),
        policies=[group],
        limits=limits,
        oracle=False,
    )
    harness.put(*tasks)
    harness.seconds = 10.0
    return harness


def committed(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The same index after the plan was committed, as the leader goes on with it."""
    index, rows = snapshot.index, dict[str, Task]()
    for decision in plan.decisions:
        task = rows.get(decision.task_id) or index.tasks[decision.task_id]
        rows[task.id] = applied(task, decision, plan.decided_at).task
    index.settle(plan)
    ended = [task_id for task_id, task in rows.items() if task.state in TERMINAL]
    index.apply(
        put=[*plan.ledgers, *(task for task in rows.values() if task.id not in ended)],
        deleted=[(Task, (task_id,)) for task_id in ended],
    )
    return Snapshot.view(index, snapshot.version)


def facts_of(index: Index) -> dict[str, Any]:
    """Everything an index keeps, in a form that can be compared."""
    return {
        "free": dict(index.capacity.free),
        "amounts": _amounts(index),
        "units": {group: round(free_nodes.units(), 6) for group, free_nodes in _free_nodes(index)},
        "holders": index.holders,
        "keepers": index.keepers,
        "held": sorted(index.held),
        "unsettled": sorted(index.unsettled),
        "drained": sorted(index.drained),
        "draining": sorted(index.totals.draining),
        "totals": {task.shape: _answers(index, task.shape) for task in index.tasks.values()},
        "timers": index.timers.between(None, float("inf")),
        "ledger": index.quota_usage.counted_accounts(),
        "crossing": {group: index.crossing(group) for group in index.pools},
        "pools": {group: _pool(pool) for group, pool in index.pools.items() if pool.sizes},
    }


def _amounts(index: Index) -> dict[str, tuple[int | None, ...]]:
    """What is left of the CPUs and memory of each offered node."""
    free_nodes = index.capacity.groups
    return {
        node_id: tuple(
            left.at(place) if left else None
            for left in (free_nodes[group].cpus, free_nodes[group].memory)
        )
        for node_id, (group, place) in index.capacity.locations.items()
    }


def _answers(index: Index, shape: Shape) -> tuple[object, ...]:
    """What the nodes could hold, as it was answered before or is now."""
    totals = index.totals
    fits = totals.fits_known(shape), totals.fits_now(shape)
    return (*fits, totals.need(shape), totals.eligible(shape))


def _free_nodes(index: Index) -> Iterable[tuple[str, Any]]:
    return sorted(index.capacity.groups.items())


def _pool(pool: Any) -> dict[str, Any]:
    names = tuple(pool.clusters.bounds)
    return {
        "policy": pool.policy,
        "ledger": pool.ledger,
        "width": pool.width,
        "units": round(pool.units, 6),
        "queues": {key: name for name, key in pool.queues},
        "length": pool.queues.length,
        "classes": {
            (group, named): _tree(shapes.top)
            for group, classes in pool.queues.groups.items()
            for named, shapes in classes.items()
        },
        "fresh": pool.unkeyed,
        "promised": pool.promised,
        "leaving": pool.leaving,
        "running": pool.running,
        "costs": pool.costs,
        "runs_of": pool.runs_of,
        "held": {weight: round(held, 6) for weight, held in pool.held_units.items()},
        "sizes": pool.sizes,
        "live": (round(pool.live_units, 6), round(pool.live_since_sum / 1e3, 0)),
        "owners": pool.owners,
        "unended": pool.unended,
        "owner_units": {owner: round(held, 6) for owner, held in pool.owner_units.items()},
        "owner_held": {owner: round(held, 6) for owner, held in pool.owner_held.items() if held},
        "listed": dict(pool.waiting_order.classes),
        "unserved": list(pool.unserved),
        "longest": [key for key, _ in pool.unserved.walk(())],
        "clusters": {name: round(pool.clusters.held(name), 6) + 0.0 for name in names},
        "covered": dict(pool.coverage.depths()),
        "takeable": {
            (name, depth, weight): round(pool.coverage.takeable(name, depth, weight), 6) + 0.0
            for name in names
            for depth in (0, 1, UNCOVERED)
            for weight in (0, 10, 50)
        },
    }


def _tree(tree: Tree) -> tuple[object, ...]:
    """The rows of a class of shapes, by their heads, and what each branch knows of them."""
    least = tree.least.resources
    if isinstance(tree, Branch):
        return tree.bit, tree.first, least, _tree(tree.low), _tree(tree.high)
    return tree.code, least, [(key, task_id, queue.name) for key, task_id, queue in tree.heads]
