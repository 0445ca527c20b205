"""The platform's own history: tasks as ``shiftwork ls --all --json`` and ``GET /v1/tasks`` give.

One JSON object a line, an array, or the answer's ``{"items": […]}``. Tasks that have not ended, or
never ran, are left out. ``finished_at - started_at`` counts
the time a preempted task waited in between as work, so a task's ``run_seconds`` or its ``runs``
(as ``GET /v1/tasks/{id}/runs`` gives them) are used where the file has them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import chain
from typing import Any, cast

from libs.contracts.messages import Role
from libs.contracts.rank_sizes import REQUESTS, has_own_size, size_of, sizes_differ
from libs.contracts.wording import counted
from services.scheduler.lab.errors import LabError
from services.scheduler.lab.traces import row as rows
from services.scheduler.lab.traces.row import BadRowError, Parsed, Row, SkippedLine
from services.scheduler.lab.workload import RoleSize, spec_of

# A document that is one JSON value is read whole.
DOCUMENT_BYTES_MAX = 512 * 1024 * 1024
ENDED = frozenset({"succeeded", "failed", "stopped"})
CPUS_AND_MEMORY = (*REQUESTS, *REQUESTS.values())


def parse(lines: Iterable[str], where: str) -> Parsed:
    """Read a history. Raises LabError if it is no JSON of tasks at all."""
    numbered = enumerate(lines, start=1)
    first = next(((line, text) for line, text in numbered if text.strip()), (1, ""))
    found = Parsed(iter(()))
    whole = _document(first, numbered, where)
    tasks = _each_line(chain([first], numbered)) if whole is None else _numbered(whole)
    found.rows = _rows(tasks, found.notes)
    return found


def _document(
    first: tuple[int, str], rest: Iterator[tuple[int, str]], where: str
) -> list[Any] | None:
    """All tasks, where the file is one JSON value over its lines; None where each line is one."""
    text = first[1].strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        if not text.startswith(("{", "[")):
            raise LabError(
                "it is no JSON", where=f"{where}:{first[0]}", fix="give one task a line"
            ) from None
        if text.startswith("{") and text.endswith("}"):
            return None  # one broken line of many
        value = _loads(_joined(text, rest, where), where)
    if isinstance(value, list):
        return cast("list[Any]", value)
    items: Any = cast("dict[str, Any]", value).get("items") if isinstance(value, dict) else None
    return cast("list[Any]", items) if isinstance(items, list) else None


def _joined(text: str, rest: Iterator[tuple[int, str]], where: str) -> str:
    parts, size = [text], len(text)
    for _, more in rest:
        parts.append(more)
        size += len(more)
        if size > DOCUMENT_BYTES_MAX:
            raise LabError("one JSON value is too large", where=where, fix="give one task a line")
    return "\n".join(parts)


def _loads(text: str, where: str) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LabError(f"it is no JSON: {error}", where=where, fix="give one task a line") from None


def _numbered(tasks: list[Any]) -> Iterator[tuple[int, Any]]:
    return enumerate(tasks, start=1)


def _each_line(numbered: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    for line, text in numbered:
        if text.strip():
            try:
                yield line, json.loads(text)
            except (ValueError, RecursionError):
                yield line, None


def _rows(tasks: Iterable[tuple[int, Any]], notes: list[str]) -> Iterator[Row | SkippedLine]:
    stretched = limited = 0
    for line, value in tasks:
        if not isinstance(value, dict):
            yield SkippedLine(line, "it is no JSON object of a task")
            continue
        task = cast("dict[str, Any]", value)
        if task.get("state", "succeeded") not in ENDED or not task.get("started_at"):
            yield SkippedLine(line, "the task has not ended, or never ran", bad=False)
            continue
        try:
            row, exact = _task(line, task)
        except BadRowError as bad:
            yield SkippedLine(line, str(bad))
            continue
        stretched += not exact
        limited += bool(row.roles) and _requests_cpus(task)
        yield row
    if stretched:
        notes.append(
            f"the work of {counted(stretched, 'interrupted task')} is counted from first start to"
            " end, with the time of waiting in between (add run_seconds to count it exactly)"
        )

    if limited:
        notes.append(
            f"{counted(limited, 'task')} with roles of different sizes requested CPUs or memory,"
            " which are not counted: the nodes here have GPUs alone"
        )


def _requests_cpus(task: dict[str, Any]) -> bool:
    """True if any rank of a task with roles requested CPUs or memory."""
    asked = [task, *cast("list[dict[str, Any]]", task.get("roles") or [])]
    return any(each.get(name) for each in asked for name in CPUS_AND_MEMORY)


def _task(line: int, task: dict[str, Any]) -> tuple[Row, bool]:
    submitted = _seconds(task, "submitted_at")
    worked, exact = _worked(task)
    nodes, gpus, roles = _gang(task)
    most = task.get("max_run_seconds")
    row = Row(
        line=line,
        submit_s=rows.number(str(submitted), "submitted_at", rows.SUBMIT_S_MAX),
        duration_s=rows.number(str(worked), "its running time", rows.DURATION_S_MAX),
        nodes=nodes,
        gpus_per_node=gpus,
        user=_name(task, "owner"),
        team=_name(task, "team"),
        priority=rows.priority(str(task.get("priority") or "")),
        requested_s=None if most is None else rows.limit(str(most), "max_run_seconds"),
        group=_name(task, "group"),
        roles=roles,
    )
    return row, exact


def _gang(task: dict[str, Any]) -> tuple[int, int | None, tuple[RoleSize, ...]]:
    """The ranks with a node each, the GPUs on each node, and the roles if that does not say it."""
    gpus = _optional_count(task, "gpus_per_node", "")
    roles = _roles(task)
    if not any(map(has_own_size, roles)):
        return rows.count(str(task.get("nodes")), "nodes", 1), gpus, ()
    spec = spec_of(roles, gpus)
    ranks = rows.count(str(spec.nodes), "the replicas of its roles", 1)
    sizes = [(role, size_of(spec, role)) for role in roles]
    found = tuple(
        RoleSize(role.name, role.replicas, size.gpus, size.spread, size.auxiliary)
        for role, size in sizes
    )
    # CPUs and memory are not counted here, so they make no difference.
    if sizes_differ(spec_of(tuple(role.role for role in found))):
        return ranks, None, found
    return ranks, found[0].gpus, ()


def _roles(task: dict[str, Any]) -> tuple[Role, ...]:
    """Its roles with what they say about their sizes; none in an older history."""
    listed: Any = task.get("roles") or []
    if not isinstance(listed, list):
        raise BadRowError(f"roles is {rows.shown(cast('object', listed))}: write a list")
    found: list[Role] = []
    for place, each in enumerate(cast("list[Any]", listed)):
        path = f"roles[{place}]"
        if not isinstance(each, dict):
            raise BadRowError(f"{path} is {rows.shown(each)}: write an object")
        role = cast("dict[str, Any]", each)
        spread = role.get("spread")
        sized = any(role.get(field) is not None for field in CPUS_AND_MEMORY)
        found.append(
            Role(
                name=_name(role, "name"),
                replicas=rows.count(str(role.get("replicas")), f"{path}.replicas", 1),
                gpus=_optional_count(role, "gpus", f"{path}."),
                # A size of any kind lets ranks share nodes; how much it is counts nowhere here.
                cpus=1.0 if sized else None,
                spread=None if spread is None else bool(spread),
                auxiliary=bool(role.get("auxiliary")),
            )
        )
    return tuple(found)


def _optional_count(of: dict[str, Any], name: str, path: str) -> int | None:
    value = of.get(name)
    return None if value is None else rows.count(str(value), f"{path}{name}", 0)


def _worked(task: dict[str, Any]) -> tuple[float, bool]:
    """Seconds it ran, and whether that is exact."""
    run_seconds = task.get("run_seconds")
    if isinstance(run_seconds, (int, float)):
        return float(run_seconds), True
    runs: Any = task.get("runs")
    if isinstance(runs, list) and runs:
        total = 0.0
        for each in cast("list[Any]", runs):
            run = cast("dict[str, Any]", each) if isinstance(each, dict) else {}
            ended: Any = run.get("exit") or {}
            if run.get("started_at") and isinstance(ended, dict):
                total += _seconds(cast("dict[str, Any]", ended), "exited_at") - _seconds(
                    run, "started_at"
                )
        return total, True
    span = _seconds(task, "finished_at") - _seconds(task, "started_at")
    attempt = task.get("attempt")
    return span, not (isinstance(attempt, int) and attempt > 1)


def _seconds(task: dict[str, Any], name: str) -> float:
    text = task.get(name)
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        raise BadRowError(f"{name} is {rows.shown(text)}: write an RFC 3339 time") from None
    if at.tzinfo is None:
        raise BadRowError(f"{name} is {rows.shown(text)}: it has no time zone; add Z")
    return at.timestamp()


def _name(task: dict[str, Any], name: str) -> str:
    return sys.intern(rows.name_of(str(task.get(name) or ""), name))
