"""A waiting task in the order of one round: level, then the discipline's key, then the id."""

from __future__ import annotations

from typing import NamedTuple

from libs.contracts.messages import Priority
from services.scheduler.domain.limits.virtual_clusters import UNCOVERED, Depth
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import WEIGHTS, Shape

# More than any weight; and how many levels of virtual clusters are distinguished.
COVERED = 1_000
DEPTHS_MAX = 8


class Entry(NamedTuple):
    """A waiting task in the order; compare by the first three fields only."""

    # Minus the weight; what a guarantee covers comes before all that none does.
    rank: int
    key: float
    id: str
    task: Task
    shape: Shape
    level: Priority
    # Its virtual cluster, and how it would be covered now.
    cluster: str = ""
    depth: Depth = UNCOVERED

    @property
    def weight(self) -> int:
        """The weight of its level."""
        return WEIGHTS[self.level]


def rank_of(weight: int, depth: Depth) -> int:
    """The first part of the order: the best covered first, then the highest level."""
    return -weight - COVERED * max(0, DEPTHS_MAX - depth)
