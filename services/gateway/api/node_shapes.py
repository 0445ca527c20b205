"""What the routes of nodes and of groups of nodes answer."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from services.gateway.api.shapes import Unreadable


class Node(TypedDict):
    """A node and the tasks that hold it. ``held``: the task that holds a GPU, null for one that the
    caller may not see; ``hidden_tasks``: how many such tasks hold anything of the node."""

    id: str
    group: str
    gpus: int
    gpu_model: str
    free_gpus: int
    unusable_gpus: list[int]
    held: dict[str, str | None]
    tasks: list[str]
    hidden_tasks: int
    cpus: float
    memory_bytes: int
    labels: dict[str, str]
    taints: list[str]
    schedulable: bool
    draining: bool
    quarantined: bool
    ready: bool
    changed_at: str


class LabelsAndTaints(TypedDict):
    """Labels and taints."""

    labels: dict[str, str]
    taints: list[str]


class NodeLabelsAndTaints(LabelsAndTaints):
    """A node's labels and taints after a change."""

    id: str


class NodePage(TypedDict):
    """One page of nodes."""

    items: list[Node]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]


class OccupiedNode(TypedDict):
    """A node, and whether it takes new runs."""

    id: str
    schedulable: bool


class HoldingTask(TypedDict):
    """A task that holds nodes, and how long it may take to leave them. ``id`` is null for a task
    that the caller may not see."""

    id: str | None
    ack_deadline_seconds: float | None


class Occupancy(TypedDict):
    """What a drain has to know."""

    nodes: list[OccupiedNode]
    tasks: list[HoldingTask]


class Group(TypedDict):
    """A group of nodes. ``used_nodes`` hold runs; ``free_nodes`` accept runs and hold none;
    ``waiting``: how many tasks wait, null where there are too many to count."""

    name: str
    nodes: int
    ready_nodes: int
    used_nodes: int
    free_nodes: int
    gpus: int
    used_gpus: int
    free_gpus: int
    waiting: int | None


class GroupPage(TypedDict):
    """All groups."""

    items: list[Group]
    next_cursor: None


class Scheduling(TypedDict):
    """Whether new runs are accepted, and whether those that are there are to leave."""

    schedulable: bool
    draining: bool


class Schedulable(Scheduling):
    """Whether a node accepts new runs, and whether those on it are to leave."""

    id: str
