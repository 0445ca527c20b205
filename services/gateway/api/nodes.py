"""Routes for nodes and node groups, which the launcher reports."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from libs.contracts import messages as m
from libs.contracts.task_states import HOLDING_WORDS
from libs.store.port import Op, Tx, UnreadableRowError, Where
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.api import node_shapes as shapes
from services.gateway.api.deps import (
    Caller,
    Context,
    PageQuery,
    Parts,
    allows,
    answer,
    answer_page,
    router_of,
)
from services.gateway.api.query_parameters import NameQuery
from services.gateway.auth import Identity
from services.gateway.bodies import LabelsBody, SchedulableBody, TaintsBody
from services.gateway.known_names import require_findable
from services.gateway.permissions import Action
from services.gateway.problems import absent, invalid
from services.gateway.rows import NodeRow, TaskRow
from services.gateway.store import Sort

router = router_of("nodes")
BY_ID = Sort("node_id", False, "node_id", False)
LIVE_RUNS_MAX = 100_000
# Conditions on labels in one list.
LABELS_MAX = 32


@router.get("/nodes", response_model=shapes.NodePage)
@allows(Action.READ_CLUSTER)
async def list_nodes(
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    *,
    group: NameQuery = None,
    ready: bool | None = None,
    schedulable: bool | None = None,
    label: Annotated[
        list[str] | None,
        Query(max_length=LABELS_MAX, description="K=V: with this label. All given ones hold"),
    ] = None,
) -> Response:
    """The inventory of nodes, with the tasks that hold them. Of tasks that the caller may not see,
    only the amounts are shown."""
    where = [Where("removed", Op.EQ, False)]
    if group is not None:
        where.append(Where("group", Op.EQ, group))
    for name, value in (("ready", ready), ("schedulable", schedulable)):
        if value is not None:
            # A stored node leaves out what is false.
            where.append(Where("node", Op.CONTAINS if value else Op.LACKS, {name: True}))
    where += [_labelled(text) for text in label or ()]
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, NodeRow, where, BY_ID, paging)
        if not page.rows and paging.cursor is None and group:
            await require_findable(
                tx, caller, groups={"group": group}, kept=[(TaskRow, "group", "group")]
            )
        held = await rows_of.held(tx, LIVE_RUNS_MAX)
        seen = await _seen(tx, caller, [held.get(row.node_id, {}) for row in page.rows])
    return answer_page(
        page.rows,
        lambda row: views.node(row, held.get(row.node_id, {}), seen),
        lambda row: row.node_id,
        page.next_cursor,
        left_out=tx.unreadable,
    )


def _labelled(text: str) -> Where:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise invalid("label", text, "is no label", "write label=NAME=VALUE")
    return Where("node", Op.CONTAINS, {"labels": {name: value}})


async def _seen(
    tx: Tx, caller: Identity, held: Iterable[Mapping[str, object]]
) -> Collection[str] | None:
    """Which of the tasks that hold nodes the caller sees; None: all of them."""
    if caller.sight.is_full:
        return None
    ids = sorted({task for by_task in held for task in by_task})
    return {row.task_id for row in await rows_of.seen_tasks(tx, ids, caller.sight)}


@router.get("/occupancy", response_model=shapes.Occupancy)
@allows(Action.READ_CLUSTER)
async def occupancy(caller: Caller, parts: Parts) -> Response:
    """Which nodes accept runs and which tasks hold any: the information for a drain. It contains
    nothing that tasks report about themselves, so no task can keep a drain from reading it.
    """
    holding = Where("state", Op.IN, list(HOLDING_WORDS))
    async with parts.store.transaction() as tx:
        nodes = await rows_of.nodes(tx)
        tasks = await tx.select(TaskRow, holding, limit=LIVE_RUNS_MAX)
    return answer(
        {
            "nodes": [{"id": row.node_id, "schedulable": row.node.schedulable} for row in nodes],
            "tasks": [
                {
                    "id": row.task_id if caller.sight.shows(row) else None,
                    "ack_deadline_seconds": _ack_deadline(row),
                }
                for row in tasks
            ],
        }
    )


def _ack_deadline(row: TaskRow) -> float | None:
    return row.spec.preemption.ack_deadline_seconds if row.spec else None


@router.get("/nodes/{node_id}", response_model=shapes.Node)
@allows(Action.READ_CLUSTER)
async def show_node(node_id: str, caller: Caller, parts: Parts) -> Response:
    """One node."""
    async with parts.store.transaction() as tx:
        row = await tx.get(NodeRow, node_id)
        held = (await rows_of.held(tx, LIVE_RUNS_MAX)).get(node_id, {})
        seen = await _seen(tx, caller, [held])
        known = [each.node_id for each in await rows_of.nodes(tx)] if row is None else []
    if row is None or row.removed:
        raise absent("node_id", "node", node_id, known)
    return answer(views.node(row, held, seen))


@router.put("/nodes/{node_id}/schedulable", response_model=shapes.Schedulable)
@allows(Action.CHANGE_NODES, inside=True)
async def put_schedulable(
    node_id: str, body: SchedulableBody, caller: Caller, parts: Parts
) -> Response:
    """Cordon a node, or uncordon it. What runs there goes on, unless it is drained."""
    if body.drain and body.schedulable:
        fix = "give schedulable false with it, or leave it out"
        raise invalid("drain", True, "is for a node that takes no new runs", fix)
    done = "drain" if body.drain else f"schedulable.{body.schedulable}"
    verb = "drain" if body.drain else "uncordon" if body.schedulable else "cordon"
    async with parts.changing(caller, f"node.{done}", node_id, verb=f"{verb} nodes") as change:
        now = await _present(parts, node_id)
        before = {"schedulable": now.schedulable, "draining": now.draining} if now else None
        change.note(before, {"schedulable": body.schedulable, "draining": body.drain})
        command = m.SetSchedulable(
            node_id=node_id,
            schedulable=body.schedulable,
            drain=body.drain,
            asked_by=caller.user,
        )
        await change.ask(command, m.SetSchedulableReply)
    return answer({"id": node_id, "schedulable": body.schedulable, "draining": body.drain})


@router.put("/nodes/{node_id}/labels", response_model=shapes.NodeLabelsAndTaints)
@allows(Action.CHANGE_NODES, inside=True)
async def put_labels(node_id: str, body: LabelsBody, caller: Caller, parts: Parts) -> Response:
    """Set and remove labels of a node: tasks select them, and the topology is made of them."""
    command = m.SetNodeMarks(
        node_id=node_id, labels=body.set, unlabel=tuple(body.remove), asked_by=caller.user
    )
    return await _marked(command, "label", caller, parts)


@router.put("/nodes/{node_id}/taints", response_model=shapes.NodeLabelsAndTaints)
@allows(Action.CHANGE_NODES, inside=True)
async def put_taints(node_id: str, body: TaintsBody, caller: Caller, parts: Parts) -> Response:
    """Set and remove taints of a node: new runs come from tasks only that tolerate every one."""
    command = m.SetNodeMarks(
        node_id=node_id,
        taints=tuple(body.set),
        untaint=tuple(body.remove),
        asked_by=caller.user,
    )
    return await _marked(command, "taint", caller, parts)


async def _present(parts: Context, node_id: str) -> m.Node | None:
    """A node as it is before a change, for the audit trail; None if that cannot be read."""
    async with parts.store.transaction() as tx:
        with contextlib.suppress(UnreadableRowError):
            row = await tx.get(NodeRow, node_id)
            return row.node if row is not None else None
    return None


async def _marked(command: m.SetNodeMarks, verb: str, caller: Identity, parts: Context) -> Response:
    async with parts.changing(
        caller, f"node.{verb}s", command.node_id, verb=f"{verb} nodes"
    ) as change:
        now = await _present(parts, command.node_id)
        before = {"labels": dict(now.labels), "taints": list(now.taints)} if now else None
        change.note(before, None)
        reply = await change.ask(command, m.SetNodeMarksReply)
        change.note(before, {"labels": dict(reply.labels), "taints": list(reply.taints)})
    return answer(
        {"id": command.node_id, "labels": dict(reply.labels), "taints": list(reply.taints)}
    )


_COUNTS = ("nodes", "ready_nodes", "used_nodes", "free_nodes", "gpus", "used_gpus", "free_gpus")


@router.get("/groups", response_model=shapes.GroupPage)
@allows(Action.READ_CLUSTER)
async def groups(caller: Caller, parts: Parts) -> Response:
    """Groups of nodes, with what they have and what is free of it. ``used_nodes`` hold runs;
    ``free_nodes`` accept runs and hold none. ``waiting``: how many tasks wait, as of a few seconds
    ago; null where there are too many to count."""
    del caller
    cluster = await parts.capacity.now()
    async with parts.store.transaction() as tx:
        rows = await rows_of.nodes(tx)
        held = await rows_of.held(tx, LIVE_RUNS_MAX)
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        view = views.node(row, held.get(row.node_id, {}))
        counts = dict.fromkeys(_COUNTS, 0)
        waiting = cluster.waiting_in(row.group)
        group = found.setdefault(row.group, {"name": row.group, **counts, "waiting": waiting})
        usable = row.node.ready and row.node.schedulable
        group["nodes"] += 1
        group["ready_nodes"] += usable
        group["used_nodes"] += bool(view["tasks"])
        group["free_nodes"] += usable and not view["tasks"]
        group["used_gpus"] += len(view["held"])
        group["gpus"] += row.node.gpus
        group["free_gpus"] += view["free_gpus"] if usable else 0
    return answer({"items": [found[name] for name in sorted(found)], "next_cursor": None})
