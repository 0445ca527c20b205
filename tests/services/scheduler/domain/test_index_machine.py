"""A rule machine over the pure core: the incremental index compared with a rebuilt one.

A history of submissions, starts, ends, and changes of goals, levels, limits, policies and nodes,
under every discipline. After each rule the index that followed the changes holds the same values as
an index rebuilt from the rows, and every plan equals the plan of the rebuilt index. Limits and the
maxima of virtual clusters hold over the whole history. ``test_recorded.py`` replays histories of
this machine.

Only this suite finds a wrong incremental update of quota usage or of what a node has left.
Events always arrive in order here, and nothing is stored:
``test_event_delivery_machine.py`` covers that. ``test_plan_properties.py`` covers plans for states
that no short history reaches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from libs.contracts.messages import ExitKind, Goal, PreemptMode, Priority, Role, TaskState, Unit
from libs.contracts.task_states import HOLDING
from services.scheduler.domain.disciplines import DISCIPLINES
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.limits.quota_usage import Account, QuotaUsage
from services.scheduler.domain.limits.virtual_clusters import ALMOST, VirtualClusters
from services.scheduler.domain.model.group_policy import (
    Demotion,
    GroupPolicy,
    PolicySettings,
    Rotation,
    Timeshare,
    VirtualCluster,
)
from services.scheduler.domain.model.rows import Limit, LimitKey, Node, Task
from tests.kit.builders import a_limit, a_node, a_spec, a_task
from tests.kit.strategies import GANG, GANGS, LIMIT, OWNER, PRIORITIES, TEAM, drawn_limit, snapshots
from tests.services.scheduler.domain.domain_harness import DomainHarness, facts_of
from tests.services.scheduler.domain.explain.copies import copy_of

TASKS_MAX = 14
DEMOTIONS = (Demotion(Priority.ABOVE_NORMAL, Priority.NORMAL, 600.0),)
CLUSTERS = (
    VirtualCluster("lab", 2.0, teams=("vision", "speech")),
    VirtualCluster("eyes", 1.0, parent="lab", teams=("vision",)),
    VirtualCluster("bob", 0.5, users=("bob",), nodes_max=3.0),
)
# Two levels of one owner compete for the most that a virtual cluster may hold.
NARROW = (VirtualCluster("anns", 1.0, users=("ann",), nodes_max=1.0), *CLUSTERS[2:])
CAPPED = (Priority.HIGH, Priority.NORMAL)
# Which of those there are.
PICK = st.integers(0, 20)
TREES = [(), (), CLUSTERS[:1], CLUSTERS, NARROW]


def one(found: list[str], pick: int) -> str:
    return found[pick % len(found)]


def a_policy(group: str, name: str, tree: tuple[VirtualCluster, ...], version: int) -> GroupPolicy:
    return GroupPolicy(
        group,
        version=version,
        policy=name,
        timeshare=Timeshare(
            restart_seconds=10.0,
            slice_seconds_min=600.0,
            hold_seconds=900.0,
            grant_after_seconds=3000.0,
        ),
        rotation=Rotation(first_slice_seconds=300.0, slice_seconds=1200.0),
        demotions=DEMOTIONS,
        virtual_clusters=tree,
    )


def clusters_of(pool: Pool, runs: Iterable[Task]) -> VirtualClusters:
    """What the virtual clusters of a pool would hold with these runs."""
    clusters = VirtualClusters(pool.policy)
    for run in runs:
        clusters.charge(clusters.of(run), pool.size(run))
    return clusters


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.version = 1
        # What was held of each limit after the rule before, and what the limits were.
        self.held_before: Counter[Account] = Counter()
        self.limits: dict[LimitKey, Limit] = {}
        # The runs that held nodes then.
        self.runs_before: dict[str, Task] = {}

    @initialize(
        name=st.sampled_from(sorted(DISCIPLINES)),
        tree=st.sampled_from(TREES),
        sizes=st.lists(st.sampled_from([0, 2, 4, 4]), min_size=1, max_size=5),
        protected=st.sampled_from([0.0, 0.0, 120.0]),
        quota=st.sampled_from([None, None, 4, 8]),
        zones=st.lists(st.sampled_from(["east", "west", "west"]), min_size=5, max_size=5),
        zoned=st.booleans(),
        capped=st.booleans(),
    )
    def begin(  # noqa: PLR0917 - the rule draws each by name
        self,
        name: str,
        tree: tuple[VirtualCluster, ...],
        sizes: list[int],
        protected: float,
        quota: int | None = None,
        zones: Sequence[str] = (),
        zoned: bool = False,
        capped: bool = False,
    ) -> None:
        some = [
            a_node(
                f"n{place}",
                gpus=gpus,
                cpus=2.0,
                memory_bytes=10,
                labels={"zone": zones[place]} if zoned else {},
            )
            for place, gpus in enumerate(sizes)
        ]
        self.harness = DomainHarness(
            [*some, a_node("d0", gpus=4, group="dev")],
            settings=PolicySettings(protected_seconds=protected, retry_delay_seconds=20.0),
            policies=[a_policy("default", name, tree, 1)],
            limits=[
                # Over all levels: a lower run and a higher task of one owner compete for it.
                *([] if quota is None else [a_limit(quota)]),
                # At levels to which runs are raised and sink.
                *(a_limit(1, priority=each, unit=Unit.NODES) for each in CAPPED if capped),
            ],
        )
        self.harness.rounds()

    # People.

    @precondition(lambda self: self.count < TASKS_MAX)
    @rule(
        **GANG,
        owner=OWNER,
        team=TEAM,
        limit=st.sampled_from([None, None, 700.0]),
        kill=st.booleans(),
        group=st.sampled_from(["default"] * 5 + ["dev"]),
        memory=st.sampled_from([None, None, 4, 6]),
        cpus=st.sampled_from([None, None, 0.7]),
        roles=st.sampled_from(GANGS),
        tolerates=st.booleans(),
    )
    def submit(  # noqa: PLR0917 - the rule draws each by name
        self,
        nodes: int,
        gpus: int | None,
        priority: Priority,
        owner: str,
        team: str,
        limit: float | None,
        kill: bool,
        group: str,
        memory: int | None = None,
        cpus: float | None = None,
        roles: tuple[Role, ...] | None = None,
        tolerates: bool = False,
    ) -> None:
        spec = a_spec(
            roles=roles,
            memory_bytes=memory,
            cpus=cpus,
            nodes=nodes,
            gpus=gpus,
            priority=priority,
            retries=1,
            max_run_seconds=limit,
            mode=PreemptMode.KILL if kill else PreemptMode.SDK,
            group=group,
        ).model_copy(update={"tolerations": ("old",) if tolerates else ()})
        task = a_task(
            f"t{self.count:02}", spec=spec, owner=owner, team=team, submitted=self.harness.seconds
        )
        self.count += 1
        self.harness.submit(task)

    @precondition(lambda self: self.harness.tasks)
    @rule(pick=PICK, goal=st.sampled_from([Goal.RUN, Goal.PAUSE, Goal.STOP]))
    def change_goal(self, pick: int, goal: Goal) -> None:
        self.harness.want(one(sorted(self.harness.tasks), pick), goal)

    @precondition(lambda self: self.harness.tasks)
    @rule(pick=PICK, priority=st.sampled_from(PRIORITIES))
    def change_priority(self, pick: int, priority: Priority) -> None:
        self.harness.rank(one(sorted(self.harness.tasks), pick), priority)

    @precondition(lambda self: self.harness.tasks)
    @rule(
        owner=OWNER,
        priority=st.sampled_from([Priority.HIGH, Priority.NORMAL]),
    )
    def change_all_priorities(self, owner: str, priority: Priority) -> None:
        """An owner who has no quota left at a level raises everything to it."""
        for task in sorted(self.harness.tasks.values(), key=lambda task: task.id):
            if task.owner == owner:
                self.harness.rank(task.id, priority)

    @rule(row=st.builds(drawn_limit, **LIMIT, removed=st.booleans()))
    def change_limit(self, row: Limit) -> None:
        self.harness.put(row)

    @precondition(lambda self: self.harness.index.limits)
    @rule(pick=PICK, removed=st.booleans())
    def remove_limit(self, pick: int, removed: bool) -> None:
        """Remove a limit that exists, or put a removed one back into force."""
        limits = self.harness.index.limits
        key = sorted(limits)[pick % len(limits)]
        self.harness.put(replace(limits[key], removed=removed))

    @rule(
        name=st.sampled_from(sorted(DISCIPLINES)),
        tree=st.sampled_from(TREES),
    )
    def change_policy(self, name: str, tree: tuple[VirtualCluster, ...]) -> None:
        self.version += 1
        self.harness.put(a_policy("default", name, tree, self.version))

    # Runs and nodes.

    def some(self, *states: TaskState) -> list[str]:
        return sorted(each.id for each in self.harness.tasks.values() if each.state in states)

    @precondition(lambda self: self.some(TaskState.STARTING))
    @rule(pick=PICK, ago=st.sampled_from([0.0, 0.0, 2.0]), listens=st.booleans())
    def start(self, pick: int, ago: float, listens: bool) -> None:
        task_id = one(self.some(TaskState.STARTING), pick)
        self.harness.start(task_id, ago=ago, listens=listens)

    @precondition(lambda self: self.some(TaskState.RUNNING, TaskState.PREEMPTING))
    @rule(pick=PICK)
    def listen(self, pick: int) -> None:
        self.harness.listen(one(self.some(TaskState.RUNNING, TaskState.PREEMPTING), pick))

    @rule()
    def start_all(self) -> None:
        for task_id in self.some(TaskState.STARTING):
            self.harness.start(task_id)

    @precondition(lambda self: self.some(TaskState.RUNNING))
    @rule(pick=PICK)
    def save(self, pick: int) -> None:
        self.harness.save(one(self.some(TaskState.RUNNING), pick))

    @precondition(lambda self: self.harness.index.held)
    @rule(
        pick=PICK,
        kind=st.sampled_from([ExitKind.OK, ExitKind.OK, ExitKind.FAILED, ExitKind.LOST]),
    )
    def exit(self, pick: int, kind: ExitKind) -> None:
        self.harness.exit(one(sorted(self.harness.index.held), pick), kind)

    @rule()
    def leave_all(self) -> None:
        """Whoever was asked to go has gone."""
        for task_id in self.some(TaskState.PREEMPTING):
            self.harness.exit(task_id, ExitKind.PREEMPTED)
        for task_id in self.some(TaskState.KILLING):
            self.harness.exit(task_id, ExitKind.KILLED)

    @rule(
        pick=PICK,
        what=st.sampled_from(
            [
                "ready",
                "schedulable",
                "draining",
                "gpus",
                "memory",
                "cpus",
                "both",
                "silent",
                "group",
                "rebuilt",
                "removed",
                "tainted",
                "zone",
            ]
        ),
    )
    def change_node(self, pick: int, what: str) -> None:
        nodes = self.harness.index.nodes
        node: Node = nodes[one(sorted(nodes), pick)]
        changed = {
            "ready": replace(node, ready=not node.ready),
            "schedulable": replace(node, schedulable=not node.schedulable),
            "draining": replace(node, draining=not node.draining),
            "gpus": replace(node, unusable_gpus=() if node.unusable_gpus else (0,)),
            "group": replace(node, group="default" if node.group == "dev" else "dev"),
            "rebuilt": replace(node, gpus=4 if node.gpus == 2 else 2, unusable_gpus=()),
            "removed": replace(node, removed=not node.removed),
            "tainted": replace(node, taints=() if node.taints else ("old",)),
            "zone": replace(node, labels=() if node.labels else (("zone", "east"),)),
            # Others than the platform's tasks use more of it, or less.
            "memory": replace(node, memory_bytes=20 if node.memory_bytes < 20 else 5),
            "cpus": replace(node, cpus=0.5 if node.cpus > 1.0 else 3.0),
            "both": replace(node, cpus=1.0, memory_bytes=7, draining=not node.draining),
            # It does not report its CPUs any more.
            "silent": replace(node, cpus=0.0),
        }
        self.harness.put(replace(changed[what], version=node.version + 1))

    @rule(
        seconds=st.sampled_from([1.0, 4.0, 15.0, 61.0, 61.0, 300.0, 900.0, 3700.0, 90_000.0]),
        going=st.booleans(),
    )
    def wait(self, seconds: float, going: bool) -> None:
        """Time advances; if ``going``, all requested starts and exits happen first."""
        self.harness.rounds()
        if going:
            self.leave_all()
            self.start_all()
        self.harness.until(self.harness.seconds + seconds)

    @rule()
    def round(self) -> None:
        self.harness.rounds()

    # What always holds.

    @invariant()
    def both_keep_the_same(self) -> None:
        if not hasattr(self, "harness"):
            return
        self.harness.index.refresh()
        found, expected = facts_of(self.harness.index), facts_of(copy_of(self.harness.index))
        for name, value in expected.items():
            assert found[name] == value, name

    @invariant()
    def no_gpu_has_two_owners(self) -> None:
        if not hasattr(self, "harness"):
            return
        owners: Counter[tuple[str, int]] = Counter()
        for task in self.harness.tasks.values():
            assert bool(task.placements) == (task.state in HOLDING)
            for placement in task.placements:
                owners.update((placement.node_id, gpu) for gpu in placement.gpus)
        assert all(count == 1 for count in owners.values())

    @invariant()
    def no_quota_is_exceeded(self) -> None:
        """No change exceeds a quota; usage above a lowered limit only decreases.

        What a grant counts also changes with other rows.
        """
        if not hasattr(self, "harness"):
            return
        held: Counter[Account] = Counter()
        quota_usage = QuotaUsage(self.harness.index.limits)
        for task in self.harness.index.held.values():
            held.update(quota_usage.counted(task))
        rows = dict(self.harness.index.limits)
        for account, amount in held.items():
            limit = rows[account[0]]
            if limit.grant and rows != self.limits:
                continue
            if amount > limit.limit and limit == self.limits.get(account[0]):
                assert amount <= self.held_before[account], limit
        self.held_before, self.limits = held, rows

    @invariant()
    def no_virtual_cluster_begins_more_than_its_most(self) -> None:
        """A maximum that was lowered only sees less, counted by the tree that is there now."""
        if not hasattr(self, "harness"):
            return
        held = dict(self.harness.index.held)
        for group, pool in self.harness.index.pools.items():
            now, before = (
                clusters_of(pool, (each for each in runs.values() if each.group == group))
                for runs in (held, self.runs_before)
            )
            for each in pool.policy.virtual_clusters:
                if each.nodes_max is not None and now.held(each.name) > each.nodes_max + ALMOST:
                    assert now.held(each.name) <= before.held(each.name) + ALMOST
        self.runs_before = held

    @invariant()
    def promises_are_at_the_level_of_the_priority(self) -> None:
        if not hasattr(self, "harness"):
            return
        for pool in self.harness.index.pools.values():
            for task in pool.promised.values():
                assert task.is_auto or task.level is pool.level(task)

    @invariant()
    def accounts_are_within_their_bounds(self) -> None:
        if not hasattr(self, "harness"):
            return
        for group, pool in self.harness.index.pools.items():
            numbers, ledger = pool.policy.timeshare, self.harness.index.ledgers.get(group)
            if ledger is not None and ledger.tokens_at is not None:
                assert ledger.tokens <= 4 * max(5.0, pool.units) * numbers.restart_seconds + 1e-6


_SETTINGS = settings(
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class TestHistories(Histories.TestCase):
    settings = settings(_SETTINGS, max_examples=30)


@pytest.mark.slow
class TestHistoriesForLong(Histories.TestCase):
    """Rare defects take hundreds of histories."""

    settings = settings(_SETTINGS, max_examples=200)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(snapshots(), min_size=2, max_size=3))
def test_the_index_follows_a_jump_to_another_snapshot(states: list[Snapshot]) -> None:
    """Also changes that no history has: all rows at once, from one random state to another."""
    index = Index(states[0].settings)
    for state in states:
        gone = set(index.tasks) - set(state.tasks)
        index.apply(deleted=[(Task, (task_id,)) for task_id in sorted(gone)])
        away = [node for node in index.nodes.values() if node.id not in state.nodes]
        index.apply(put=[replace(node, removed=True) for node in away])
        index.apply(put=[*state.nodes.values(), *state.index.policies.values()])
        index.refresh()
        # A change of a node that is already removed has no effect.
        gone_for_good = [node for node in index.nodes.values() if node.removed]
        index.apply(put=[replace(node, draining=not node.draining) for node in gone_for_good])
        index.refresh()
        index.apply(put=[*state.tasks.values(), *state.limits.values()])
        index.refresh()
        found, expected = facts_of(index), facts_of(copy_of(index))
        for name, value in expected.items():
            assert found[name] == value, name
