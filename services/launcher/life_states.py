"""What a task keeps for its program across attempts, and for the tasks that go on with it.

Called by ``handlers.py`` in its transactions: state and event are stored together or not at all.
The content is never part of an event, of a log or of a pod's environment.
"""

from __future__ import annotations

from libs.contracts.limits import LIFE_STATE_BYTES_MAX
from libs.contracts.messages import (
    Checkpoint,
    Continuation,
    FieldError,
    GetLifeState,
    GetLifeStateReply,
    LifeState,
    LifeStateSaved,
    PrepareContinuation,
    PrepareContinuationReply,
    Refusal,
    RefusalCode,
    SetLifeState,
    SetLifeStateReply,
)
from libs.contracts.wording import field_error
from libs.store.port import Op, Tx, Where
from services.launcher import store
from services.launcher.domain.checkpoint_acceptance import refused_attempt
from services.launcher.domain.model import (
    LifeStateContent,
    LifeStateRow,
    PastRun,
    Run,
    RunState,
)

MEDIA_TYPES = ("application/json", "application/octet-stream")


async def set_life_state(tx: Tx, command: SetLifeState) -> SetLifeStateReply:
    """Replace the life state. Only the live attempt may; of its writers the last one wins. A
    repeated command is another version with the same content."""
    errors = _errors(command)
    if errors:
        detail = f"{errors[0].field}: {errors[0].message}; {errors[0].fix}"
        refusal = Refusal(code=RefusalCode.INVALID, detail=detail, errors=errors)
        return SetLifeStateReply(refusal=refusal)
    run = await tx.get(Run, command.task_id, command.attempt)
    newest = await store.newest_attempt(tx, command.task_id)
    refused = refused_attempt(command.task_id, command.attempt, run, newest)
    if refused is not None:
        return SetLifeStateReply(refusal=refused)
    before = await tx.get(LifeStateRow, command.task_id)
    after = LifeStateRow(
        task_id=command.task_id,
        version=(before.version if before is not None else 0) + 1,
        attempt=command.attempt,
        media_type=command.media_type,
        size=len(command.data),
        saved_at=tx.now,
    )
    _keep(tx, after, command.data)
    return SetLifeStateReply(version=after.version)


def _errors(command: SetLifeState) -> tuple[FieldError, ...]:
    found: list[FieldError] = []
    if len(command.data) > LIFE_STATE_BYTES_MAX:
        message = f"has more than {LIFE_STATE_BYTES_MAX} bytes"
        fix = "keep large data in a checkpoint, and where it lies here"
        found.append(field_error("data", f"{len(command.data)} bytes", message, fix))
    if command.media_type not in MEDIA_TYPES:
        fix = f"give one of {', '.join(MEDIA_TYPES)}"
        found.append(field_error("media_type", command.media_type, "is not known", fix))
    return tuple(found)


def _keep(tx: Tx, row: LifeStateRow, data: bytes) -> None:
    tx.put(row, LifeStateContent(row.task_id, data))
    tx.emit(saved(row))


def saved(row: LifeStateRow) -> LifeStateSaved:
    """The event for a life state that is stored."""
    return LifeStateSaved(
        task_id=row.task_id,
        attempt=row.attempt,
        version=row.version,
        size=row.size,
        saved_at=row.saved_at,
    )


async def get_life_state(tx: Tx, command: GetLifeState) -> GetLifeStateReply:
    """The life state of a task; none if it never saved one, or is forgotten."""
    row = await tx.get(LifeStateRow, command.task_id)
    content = await tx.get(LifeStateContent, command.task_id)
    if row is None or content is None:
        return GetLifeStateReply()
    return GetLifeStateReply(
        state=LifeState(
            version=row.version,
            attempt=row.attempt,
            media_type=row.media_type,
            data=content.data,
            saved_at=row.saved_at,
        )
    )


async def inherit(tx: Tx, task_id: str, continues: Continuation | None) -> None:
    """Give a task, with its first run, the life state of the task that it goes on with. A task that
    has one of its own keeps that: the event may come again."""
    if continues is None or not continues.state_of:
        return
    row = await tx.get(LifeStateRow, continues.state_of)
    content = await tx.get(LifeStateContent, continues.state_of)
    if row is None or content is None or await tx.get(LifeStateRow, task_id) is not None:
        return
    _keep(
        tx,
        LifeStateRow(
            task_id=task_id,
            version=1,
            attempt=0,
            media_type=row.media_type,
            size=row.size,
            saved_at=tx.now,
        ),
        content.data,
    )


async def prepare_continuation(tx: Tx, command: PrepareContinuation) -> PrepareContinuationReply:
    """The last checkpoint of an ended task. What is kept of the task is kept for the full time
    again, so that the new task finds its life state when it starts."""
    task_id = command.task_id
    past = await tx.get(PastRun, task_id)
    runs = [
        run
        for run in await tx.select(Run, Where("task_id", Op.EQ, task_id))
        if run.state is not RunState.EARLY_REQUEST
    ]
    if past is None and not runs:
        detail = f"no run of task {task_id} is remembered"
        return PrepareContinuationReply(refusal=Refusal(code=RefusalCode.NOT_FOUND, detail=detail))
    if past is not None:
        store.renew(tx, past)
    return PrepareContinuationReply(checkpoint=await _last(tx, task_id, past, runs))


async def _last(tx: Tx, task_id: str, past: PastRun | None, runs: list[Run]) -> Checkpoint | None:
    saved_ = await store.newest_checkpoints(tx, task_id)
    if saved_:
        return saved_[0]
    # It saved nothing of its own: it goes on from where it began.
    if runs:
        return max(runs, key=lambda run: run.attempt).resume_from
    return past.checkpoint if past is not None else None
