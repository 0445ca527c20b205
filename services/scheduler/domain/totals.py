"""What the nodes could hold if they were empty; each question is answered once per shape.

Made anew by ``index.py`` when nodes come, go or are rebuilt; a change of their state is followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from libs.contracts.whole_nodes import Nodes, kinds_for
from services.scheduler.domain.model import Node, PolicySettings, Shape
from services.scheduler.domain.placement.fleet import roomy
from services.scheduler.domain.placement.place import Capacity, width
from services.scheduler.domain.placement.topology import LEVELS, address
from services.scheduler.domain.quota import Need


class Totals:
    """The nodes of one moment, empty."""

    def __init__(
        self,
        nodes: Iterable[Node],
        settings: PolicySettings,
        levels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        standing = [node for node in nodes if not node.removed]
        # Lost and cordoned nodes and sick GPUs may come back, so they count as known.
        whole = (
            replace(node, unusable_gpus=()) if node.unusable_gpus else node for node in standing
        )
        self.known = Capacity(whole, settings)
        shut = {str(node.id) for node in standing if not node.offered}
        self.offered = Capacity(standing, settings, levels, shut)
        self._levels = levels or {}
        # Groups with more than one of the largest domains.
        zones: dict[str, set[str]] = {}
        for node in standing:
            zones.setdefault(node.group, set()).update(address(node, self.levels(node.group)[:1]))
        self._zones = {group: tuple(sorted(names)) for group, names in zones.items()}
        # Nodes without the label lie in one domain of no name, which is none to cross from.
        self.zoned = frozenset(group for group, names in zones.items() if len(names - {""}) > 1)
        # Nodes whose runs are asked to leave.
        self.draining = frozenset(str(node.id) for node in standing if node.draining)
        self._widths: dict[str, int] = {}
        self._narrowest: dict[str, int] = {}
        for node in standing:
            self._widths[node.group] = max(self._widths.get(node.group, 1), width(node))
            if node.gpus:
                least = self._narrowest.get(node.group, node.gpus)
                self._narrowest[node.group] = min(least, node.gpus)
        self._fits_known: dict[Shape, bool] = {}
        self._fits_now: dict[Shape, bool] = {}
        self._needs: dict[Shape, Need] = {}
        self._kinds: dict[Shape, tuple[int, ...]] = {}
        self._eligible: dict[Shape, frozenset[str]] = {}
        self._covers: dict[tuple[Shape, Shape], bool] = {}

    def change(self, node: Node, capacity: Capacity) -> bool:
        """A node's state changed; ``capacity``, a copy of what is offered, follows, all free.

        Returns True if another answer changed by it than how many units there are.
        """
        sizes = self.offered.whole_sizes(node.group)
        self.offered.change(node, capacity)
        draining = {str(node.id)} if node.draining else set[str]()
        self.draining = (self.draining - {str(node.id)}) | draining
        self._eligible.clear()
        self._covers.clear()
        alike = len(sizes) == 1 and self.offered.whole_sizes(node.group) == sizes
        fits = self.offered.fits
        if alike and all(fits(shape) is known for shape, known in self._fits_now.items()):
            return False
        self._fits_now.clear()
        self._needs.clear()
        return True

    def width(self, group: str) -> int:
        """GPUs of the largest node of a group; at least 1."""
        return self._widths.get(group, 1)

    def narrow(self, group: str) -> float:
        """The smallest node with GPUs as a part of the largest; 0 if none has any."""
        return self._narrowest.get(group, 0) / self.width(group)

    def units(self, group: str) -> float:
        """Node equivalents that a group offers."""
        return self.offered.units(group)

    def levels(self, group: str) -> Sequence[str]:
        """The labels of a group's domains, the largest first."""
        return self._levels.get(group, LEVELS)

    def fits_known(self, shape: Shape) -> bool:
        """True if the whole known inventory, empty, could hold the gang."""
        if shape not in self._fits_known:
            self._fits_known[shape] = self.known.pick(shape) is not None
        return self._fits_known[shape]

    def fits_now(self, shape: Shape) -> bool:
        """True if the nodes that are ready and not cordoned, empty, could hold the gang."""
        if shape not in self._fits_now:
            self._fits_now[shape] = self.offered.pick(shape) is not None
        return self._fits_now[shape]

    def zones(self, group: str) -> tuple[str, ...]:
        """The names of a group's largest domains; one is empty if nodes are in none."""
        return self._zones.get(group, ())

    def narrowed_by(self, shape: Shape, *, now: bool) -> dict[str, str]:
        """The labels or taints without which the nodes could hold the gang, by what they are.

        ``now``: as many as are offered, else all that are known. Empty: they are not the cause.
        """
        there = self.offered if now else self.known
        taints = {taint for node in there.nodes.values() for taint in node.taints}
        wanted = ", ".join(f"{key}={value}" for key, value in shape.selector)
        minded = ", ".join(sorted(taints.difference(shape.tolerations)))
        free, easy = {"selector": ()}, {"tolerations": tuple(sorted(taints))}
        for without, names in (
            (free, {"selector": wanted}),
            (easy, {"taints": minded}),
            (free | easy, {"selector": wanted, "taints": minded}),
        ):
            if all(names.values()) and there.pick(shape._replace(**without)) is not None:
                return names
        return {}

    def need(self, shape: Shape) -> Need:
        """What the gang takes of a limit; whole nodes count as the largest kind that it fits."""
        if shape not in self._needs:
            gpus = shape.gpus
            if gpus is None:
                slots = self.offered.pick(shape) or self.known.pick(shape) or ()
                sizes = [self.known.nodes[slot.node_id].gpus for slot in slots]
                gpus = max(sizes, default=0)
            self._needs[shape] = Need(gpus * shape.nodes, shape.nodes)
        return self._needs[shape]

    def kinds(self, shape: Shape) -> tuple[int, ...]:
        """The GPU counts of known nodes that a gang of whole nodes may get, ascending."""
        alike = self.known.whole_sizes(shape.group)
        if len(alike) <= 1:
            return tuple(alike)
        if shape not in self._kinds:
            group = (
                Nodes(node.gpus, 1, roomy(node, shape))
                for node in self.known.nodes.values()
                if node.group == shape.group
            )
            self._kinds[shape] = kinds_for(group, shape.nodes)
        return self._kinds[shape]

    def least_need(self, shape: Shape) -> Need:
        """What the gang takes of a limit at least: whole nodes of the smallest kind."""
        if shape.gpus is None and (kinds := self.kinds(shape)):
            return Need(kinds[0] * shape.nodes, shape.nodes)
        return self.need(shape)

    def eligible(self, shape: Shape) -> frozenset[str]:
        """What the shape competes for among the offered nodes."""
        # However many nodes it wants, the nodes are the same.
        one = shape._replace(nodes=1)
        if one not in self._eligible:
            self._eligible[one] = self.offered.eligible(one)
        return self._eligible[one]

    def competes(self, later: Shape, earlier: Shape) -> bool:
        """True if every node that ``later`` could use is one that ``earlier`` could use."""
        key = (later, earlier)
        if key not in self._covers:
            self._covers[key] = self.eligible(later) <= self.eligible(earlier)
        return self._covers[key]
