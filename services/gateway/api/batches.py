"""Submitting many tasks with few commands. Called by the route of ``/v1/tasks:batch``.

Each task is accepted or refused by itself, as if it had come alone; only what is sent, stored and
audited goes together, a bounded piece at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from libs.contracts import messages as m
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.api.deps import Audited, Context
from services.gateway.auth import Identity
from services.gateway.bodies import BatchTaskBody
from services.gateway.command_client import accepted, create_task, in_terms_of
from services.gateway.problems import ProblemError
from services.gateway.rows import TaskRow

ACTION = "task.submit"
KEY_USED = "the key was used before"


@dataclass(frozen=True, slots=True)
class _Item:
    """One task of the batch as a command, with its place in the batch."""

    place: int
    body: BatchTaskBody
    command: m.CreateTask
    size: int


async def submit(
    parts: Context, caller: Identity, bodies: Sequence[BatchTaskBody]
) -> list[dict[str, Any]]:
    """Each task's ``status`` with ``task`` or ``problem``, in the order of the batch."""
    items: list[dict[str, Any]] = [{} for _ in bodies]
    accepted: list[_Item] = []
    refused: list[Audited] = []
    for place, body in enumerate(bodies):
        try:
            command = create_task(body, caller, body.idempotency_key or parts.mint.id())
        except ProblemError as problem:
            items[place] = _refused(problem)
            refused.append(Audited(body.name, problem.kind.type, problem.detail))
        else:
            size = len(command.to_json())
            accepted.append(_Item(place, body, command, size))
    if refused:
        await parts.audit(caller, ACTION, refused)
    slots = asyncio.Semaphore(parts.settings.batch_in_flight_max)

    async def one(piece: Sequence[_Item]) -> None:
        async with slots:
            answers = await _submit(parts, caller, piece)
        for each, item in zip(piece, answers, strict=True):
            items[each.place] = item

    settings = parts.settings
    try:
        async with asyncio.TaskGroup() as group:
            for piece in _pieces(accepted, settings.batch_piece_tasks, settings.batch_piece_bytes):
                group.create_task(one(piece))
    except ExceptionGroup as problems:
        # A database that does not answer is 503 here as everywhere; keys make trying again safe.
        raise problems.exceptions[0] from None
    return items


def _pieces(accepted: Sequence[_Item], tasks_max: int, bytes_max: int) -> Iterator[list[_Item]]:
    """Cut so that neither a command nor its answer is too large for the bus."""
    piece: list[_Item] = []
    size = 0
    for each in accepted:
        if piece and (len(piece) >= tasks_max or size + each.size > bytes_max):
            yield piece
            piece, size = [], 0
        piece.append(each)
        size += each.size
    if piece:
        yield piece


async def _submit(parts: Context, caller: Identity, piece: Sequence[_Item]) -> list[dict[str, Any]]:
    """Ask submit for one piece, and store and audit what came of it in one transaction."""
    command = m.CreateTasks(tasks=tuple(each.command for each in piece))
    try:
        replies = (await parts.commands.ask(command, m.CreateTasksReply)).replies
    except ProblemError as problem:
        entries = [Audited(each.body.name, problem.kind.type, problem.detail) for each in piece]
        await parts.audit(caller, ACTION, entries)
        return [_refused(problem)] * len(piece)
    outcomes = [
        in_terms_of(each.body, parts.commands.refused(reply.refusal), caller)
        if reply.refusal is not None
        else accepted(reply, each.command)
        for each, reply in zip(piece, replies, strict=True)
    ]
    entries = [
        Audited(each.body.name, outcome.kind.type, outcome.detail)
        if isinstance(outcome, ProblemError)
        else Audited(reply.task_id, detail="" if reply.created else KEY_USED)
        for each, reply, outcome in zip(piece, replies, outcomes, strict=True)
    ]
    rows = [each for each in outcomes if not isinstance(each, ProblemError)]
    made = {reply.task_id for reply in replies if reply.created}
    await parts.audit(
        caller, ACTION, entries, accepted=[row for row in rows if row.task_id in made]
    )
    before = await _made_before(parts, [row.task_id for row in rows if row.task_id not in made])
    return [
        _refused(outcome)
        if isinstance(outcome, ProblemError)
        else {
            "status": 201 if reply.created else 200,
            "task": views.task(before.get(outcome.task_id, outcome), secrets=True),
        }
        for reply, outcome in zip(replies, outcomes, strict=True)
    ]


async def _made_before(parts: Context, task_ids: Sequence[str]) -> dict[str, TaskRow]:
    """Tasks whose keys were used before, as they stand now."""
    if not task_ids:
        return {}
    async with parts.store.transaction() as tx:
        await tx.load(TaskRow, *((task_id,) for task_id in task_ids))
        found = [await rows_of.task(tx, task_id) for task_id in task_ids]
    return {row.task_id: row for row in found if row is not None}


def _refused(problem: ProblemError) -> dict[str, Any]:
    return {"status": problem.kind.status, "problem": problem.document()}
