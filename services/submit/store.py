"""submit's rows and every question asked of them. Called by ``handlers.py``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from libs.contracts.grants import scope_of
from libs.contracts.inventories import is_old
from libs.contracts.messages import (
    CreateTask,
    Goal,
    InventoryListed,
    Node,
    Priority,
    Quota,
    Refusal,
    TaskSpec,
    TaskState,
    TaskWarning,
    Unit,
)
from libs.contracts.rank_sizes import limits_in
from libs.contracts.runtimes import LIMITS_LABEL, LIMITS_NOT_ENFORCED
from libs.service.prune import PruneRule, aged
from libs.store.port import Op, Order, Tx, Where
from services.submit.domain.facts import Facts, Shape


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task as its owner wants it. ``revision`` counts changes of spec, goal, mode, priority."""

    task_id: str
    owner: str
    team: str
    name: str
    # None if the client gave none: the same key of the same owner is the same task.
    client_key: str | None
    # As the person wrote it, to compare with when the key comes again.
    asked: TaskSpec
    # With the defaults, as it was submitted.
    spec: TaskSpec
    submitted_at: datetime
    revision: int
    goal: Goal
    goal_revision: int
    goal_changed_by: str
    goal_changed_at: datetime
    priority: Priority
    priority_revision: int
    priority_changed_by: str
    priority_changed_at: datetime
    # The last state that the scheduler reported; ``ended`` never goes back to false.
    state: TaskState
    state_version: int
    ended: bool
    # When submit received the event of its end.
    ended_at: datetime | None = None
    # With pause or stop: its run ends at once, without being asked to save.
    goal_now: bool = False
    # Debug mode is on, by which revision, and who changed it; the person and time of the
    # submission are the row's own.
    debug: bool = False
    mode_revision: int = 1
    mode_changed_by: str = ""
    mode_changed_at: datetime | None = None
    # What was accepted and has no effect, or will probably surprise.
    warnings: tuple[TaskWarning, ...] = ()
    # The last attempt that the scheduler reported; -1: an earlier version did not record it.
    attempt: int = 0
    # The last fenced commands that changed it, each with the revision of its change.
    requests: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """The number of an owner's live tasks, updated with TaskRow so that a new task needs no
    counting. There is no row for 0."""

    owner: str
    live_tasks: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """The newest known version of one node; a removed one stays a while, so that older events are
    recognised."""

    node_id: str
    version: int
    removed: bool
    group: str
    gpus: int
    cpus: float
    memory_bytes: int
    # When submit received it; None: before this was recorded.
    changed_at: datetime | None = None
    # None: as well.
    labels: Mapping[str, str] | None = None
    taints: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ShapeRow:
    """The number of equal nodes of a group, updated with NodeRow, so that validating a task costs
    the number of different nodes and not the number of nodes."""

    shape: str
    group: str
    gpus: int
    cpus: float
    memory_bytes: int
    nodes: int
    taints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class InventoryRow:
    """One runtime's first full list, and the listed nodes that are not known yet."""

    runtime: str
    listed_at: datetime
    missing: tuple[str, ...]
    version: int = 0


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """The newest known version of one row; ``scope`` is group, user, team and priority, and whether
    it is a grant."""

    scope: str
    version: int
    removed: bool
    group: str
    user: str
    team: str
    priority: Priority
    unit: Unit
    limit: int
    grant: bool = False
    unlimited: bool = False
    level_max: Priority = Priority.UNSPECIFIED
    # When submit received it; None: before this was recorded.
    changed_at: datetime | None = None


Selector = tuple[tuple[str, str], ...]
# The shapes of the nodes that a group and labels select; labels that the group has.
Selected = tuple[tuple[Shape, ...] | None, tuple[str, ...]]
# How many nodes are read for one selector. If more match, only the scheduler decides.
SELECTED_MAX = 1000


