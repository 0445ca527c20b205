"""What the nodes could hold if they were empty; each question is answered once per shape.

Built again by ``index.py`` when nodes come, go or are rebuilt; a change of their state is followed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from libs.contracts.whole_nodes import Nodes, kinds_for
from services.scheduler.domain.limits.quota_usage import Need
from services.scheduler.domain.model.group_policy import PolicySettings
from services.scheduler.domain.model.rows import Node, Task
from services.scheduler.domain.model.values import Shape
from services.scheduler.domain.placement.capacity import Capacity
from services.scheduler.domain.placement.node_index import (
    could_hold_rank,
    memory_of,
    millicpus_of,
    width,
)
from services.scheduler.domain.placement.topology import DOMAIN_LABELS, address

# Answers kept for each group: shapes differ by every byte of memory that somebody asks for.
ANSWERS_KEPT_MAX = 2_048
# One of these names every node that a kind of shape could use.
ELIGIBLE_KEPT_MAX = 64

_K = TypeVar("_K")
_V = TypeVar("_V")
# What a rank takes of GPUs, and the set of nodes that suit it (None: all); or these for each part.
_ShapeKind: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers that were computed for one group before."""

    fits_known: dict[Shape, bool] = field(default_factory=dict[Shape, bool])
    fits_now: dict[Shape, bool] = field(default_factory=dict[Shape, bool])
    needs: dict[Shape, Need] = field(default_factory=dict[Shape, Need])
    kinds: dict[Shape, tuple[int, ...]] = field(default_factory=dict[Shape, tuple[int, ...]])
    eligible: dict[_ShapeKind, frozenset[str]] = field(
        default_factory=dict[_ShapeKind, frozenset[str]]
    )
    covers: dict[tuple[_ShapeKind, _ShapeKind], bool] = field(
        default_factory=dict[tuple[_ShapeKind, _ShapeKind], bool]
    )


