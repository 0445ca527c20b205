"""Finds the rows that cannot be loaded, leaves them out of the index, and names them.

Called by ``store.load``. The store reports the rows that it cannot decode. The index cannot be
built from others: if building it from all rows raises, the rows are tried one at a time, and those
that raise are left out, so that one bad row cannot stop a new leader. All of them are set apart
until the next load tries them again; ``loop.py`` loads again when such a row changes. The nodes of
a run that is set apart are withheld: they take no new runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from libs.contracts.messages import Reason, ReasonCode
from libs.service.metrics import Metrics
from libs.store.port import UnreadableRow, UnreadableRowError
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.pool import waiting_since
from services.scheduler.domain.model.group_policy import GroupPolicy, PolicySettings
from services.scheduler.domain.model.rows import Limit, Node, Task
from services.scheduler.domain.model.values import reason

declare = Metrics("scheduler")
SET_APART = declare.gauge(
    "shiftwork_scheduler_rows_set_apart", "Rows that the scheduler cannot load", ["kind"]
)
NAMED_MAX = 3
# How often everything is built again to find the next bad row; then whole groups are set apart.
REBUILT_MAX = 20

# The primary key of a row, as the store's ``Delta`` gives it.
Key = tuple[object, ...]
# By kind, in the order in which they are loaded: nodes and policies before tasks.
Rows = Mapping[type[object], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a row is set apart."""

    kind: type[object]
    key: Key
    error: Exception
    # None if the store cannot decode it.
    row: Any = None

    @staticmethod
    def of(row: object, error: Exception) -> Problem:
        """A row that the index cannot be built from."""
        return Problem(type(row), key_of(row), error, row)

    @staticmethod
    def unreadable(row: UnreadableRow) -> Problem:
        """A row that the store cannot decode."""
        return Problem(row.kind, row.key, UnreadableRowError(row))

    @property
    def name(self) -> str:
        """The row's name for operators."""
        parts = [str(part) for part in self.key if part]
        return f"{self.kind.__name__} {'/'.join(parts)}".rstrip()

    @property
    def reason(self) -> Reason:
        """The reason that ``explain`` gives for the tasks concerned."""
        text = f"{type(self.error).__name__}: {self.error}"[:200]
        return reason(ReasonCode.ROW_SET_APART, names={"row": self.name, "problem": text})


@dataclass(frozen=True, slots=True)
class Apart:
    """All rows that are set apart, by kind and key, and the nodes that are withheld for them."""

    rows: Mapping[tuple[type[object], Key], Problem] = field(
        default_factory=dict[tuple[type[object], Key], Problem]
    )
    withheld: frozenset[str] = frozenset()

    @staticmethod
    def of(problems: Sequence[Problem], held: Iterable[str] = ()) -> Apart:
        """Set rows apart. The nodes of a run that is set apart take nothing new until its end is
        observed, because what the run takes of them cannot be counted.

        ``held``: the nodes of runs whose rows cannot be decoded.
        """
        rows = {(each.kind, each.key): each for each in problems}
        tasks = [each.row for each in problems if isinstance(each.row, Task)]
        nodes = {placement.node_id for task in tasks for placement in task.placements}
        return Apart(rows, frozenset(nodes.union(held)))

    def task(self, task_id: str) -> Problem | None:
        """Why a task is set apart; None if it is not."""
        return self.rows.get((Task, (task_id,)))

    def group(self, group: str) -> Problem | None:
        """Why a group is not shared out: its policy cannot be loaded."""
        return self.rows.get((GroupPolicy, (group,)))

    @property
    def kinds(self) -> frozenset[type[object]]:
        """The kinds of rows that are set apart."""
        return frozenset(kind for kind, _ in self.rows)

    @property
    def groups(self) -> frozenset[str]:
        """Groups that are not shared out: under the default policy their runs might be
        preempted."""
        return frozenset(str(key[0]) for kind, key in self.rows if kind is GroupPolicy)

    @property
    def warning(self) -> str:
        """The text for ``/readyz`` and ``shiftwork doctor``; empty if nothing is set apart."""
        if not self.rows:
            return ""
        names = sorted(each.name for each in self.rows.values())
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        held = f"; nodes withheld: {len(self.withheld)}" if self.withheld else ""
        named = ", ".join(names[:NAMED_MAX])
        return f"rows that cannot be loaded are set apart: {named}{more}{held}"


def count(apart: Apart) -> None:
    """Set the metric, which has an alert."""
    SET_APART.clear()
    for kind, number in Counter(kind.__name__ for kind, _ in apart.rows).items():
        SET_APART.labels(kind).set(number)


