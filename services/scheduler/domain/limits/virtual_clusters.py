"""Virtual clusters: which nodes are guaranteed, which are borrowed, and which must be given back.

A run is *covered* at some depth if its virtual cluster (depth 0), that one's parent (depth 1), …
holds no more than it is guaranteed, counting its most entitled runs first. A task that would be
covered takes back what it needs from runs that are covered less, whatever their level: idle
guaranteed capacity is lent, never lost. Without virtual clusters everything is borrowed alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from services.scheduler.domain.model.group_policy import GroupPolicy, VirtualCluster
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import WEIGHTS

# How far up the tree a guarantee covers it; UNCOVERED: none does.
Depth: TypeAlias = int
UNCOVERED: Depth = 1_000
# A run or promise: its place in the order of entitlement, its size and its virtual cluster.
CoverageRow: TypeAlias = tuple[int, float, str, float, str]
# Sums of node equivalents carry rounding errors of this size at most.
ALMOST = 1e-6


class VirtualClusters:
    """The tree of one pool's virtual clusters, and what each holds."""

    def __init__(self, policy: GroupPolicy) -> None:
        self._by_name: dict[str, VirtualCluster] = {vc.name: vc for vc in policy.virtual_clusters}
        self._of_team = {team: vc.name for vc in policy.virtual_clusters for team in vc.teams}
        self._of_user = {user: vc.name for vc in policy.virtual_clusters for user in vc.users}
        self._above = {name: tuple(self._walk_up(name)) for name in self._by_name}
        # The same with the most that may be held for a run to be covered.
        self.bounds: Mapping[str, tuple[tuple[str, float], ...]] = {
            name: tuple((vc.name, vc.nodes + ALMOST) for vc in above)
            for name, above in self._above.items()
        }
        # True if one of them has a maximum.
        self.bounded = any(vc.nodes_max is not None for vc in policy.virtual_clusters)
        # Node equivalents held (or promised), by name, its parts' included.
        self._held: dict[str, float] = dict.fromkeys(self._by_name, 0.0)

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def fork(self) -> VirtualClusters:
        """A copy that counts on from here; O(number of virtual clusters)."""
        twin = object.__new__(VirtualClusters)
        twin._by_name, twin._above, twin.bounds = self._by_name, self._above, self.bounds
        twin._of_team, twin._of_user = self._of_team, self._of_user
        twin._held = dict(self._held)
        twin.bounded = self.bounded
        return twin

    def _walk_up(self, name: str) -> Iterable[VirtualCluster]:
        seen: set[str] = set()
        while name in self._by_name and name not in seen:
            seen.add(name)
            yield self._by_name[name]
            name = self._by_name[name].parent

    def of(self, task: Task) -> str:
        """The virtual cluster a task belongs to; empty: none."""
        return self._of_user.get(task.owner) or self._of_team.get(task.team, "")

    def charge(self, name: str, units: float) -> None:
        """Count node equivalents that a task of this virtual cluster gets (negative: gives)."""
        for vc in self._above.get(name, ()):
            self._held[vc.name] += units

    def held(self, name: str) -> float:
        """Node equivalents held by a virtual cluster and its parts."""
        return self._held.get(name, 0.0)

    def depth(self, name: str, units: float) -> Depth:
        """The depth at which a task that takes this many more would be covered."""
        for depth, vc in enumerate(self._above.get(name, ())):
            if self._held[vc.name] + units <= vc.nodes + ALMOST:
                return depth
        return UNCOVERED

    def full(self, name: str, units: float) -> VirtualCluster | None:
        """The virtual cluster whose maximum would be exceeded, or None."""
        for vc in self._above.get(name, ()):
            if vc.nodes_max is not None and self._held[vc.name] + units > vc.nodes_max + ALMOST:
                return vc
        return None

    def lacking(self, name: str, units: float) -> dict[str, float]:
        """How far this many more would exceed each maximum, by virtual cluster."""
        return {
            vc.name: over
            for vc in self._above.get(name, ())
            if vc.nodes_max is not None
            and (over := self._held[vc.name] + units - vc.nodes_max) > ALMOST
        }

    def above(self, name: str) -> Iterator[str]:
        """The virtual clusters that count what this one holds, itself included."""
        return (vc.name for vc in self._above.get(name, ()))

    def guaranteed(self, name: str) -> float:
        """Node equivalents guaranteed to a virtual cluster itself."""
        vc = self._by_name.get(name)
        return vc.nodes if vc else 0.0

    def root(self, name: str) -> str:
        """The root of the tree of a virtual cluster; empty if there is no such virtual cluster."""
        above = self._above.get(name)
        return above[-1].name if above else ""

    def coverage(self, runs: Iterable[Task], units: Mapping[str, float]) -> dict[str, Depth]:
        """The depth of each run of the pool; the most entitled runs are counted first."""
        ordered = sorted(runs, key=entitlement)
        rows = ((*entitlement(task), units[task.id], self.of(task)) for task in ordered)
        return self.counted(rows)

    def counted(
        self, rows: Iterable[CoverageRow], start: Mapping[str, float] | None = None
    ) -> dict[str, Depth]:
        """The depths of runs, given in the order of ``entitlement``, each with size and name.

        ``start``: what runs before these hold; by default nothing.
        """
        counted = dict.fromkeys(self._by_name, 0.0)
        counted.update(start or {})
        bounds, found = self.bounds, dict[str, Depth]()
        for _, _, task_id, size, name in rows:
            found[task_id] = UNCOVERED
            if name not in bounds:
                continue
            for depth, (each, most) in enumerate(bounds[name]):
                if counted[each] + size <= most:
                    # Below the depth that covers it, a run uses no guarantee up.
                    for higher, _ in bounds[name][depth:]:
                        counted[higher] += size
                    found[task_id] = depth
                    break
        return found


def entitlement(task: Task) -> tuple[int, float, str]:
    """The order in which the runs of a virtual cluster use its guarantee up."""
    since = task.run_started_at or task.assigned_at or task.submitted_at
    return -WEIGHTS[task.level], since.timestamp(), task.id
