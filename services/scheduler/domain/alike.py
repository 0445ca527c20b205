"""Whether two descriptions of a task or a node say the same as far as something is concerned.

``index.py`` asks, so that what did not change costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

from services.scheduler.domain.lifecycle import TERMINAL
from services.scheduler.domain.model import Node, Task


def keeps(one: Task, other: Task | None) -> bool:
    """True if both have the same nodes and count for the same limits."""
    return (
        other is not None
        and other.state not in TERMINAL
        and one.placements is other.placements
        and one.promised is other.promised
        and one.level is other.level
    )


def waits_alike(old: Task, new: Task) -> bool:
    """True if nothing about a waiting task changed that a round looks at."""
    return (
        old.state is new.state
        and old.priority is new.priority
        and old.marks is new.marks
        and old.not_before_at == new.not_before_at
        and not old.promised
    )


def same_place(one: Node, other: Node) -> bool:
    """True if two descriptions of a node differ in nothing but its state and its amounts.

    A node that begins or ceases to report its CPUs or memory is another place.
    """
    reports = (one.cpus > 0) == (other.cpus > 0) and (
        (one.memory_bytes > 0) == (other.memory_bytes > 0)
    )
    return reports and _bare(one) == _bare(other)


def _bare(node: Node) -> Node:
    return replace(
        node,
        version=0,
        ready=True,
        schedulable=True,
        draining=False,
        unusable_gpus=(),
        cpus=0.0,
        memory_bytes=0,
    )


def same_state(one: Node, other: Node) -> bool:
    """True if new runs may be placed on the node as before, and old ones may stay."""
    return _state(one) == _state(other)


def _state(node: Node) -> tuple[object, ...]:
    return node.offered, node.draining, node.unusable_gpus, node.cpus, node.memory_bytes
