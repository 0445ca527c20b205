"""The waiting tasks of one group whose shapes differ only in the CPUs and memory that they ask for.

``lanes.py`` keeps a class for each level and virtual cluster; ``order.py`` walks along it. People
ask for every byte of memory, so there may be as many shapes as tasks. A class keeps its shapes in a
binary tree by the bits of what they ask for. Each branch knows the first task below it and the
least that any shape below it asks for. If a task that asks for the least finds no place, no task of
that branch does, so a walk visits the branches in which something may move.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

from services.scheduler.domain.model.values import SHAPES_KEPT_MAX, Shape

if TYPE_CHECKING:
    from services.scheduler.domain.lanes import Group, Head, Key
    from services.scheduler.domain.order import Item


def class_of(shape: Shape) -> Shape:
    """The shape without amounts, which names its class.

    A shape that avoids nodes is a class of its own: which of them it can do without depends on the
    amounts, so one that asks for less may find fewer nodes.
    """
    if shape.avoids or not (shape.cpus or shape.memory_bytes):
        return shape
    return shape._replace(cpus=0.0, memory_bytes=0)


@lru_cache(maxsize=SHAPES_KEPT_MAX)
def _code(shape: Shape) -> int:
    """The bits of both amounts in turn, the highest first, so that near codes are near in both."""
    cpus, memory = shape.resources
    wide = max(cpus.bit_length(), memory.bit_length(), 1)
    pairs = zip(f"{cpus:0{wide}b}", f"{memory:0{wide}b}", strict=True)
    return int("".join(map("".join, pairs)), 2)


class Row:
    """The queues of the shapes that ask for the same amounts, sorted by their heads."""

    __slots__ = ("code", "heads", "least", "parent")

    def __init__(self, code: int, shape: Shape) -> None:
        self.code = code
        # One of them; all ask for the same.
        self.least = shape
        self.heads: list[Head] = []
        self.parent: Branch | None = None

    @property
    def first(self) -> Key:
        """The first task of all queues."""
        return self.heads[0][:2]

    def items(self, rank: int) -> list[Item]:
        """What a walk visits: the first task of each queue."""
        return [(rank, key, task_id, 0, queue, None) for key, task_id, queue in self.heads]


class Branch:
    """Rows that have the higher bits of their codes in common, parted by one bit."""

    __slots__ = ("_least", "bit", "first", "group", "high", "low", "parent")

    def __init__(
        self, group: Group, bit: int, low: Tree, high: Tree, parent: Branch | None
    ) -> None:
        self.group = group
        self.bit = bit
        self.low, self.high = low, high
        self.parent = parent
        self.first = min(low.first, high.first)
        self._least: Shape | None = None
        low.parent = high.parent = self

    @property
    def least(self) -> Shape:
        """A shape that asks for as little as any below, of each resource."""
        if self._least is None:
            low, high = self.low.least, self.high.least
            self._least = low._replace(
                cpus=min(low.cpus, high.cpus),
                memory_bytes=min(low.memory_bytes, high.memory_bytes),
            )
        return self._least

    def items(self, rank: int) -> list[Item]:
        """What a walk visits: the branch, as early as the first task below it."""
        return [(rank, *self.first, 0, None, self)]

    def refresh(self, *, shapes: bool) -> None:
        """A first task below changed; ``shapes``: rows came or went."""
        branch: Branch | None = self
        while branch is not None:
            first = min(branch.low.first, branch.high.first)
            if first == branch.first and not shapes:
                return
            branch.first = first
            if shapes:
                branch._least = None  # noqa: SLF001 - its own kind
            branch = branch.parent

    def reorder(self) -> None:
        """The first tasks of all rows below may have changed; no deeper than codes have bits."""
        for each in (self.low, self.high):
            if isinstance(each, Branch):
                each.reorder()
        self.first = min(self.low.first, self.high.first)


Tree: TypeAlias = Row | Branch


class ShapeClass:
    """The rows of one class, as a tree; the tree is the same in whatever order they came."""

    __slots__ = ("_group", "_rows", "top")

    def __init__(self, group: Group) -> None:
        self._group = group
        self._rows: dict[int, Row] = {}
        self.top: Tree | None = None

    def __iter__(self) -> Iterator[Row]:
        """All rows, in no order."""
        return iter(self._rows.values())

    def row(self, shape: Shape) -> Row:
        """The row of a shape; a new one is without tasks, and ``add`` puts it into the tree."""
        code = _code(shape) if shape.cpus or shape.memory_bytes else 0
        return self._rows.get(code) or Row(code, shape)

    def add(self, row: Row) -> None:
        """Put a new row, which has its first task, into the tree."""
        self._rows[row.code] = row
        if self.top is None:
            self.top = row
            return
        near: Tree = self.top
        while isinstance(near, Branch):
            near = near.high if row.code & near.bit else near.low
        # The highest bit in which it differs from all others.
        bit = 1 << ((row.code ^ near.code).bit_length() - 1)
        node: Tree = self.top
        while isinstance(node, Branch) and node.bit > bit:
            node = node.high if row.code & node.bit else node.low
        parent = node.parent
        low, high = (node, row) if row.code & bit else (row, node)
        self._replace(parent, node, Branch(self._group, bit, low, high, parent))

    def remove(self, row: Row) -> None:
        """Take a row out that has no task left."""
        del self._rows[row.code]
        branch = row.parent
        if branch is None:
            self.top = None
            return
        other = branch.low if branch.high is row else branch.high
        other.parent = branch.parent
        self._replace(branch.parent, branch, other)

    def reorder(self) -> None:
        """The first tasks of all rows may have changed."""
        if isinstance(self.top, Branch):
            self.top.reorder()

    def _replace(self, parent: Branch | None, old: Tree, new: Tree) -> None:
        if parent is None:
            self.top = new
            return
        if parent.low is old:
            parent.low = new
        else:
            parent.high = new
        parent.refresh(shapes=True)
