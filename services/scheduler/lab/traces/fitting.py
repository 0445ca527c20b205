"""Fits the rows of a trace to a cluster and counts what is left out.

Bad lines are counted, the first of them are listed with their numbers, and a trace with too many is
rejected. Lines out of order are sorted. Called by ``load.py``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil

from libs.contracts.messages import Priority
from libs.contracts.wording import are, counted
from services.scheduler.domain.model.group_policy import VirtualCluster
from services.scheduler.lab.errors import LabError
from services.scheduler.lab.traces.row import Parsed, Row, SkippedLine
from services.scheduler.lab.workload import (
    DEFAULT_GROUP,
    Cluster,
    Job,
    RoleSize,
    Workload,
    fitting_nodes,
    packed,
    uniform,
)

ROWS_MAX = 10_000_000
BAD_LINES_SHOWN_MAX = 20
BAD_SHARE_MAX = 0.01
BAD_ALWAYS_ALLOWED = 10
# Lowest first. ABOVE_NORMAL is used last: tasks are demoted from it after a time.
_STABLE = (
    Priority.IDLE,
    Priority.LOW,
    Priority.BELOW_NORMAL,
    Priority.NORMAL,
    Priority.HIGH,
    Priority.VERY_HIGH,
    Priority.EXTREME_HIGH,
)
_ALL = (*_STABLE[:4], Priority.ABOVE_NORMAL, *_STABLE[4:])


@dataclass(frozen=True, slots=True)
class Request:
    """The cluster and the limits to which a trace is fitted.

    Attributes:
        nodes: nodes of the cluster; None: those of the cluster file or the trace itself.
        gpus_per_node: GPUs on each of ``nodes``.
        cluster: from a cluster file; ``nodes`` and ``gpus_per_node`` are not used then.
        bad_share_max: the part of lines that may be bad; ten always may.
        limit: only so many jobs, the first by submission; lines after the last of them are not
            counted.
    """

    nodes: int | None = None
    gpus_per_node: int = 8
    cluster: Cluster | None = None
    bad_share_max: float = BAD_SHARE_MAX
    limit: int | None = None
    format: str = ""


@dataclass(slots=True)
class Tally:
    """Counts the lines that were read and left out; keeps only the first bad ones."""

    where: str
    lines: int = 0
    shown: list[SkippedLine] = field(default_factory=list[SkippedLine])
    # The numbers, from 1, of the bad lines and of those left out for another reason.
    _bad: list[int] = field(default_factory=list[int])
    _without_job: list[int] = field(default_factory=list[int])

    @property
    def bad(self) -> int:
        """How many lines are bad."""
        return len(self._bad)

    @property
    def without_job(self) -> int:
        """How many lines hold no ended job."""
        return len(self._without_job)

    def skip(self, left: SkippedLine) -> None:
        """Count the line that was read last as left out."""
        if not left.bad:
            self._without_job.append(self.lines)
            return
        self._bad.append(self.lines)
        if len(self.shown) < BAD_LINES_SHOWN_MAX:
            self.shown.append(left)

    def cut(self, last: int) -> None:
        """Forget the lines after this one: their jobs are beyond the limit."""
        self.lines = last
        for places in (self._bad, self._without_job):
            del places[bisect_right(places, last) :]
        del self.shown[self.bad :]

    def sentences(self) -> list[str]:
        """The bad lines for people, the first of them individually."""
        found = [f"{self.where}:{left.line}: {left.what}" for left in self.shown]
        if self.bad > len(found):
            found.append(f"… and {self.bad - len(found)} more")
        return found

    def check(self, share_max: float) -> None:
        """Raise LabError if too many lines were bad."""
        most = max(BAD_ALWAYS_ALLOWED, int(share_max * self.lines))
        if self.bad > most:
            raise LabError(
                "\n  ".join(
                    (
                        f"{self.bad} of {self.lines} lines are bad (limit {most})",
                        *self.sentences(),
                    )
                ),
                where=self.where,
                fix="mend them, give more --nodes if gangs are too large, or raise --bad-rows",
            )


def fit(name: str, parsed: Parsed, request: Request, tally: Tally) -> Workload:
    """The jobs that fit, by submission, and the cluster they run on. Raises LabError."""
    cluster = request.cluster or _own_cluster(parsed, request, tally.where)
    rows: list[Row] = []
    # Of each row, the number of its line among those that were read.
    places: list[int] = []
    unsorted = rounded = 0
    latest = 0.0
    sizes = Sizes(cluster)
    for each in parsed.rows:
        tally.lines += 1
        if tally.lines > ROWS_MAX:
            raise LabError(
                f"it has more than {ROWS_MAX} lines", where=tally.where, fix="give a part of it"
            )
        fitted = each if isinstance(each, SkippedLine) else sizes.fitted(each)
        if isinstance(fitted, SkippedLine):
            tally.skip(fitted)
            continue
        unsorted += fitted.submit_s < latest
        rounded += fitted.rounded
        latest = max(latest, fitted.submit_s)
        rows.append(fitted)
        places.append(tally.lines)
    wanted = _first(rows, places, request.limit, tally)
    tally.check(request.bad_share_max)
    if not rows:
        raise LabError("it holds no job", where=tally.where, fix="give a trace with jobs")
    notes = list(parsed.notes)
    if tally.bad:
        notes.append(f"{tally.bad} of {tally.lines} lines are bad and left out:")
        notes += tally.sentences()
    if tally.without_job:
        lines = counted(tally.without_job, "line")
        notes.append(f"{lines} without an ended job {are(tally.without_job)} left out")
    if unsorted and not _expanded(parsed):
        lines = f"{counted(unsorted, 'line')} {are(unsorted)}"
        notes.append(f"{lines} out of order: sorted by submission")
    if rounded:
        notes.append(f"{counted(rounded, 'job')} used a part of a GPU: counted as a whole one")
    jobs = _jobs(wanted, notes)
    if left_out := len(rows) - len(jobs):
        notes.append(f"only the first {counted(len(jobs), 'job')}, without {left_out} later")
    return Workload(name, jobs, cluster, skipped=tally.bad + tally.without_job, notes=tuple(notes))


def _first(rows: list[Row], places: list[int], limit: int | None, tally: Tally) -> list[Row]:
    """The rows by submission, at most ``limit``. Lines after the last of them are not counted."""
    order = sorted(range(len(rows)), key=lambda index: rows[index].submit_s)
    if limit is not None and limit < len(order):
        order = order[:limit]
        tally.cut(max(places[index] for index in order))
    return [rows[index] for index in order]


def _expanded(parsed: Parsed) -> bool:
    """True for a generator's trace, which is ordered queue after queue."""
    return bool(parsed.virtual_clusters)