@dataclass(frozen=True, slots=True)
class Draft:
    """A task that a caller wants to create, with its defaults, not validated yet."""

    command: CreateTask
    # Why it is refused whatever it asks for.
    unfit: Refusal | None
    task_id: str
    filled: TaskSpec

    @property
    def scope(self) -> tuple[str, str, str]:
        """What the facts about it depend on: owner, team, group."""
        return self.command.owner, self.command.team, self.filled.group

    @property
    def selection(self) -> tuple[str, Selector]:
        """Which nodes it selects: a group, and labels."""
        return self.filled.group, tuple(sorted(self.filled.node_selector.items()))


@dataclass(slots=True)
class Known:
    """What is known of several drafts, the tasks that they have made so far included."""

    by_key: dict[tuple[str, str], TaskRow]
    # The live tasks' ids by owner and name.
    live: dict[tuple[str, str], str]
    by_scope: dict[tuple[str, str, str], Facts]
    # What is known of the nodes that a group and labels select.
    by_selector: dict[tuple[str, Selector], Selected] = field(default_factory=dict)
    # The groups of which it was looked up, with whether a node does not enforce limits.
    not_enforced: dict[str, bool] = field(default_factory=dict[str, bool])

    def made_before(self, command: CreateTask) -> TaskRow | None:
        """The task that this owner made with this key; an empty key never made one."""
        return self.by_key.get((command.owner, command.client_key)) if command.client_key else None

    def facts(self, draft: Draft) -> Facts:
        """The facts that matter for it."""
        taken_by = self.live.get((draft.command.owner, draft.filled.name), "")
        nodes, labels = self.by_selector.get(draft.selection, (None, ()))
        facts = self.by_scope[draft.scope]
        return replace(
            facts,
            selected=nodes,
            labels=labels,
            name_taken_by=taken_by,
            limits_not_enforced=self.not_enforced.get(draft.filled.group, False),
        )

    def add(self, row: TaskRow) -> None:
        """A task was made."""
        self.live[row.owner, row.name] = row.task_id
        if row.client_key:
            self.by_key[row.owner, row.client_key] = row


_KNOWN = "facts for the tasks to create"


async def read_ahead(tx: Tx, commands: Sequence[CreateTask]) -> None:
    """Read at once what ``known_for`` needs for all of these."""
    if commands:
        tx.memo[_KNOWN] = await _known(tx, commands)


async def known_for(tx: Tx, drafts: Sequence[Draft]) -> Known:
    """What is known of these drafts: two queries, unless they were read ahead."""
    found: Known | None = tx.memo.get(_KNOWN)
    if found is None:
        found = await _known(tx, [draft.command for draft in drafts])
    for draft in drafts:
        if draft.scope not in found.by_scope:
            owner, team, group = draft.scope
            found.by_scope[draft.scope] = await facts_for(tx, owner=owner, team=team, group=group)
        if draft.filled.node_selector and draft.selection not in found.by_selector:
            found.by_selector[draft.selection] = await selected(tx, *draft.selection)
        group = draft.filled.group
        if (
            group not in found.not_enforced
            # Processes alone have nodes that cannot, and few of them.
            and found.by_scope[draft.scope].has_pods is False
            and any(limit is not None for limit in limits_in(draft.filled))
        ):
            found.not_enforced[group] = await has_unlimited_nodes(tx, group)
    return found


async def _known(tx: Tx, commands: Sequence[CreateTask]) -> Known:
    """The tasks made with these keys, and the live ones with these names."""
    found = Known({}, {}, {})
    keys = {(each.owner, each.client_key) for each in commands if each.client_key}
    if keys:
        rows = await tx.select(
            TaskRow,
            Where("owner", Op.IN, sorted({owner for owner, _ in keys})),
            Where("client_key", Op.IN, sorted({key for _, key in keys})),
        )
        found.by_key |= {(row.owner, row.client_key or ""): row for row in rows}
    # A name that is left out is made of the new id, so no other task has it.
    names = {(each.owner, each.spec.name) for each in commands if each.spec.name}
    if names:
        rows = await tx.select(
            TaskRow,
            Where("owner", Op.IN, sorted({owner for owner, _ in names})),
            Where("name", Op.IN, sorted({name for _, name in names})),
            Where("ended", Op.EQ, value=False),
        )
        found.live |= {(row.owner, row.name): row.task_id for row in rows}
    return found