def key_of(row: Any) -> Key:  # noqa: ANN401 - a row of any kind that the index keeps
    """The primary key of a row."""
    if isinstance(row, Limit):
        return row.key
    for name in ("id", "group", "runtime", "task_id"):
        if hasattr(row, name):
            return (getattr(row, name),)
    raise TypeError(f"{type(row).__name__} is no row of the working set")


def build(settings: PolicySettings, rows: Rows, withheld: frozenset[str] = frozenset()) -> Index:
    """The index of these rows, with everything to be decided. Raises what any row raises."""
    index = Index(settings)
    index.withheld = withheld
    for some in rows.values():
        index.apply(put=some)
        index.refresh()
    for pool in index.pools.values():
        pool.skip_known_arrivals()
    return index


def sift(settings: PolicySettings, rows: Rows) -> tuple[Rows, list[Problem]]:
    """The rows that an index can be built from, and the others.

    First each row individually, then together. However many bad ones there are, everything is
    built only ``REBUILT_MAX`` times, and once more for each group.
    """
    good: dict[type[object], list[Any]] = {}
    problems: list[Problem] = []
    for kind, some in rows.items():
        alone = _Alone(settings, good)
        good[kind] = []
        for row in some:
            error = alone.problem(row)
            if error is None:
                good[kind].append(row)
            else:
                problems.append(Problem.of(row, error))
    if Task in good:
        good[Task].sort(key=waiting_since)
    try:
        build(settings, good)
    except Exception:  # noqa: BLE001 - which row it is shows one at a time
        good, more = _together(settings, good)
        problems += more
    return good, problems


class _Alone:
    """Tries rows one at a time, each beside the good ones of the kinds before its own."""

    def __init__(self, settings: PolicySettings, good: Rows) -> None:
        self._settings = settings
        self._good: Rows = dict(good)
        # Built when a row needs it, which may never happen after the last failure.
        self._index: Index | None = None
        self._builds = 0

    def problem(self, row: Any) -> Exception | None:  # noqa: ANN401 - a row of any kind
        """The exception that the row raises, or None."""
        index = self._index or self._beside(row)
        # A row that raised, or that stays, may have changed the index: later rows need a new one.
        self._index = None
        try:
            index.apply(put=[row])
            index.refresh()
            if isinstance(row, GroupPolicy):
                index.pool(row.group)
            if isinstance(row, Task):
                # As a later change of the row would do.
                index.apply(deleted=[(Task, (row.id,))])
                self._index = index
        except Exception as error:  # noqa: BLE001 - whatever it is, the row is set apart
            return error
        return None

    def _beside(self, row: Any) -> Index:  # noqa: ANN401 - a row of any kind
        if not isinstance(row, Task):
            return Index(self._settings)
        self._builds += 1
        if self._builds <= REBUILT_MAX:
            return build(self._settings, self._good)
        # The least that the row needs; other problems show when all rows are put together.
        policies = [each for each in self._good.get(GroupPolicy, ()) if each.group == row.group]
        places = {each.node_id for each in row.placements}
        nodes = [self._nodes[each] for each in sorted(places & self._nodes.keys())]
        return build(self._settings, {GroupPolicy: policies, Node: nodes})

    @cached_property
    def _nodes(self) -> dict[str, Node]:
        return {node.id: node for node in self._good.get(Node, ())}


def _together(
    settings: PolicySettings, rows: Rows
) -> tuple[dict[type[object], list[Any]], list[Problem]]:
    """Add the rows one at a time, and leave out each row that makes the load fail. After a number
    of such rows, leave out the rest of the group together with a task or a node.
    """
    good: dict[type[object], list[Any]] = {kind: [] for kind in rows}
    problems: list[Problem] = []
    index: Index | None = None
    # By kind and group, where the rest of the group is set apart.
    given_up: dict[tuple[type[object], str], Exception] = {}
    for kind, some in rows.items():
        for row in some:
            group = (kind, row.group) if isinstance(row, Task | Node) else None
            if group in given_up:
                problems.append(Problem.of(row, given_up[group]))
                continue
            index = index or build(settings, good)
            try:
                index.apply(put=[row])
                index.refresh()
            except Exception as error:  # noqa: BLE001 - whatever it is, the row is set apart
                problems.append(Problem.of(row, error))
                index = None
                if group and len(problems) > REBUILT_MAX:
                    given_up[group] = error
            else:
                good[kind].append(row)
    return good, problems
