"""Computes the kinds of nodes on which a gang of whole nodes may run.

Submit calls this before it accepts a task, and the scheduler before it counts a quota, so both give
the same answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple


class Nodes(NamedTuple):
    """A number of nodes of a group that have the same number of GPUs."""

    gpus: int
    number: int
    # Whether the gang's CPUs, memory, labels and taints allow these nodes.
    suit: bool


def kinds_for(group: Iterable[Nodes], wanted: int) -> tuple[int, ...]:
    """The GPU counts of nodes that a gang of ``wanted`` whole nodes may get, ascending.

    All of its nodes have one number of GPUs. Nodes without GPUs count only where no node has any.
    """
    suiting: Counter[int] = Counter()
    with_gpus = False
    for nodes in group:
        with_gpus = with_gpus or (nodes.gpus > 0 and nodes.number > 0)
        suiting[nodes.gpus] += nodes.number if nodes.suit else 0
    return tuple(
        sorted(
            gpus
            for gpus, count in suiting.items()
            if count >= wanted and (gpus > 0 or not with_gpus)
        )
    )
