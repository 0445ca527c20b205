"""CSV traces: our own columns, and the expansion of Kueue's performance generator.

Ours: ``submit_time_s,duration_s,num_gpus,user,vc`` and, where there are, ``num_nodes, requested_s,
gpu_milli, priority, group``; other columns are ignored. Kueue's: ``submit_time_s,duration_s,units,
cohort,cluster_queue,priority,cls``, where a unit is a node.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator

from services.scheduler.domain.model.group_policy import VirtualCluster
from services.scheduler.lab.errors import LabError
from services.scheduler.lab.traces import row as rows
from services.scheduler.lab.traces.row import BadRowError, Fields, Parsed, Row, SkippedLine

OURS = ("submit_time_s", "duration_s")
KUEUE = ("submit_time_s", "duration_s", "units", "cohort", "cluster_queue")
WHOLE_GPU_MILLI = 1000


def parse(lines: Iterable[str], where: str) -> Parsed:
    """Read a CSV trace, whose header decides between the two kinds. Raises LabError."""
    reader = csv.reader(lines)
    header = [name.strip() for name in next(reader, list[str]())]
    if set(KUEUE) <= set(header):
        return _kueue(_records(reader, header))
    if not set(OURS) <= set(header) or not {"num_gpus", "num_nodes"} & set(header):
        raise LabError(
            f"its header is {rows.shown(','.join(header))}",
            where=f"{where}:1",
            fix="name the columns submit_time_s, duration_s, num_gpus, user and vc",
        )
    return Parsed(_read(_records(reader, header), _ours))


def _records(
    reader: Iterator[list[str]], header: list[str]
) -> Iterator[tuple[int, Fields | SkippedLine]]:
    """Each line by column; a broken one as what is wrong with it."""
    width = len(header)
    line = 1
    while True:
        line = max(line + 1, getattr(reader, "line_num", 0) + 1)
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield line, SkippedLine(line, f"it is no CSV: {error}")
            continue
        if cells is None:
            return
        if not cells:
            continue
        if len(cells) != width:
            yield line, SkippedLine(line, f"it has {len(cells)} columns: the header has {width}")
        else:
            yield line, dict(zip(header, cells, strict=True))


def _read(
    records: Iterable[tuple[int, Fields | SkippedLine]], make: Callable[[int, Fields], Row]
) -> Iterator[Row | SkippedLine]:
    for line, fields in records:
        if isinstance(fields, SkippedLine):
            yield fields
            continue
        try:
            yield make(line, fields)
        except BadRowError as bad:
            yield SkippedLine(line, str(bad))


def _times(fields: Fields) -> tuple[float, float]:
    return (
        rows.number(fields["submit_time_s"], "submit_time_s", rows.SUBMIT_S_MAX),
        rows.number(fields["duration_s"], "duration_s", rows.DURATION_S_MAX),
    )


def _ours(line: int, fields: Fields) -> Row:
    submit_s, duration_s = _times(fields)
    nodes, gpus = fields.get("num_nodes", ""), fields.get("num_gpus", "")
    if not nodes and not gpus:
        raise BadRowError("num_gpus is empty: write how many GPUs it used")
    milli = rows.count(fields.get("gpu_milli") or "0", "gpu_milli", 0)
    return Row(
        line=line,
        submit_s=submit_s,
        duration_s=duration_s,
        nodes=rows.count(nodes, "num_nodes", 1) if nodes else None,
        gpus=rows.count(gpus, "num_gpus", 0) if gpus else None,
        user=sys.intern(rows.name_of(fields.get("user", ""), "user")),
        team=sys.intern(rows.name_of(fields.get("vc", ""), "vc")),
        priority=rows.priority(fields.get("priority", "")),
        requested_s=rows.limit(fields.get("requested_s", ""), "requested_s"),
        group=sys.intern(rows.name_of(fields.get("group", ""), "group")),
        rounded=0 < milli < WHOLE_GPU_MILLI,
    )


def _kueue(records: Iterable[tuple[int, Fields | SkippedLine]]) -> Parsed:
    """The whole expansion: its queues are known only at its end, so it is read at once."""
    queues: dict[str, str] = {}

    def unit_row(line: int, fields: Fields) -> Row:
        submit_s, duration_s = _times(fields)
        queue = sys.intern(rows.name_of(fields["cluster_queue"], "cluster_queue"))
        queues.setdefault(queue, rows.name_of(fields["cohort"], "cohort"))
        return Row(
            line=line,
            submit_s=submit_s,
            duration_s=duration_s,
            nodes=rows.count(fields["units"], "units", 1),
            user=queue,
            team=queue,
            priority=rows.priority(fields.get("priority", "")),
        )

    found = list(_read(records, unit_row))
    return Parsed(iter(found), virtual_clusters=_even_queues(queues), even=True)


def _even_queues(queues: dict[str, str]) -> tuple[VirtualCluster, ...]:
    """Cohorts and their queues, each with one node: ``load`` shares the real ones out evenly."""
    cohorts = {
        cohort: sum(1.0 for of in queues.values() if of == cohort) for cohort in queues.values()
    }
    return (
        *(VirtualCluster(cohort, nodes) for cohort, nodes in cohorts.items() if cohort),
        *(
            VirtualCluster(queue, 1.0, parent=cohort, teams=(queue,))
            for queue, cohort in queues.items()
        ),
    )
