"""What the routes of the queue answer."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from services.gateway.api.shapes import Reason, Unreadable


class WaitsFor(TypedDict):
    """What a waiting task waits for: ``kind`` is nodes, promised_nodes, tasks_ahead, quota,
    virtual_cluster, share, retry, inventory, larger_cluster or decision; the row of a quota and its
    numbers are in ``reason``. ``tasks_ahead`` of its group stand before it. ``until``: when its
    promised nodes are free at the latest, or when it is tried again; null: not known, see
    ``/v1/tasks/ID/explain`` for a forecast."""

    kind: str
    tasks_ahead: int
    promised_nodes: int
    until: str | None


class QueuedTask(TypedDict):
    """A place in the queue. ``priority`` is what the owner asked for, ``level`` what it counts as
    now; ``starvation_grant``: it was moved to the front because it went without service for long.
    Of a task that the caller may not see (``hidden``) only position, group, size and level are
    given."""

    id: str | None
    name: str | None
    owner: str | None
    team: str | None
    group: str
    position: int
    priority: str
    level: str
    gpus: int
    nodes: int
    submitted_at: str | None
    waiting_since: str | None
    reason: Reason | None
    waits_for: WaitsFor | None
    starvation_grant: bool | None
    hidden: bool


class QueuePage(TypedDict):
    """One page of the queue, as of ``listed_at``."""

    items: list[QueuedTask]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]
    listed_at: str
