"""The properties of a group's nodes that rarely change: order, sizes, filters, and which take new
runs.

The *position* of a node is its number in the order of the domains, then of the ids. Sets of
positions are integers (``bitsets.py``). A capacity shares a node index with all its copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Sequence

from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Node
from services.scheduler.domain.model.values import Shape, millicpus
from services.scheduler.domain.placement.bitsets import bit_range, mask_of, positions
from services.scheduler.domain.placement.node_resources import RemainingResource
from services.scheduler.domain.placement.topology import address, domain_tree

# How many answers about which nodes suit a shape are cached.
_ANSWERS_MAX = 4096


def width(node: Node) -> int:
    """Units of a node: its GPUs; a node without GPUs is one unit."""
    return max(1, node.gpus)


def usable_mask(node: Node) -> int:
    """The units of a node that may be used at all."""
    return ((1 << width(node)) - 1) & ~mask_of(node.unusable_gpus if node.gpus else ())


def cpu_ranks_max(node: Node, settings: PolicySettings) -> int:
    """How many CPU-only ranks a node holds."""
    return max(1, int(node.cpus)) if node.cpus > 0 else settings.cpu_ranks_per_node


def tolerated(taints: Iterable[str], tolerations: Sequence[str]) -> bool:
    """True if every taint is tolerated: by name and value, or by its name whatever the value."""
    return all(taint in tolerations or taint.partition("=")[0] in tolerations for taint in taints)


def has_labels(node: Node, selector: Iterable[tuple[str, str]]) -> bool:
    """True if the node has all these labels."""
    return set(selector) <= set(node.labels)


def millicpus_of(node: Node) -> int | None:
    """The CPUs of a node in thousandths; None if it does not report them."""
    return millicpus(node.cpus) if node.cpus > 0 else None


def memory_of(node: Node) -> int | None:
    """The memory of a node in bytes; None if it does not report it."""
    return node.memory_bytes if node.memory_bytes > 0 else None


def could_hold_rank(node: Node, shape: Shape) -> bool:
    """True if one rank may lie on this node were it empty, whatever GPUs it needs.

    Its CPUs and memory are within the node's (an unknown amount is enough), and the node admits it.
    """
    cpus, memory = millicpus_of(node), memory_of(node)
    resources = shape.resources
    return (
        (cpus is None or resources.cpus <= cpus)
        and (memory is None or resources.memory_bytes <= memory)
        and admits(node, shape)
    )


def admits(node: Node, shape: Shape) -> bool:
    """True if the node has the selected labels, and the shape tolerates its taints."""
    return has_labels(node, shape.selector) and tolerated(node.taints, shape.tolerations)


class NodeIndex:
    """The nodes of one group; closed ones keep their position but take no runs."""

    def __init__(
        self,
        nodes: Iterable[Node],
        settings: PolicySettings,
        levels: Sequence[str],
        closed: Container[str] = (),
    ) -> None:
        addressed = sorted(((address(node, levels), str(node.id), node) for node in nodes), key=_by)
        self.nodes = [node for _, _, node in addressed]
        self._settings = settings
        self.ids = tuple(node_id for _, node_id, _ in addressed)
        self.domains = domain_tree([each for each, _, _ in addressed])
        self.usable = [0 if node.id in closed else usable_mask(node) for node in self.nodes]
        # The positions of those that take runs.
        self.open = mask_of(p for p, node in enumerate(self.nodes) if node.id not in closed)
        self.cpu_ranks_max = [cpu_ranks_max(node, settings) for node in self.nodes]
        # GPU counts of the nodes, largest first, and the positions of the nodes with so many.
        self.sizes: tuple[int, ...] = tuple(sorted({n.gpus for n in self.nodes}, reverse=True))
        self.by_size = {
            size: mask_of(position for position, node in enumerate(self.nodes) if node.gpus == size)
            for size in self.sizes
        }
        # The number of nodes by usable units and units.
        self._counts = Counter(
            (usable.bit_count(), width(node))
            for usable, node in zip(self.usable, self.nodes, strict=True)
        )
        self._sum_up()
        # What the nodes offer to all their ranks together; None: no node reports it.
        self.cpus = RemainingResource.of([millicpus_of(node) for node in self.nodes])
        self.memory = RemainingResource.of([memory_of(node) for node in self.nodes])
        self._tainted = any(node.taints for node in self.nodes)
        self._answers: dict[tuple[object, ...], int] = {}
        # The same for shapes that avoid nodes, while the same nodes are offered.
        self._avoiding: dict[Shape, int] = {}

    def _sum_up(self) -> None:
        # GPU counts that a whole-node gang may get; nodes without GPUs only where none has any.
        there = tuple(size for size in self.sizes if self.by_size[size] & self.open)
        self.whole_sizes: tuple[int, ...] = tuple(size for size in there if size) or there
        # Node equivalents that may be used at all.
        self.units = sum(n * units / size for (units, size), n in sorted(self._counts.items()))

    def change(self, position: int, node: Node, *, closed: bool) -> None:
        """The state of a node changed, or how much CPU and memory it offers; the rest stays."""
        before, self.nodes[position] = self.nodes[position], node
        if before.cpus != node.cpus:
            self.cpu_ranks_max[position] = cpu_ranks_max(node, self._settings)
            if self.cpus is not None:
                self.cpus.reset(position, millicpus_of(node))
        if before.memory_bytes != node.memory_bytes and self.memory is not None:
            self.memory.reset(position, memory_of(node))
        self._set_usable(position, None if closed else usable_mask(node))

    def _set_usable(self, position: int, mask: int | None) -> None:
        size, usable = width(self.nodes[position]), mask or 0
        self._counts[self.usable[position].bit_count(), size] -= 1
        self._counts[usable.bit_count(), size] += 1
        self.usable[position] = usable
        bit = 1 << position
        self.open = self.open & ~bit if mask is None else self.open | bit
        self._avoiding.clear()
        self._sum_up()

    def admitting(self, shape: Shape) -> int | None:
        """The nodes whose labels, taints and names a shape allows; None: all.

        Of the nodes that the shape avoids, as many of the first are left out as the gang can do
        without: where starts failed on every node, the node of the newest failure is not the first
        to be tried again.
        """
        if not shape.selector and not self._tainted and not shape.avoids:
            return None
        allowed = self._by_labels(shape)
        if not shape.avoids:
            return allowed
        found = self._avoiding.get(shape)
        if found is None:
            if len(self._avoiding) >= _ANSWERS_MAX:
                self._avoiding.clear()
            found = bit_range(0, len(self.nodes)) if allowed is None else allowed
            found = self._without_avoided(shape, found)
            self._avoiding[shape] = found
        return found

    def _without_avoided(self, shape: Shape, found: int) -> int:
        """These nodes without as many of the first avoided ones as the gang can do without."""
        return found & ~self._dispensable(shape, lambda kept: self._could_hold(shape, found & kept))

    def avoided(self, shape: Shape, could_hold: Callable[[int], bool]) -> int:
        """The nodes that a gang of ranks that differ or share nodes avoids and can do without."""
        found = self._avoiding.get(shape)
        if found is None:
            if len(self._avoiding) >= _ANSWERS_MAX:
                self._avoiding.clear()
            found = self._avoiding[shape] = self._dispensable(shape, could_hold)
        return found

    def _dispensable(self, shape: Shape, could_hold: Callable[[int], bool]) -> int:
        """As many of the first avoided nodes as may be left out so that the others could hold it.

        The more nodes are left out, the less the others can hold.
        """
        there = {each: position for position, each in enumerate(self.ids) if each in shape.avoids}
        every = bit_range(0, len(self.nodes))

        def first(count: int) -> int:
            return mask_of(there[each] for each in shape.avoids[:count] if each in there)

        least, most = 0, len(shape.avoids)
        while least < most:
            count = (least + most + 1) // 2
            if could_hold(every & ~first(count)):
                least = count
            else:
                most = count - 1
        return first(least)

    def _could_hold(self, shape: Shape, there: int) -> bool:
        """True if these nodes, empty, could hold a gang; domains are not compared."""
        there = with_resources(there & self.open, shape, self.cpus, self.memory) or 0
        if shape.gpus == 0:
            return there.bit_count() >= shape.nodes
        counts: Counter[int] = Counter()
        for position in positions(there):
            node, usable = self.nodes[position], self.usable[position].bit_count()
            if shape.gpus is not None:
                counts[0] += node.gpus >= shape.gpus and usable >= shape.gpus
            elif usable == width(node) and node.gpus in self.whole_sizes:
                counts[node.gpus] += 1
        return max(counts.values(), default=0) >= shape.nodes

    def _by_labels(self, shape: Shape) -> int | None:
        """The nodes that a shape's labels and tolerations allow; None: all."""
        if not shape.selector and not self._tainted:
            return None
        key = shape.selector, shape.tolerations
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= _ANSWERS_MAX:
                self._answers.clear()
            found = mask_of(
                position for position, node in enumerate(self.nodes) if admits(node, shape)
            )
            self._answers[key] = found
        return None if found == bit_range(0, len(self.nodes)) else found

    def suitable(self, shape: Shape) -> int | None:
        """The nodes that could hold one rank; None: all."""
        return with_resources(self.admitting(shape), shape, self.cpus, self.memory)


def with_resources(
    there: int | None,
    shape: Shape,
    cpus: RemainingResource | None,
    memory: RemainingResource | None,
) -> int | None:
    """Those of the positions (None: all) with so much of both resources left; None: all."""
    resources = shape.resources
    for left, needed in ((cpus, resources.cpus), (memory, resources.memory_bytes)):
        if left is not None and needed:
            enough = left.at_least(needed)
            there = enough if there is None else there & enough
    return there


def _by(entry: tuple[tuple[str, ...], str, Node]) -> tuple[tuple[str, ...], str]:
    return entry[:2]
