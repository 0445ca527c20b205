"""The Standard Workload Format of the Parallel Workloads Archive.

Header lines are ``; Field: value``, job lines have 18 numbers; -1 means unknown. Processors become
whole nodes: the header's ``MaxProcs`` over ``MaxNodes`` is the number for each node.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from math import ceil

from services.scheduler.lab.traces import row as rows
from services.scheduler.lab.traces.row import BadRowError, Parsed, Row, SkippedLine

FIELDS = 18
UNKNOWN = "-1"
# A job's single stretches, which its own line sums up: 2 and 3 are continued, 4 was the last.
PARTIAL = frozenset({"2", "3", "4"})
CANCELLED = "5"


def parse(lines: Iterable[str]) -> Parsed:
    """Read a trace: the header at once, the jobs while they are asked for."""
    numbered = enumerate(lines, start=1)
    header: dict[str, str] = {}
    first: list[tuple[int, str]] = []
    for line, text in numbered:
        if text.startswith(";"):
            name, colon, value = text.lstrip("; \t").partition(":")
            if colon:
                header.setdefault(name.strip().lower(), value.strip())
        elif text.strip():
            first.append((line, text))
            break
    nodes, processors = _header_count(header, "maxnodes"), _header_count(header, "maxprocs")
    per_node = max(1, processors // nodes) if nodes and processors else 1
    found = Parsed(_jobs(chain(first, numbered), per_node), nodes=nodes or processors)
    if per_node > 1:
        found.notes.append(f"{per_node} processors make a node; a part of one counts as a whole")
    return found


def _header_count(header: dict[str, str], name: str) -> int | None:
    """The first number of a header's value; None if there is none that makes sense."""
    word = header.get(name, "").split()
    return int(word[0]) if word and word[0].isdecimal() and int(word[0]) > 0 else None


def _jobs(numbered: Iterable[tuple[int, str]], per_node: int) -> Iterator[Row | SkippedLine]:
    for line, text in numbered:
        if not text.strip() or text.startswith(";"):
            continue
        try:
            yield _job(line, text.split(), per_node)
        except BadRowError as bad:
            yield SkippedLine(line, str(bad))


def _job(line: int, cells: list[str], per_node: int) -> Row | SkippedLine:
    if len(cells) != FIELDS:
        raise BadRowError(f"it has {len(cells)} fields: the format has {FIELDS}")
    submit, run, allocated, wanted, limit, status = (cells[n] for n in (1, 3, 4, 7, 8, 10))
    if status in PARTIAL:
        return SkippedLine(line, "a part of a job that another line sums up", bad=False)
    if status == CANCELLED and run in {UNKNOWN, "0"}:
        return SkippedLine(line, "cancelled before it started", bad=False)
    processors = wanted if allocated in {UNKNOWN, "0"} else allocated
    return Row(
        line=line,
        submit_s=rows.number(submit, "submit time", rows.SUBMIT_S_MAX),
        duration_s=rows.number(run, "run time", rows.DURATION_S_MAX),
        nodes=ceil(rows.count(processors, "processors", 1) / per_node),
        user=_name("u", cells[11]),
        team=_name("g", cells[12]),
        requested_s=rows.limit(limit, "requested time"),
    )


def _name(prefix: str, cell: str) -> str:
    return "" if cell == UNKNOWN else sys.intern(prefix + rows.name_of(cell, "a name"))
