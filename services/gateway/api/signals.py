"""Routes for signals: what the platform measured, and what programs reported, as series."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from libs.contracts import messages as m
from libs.contracts.wording import meant
from libs.store.port import Op, Order, Tx, Where
from services.gateway import signal_views, views
from services.gateway import store as rows_of
from services.gateway.api import signal_shapes as shapes
from services.gateway.api.deps import (
    Caller,
    PageQuery,
    Parts,
    allows,
    answer,
    answer_page,
    router_of,
    task_or_404,
)
from services.gateway.api.query_parameters import require_before, time_parameter
from services.gateway.api.tasks import number_cursor
from services.gateway.json_values import rfc3339
from services.gateway.permissions import Action
from services.gateway.problems import UNAVAILABLE, ProblemError, absent, invalid
from services.gateway.rows import MetricsRow, NodeRow, RunRow

router = router_of("signals")
RANGE_DEFAULT = timedelta(hours=1)
RANGE_MAX = timedelta(days=400)
NAMES_MAX = 100
STEP_SECONDS_MAX = 86_400
IDS_MAX = 200
NODE_SIGNALS = (*m.NodeValues.model_fields, *m.GpuValues.model_fields)

Signals = Annotated[
    list[str] | None,
    Query(max_length=NAMES_MAX, description="names of signals; left out: all. Also with commas"),
]
Begin = Annotated[str | None, Query(alias="from", max_length=40, description="RFC 3339, included")]
End = Annotated[str | None, Query(alias="to", max_length=40, description="RFC 3339, excluded")]
Step = Annotated[
    int | None,
    Query(ge=1, le=STEP_SECONDS_MAX, description="the wanted distance of points; at least as much"),
]
Ids = Annotated[list[str] | None, Query(max_length=IDS_MAX, description="ids; also with commas")]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which series were asked for."""

    signals: tuple[str, ...]
    begin: datetime
    end: datetime
    step_seconds: int


@router.get("/tasks/{task_id}/metrics", response_model=shapes.MetricsPage, tags=["tasks"])
@allows(Action.READ_TASKS)
async def metrics(
    task_id: str,
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    *,
    series: Annotated[
        bool | None,
        Query(description="with all series; so, too, with signal, from, to or step_seconds"),
    ] = None,
    signal: Signals = None,
    since: Begin = None,
    to: End = None,
    step_seconds: Step = None,
    rank: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    attempt: Annotated[int | None, Query(ge=1, lt=2**31)] = None,
) -> Response:
    """What is known of the task's ranks, rank by rank: what they reported (the latest values and a
    thinned history), and with series also what was sampled. Left out, from is the start of the
    attempt (of the newest one) and to its end.
    """
    after = max(number_cursor(paging.cursor), rank or 0)
    where = [Where("task_id", Op.EQ, task_id), Where("rank", Op.GE, after)]
    if rank is not None:
        where.append(Where("rank", Op.EQ, rank))
    with_series = bool(series) or any(
        each is not None for each in (signal, since, to, step_seconds)
    )
    async with parts.store.transaction() as tx:
        await task_or_404(tx, task_id, caller.sight)
        rows = await rows_of.metrics(tx, *where, limit=paging.limit + 1)
        run = await _run(tx, task_id, attempt) if with_series else None
    if not with_series:
        more = str(rows[paging.limit].rank) if len(rows) > paging.limit else None
        return answer_page(
            rows[: paging.limit],
            views.metrics,
            lambda row: str(row.rank),
            more,
            left_out=tx.unreadable,
        )
    now = parts.clock.now()
    ended = run.exit.exited_at if run is not None and run.exit is not None else now
    wanted = _wanted(
        signal,
        since,
        to or rfc3339(ended),
        step_seconds,
        (run and run.started_at) or ended - RANGE_DEFAULT,
    )
    query = m.ReadSeries(
        task_id=task_id,
        attempt=attempt or 0,
        first_rank=after,
        ranks_max=1 if rank is not None else paging.limit + 1,
        signals=wanted.signals,
        begins_at=wanted.begin,
        ends_at=wanted.end,
        step_seconds=wanted.step_seconds,
    )
    problem: dict[str, object] = {}
    try:
        reply = await parts.commands.ask(query, m.ReadSeriesReply)
    except ProblemError as error:
        if error.kind is not UNAVAILABLE:
            raise
        # What programs reported is here in any case.
        reply = m.ReadSeriesReply()
        problem = {"series_problem": "sampled series are missing: the monitor does not answer now"}
    items, more = _ranks(rows, reply, wanted, attempt, paging.limit)
    return answer_page(
        items,
        lambda item: item,
        lambda item: str(item["rank"]),
        None if more is None else str(more),
        left_out=tx.unreadable,
        **problem,
    )


