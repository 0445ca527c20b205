"""Decides which checkpoints are accepted. Called by the AckCheckpoint command in its transaction.

Only the live attempt may save, and only until its exit is recorded, so that RunExited always
carries the last checkpoint that any attempt has ever acknowledged.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from libs.contracts.limits import CHECKPOINT_URI_BYTES_MAX
from libs.contracts.messages import (
    AckCheckpoint,
    Checkpoint,
    FieldError,
    Refusal,
    RefusalCode,
)
from services.launcher.domain.model import Run
from services.launcher.domain.run_lifecycle import LIVE

DIGEST_LENGTH_MAX = 256


@dataclass(frozen=True, slots=True)
class Known:
    """What the tables hold about the task of a command."""

    # The row of the command's attempt, if there is one.
    run: Run | None
    # The highest attempt that the launcher knows of; 0 if it does not know the task.
    newest_attempt: int
    # The task's last accepted checkpoint.
    last: Checkpoint | None
    # An accepted checkpoint of the same attempt with the same step and place.
    same: Checkpoint | None


@dataclass(frozen=True, slots=True)
class Decision:
    """A new checkpoint to store, one that was stored before, or a refusal."""

    stored: Checkpoint | None = None
    repeated: Checkpoint | None = None
    refusal: Refusal | None = None


def decide(command: AckCheckpoint, known: Known, now: datetime) -> Decision:
    """Accept, repeat or refuse a checkpoint."""
    errors = _errors(command)
    if errors:
        detail = "the checkpoint is not complete"
        return Decision(refusal=Refusal(code=RefusalCode.INVALID, detail=detail, errors=errors))
    run = known.run
    refused = refused_attempt(command.task_id, command.attempt, run, known.newest_attempt)
    if known.newest_attempt and _repeats(known):
        return Decision(repeated=known.same)
    if refused is not None or run is None:
        return Decision(refusal=refused)
    return Decision(
        stored=Checkpoint(
            no=_last_no(run, known) + 1,
            attempt=command.attempt,
            step=command.step,
            uri=command.uri,
            digest=command.digest,
            saved_at=now,
        )
    )


def refused_attempt(task_id: str, attempt: int, run: Run | None, newest: int) -> Refusal | None:
    """Why an attempt may not write any more; None if it is the live one. ``newest``: the highest
    attempt that the launcher knows of, 0 if it does not know the task."""
    if newest == 0:
        detail = f"task {task_id} has no run here"
        return Refusal(code=RefusalCode.NOT_FOUND, detail=detail)
    if run is None or run.attempt != newest or run.state not in LIVE:
        detail = f"attempt {attempt} of task {task_id} is over"
        return Refusal(code=RefusalCode.SUPERSEDED, detail=detail)
    return None


def _repeats(known: Known) -> bool:
    """Whether the task repeats a command because the reply was lost. After a preemption request,
    the first repetition is the acknowledgement, so it counts as new."""
    if known.same is None:
        return False
    run = known.run
    if run is None or run.state not in LIVE or run.preempt_requested_at is None:
        return True
    return run.acked_at is not None


def _last_no(run: Run, known: Known) -> int:
    return max(
        known.last.no if known.last is not None else 0,
        run.resume_from.no if run.resume_from is not None else 0,
    )


def _errors(command: AckCheckpoint) -> tuple[FieldError, ...]:
    found: list[FieldError] = []
    if not 0 < len(command.uri.encode()) <= CHECKPOINT_URI_BYTES_MAX:
        found.append(
            FieldError(
                field="uri",
                value=command.uri[:80],
                message=f"must have 1 to {CHECKPOINT_URI_BYTES_MAX} bytes",
                fix="give the place of the checkpoint: a path or a URI",
            )
        )
    if command.step < 0:
        found.append(
            FieldError(
                field="step",
                value=str(command.step),
                message="must not be negative",
                fix="count steps from 0",
            )
        )
    if len(command.digest) > DIGEST_LENGTH_MAX:
        found.append(
            FieldError(
                field="digest",
                value=command.digest[:80],
                message=f"must have at most {DIGEST_LENGTH_MAX} characters",
                fix="give a digest, not the content",
            )
        )
    return tuple(found)
