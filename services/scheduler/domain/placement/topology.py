"""Where in the network a gang goes: into the smallest domain that holds it.

A group's nodes lie in nested domains (by default zone, spine, leaf), named by node labels; nodes
without the label of a level form one domain of that level together. ``node_index.py`` keeps the
nodes of a group in the order of their domains, so that a domain is a range of positions, and
neighbouring ranks lie in different domains as rarely as possible. Called by ``capacity.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from services.scheduler.domain.model.rows import Node
from services.scheduler.domain.placement.bitsets import bit_range, bit_string

# Node labels from the largest domain to the smallest.
DOMAIN_LABELS: tuple[str, ...] = ("zone", "spine", "leaf")


class Topology(NamedTuple):
    """How a pick treats the domains of its group."""

    # Whether the gang may lie in more than one of the largest domains.
    cross_zone_allowed: bool = True


class Domain(NamedTuple):
    """The positions from ``start`` up to ``end``, and the domains it consists of."""

    start: int
    end: int
    depth: int = 0
    parts: tuple[Domain, ...] = ()


class Area(NamedTuple):
    """So many of these positions."""

    positions: int
    wanted: int


class OnNode(Protocol):
    """Something that lies on a node: a slot, a placement."""

    @property
    def node_id(self) -> str:
        """The id of the node."""
        ...


def address(node: Node, levels: Sequence[str]) -> tuple[str, ...]:
    """The node's domains, the largest first."""
    labels = dict(node.labels)
    return tuple(labels.get(level, "") for level in levels)


def crosses_zone(
    ranks: Iterable[OnNode], nodes: Mapping[str, Node], levels: Sequence[str] = DOMAIN_LABELS
) -> bool:
    """True if a gang (its slots or placements) lies in more than one of the largest domains.

    Unknown nodes count as lying in none.
    """
    known = (nodes[rank.node_id] for rank in ranks if rank.node_id in nodes)
    return len({address(node, levels[:1]) for node in known}) > 1


def domain_tree(addresses: Sequence[tuple[str, ...]]) -> Domain | None:
    """The domains of nodes in the order of their addresses; None if there is only one."""
    if len(set(addresses)) < 2:  # noqa: PLR2004 - one address is no choice
        return None
    return _domain(addresses, 0, len(addresses), 0)


def _domain(addresses: Sequence[tuple[str, ...]], start: int, end: int, depth: int) -> Domain:
    if addresses[start] == addresses[end - 1]:
        # No part of it differs in anything: it is as small as a domain can be.
        return Domain(start, end, len(addresses[start]))
    parts: list[Domain] = []
    begin = start
    for place in range(start + 1, end + 1):
        if place == end or addresses[place][depth] != addresses[begin][depth]:
            parts.append(_domain(addresses, begin, place, depth + 1))
            begin = place
    return Domain(start, end, depth, tuple(parts))


def smallest_first(root: Domain, *, cross_zone_allowed: bool) -> list[tuple[int, int]]:
    """The ranges of all domains, the smallest domains first, in the order of their positions.

    Without ``cross_zone_allowed`` those that hold several of the largest domains are left out.
    """
    found: list[Domain] = []
    layer: list[Domain] = [root]
    while layer:
        found += layer
        layer = [part for domain in layer for part in domain.parts]
    return [
        (domain.start, domain.end)
        for domain in sorted(found, key=lambda each: (-each.depth, each.start))
        if domain.depth > 0 or cross_zone_allowed or not domain.parts
    ]


def areas(root: Domain, free: int, wanted: int, *, cross_zone_allowed: bool) -> list[Area] | None:
    """From where to take ``wanted`` of the ``free`` positions; None if there is no such place.

    The smallest domain that holds them all, of these the one with the least to spare. A domain that
    has to be split is split into as few of its parts as possible: the fullest ones whole, the rest
    from the part where it fits best.
    """
    return _Search(root, free).areas(wanted, cross_zone_allowed=cross_zone_allowed)


class _Search:
    """One question about the domains."""

    def __init__(self, root: Domain, free: int) -> None:
        self._root = root
        self._free = free
        self._text = bit_string(free, root.end)

    def _count(self, domain: Domain) -> int:
        return self._text.count("1", domain.start, domain.end)

    def areas(self, wanted: int, *, cross_zone_allowed: bool) -> list[Area] | None:
        fitting = self._tightest((self._root,), wanted)
        if fitting is None or (fitting.depth == 0 and fitting.parts and not cross_zone_allowed):
            return None
        return self._within(fitting, wanted)

    def _tightest(self, domains: Iterable[Domain], wanted: int) -> Domain | None:
        """The deepest domain, of equally deep ones the one with the fewest, of these the first."""
        count = self._text.count
        found: list[tuple[int, int, Domain]] = []
        # Layer by layer; a domain without parts is as deep as can be and stays.
        layer = [(0, 0, Domain(0, 0, 0, tuple(domains)))]
        while layer:
            found = layer
            if not any(domain.parts for _, _, domain in layer):
                break
            layer = [
                (size, part.start, part)
                for _, _, domain in layer
                for part in domain.parts or (domain,)
                if (size := count("1", part.start, part.end)) >= wanted
            ]
        best = min(found)[2]
        return best if best.end else None

    def _within(self, domain: Domain, wanted: int) -> list[Area]:
        """``wanted`` positions of a domain that has so many."""
        if not domain.parts or self._count(domain) == wanted:
            return [Area(self._free & bit_range(domain.start, domain.end), wanted)]
        found: list[Area] = []
        by_count = sorted(domain.parts, key=lambda part: (-self._count(part), part.start))
        for index, part in enumerate(by_count):
            fitting = self._tightest(by_count[index:], wanted)
            if fitting is not None:
                return [*found, *self._within(fitting, wanted)]
            count = self._count(part)
            found.append(Area(self._free & bit_range(part.start, part.end), count))
            wanted -= count
        raise AssertionError("the parts of a domain have together what it has")