@router.get("/nodes/{node_id}/metrics", response_model=shapes.NodeMetrics, tags=["nodes"])
@allows(Action.READ_CLUSTER)
async def node_metrics(
    node_id: str,
    caller: Caller,
    parts: Parts,
    *,
    signal: Signals = None,
    since: Begin = None,
    to: End = None,
    step_seconds: Step = None,
) -> Response:
    """What was sampled of a node and its GPUs. Left out, to is now and from an hour before to."""
    del caller
    async with parts.store.transaction() as tx:
        row = await tx.get(NodeRow, node_id)
        known = [each.node_id for each in await rows_of.nodes(tx)] if row is None else []
    if row is None:
        raise absent("node_id", "node", node_id, known)
    for name in _split(signal):
        if name not in NODE_SIGNALS:
            fix = f"{meant(name, NODE_SIGNALS)} give some of {', '.join(NODE_SIGNALS)}".strip()
            raise invalid("signal", name, "is no signal of a node", fix)
    wanted = _wanted(signal, since, to or rfc3339(parts.clock.now()), step_seconds, None)
    query = m.ReadSeries(
        node_id=node_id,
        signals=wanted.signals,
        begins_at=wanted.begin,
        ends_at=wanted.end,
        step_seconds=wanted.step_seconds,
    )
    reply = await parts.commands.ask(query, m.ReadSeriesReply)
    return answer(
        {"node": node_id, "series": [signal_views.sampled(each) for each in reply.series]}
    )


@router.get("/utilization", response_model=shapes.Utilization)
@allows(Action.READ_TASKS)
async def utilization(caller: Caller, parts: Parts, node: Ids = None, task: Ids = None) -> Response:
    """What nodes and live tasks use now. Tasks that the caller may not see are left out."""
    nodes, tasks = _split(node), _split(task)
    if len(nodes) > IDS_MAX or len(tasks) > IDS_MAX:
        given = max(len(nodes), len(tasks))
        raise invalid("node", given, f"are more than {IDS_MAX}", "ask for fewer at once")
    async with parts.store.transaction() as tx:
        seen = [row.task_id for row in await rows_of.seen_tasks(tx, tasks, caller.sight)]
    reply = await parts.commands.ask(
        m.ReadUtilization(node_ids=nodes, task_ids=tuple(seen)), m.ReadUtilizationReply
    )
    return answer(
        {
            "nodes": [signal_views.node_utilization(each) for each in reply.nodes],
            "tasks": [signal_views.task_utilization(each) for each in reply.tasks],
        }
    )


async def _run(tx: Tx, task_id: str, attempt: int | None) -> RunRow | None:
    """The attempt; the newest one that began if none is given."""
    if attempt is not None:
        return await tx.get(RunRow, task_id, attempt)
    rows = await tx.select(
        RunRow,
        Where("task_id", Op.EQ, task_id),
        Where("started_at", Op.NOT_NULL),
        order_by=(Order("attempt", descending=True),),
        limit=1,
    )
    return rows[0] if rows else None


def _ranks(
    rows: list[MetricsRow],
    reply: m.ReadSeriesReply,
    wanted: Wanted,
    attempt: int | None,
    limit: int,
) -> tuple[list[signal_views.Json], int | None]:
    """The ranks that reported or were sampled, as far as both are known, and the next one."""
    by_rank = {row.rank: row for row in rows}
    sampled: dict[int, list[m.Series]] = {}
    for series in reply.series:
        sampled.setdefault(series.rank or 0, []).append(series)
    ranks = sorted({*by_rank, *sampled})
    beyond = ranks[limit:]
    if reply.next_rank is not None:
        beyond.append(reply.next_rank)
    more: int | None = min(beyond) if beyond else None
    items: list[signal_views.Json] = []
    for rank in ranks:
        if more is not None and rank >= more:
            break
        row = by_rank.get(rank)
        series = [signal_views.sampled(each) for each in sampled.get(rank, ())]
        if row is not None:
            given = (wanted.signals, wanted.begin, wanted.end, attempt)
            series = [*signal_views.reported(row, *given), *series]
        last = [each["points"][-1]["at_seconds"] for each in series if each["points"]]
        without: signal_views.Json = {
            "rank": rank,
            "attempt": max((each["attempt"] or 0 for each in series), default=0),
            "at": rfc3339(datetime.fromtimestamp(max(last, default=0), wanted.end.tzinfo)),
            "latest": {},
            "points": [],
        }
        items.append({**(without if row is None else views.metrics(row)), "series": series})
    return items, more


def _wanted(
    signal: list[str] | None,
    since: str | None,
    to: str | None,
    step_seconds: int | None,
    default_begin: datetime | None,
) -> Wanted:
    end = time_parameter("to", to)
    assert end is not None, "it has a default"
    begin = time_parameter("from", since) or default_begin or end - RANGE_DEFAULT
    require_before("from", begin, end)
    if end - begin > RANGE_MAX:
        message, fix = f"is more than {RANGE_MAX.days} days before the end", "give a later time"
        raise invalid("from", rfc3339(begin), message, fix)
    return Wanted(_split(signal), begin, end, step_seconds or 0)


def _split(texts: list[str] | None) -> tuple[str, ...]:
    """Names that are given individually or with commas."""
    found = [name.strip() for text in texts or () for name in text.split(",")]
    return tuple(dict.fromkeys(name for name in found if name))
