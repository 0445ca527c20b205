"""Copies of an index, built again from its rows: instead of copies of the process.

Costs what building an index costs; the service copies by forking its process (``forks.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import TypeVar

from services.scheduler.domain.facts.index import Index

R = TypeVar("R")


def copy_of(index: Index) -> Index:
    """The same rows in a new index, with what is not kept in rows copied over.

    What rounds have settled is not: the next one evaluates everything.
    """
    fresh = Index(index.settings)
    fresh.apply(put=[*index.policies.values(), *index.nodes.values(), *index.limits.values()])
    fresh.apply(put=index.inventories.values())
    fresh.refresh()
    fresh.apply(put=[*index.ledgers.values(), *index.tasks.values()])
    for group, pool in index.pools.items():
        twin = fresh.pool(group)
        # Learned from ended tasks; and the time of the last slice round.
        twin.finishes = dict(pool.finishes)
        twin.history = deepcopy(pool.history)
        twin.slice_round_at = pool.slice_round_at
    return fresh


class Copies:
    """Worlds that are copies built from rows."""

    def with_copy(self, index: Index, simulation: Callable[[Index], R]) -> R:
        """What ``play`` returns when it has a copy of the index for itself."""
        return simulation(copy_of(index))
