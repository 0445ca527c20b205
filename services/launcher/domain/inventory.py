"""Updates the inventory of nodes from the listing of a runtime. Called by ``loop.py`` in a leader's
transaction; pure.

A node has a lease: it is not ready after it has been silent for that time. Its runs are lost only
when the runtime has observed that they are gone. After the fence time the runtime enforces that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from libs.contracts.messages import NodeChanged
from services.launcher.domain.model import Listing, NodeRow, ObservedNode
from services.launcher.domain.node_labels import merge_labels


@dataclass(frozen=True, slots=True)
class LeasePolicy:
    """The time of silence after which a node is not ready, and after which it is fenced."""

    lease: timedelta
    fence: timedelta


@dataclass(frozen=True, slots=True)
class QuarantinePolicy:
    """The number of failed starts in a row that puts a node into quarantine, and its duration.

    Each further failure doubles the time, up to the most.
    """

    after: int
    seconds: float
    seconds_max: float

    def until(self, failed_starts: int, now: datetime) -> datetime | None:
        """The end of the quarantine; None if there were not enough failures."""
        if failed_starts < self.after:
            return None
        doubled = self.seconds * 2.0 ** min(failed_starts - self.after, 30)
        return now + timedelta(seconds=min(doubled, self.seconds_max))


@dataclass(frozen=True, slots=True)
class InventoryChanges:
    """Changed rows, nodes to fence, and the latest time of the next evaluation."""

    rows: tuple[NodeRow, ...]
    fence: tuple[str, ...]
    due_at: datetime | None = None


def update_inventory(
    rows: Iterable[NodeRow],
    listing: Listing,
    is_busy: Callable[[str], bool],
    now: datetime,
    policy: LeasePolicy,
    *,
    version: int = 1,
    unreadable: Collection[str] = (),
) -> InventoryChanges:
    """Compare the rows with one full listing. ``is_busy``: whether a node holds runs that are not
    over. ``version``: the first version of a node without a row. If the node had a row that was
    dropped, the number of the transaction is above that row's versions. ``unreadable``: nodes whose
    rows cannot be decoded. They are not new, and a new row would lift a cordon.
    """
    before = {row.node_id: row for row in rows}
    changed: list[NodeRow] = []
    fence: list[str] = []
    due: list[datetime] = []
    for node_id, observed in sorted(listing.nodes.items()):
        row = before.get(node_id)
        if row is None and (observed.retired or node_id in unreadable):
            continue
        after = _updated(_without_expired_quarantine(row, now), observed, now, policy, version)
        if after != row:
            changed.append(after)
        if after.quarantined_until is not None:
            due.append(after.quarantined_until)
        if after.silent_since is None:
            continue
        fence_at = after.silent_since + policy.fence
        if now >= fence_at and is_busy(node_id):
            fence.append(node_id)
        due += [at for at in (after.silent_since + policy.lease, fence_at) if at > now]
    changed += [
        replace(row, removed=True, version=row.version + 1, changed_at=now)
        for row in before.values()
        if row.node_id not in listing.nodes and not row.removed
    ]
    return InventoryChanges(tuple(changed), tuple(fence), min(due, default=None))


def _updated(
    row: NodeRow | None,
    observed: ObservedNode,
    now: datetime,
    policy: LeasePolicy,
    version: int,
) -> NodeRow:
    answers = observed.node.ready
    if row is not None and _is_unchanged(row, observed):
        return row
    if row is None:
        own = merge_labels(observed.node, {}, ())
        return NodeRow(
            node_id=observed.node.id,
            version=version,
            node=observed.node.model_copy(update=own),
            removed=False,
            cordoned=False,
            changed_at=now,
            silent_since=None if answers else now,
            closed=not observed.node.schedulable,
        )
    silent_since = None if answers else row.silent_since or now
    leased = silent_since is None or (row.node.ready and now < silent_since + policy.lease)
    closed = not observed.node.schedulable
    state = {
        "schedulable": not (row.cordoned or closed or row.quarantined_until),
        "quarantined": row.quarantined_until is not None,
        "draining": row.cordoned and row.node.draining,
    }
    merged = merge_labels(observed.node, row.labels, row.taints)
    node = observed.node.model_copy(update={**state, **merged, "ready": leased})
    after = replace(
        row, node=node, removed=observed.retired, silent_since=silent_since, closed=closed
    )
    if (after.node, after.removed) == (row.node, row.removed):
        return after
    return replace(after, version=row.version + 1, changed_at=now)


def _is_unchanged(row: NodeRow, observed: ObservedNode) -> bool:
    """Whether nothing can have changed. With many nodes, that holds for nearly all of them in each
    scan."""
    node = observed.node
    if not node.ready or row.silent_since is not None or observed.retired or row.removed:
        return False
    if row.cordoned or row.labels or row.taints or row.quarantined_until:
        return False
    return row.closed is not node.schedulable and vars(row.node) == vars(node)


def cordon(row: NodeRow, schedulable: bool, now: datetime, *, drain: bool = False) -> NodeRow:
    """Apply an operator's command to a row. Returns the same row if nothing changes.

    With ``drain``, runs also leave the cordoned node. A node that becomes schedulable again has
    its count of failed starts reset.
    """
    draining = drain and not schedulable
    released = schedulable and (row.quarantined_until is not None or row.failed_starts > 0)
    if row.cordoned is not schedulable and row.node.draining is draining and not released:
        return row
    if schedulable:
        row = replace(row, failed_starts=0, failed_task="", failed_owner="", quarantined_until=None)
    return replace(
        row,
        cordoned=not schedulable,
        node=row.node.model_copy(
            update={
                "schedulable": schedulable and not row.closed,
                "draining": draining,
                "quarantined": row.quarantined_until is not None,
            }
        ),
        version=row.version + 1,
        changed_at=now,
    )


def start_failed(
    row: NodeRow,
    task_id: str,
    now: datetime,
    policy: QuarantinePolicy,
    *,
    owner: str = "",
    counts_once: bool = False,
) -> NodeRow:
    """The row after a start that failed on the node.

    A task that fails repeatedly counts once, because the fault may be its own. With ``counts_once``
    all tasks of an owner together count once.
    """
    if row.failed_task == task_id or row.quarantined_until is not None:
        return row
    if counts_once and row.failed_owner == owner:
        return row
    failed_starts = row.failed_starts + 1
    after = replace(row, failed_starts=failed_starts, failed_task=task_id, failed_owner=owner)
    until = policy.until(failed_starts, now)
    if until is None:
        return after
    node = row.node.model_copy(update={"schedulable": False, "quarantined": True})
    return replace(
        after, node=node, quarantined_until=until, version=row.version + 1, changed_at=now
    )


def start_worked(row: NodeRow) -> NodeRow:
    """The row after a start that worked. A current quarantine continues."""
    if not row.failed_starts or row.quarantined_until is not None:
        return row
    return replace(row, failed_starts=0, failed_task="", failed_owner="")


def _without_expired_quarantine(row: NodeRow | None, now: datetime) -> NodeRow | None:
    """The row without its quarantine, if that has ended. One more failure starts the next one."""
    if row is None or row.quarantined_until is None or now < row.quarantined_until:
        return row
    node = row.node.model_copy(
        update={"schedulable": not (row.cordoned or row.closed), "quarantined": False}
    )
    return replace(row, node=node, quarantined_until=None, version=row.version + 1, changed_at=now)


def message(row: NodeRow) -> NodeChanged:
    """The row as an event."""
    return NodeChanged(
        node_id=row.node_id,
        version=row.version,
        node=row.node,
        removed=row.removed,
        changed_at=row.changed_at,
    )


def changed_events(before: Mapping[str, NodeRow], after: Iterable[NodeRow]) -> list[NodeChanged]:
    """The events for rows whose version grew."""
    return [
        message(row)
        for row in after
        if row.node_id not in before or before[row.node_id].version != row.version
    ]
