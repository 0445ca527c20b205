"""What rarely changes of a group's nodes: order, sizes, filters, and which take new runs.

``place.py`` numbers the nodes of a group in the order of their domains, then ids: the *places*.
Sets of places are integers (``masks.py``). A fleet is shared by a capacity and all its copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence

from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Node
from services.scheduler.domain.model.values import Shape, millicpus
from services.scheduler.domain.placement.amounts import Left
from services.scheduler.domain.placement.masks import mask_of, places, span
from services.scheduler.domain.placement.topology import address, tree

# Answers kept of which nodes suit a shape; beyond it they are found anew.
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


def selected(node: Node, selector: Iterable[tuple[str, str]]) -> bool:
    """True if the node has all these labels."""
    return set(selector) <= set(node.labels)


def cpus_of(node: Node) -> int | None:
    """The CPUs of a node in thousandths; None if it does not report them."""
    return millicpus(node.cpus) if node.cpus > 0 else None


def memory_of(node: Node) -> int | None:
    """The memory of a node in bytes; None if it does not report it."""
    return node.memory_bytes if node.memory_bytes > 0 else None


def roomy(node: Node, shape: Shape) -> bool:
    """True if one rank may lie on this node were it empty, whatever GPUs it asks for.

    CPU and memory limits are within the node's (unknown counts as enough), its labels are those
    that are selected, its taints are tolerated.
    """
    cpus, memory = cpus_of(node), memory_of(node)
    each = shape.resources
    return (
        (cpus is None or each.cpus <= cpus)
        and (memory is None or each.memory_bytes <= memory)
        and welcomes(node, shape)
    )


def welcomes(node: Node, shape: Shape) -> bool:
    """True if the node has the labels that are selected, and its taints are tolerated."""
    return selected(node, shape.selector) and tolerated(node.taints, shape.tolerations)


class Fleet:
    """The nodes of one group; those that are ``shut`` keep their place but take no runs."""

    def __init__(
        self,
        nodes: Iterable[Node],
        settings: PolicySettings,
        levels: Sequence[str],
        shut: Container[str] = (),
    ) -> None:
        addressed = sorted(((address(node, levels), str(node.id), node) for node in nodes), key=_by)
        self.nodes = [node for _, _, node in addressed]
        self._settings = settings
        self.ids = tuple(node_id for _, node_id, _ in addressed)
        self.domains = tree([each for each, _, _ in addressed])
        self.usable = [0 if node.id in shut else usable_mask(node) for node in self.nodes]
        # The places of those that take runs.
        self.open = mask_of(p for p, node in enumerate(self.nodes) if node.id not in shut)
        self.cpu_ranks_max = [cpu_ranks_max(node, settings) for node in self.nodes]
        # GPU counts of the nodes, largest first, and the places of the nodes with so many.
        self.sizes: tuple[int, ...] = tuple(sorted({n.gpus for n in self.nodes}, reverse=True))
        self.of_size = {
            size: mask_of(place for place, node in enumerate(self.nodes) if node.gpus == size)
            for size in self.sizes
        }
        # How many nodes have so many usable units of so many.
        self._counts = Counter(
            (usable.bit_count(), width(node))
            for usable, node in zip(self.usable, self.nodes, strict=True)
        )
        self._sum_up()
        # What the nodes offer to all their ranks together; None: nobody reports it.
        self.cpus = Left.of([cpus_of(node) for node in self.nodes])
        self.memory = Left.of([memory_of(node) for node in self.nodes])
        self._tainted = any(node.taints for node in self.nodes)
        self._answers: dict[tuple[object, ...], int] = {}
        # The same of shapes that avoid nodes, while the same nodes are offered.
        self._avoiding: dict[Shape, int] = {}

    def _sum_up(self) -> None:
        # GPU counts a whole-node gang may get; nodes without GPUs only where none has any.
        there = tuple(size for size in self.sizes if self.of_size[size] & self.open)
        self.whole_sizes: tuple[int, ...] = tuple(size for size in there if size) or there
        # Node equivalents that may be used at all.
        self.units = sum(n * units / wide for (units, wide), n in sorted(self._counts.items()))

    def change(self, place: int, node: Node, *, shut: bool) -> None:
        """The state of a node changed, or how much CPU and memory it offers; the rest stays."""
        before, self.nodes[place] = self.nodes[place], node
        if before.cpus != node.cpus:
            self.cpu_ranks_max[place] = cpu_ranks_max(node, self._settings)
            if self.cpus is not None:
                self.cpus.reset(place, cpus_of(node))
        if before.memory_bytes != node.memory_bytes and self.memory is not None:
            self.memory.reset(place, memory_of(node))
        self._set_usable(place, None if shut else usable_mask(node))

    def _set_usable(self, place: int, mask: int | None) -> None:
        wide, usable = width(self.nodes[place]), mask or 0
        self._counts[self.usable[place].bit_count(), wide] -= 1
        self._counts[usable.bit_count(), wide] += 1
        self.usable[place] = usable
        bit = 1 << place
        self.open = self.open & ~bit if mask is None else self.open | bit
        self._avoiding.clear()
        self._sum_up()

    def welcoming(self, shape: Shape) -> int | None:
        """The places of the nodes that a shape allows by what they are called; None: all.

        Nodes that it avoids are left out, as many of the first as the gang can do without: where
        starts failed on every node, the node of the newest failure is not the first one again.
        """
        if not shape.selector and not self._tainted and not shape.avoids:
            return None
        allowed = self._labelled(shape)
        if not shape.avoids:
            return allowed
        found = self._avoiding.get(shape)
        if found is None:
            if len(self._avoiding) >= _ANSWERS_MAX:
                self._avoiding.clear()
            found = span(0, len(self.nodes)) if allowed is None else allowed
            found = self._without_newest(shape, found)
            self._avoiding[shape] = found
        return found

    def _without_newest(self, shape: Shape, found: int) -> int:
        """These places without as many of the first avoided nodes as the gang can do without."""
        there = {each: place for place, each in enumerate(self.ids) if each in shape.avoids}
        # The more are left out, the less the others can hold.
        least, most = 0, len(shape.avoids)
        while least < most:
            count = (least + most + 1) // 2
            avoided = mask_of(there[each] for each in shape.avoids[:count] if each in there)
            if self._could_hold(shape, found & ~avoided):
                least = count
            else:
                most = count - 1
        return found & ~mask_of(there[each] for each in shape.avoids[:least] if each in there)

    def _could_hold(self, shape: Shape, there: int) -> bool:
        """True if these nodes, empty, could hold a gang; its domains are not looked at."""
        there = within(there & self.open, shape, self.cpus, self.memory) or 0
        if shape.gpus == 0:
            return there.bit_count() >= shape.nodes
        counts: Counter[int] = Counter()
        for place in places(there):
            node, usable = self.nodes[place], self.usable[place].bit_count()
            if shape.gpus is not None:
                counts[0] += node.gpus >= shape.gpus and usable >= shape.gpus
            elif usable == width(node) and node.gpus in self.whole_sizes:
                counts[node.gpus] += 1
        return max(counts.values(), default=0) >= shape.nodes

    def _labelled(self, shape: Shape) -> int | None:
        """The places of the nodes that a shape's labels and tolerations allow; None: all."""
        if not shape.selector and not self._tainted:
            return None
        key = shape.selector, shape.tolerations
        found = self._answers.get(key)
        if found is None:
            if len(self._answers) >= _ANSWERS_MAX:
                self._answers.clear()
            found = mask_of(place for place, node in enumerate(self.nodes) if welcomes(node, shape))
            self._answers[key] = found
        return None if found == span(0, len(self.nodes)) else found

    def suiting(self, shape: Shape) -> int | None:
        """The places of the nodes that are ``roomy``; None: all."""
        return within(self.welcoming(shape), shape, self.cpus, self.memory)


def within(there: int | None, shape: Shape, cpus: Left | None, memory: Left | None) -> int | None:
    """Those of the places (None: all) with so much of both left; None: all."""
    each = shape.resources
    for left, asked in ((cpus, each.cpus), (memory, each.memory_bytes)):
        if left is not None and asked:
            enough = left.at_least(asked)
            there = enough if there is None else there & enough
    return there


def _by(entry: tuple[tuple[str, ...], str, Node]) -> tuple[tuple[str, ...], str]:
    return entry[:2]