async def live_tasks(tx: Tx, owner: str) -> int:
    """How many tasks of this owner have not ended."""
    row = await tx.get(OwnerRow, owner)
    return row.live_tasks if row is not None else 0


async def count_live(tx: Tx, owner: str, change: int) -> None:
    """A task of this owner was made, or has ended."""
    count = await live_tasks(tx, owner) + change
    if count > 0:
        tx.put(OwnerRow(owner, count))
    else:
        tx.delete(OwnerRow, owner)


async def newest_tasks(tx: Tx, limit: int) -> Sequence[TaskRow]:
    """The newest tasks, oldest of them first (ids sort by time)."""
    rows = await tx.select(TaskRow, order_by=[Order("task_id", descending=True)], limit=limit)
    return rows[::-1]


async def facts_for(tx: Tx, *, owner: str, team: str, group: str) -> Facts:
    """The facts that matter for the specs of one scope, except for their names."""
    inventories = await tx.select(InventoryRow)
    shapes = await tx.select(ShapeRow)
    quotas = await tx.select(
        QuotaRow,
        Where("removed", Op.EQ, value=False),
        Where("group", Op.IN, ("", group)),
        Where("user", Op.IN, ("", owner)),
        Where("team", Op.IN, ("", team)),
    )
    return Facts(
        shapes=tuple(
            Shape(row.group, row.gpus, row.cpus, row.memory_bytes, row.nodes, row.taints)
            for row in shapes
        ),
        inventory_known=any(not row.missing for row in inventories),
        runtimes=frozenset(row.runtime for row in inventories if not row.missing),
        quotas=tuple(_quota(row) for row in quotas),
    )


async def selected(tx: Tx, group: str, selector: Selector) -> Selected:
    """The nodes of a group that have all of these labels. If none has, the labels there are."""
    there = Where("group", Op.EQ, group), Where("removed", Op.EQ, value=False)
    if await tx.select(NodeRow, *there, Where("labels", Op.IS_NULL), limit=1):
        return None, ()
    matches = Where("labels", Op.CONTAINS, dict(selector))
    rows = await tx.select(NodeRow, *there, matches, limit=SELECTED_MAX)
    if len(rows) == SELECTED_MAX:
        return None, ()
    shapes = Counter((row.gpus, row.cpus, row.memory_bytes, row.taints or ()) for row in rows)
    labels: set[str] = set()
    if not rows:
        for row in await tx.select(NodeRow, *there, limit=SELECTED_MAX):
            labels |= {f"{key}={value}" for key, value in (row.labels or {}).items()}
    return (
        tuple(
            Shape(group, gpus, cpus, memory, nodes, taints)
            for (gpus, cpus, memory, taints), nodes in shapes.items()
        ),
        tuple(sorted(labels)),
    )


async def has_unlimited_nodes(tx: Tx, group: str) -> bool:
    """Whether a node of the group reports that it does not enforce limits."""
    rows = await tx.select(
        NodeRow,
        Where("group", Op.EQ, group),
        Where("removed", Op.EQ, value=False),
        Where("labels", Op.CONTAINS, {LIMITS_LABEL: LIMITS_NOT_ENFORCED}),
        limit=1,
    )
    return bool(rows)