class Totals:
    """The nodes of one moment, empty."""

    def __init__(
        self,
        nodes: Iterable[Node],
        settings: PolicySettings,
        levels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        every = list(nodes)
        existing = [node for node in every if not node.removed]
        # Groups that have no node now, but had some or have a policy: an autoscaler took all of
        # them away, or has brought none so far.
        there = {node.group for node in existing}
        self.emptied = ({node.group for node in every} | {*(levels or {})}) - there
        # Lost and cordoned nodes and sick GPUs may come back, so they count as known.
        whole = (
            replace(node, unusable_gpus=()) if node.unusable_gpus else node for node in existing
        )
        self.known = Capacity(whole, settings)
        closed = {str(node.id) for node in existing if not node.offered}
        self.offered = Capacity(existing, settings, levels, closed)
        self._levels = levels or {}
        # Groups with more than one of the largest domains.
        zones: dict[str, set[str]] = {}
        for node in existing:
            zones.setdefault(node.group, set()).update(address(node, self.levels(node.group)[:1]))
        self._zones = {group: tuple(sorted(names)) for group, names in zones.items()}
        # Nodes without the label lie in one domain of no name, which is none to cross from.
        self.zoned = frozenset(group for group, names in zones.items() if len(names - {""}) > 1)
        # Nodes whose runs are requested to leave.
        self.draining = {str(node.id) for node in existing if node.draining}
        self._widths: dict[str, int] = {}
        self._narrowest: dict[str, int] = {}
        for node in existing:
            self._widths[node.group] = max(self._widths.get(node.group, 1), width(node))
            if node.gpus:
                least = self._narrowest.get(node.group, node.gpus)
                self._narrowest[node.group] = min(least, node.gpus)
        self._answers: dict[str, _Answers] = defaultdict(_Answers)

    def change(self, old: Node, node: Node, capacity: Capacity) -> bool:
        """The state or the amounts of a node changed; ``capacity``, a copy of what is offered,
        follows, all free.

        Returns True if another answer changed by it than how many units there are. Only shapes
        whose answer may have changed are asked about again.
        """
        group, answers = node.group, self._answers[node.group]
        sizes = self.offered.whole_sizes(group)
        self.offered.change(node, capacity, closed=not node.offered)
        if node.draining:
            self.draining.add(str(node.id))
        else:
            self.draining.discard(str(node.id))
        answers.eligible.clear()
        answers.covers.clear()
        touched = None
        if (old.offered, old.unusable_gpus) == (node.offered, node.unusable_gpus):
            touched = _Between(old, node)
        changed = len(sizes) != 1 or self.offered.whole_sizes(group) != sizes
        if (old.cpus, old.memory_bytes) != (node.cpus, node.memory_bytes):
            self.known.change(replace(node, unusable_gpus=()))
            answers.kinds.clear()
            if _another(answers.fits_known, self.known, _Between(old, node)):
                answers.fits_known.clear()
                changed = True
            changed = changed or len(self.known.whole_sizes(group)) != 1
        if changed or _another(answers.fits_now, self.offered, touched):
            answers.fits_now.clear()
            answers.needs.clear()
            return True
        return False

    def drained_node(self, task: Task) -> str | None:
        """The first draining node that the task's run is on, or None."""
        on = (each.node_id for each in task.placements if each.node_id in self.draining)
        return min(on, default=None)

    def width(self, group: str) -> int:
        """GPUs of the largest node of a group; at least 1."""
        return self._widths.get(group, 1)

    def least_node_share(self, group: str) -> float:
        """The smallest node with GPUs as a part of the largest; 0 if none has any."""
        return self._narrowest.get(group, 0) / self.width(group)

    def units(self, group: str) -> float:
        """Node equivalents that a group offers."""
        return self.offered.units(group)

    def levels(self, group: str) -> Sequence[str]:
        """The labels of a group's domains, the largest first."""
        return self._levels.get(group, DOMAIN_LABELS)

    def fits_known(self, shape: Shape) -> bool:
        """True if the whole known inventory, empty, could hold the gang."""
        answers = self._answers[shape.group].fits_known
        found = answers.get(shape)
        if found is None:
            found = _keep(answers, shape, self.known.pick(shape) is not None)
        return found

    def fits_now(self, shape: Shape) -> bool:
        """True if the nodes that are ready and not cordoned, empty, could hold the gang."""
        answers = self._answers[shape.group].fits_now
        found = answers.get(shape)
        if found is None:
            found = _keep(answers, shape, self.offered.pick(shape) is not None)
        return found

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
        answers = self._answers[shape.group].needs
        found = answers.get(shape)
        if found is None and shape.parts:
            gpus = sum(self.need(each).gpus for each in shape.each)
            found = _keep(answers, shape, Need(gpus, shape.counted))
        if found is None:
            gpus = shape.gpus
            if gpus is None:
                slots = self.offered.pick(shape) or self.known.pick(shape) or ()
                sizes = [self.known.nodes[slot.node_id].gpus for slot in slots]
                gpus = max(sizes, default=0)
            found = _keep(answers, shape, Need(gpus * shape.nodes, shape.nodes))
        return found

    def kinds(self, shape: Shape) -> tuple[int, ...]:
        """The GPU counts of known nodes that a gang of whole nodes may get, ascending."""
        counts = self.known.whole_sizes(shape.group)
        if len(counts) <= 1:
            return tuple(counts)
        answers = self._answers[shape.group].kinds
        found = answers.get(shape)
        if found is None:
            group = (
                Nodes(node.gpus, 1, could_hold_rank(node, shape))
                for node in self.known.nodes.values()
                if node.group == shape.group
            )
            found = _keep(answers, shape, kinds_for(group, shape.nodes))
        return found

    def least_need(self, shape: Shape) -> Need:
        """What the gang takes of a limit at least: whole nodes of the smallest kind."""
        if shape.parts:
            return Need(sum(self.least_need(each).gpus for each in shape.each), shape.counted)
        if shape.gpus is None and (kinds := self.kinds(shape)):
            return Need(kinds[0] * shape.nodes, shape.nodes)
        return self.need(shape)

    def eligible(self, shape: Shape) -> frozenset[str]:
        """What the shape competes for among the offered nodes."""
        return self._eligible(shape, self._kind(shape))

    def _kind(self, shape: Shape) -> _ShapeKind:
        """Shapes of one kind compete for the same nodes, however many they want."""
        if shape.parts:
            return tuple(map(self._kind, shape.each))
        return shape.gpus, self.offered.suitable(shape._replace(nodes=1))

    def _eligible(self, shape: Shape, kind: _ShapeKind) -> frozenset[str]:
        answers = self._answers[shape.group].eligible
        found = answers.get(kind)
        if found is None:
            found = _keep(
                answers, kind, self.offered.eligible(shape._replace(nodes=1)), ELIGIBLE_KEPT_MAX
            )
        return found

    def competes(self, later: Shape, earlier: Shape) -> bool:
        """True if every node that ``later`` could use is one that ``earlier`` could use."""
        if later.parts:
            # Without one of its ranks it cannot begin.
            return any(self.competes(each, earlier) for each in later.each)
        answers = self._answers[later.group].covers
        key = self._kind(later), self._kind(earlier)
        found = answers.get(key)
        if found is None:
            covers = self._eligible(later, key[0]) <= self._eligible(earlier, key[1])
            found = _keep(answers, key, covers)
        return found


class _Between:
    """The shapes that exactly one of two descriptions of a node could hold by its amounts."""

    def __init__(self, old: Node, new: Node) -> None:
        self._cpus = sorted((millicpus_of(old) or 0, millicpus_of(new) or 0))
        self._memory = sorted((memory_of(old) or 0, memory_of(new) or 0))

    def __contains__(self, shape: Shape) -> bool:
        if shape.parts:
            # Ranks that share a node add up, and its CPUs bound how many need no GPU.
            return True
        (less, more), (smaller, larger) = self._cpus, self._memory
        if shape.cpus and less < shape.resources.cpus <= more:
            return True
        return smaller < shape.memory_bytes <= larger


def _another(
    answers: Mapping[Shape, bool], capacity: Capacity, touched: Container[Shape] | None
) -> bool:
    """True if an answer has changed; ``touched``: the shapes that may have another, None: all."""
    return any(
        capacity.fits(shape) is not fitted
        for shape, fitted in answers.items()
        if touched is None or shape in touched
    )


def _keep(answers: dict[_K, _V], key: _K, value: _V, kept_max: int = ANSWERS_KEPT_MAX) -> _V:
    """Remember an answer; a full cache begins again."""
    if len(answers) >= kept_max:
        answers.clear()
    answers[key] = value
    return value
