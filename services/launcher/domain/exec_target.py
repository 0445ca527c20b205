"""Which rank of which run a command is to run in. Pure; called by ``exec_sessions.py``."""

from __future__ import annotations

from collections.abc import Sequence

from libs.contracts.messages import FieldError, Placement, Refusal, RefusalCode
from services.launcher.domain import role_order
from services.launcher.domain.model import Run, RunState


def find_rank(
    task_id: str, runs: Sequence[Run], rank: int, role: str
) -> tuple[Run, Placement] | Refusal:
    """The running attempt of a task and the place of one of its ranks: of the role's ranks, if one
    is named. ``runs`` are those of the task that are not forgotten. Of a role that is starting, the
    runtime knows which ranks run."""
    running = [run for run in runs if run.state is RunState.RUNNING]
    if not running:
        waiting = any(run.state is RunState.ASSIGNED for run in runs)
        ending = any(run.state is RunState.ENDING for run in runs)
        how = "is starting" if waiting else "is ending" if ending else "does not run"
        fix = "try again when it runs" if waiting else "wait until it runs"
        detail = f"the task {how}; {fix} (`shiftwork wait {task_id} --for running`)"
        return Refusal(code=RefusalCode.CONFLICT, detail=detail)
    run = max(running, key=lambda each: each.attempt)
    roles = list(dict.fromkeys(place.role for place in run.placements))
    if role and role not in roles:
        fix = f"give one of {', '.join(roles)}"
        return _unknown("role", role, f"the task has no role {role}", fix)
    places = [place for place in run.placements if role in ("", place.role)]
    number = [place.role_index if role else place.rank for place in places]
    if rank not in number:
        of = f"role {role}" if role else "the task"
        return _unknown("rank", str(rank), f"{of} has no rank {rank}", f"give 0 to {max(number)}")
    place = places[number.index(rank)]
    waits = role_order.why_not_started(run, place.role)
    if waits:
        fix = "try again when it runs, or give a rank of another role"
        return Refusal(code=RefusalCode.CONFLICT, detail=f"{waits}; {fix}")
    return run, place


def _unknown(field: str, value: str, message: str, fix: str) -> Refusal:
    error = FieldError(field=field, value=value, message=message, fix=fix)
    detail = f"{field}: {message}; {fix}"
    return Refusal(code=RefusalCode.NOT_FOUND, detail=detail, errors=(error,))