async def record_node(tx: Tx, node: Node, *, version: int, removed: bool) -> None:
    """Note a node's change and keep the shapes in step; an old or repeated change is nothing,
    unless the node was recorded before its labels were."""
    before = await tx.get(NodeRow, node.id)
    if before is not None and (
        before.version > version or (before.version == version and before.labels is not None)
    ):
        return
    after = NodeRow(
        node.id,
        version,
        removed,
        node.group,
        node.gpus,
        node.cpus,
        node.memory_bytes,
        changed_at=tx.now,
        labels=dict(node.labels),
        taints=tuple(node.taints),
    )
    tx.put(after)
    if before is not None and not before.removed:
        await _count(tx, before, -1)
    if not removed:
        await _count(tx, after, +1)
    for row in await tx.select(InventoryRow):
        if node.id in row.missing:
            left = tuple(node_id for node_id in row.missing if node_id != node.id)
            tx.put(replace(row, missing=left))


async def record_inventory(tx: Tx, event: InventoryListed) -> None:
    """Note a full list. Once one is complete, the inventory stays known."""
    before = await tx.get(InventoryRow, event.runtime)
    if before is not None and (
        not before.missing or is_old(event, kept_version=before.version, kept_at=before.listed_at)
    ):
        return
    known = {row.node_id for row in await tx.select(NodeRow)}
    missing = tuple(node_id for node_id in event.node_ids if node_id not in known)
    tx.put(InventoryRow(event.runtime, event.listed_at, missing, event.version))


async def record_quota(tx: Tx, quota: Quota, *, version: int, removed: bool) -> None:
    """Note a cap or a grant; an old or repeated change is nothing."""
    scope = scope_of(quota)
    before = await tx.get(QuotaRow, scope)
    if before is not None and before.version >= version:
        return
    tx.put(
        QuotaRow(
            scope=scope,
            version=version,
            removed=removed,
            group=quota.group,
            user=quota.user,
            team=quota.team,
            priority=quota.priority,
            unit=quota.unit,
            limit=quota.limit,
            grant=quota.grant,
            unlimited=quota.unlimited,
            level_max=quota.level_max,
            changed_at=tx.now,
        )
    )


async def _count(tx: Tx, node: NodeRow, change: int) -> None:
    taints = tuple(sorted(node.taints or ()))
    properties = [node.group, str(node.gpus), f"{node.cpus:g}", str(node.memory_bytes)]
    # The key of a taint may have "/" in it, and never "%".
    shape = "/".join([*properties, *(taint.replace("/", "%2F") for taint in taints)])
    before = await tx.get(ShapeRow, shape)
    if before is None and change < 0:
        # A version that wrote "/" as it is has counted the node. Equal nodes may be counted in two
        # rows until newer events of all of them have arrived: their sum counts.
        before = await tx.get(ShapeRow, "/".join([*properties, *taints]))
    if before is None:
        before = ShapeRow(shape, node.group, node.gpus, node.cpus, node.memory_bytes, 0, taints)
    nodes = before.nodes + change
    assert nodes >= 0, f"more nodes of shape {before.shape} went than came"
    if nodes == 0:
        tx.delete(ShapeRow, before.shape)
    else:
        tx.put(replace(before, nodes=nodes))


def _quota(row: QuotaRow) -> Quota:
    return Quota(
        group=row.group,
        user=row.user,
        team=row.team,
        priority=row.priority,
        unit=row.unit,
        limit=row.limit,
        grant=row.grant,
        unlimited=row.unlimited,
        level_max=row.level_max,
    )


def prune_rules(
    keep: timedelta, removed_keep: timedelta, removed_quota_keep: timedelta
) -> tuple[PruneRule, ...]:
    """What submit forgets: tasks that ended, and with them the keys that made them; removed nodes;
    and removed quotas."""
    ended, removed = Where("ended_at", Op.NOT_NULL), Where("removed", Op.EQ, value=True)
    return (
        aged("tasks", keep, TaskRow, ["task_id"], "ended_at", ended),
        aged("removed nodes", removed_keep, NodeRow, ["node_id"], "changed_at", removed),
        aged("removed quotas", removed_quota_keep, QuotaRow, ["scope"], "changed_at", removed),
    )