def _jobs(rows: list[Row], notes: list[str]) -> list[Job]:
    numbers = {row.priority for row in rows if not isinstance(row.priority, Priority)}
    levels = level_table(numbers, notes)
    zero = rows[0].submit_s
    return [
        Job(
            number=place,
            submit_s=row.submit_s - zero,
            duration_s=row.duration_s,
            nodes=row.nodes or 1,
            gpus_per_node=row.gpus_per_node,
            user=row.user,
            team=row.team,
            priority=levels.get(row.priority, Priority.NORMAL)
            if not isinstance(row.priority, Priority)
            else row.priority,
            requested_s=row.requested_s,
            group=row.group,
            roles=row.roles,
        )
        for place, row in enumerate(rows)
    ]


def level_table(numbers: Iterable[int], notes: list[str]) -> Mapping[int, Priority]:
    """A level for each number: as many levels as there are numbers, with NORMAL in the middle.

    If there are more numbers than levels, neighbours share a level, and a note reports it.
    """
    ordered = sorted(set(numbers))
    if not ordered:
        return {}
    if len(ordered) <= len(_STABLE):
        middle = _STABLE.index(Priority.NORMAL)
        first = middle - (len(ordered) - 1) // 2
        levels = _STABLE[first : first + len(ordered)]
    else:
        levels = tuple(_ALL[place * len(_ALL) // len(ordered)] for place in range(len(ordered)))
        if len(ordered) > len(_ALL):
            notes.append(f"{len(ordered)} priorities share our {len(_ALL)} levels")
    return dict(zip(ordered, levels, strict=True))


@dataclass(slots=True)
class Sizes:
    """Maps each size of a trace to the cluster; each size is computed once."""

    cluster: Cluster
    known: dict[tuple[object, ...], Row | str] = field(
        default_factory=dict[tuple[object, ...], Row | str]
    )

    def fitted(self, row: Row) -> Row | SkippedLine:
        """The row with its nodes, GPUs on each and group on this cluster, or why it cannot run."""
        size = (row.group, row.nodes, row.gpus, row.gpus_per_node, row.roles)
        found = self.known.get(size)
        if found is None:
            found = self.known[size] = self._fit(row)
        if isinstance(found, str):
            return SkippedLine(row.line, found)
        return replace(row, nodes=found.nodes, gpus_per_node=found.gpus_per_node, group=found.group)

    def _fit(self, row: Row) -> Row | str:
        groups = self.cluster.groups
        group = groups[0] if len(groups) == 1 else self.cluster.group(row.group or DEFAULT_GROUP)
        if group is None:
            names = ", ".join(each.name for each in groups)
            return f"group is {row.group!r}: the cluster has {names}"
        if row.roles:
            taken = packed(row.roles, group.nodes)
            if taken is None:
                gang = " and ".join(map(_described, row.roles))
                return f"a gang of {gang}: group {group.name} has no room for it"
            return replace(row, nodes=taken[0], gpus_per_node=taken[1], group=group.name)
        nodes, gpus = _shape(row, group.gpus_per_node)
        offered = fitting_nodes(group.nodes, gpus)
        if nodes > offered:
            gang = counted(nodes, "whole node" if gpus is None else "node")
            gang += "" if gpus is None else f" with {counted(gpus, 'GPU')}"
            return f"a gang of {gang}: group {group.name} has {offered}"
        return replace(row, nodes=nodes, gpus_per_node=gpus, group=group.name)


def _described(role: RoleSize) -> str:
    gpus = "a whole node" if role.gpus is None else counted(role.gpus, "GPU")
    return f"{counted(role.replicas, 'rank')} of {gpus}"


def _shape(row: Row, most: int) -> tuple[int, int | None]:
    """Nodes, and GPUs on each: None for whole nodes.

    GPUs alone: up to a node's GPUs are taken on one node, more take whole nodes. Nodes alone are
    whole ones. With both, nodes count; they are whole unless the GPUs come to less on each.
    """
    if row.nodes is None:
        gpus = row.gpus or 0
        if gpus >= most > 0:
            return ceil(gpus / most), None
        return 1, gpus
    if row.gpus_per_node is not None or row.gpus is None:
        return row.nodes, None if row.gpus_per_node == most else row.gpus_per_node
    each = ceil(row.gpus / row.nodes)
    return row.nodes, None if each >= most else each


def _own_cluster(parsed: Parsed, request: Request, where: str) -> Cluster:
    """The cluster of ``--nodes``, or of the trace itself."""
    nodes = request.nodes or parsed.nodes
    if nodes is None:
        raise LabError("how large the cluster is, is not known", where=where, fix="--nodes N")
    clusters = parsed.virtual_clusters
    guaranteed = sum(each.nodes for each in clusters if not _has_parts(each, clusters))
    if parsed.even:
        part = int(nodes / guaranteed) if guaranteed else 0
        clusters = (
            tuple(replace(each, nodes=each.nodes * part) for each in clusters) if part else ()
        )
    elif guaranteed > nodes:
        raise LabError(
            f"its queues are guaranteed {guaranteed:g} nodes: --nodes is {nodes}",
            where=where,
            fix=f"--nodes {ceil(guaranteed)}",
        )
    return Cluster((uniform(DEFAULT_GROUP, nodes, request.gpus_per_node, clusters),))


def _has_parts(each: VirtualCluster, clusters: tuple[VirtualCluster, ...]) -> bool:
    return any(other.parent == each.name for other in clusters)
