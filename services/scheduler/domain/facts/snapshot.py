"""What ``decide`` reads: the rows at one time, with the indexes over them.

Made by an ``Index`` it is a view, valid until the index changes. ``Snapshot.of`` builds the same
from the bare rows, with everything still to be evaluated: slow and obviously correct. Tests,
``replay.py`` and the dry run use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.scheduler.domain.disciplines.timeshare.history import History
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.totals import Totals
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.rows import Inventory, Limit, LimitKey, Node, PoolLedger, Task
from services.scheduler.domain.placement.capacity import Capacity


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One moment."""

    version: int
    index: Index
    # Groups that are not to be shared out, and tasks that nothing urgent is to be decided about:
    # deciding about them has just failed.
    left_out: frozenset[str] = frozenset()
    left_out_tasks: frozenset[str] = frozenset()

    @staticmethod
    def of(
        *,
        version: int = 0,
        tasks: Iterable[Task] = (),
        nodes: Iterable[Node] = (),
        limits: Iterable[Limit] = (),
        inventories: Iterable[Inventory] = (),
        policies: Iterable[GroupPolicy] = (),
        ledgers: Iterable[PoolLedger] = (),
        settings: PolicySettings | None = None,
        histories: Mapping[str, History] | None = None,
    ) -> Snapshot:
        """Build everything from the bare rows; ``histories`` are what pools learned, shared."""
        index = Index(settings or PolicySettings())
        index.apply(put=[*policies, *nodes, *limits, *inventories])
        index.refresh()
        for group, history in (histories or {}).items():
            index.pool(group).history = history
        index.apply(put=[*ledgers, *tasks])
        return Snapshot.view(index, version)

    @staticmethod
    def view(index: Index, version: int = 0) -> Snapshot:
        """The present moment of an index; O(1) but after a change of nodes or limits."""
        index.refresh()
        return Snapshot(version, index)

    @property
    def settings(self) -> PolicySettings:
        """The numbers of the policy for all groups."""
        return self.index.settings

    @property
    def tasks(self) -> Mapping[str, Task]:
        """Every task that has not ended."""
        return self.index.tasks

    @property
    def held(self) -> Mapping[str, Task]:
        """Those with a live run."""
        return self.index.held

    @property
    def nodes(self) -> Mapping[str, Node]:
        """Every node, removed ones too."""
        return self.index.nodes

    @property
    def limits(self) -> Mapping[LimitKey, Limit]:
        """Every limit."""
        return self.index.limits

    @property
    def pools(self) -> Mapping[str, Pool]:
        """The node groups that tasks name."""
        return self.index.pools

    @property
    def capacity(self) -> Capacity:
        """What is observed free and not promised."""
        return self.index.capacity

    @property
    def totals(self) -> Totals:
        """What there would be if nothing ran."""
        return self.index.totals

    @property
    def inventory_listed(self) -> bool:
        """True once every runtime's full list of nodes was received, and all of them are known."""
        return self.index.listed()
