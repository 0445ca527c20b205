"""The SDK's routes, for a run with its own token; and what runs reported."""

from __future__ import annotations

import asyncio
import contextlib
from base64 import b64decode
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from libs.contracts import messages as m
from libs.contracts.ids import RunId
from libs.contracts.rank_sizes import sizes_of
from libs.store.port import ConflictError, Tx
from services.gateway import reports, views
from services.gateway import store as rows_of
from services.gateway.api import shapes
from services.gateway.api.deps import (
    Caller,
    CallingRun,
    Context,
    Parts,
    allows,
    answer,
    retried,
    router_of,
    task_or_404,
)
from services.gateway.api.guard import address_of
from services.gateway.auth import Identity, require_owner
from services.gateway.bodies import (
    CheckpointBody,
    LifeStateBody,
    MetricsBody,
    PriorityBody,
    ReadyBody,
    YieldBody,
)
from services.gateway.json_values import PRIORITIES, rfc3339
from services.gateway.permissions import Action, Role
from services.gateway.problems import SUPERSEDED, TOO_MANY, UNAVAILABLE, ProblemError, invalid
from services.gateway.rows import RunRow, UserRow
from services.gateway.sight import Sight


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The status of a run, for the run itself. ``revision`` grows with each change."""

    attempt: int
    revision: int
    preempt: bool
    deadline_at: str | None
    superseded: bool
    # Its program has polled before.
    listens: bool = False
    # Its program hands the nodes over on its own.
    yielded: bool = False

    @property
    def leaves(self) -> bool:
        """True if its ranks are to leave, whoever wanted that."""
        return self.preempt or self.yielded


async def run_status(tx: Tx, run: RunId) -> RunStatus:
    """The projected status of a run; a run that is not projected yet counts as live."""
    row = await tx.get(RunRow, run.task_id, run.attempt)
    task = await rows_of.task(tx, run.task_id)
    superseded = task is not None and task.attempt > run.attempt
    preempt = yielded = False
    deadline = None
    listens = False
    revision = 1
    if row is not None:
        superseded = superseded or row.exit is not None
        preempt = row.preempt_requested_at is not None
        deadline = row.preempt_deadline_at
        listens = row.listening_at is not None
        yielded = row.yielded is not None
        revision += preempt + yielded + (row.kill_requested_at is not None)
    # More than the others can add: nothing comes after it.
    revision += 8 * superseded
    return RunStatus(
        run.attempt, revision, preempt, rfc3339(deadline), superseded, listens, yielded
    )


def _is_over(run: RunId) -> ProblemError:
    """A run's token ends with the run: it neither reads nor writes any more."""
    return ProblemError(SUPERSEDED, f"attempt {run.attempt} of {run.task_id} is over; stop")


async def _signal_of(parts: Context, run: RunId) -> RunStatus:
    async with parts.store.transaction() as tx:
        return await run_status(tx, run)


async def _require_live(parts: Context, run: RunId) -> None:
    """409 for a run that is over."""
    if (await _signal_of(parts, run)).superseded:
        raise _is_over(run)


router = router_of("training", before_large_body=_require_live)


@router.get("/run", response_model=shapes.RunState)
@allows(Action.BE_A_RUN)
async def run_state(
    run: CallingRun,
    parts: Parts,
    wait_seconds: Annotated[float, Query(ge=0, allow_inf_nan=False)] = 0.0,
    seen: Annotated[int, Query(ge=0, le=2**31)] = 0,
) -> Response:
    """What the platform requests of this run, as soon as ``revision`` is above ``seen``, at the
    latest after ``wait_seconds``. A run that calls this route can leave on request: from its first
    call on, the platform gives it the time to save.

    A task may hold ``waits_per_task_max`` such requests at a time. Further ones are answered at
    once, with ``ask_again_seconds``: how long to pause before the next request.
    """
    most = parts.settings.wait_seconds_max
    if wait_seconds > most:
        raise invalid("wait_seconds", wait_seconds, f"is more than {most:g}", "ask again instead")
    with contextlib.ExitStack() as held:
        admitted = wait_seconds == 0 or parts.waits.try_admit(run.task_id, held)
        # The waiter is registered before the first read: a change after the read sets the event.
        changed = held.enter_context(parts.live.waiter(run.task_id))
        found = await _signal_of(parts, run)
        if found.superseded:
            raise _is_over(run)
        if not found.listens:
            await parts.listeners.report(run)
        until = asyncio.get_running_loop().time() + (wait_seconds if admitted else 0.0)
        with contextlib.suppress(TimeoutError):
            while found.revision <= seen and not parts.live.closed:
                async with asyncio.timeout_at(until):
                    await changed.wait()
                changed.clear()
                found = await _signal_of(parts, run)
    document = _state(found)
    if not admitted:
        document["ask_again_seconds"] = parts.settings.ask_again_seconds
    return answer(document)


def _state(found: RunStatus) -> dict[str, object]:
    return {
        "attempt": found.attempt,
        "revision": found.revision,
        "preempt": found.leaves,
        "deadline_at": found.deadline_at,
        "superseded": found.superseded,
    }


@router.post(
    "/run/checkpoints",
    operation_id="run_save_checkpoint",
    status_code=201,
    response_model=shapes.Checkpoint,
)
@allows(Action.BE_A_RUN)
async def save_checkpoint(body: CheckpointBody, run: CallingRun, parts: Parts) -> Response:
    """A checkpoint is durable. 201: the platform has stored that; 409: this attempt is over; 429:
    the task saves more often than is stored, send it again after ``Retry-After``."""
    # The run may know of a preemption request before the launcher's event reaches this process.
    signal = await _signal_of(parts, run)
    if signal.superseded:
        raise _is_over(run)
    # An attempt that is over takes nothing of the live one's rate.
    if not parts.checkpoints.take(run.task_id):
        rate = parts.settings.checkpoints_per_second
        detail = f"{run.task_id} saves more than {rate:g} checkpoints a second; send it again later"
        raise ProblemError(TOO_MANY, detail, headers={"retry-after": "1"})
    command = m.AckCheckpoint(
        task_id=run.task_id,
        attempt=run.attempt,
        step=body.step,
        uri=body.uri,
        digest=body.digest,
        preempt_requested=signal.preempt,
    )
    reply = await parts.commands.ask(command, m.AckCheckpointReply)
    return answer(views.checkpoint(reply.checkpoint), 201)


@router.post("/run/ready", operation_id="run_report_ready", response_model=shapes.Ready)
@allows(Action.BE_A_RUN)
async def report_ready(body: ReadyBody, run: CallingRun, parts: Parts) -> Response:
    """A rank is ready for the roles that start after that. 200: the platform has stored that; 409:
    this attempt, or the process that calls, is over."""
    async with parts.store.transaction() as tx:
        if (await run_status(tx, run)).superseded:
            raise _is_over(run)
        await _check_rank(tx, run, body.rank, 1)
    if not parts.checkpoints.take(f"{run.task_id}/ready/{body.rank}"):
        detail = f"rank {body.rank} of {run.task_id} reports too often; send it again later"
        raise ProblemError(TOO_MANY, detail, headers={"retry-after": "1"})
    command = m.ReportReady(
        task_id=run.task_id, attempt=run.attempt, rank=body.rank, restarts=body.restarts
    )
    await parts.commands.ask(command, m.ReportReadyReply)
    return answer({"ready": True})


async def _write(parts: Context, run: RunId, what: str) -> RunStatus:
    """The status of a run that may write ``what`` now. Raises 409 if its attempt is over, and 429
    if its task writes too often."""
    signal = await _signal_of(parts, run)
    if signal.superseded:
        raise _is_over(run)
    if not parts.run_writes.take(f"{run.task_id} {what}"):
        rate = parts.settings.run_writes_per_second
        detail = f"{run.task_id} sends {what} more often than {rate:g} times a second; try again"
        raise ProblemError(TOO_MANY, detail, headers={"retry-after": "1"})
    return signal


@router.post(
    "/run/yield", operation_id="run_yield_nodes", status_code=202, response_model=shapes.RunState
)
@allows(Action.BE_A_RUN)
async def yield_run(body: YieldBody, run: CallingRun, parts: Parts) -> Response:
    """The program hands its nodes over on its own: the task goes back to the queue. Stored when
    this answers; all ranks are asked to leave, and those that stay are ended after the exit grace.
    Once the run is leaving or being ended, this changes nothing."""
    signal = await _signal_of(parts, run)
    if signal.superseded:
        raise _is_over(run)
    # Each rank may call it: only the first one concerns the launcher.
    if not signal.yielded:
        signal = await _write(parts, run, "its wish to yield")
        command = m.YieldRun(task_id=run.task_id, attempt=run.attempt, reason=body.reason)
        await parts.commands.ask(command, m.YieldRunReply)
    return answer(_state(replace(signal, yielded=True)), 202)


@router.get("/run/state", response_model=shapes.LifeState)
@allows(Action.BE_A_RUN)
async def life_state(run: CallingRun, parts: Parts) -> Response:
    """What the task keeps across attempts; version 0 if it has kept nothing yet."""
    if (await _signal_of(parts, run)).superseded:
        raise _is_over(run)
    if not parts.state_reads.take(run.task_id):
        rate = parts.settings.state_reads_per_second
        detail = f"{run.task_id} reads its state more often than {rate:g} times a second; try again"
        raise ProblemError(TOO_MANY, detail, headers={"retry-after": "1"})
    return await _answer_state(parts, run.task_id)


async def _answer_state(parts: Context, task_id: str) -> Response:
    """A task's life state as its owner, the launcher, has it; the ETag is its version."""
    reply = await parts.commands.ask(m.GetLifeState(task_id=task_id), m.GetLifeStateReply)
    found = views.life_state_content(reply.state)
    return answer(found, headers={"etag": f'"{found["version"]}"'})


@router.put("/run/state", response_model=shapes.SavedVersion)
@allows(Action.BE_A_RUN)
async def put_life_state(body: LifeStateBody, run: CallingRun, parts: Parts) -> Response:
    """Keep this for later attempts, and for tasks that go on with this one. Of several writers the
    last one wins; 409: this attempt is over."""
    await _write(parts, run, "its state")
    command = m.SetLifeState(
        task_id=run.task_id,
        attempt=run.attempt,
        media_type=body.media_type,
        data=b64decode(body.data),
    )
    reply = await parts.commands.ask(command, m.SetLifeStateReply)
    return answer({"version": reply.version}, headers={"etag": f'"{reply.version}"'})


@router.put("/run/priority", status_code=202, response_model=shapes.Revision)
@allows(Action.BE_A_RUN)
async def put_own_priority(
    request: Request, body: PriorityBody, run: CallingRun, parts: Parts
) -> Response:
    """Another level for the task, with the rights of its owner. Stored when this answers."""
    await _write(parts, run, "its priority")
    async with parts.store.transaction() as tx:
        row = await task_or_404(tx, run.task_id, Sight())
        owner = await tx.get(UserRow, row.owner)
    program = f"its program (attempt {run.attempt})"
    # Its owner's rights, and none of the owner's tokens.
    role = Role(owner.role) if owner is not None else Role.USER
    caller = Identity(
        row.owner,
        role,
        row.team,
        token_id="",
        token_name=program,
        address=address_of(request.scope),
    ).doing(Action.CHANGE_TASKS)
    async with parts.changing(caller, f"task.own_priority.{body.priority}", run.task_id) as change:
        if owner is None or owner.disabled:
            message = f"cannot be changed: {row.owner}, the owner of the task, is disabled"
            raise invalid("priority", body.priority, message, "ask an administrator")
        command = m.SetPriority(
            task_id=run.task_id, priority=PRIORITIES[body.priority], asked_by=program
        )
        change.detail = f"by {program}"
        change.note({"priority": row.priority}, {"priority": body.priority})
        reply = await change.ask(command, m.SetPriorityReply)
    return answer({"task": run.task_id, "revision": reply.revision}, 202)


@router.post(
    "/run/metrics",
    operation_id="run_report_metrics",
    status_code=202,
    response_model=shapes.AcceptedSamples,
)
@allows(Action.BE_A_RUN)
async def report(body: MetricsBody, run: CallingRun, parts: Parts) -> Response:
    """Numbers to show on the task's page. Kept thinned; a sample that came before is dropped."""
    settings = parts.settings
    if len(body.samples) > settings.metric_samples_max:
        most = settings.metric_samples_max
        raise invalid("samples", len(body.samples), f"are more than {most}", "send fewer at once")
    for place, sample in enumerate(body.samples):
        if len(sample.values) > settings.metric_names_max:
            most = settings.metric_names_max
            field = f"samples[{place}].values"
            raise invalid(field, len(sample.values), f"are more than {most}", "report fewer")
    names = {name for sample in body.samples for name in sample.values}
    if len(names) > settings.metric_names_max:
        most = settings.metric_names_max
        fix = "report fewer names from each rank"
        raise invalid("samples", len(names), f"have more than {most} names", fix)

    async def write() -> None:
        async with parts.store.transaction() as tx:
            if (await run_status(tx, run)).superseded:
                raise _is_over(run)
            await _check_rank(tx, run, body.rank, settings.metric_ranks_per_replica_max)
            limits = reports.Limits(
                points_max=settings.metric_points_max,
                names_max=settings.metric_names_max,
                values_max=settings.metric_values_max,
            )
            samples = [(sample.at or tx.now, sample.values) for sample in body.samples]
            await rows_of.report(
                tx, run.task_id, body.rank, attempt=run.attempt, samples=samples, limits=limits
            )

    try:
        # Several processes of one rank may report at the same time.
        await retried(write)
    except ConflictError:
        detail = f"rank {body.rank} of {run.task_id} reports from too many processes; try again"
        raise ProblemError(UNAVAILABLE, detail, headers={"retry-after": "1"}) from None
    return answer({"accepted": len(body.samples)}, 202)


async def _check_rank(tx: Tx, run: RunId, rank: int, processes_max: int) -> None:
    """Raise 422 for a rank that the run cannot have: each rank that reports costs a row.

    Ranks are those of processes. A replica has one process per GPU under torchrun, or as many
    as the program requests of torchrun; ``processes_max`` bounds the latter.
    """
    row = await tx.get(RunRow, run.task_id, run.attempt)
    if row is not None and row.placements:
        ranks = sum(max(processes_max, len(placed.gpus)) for placed in row.placements)
        if rank >= ranks:
            raise invalid(
                "rank", rank, f"is no rank of attempt {run.attempt}", f"give 0 to {ranks - 1}"
            )
        return
    task = await rows_of.task(tx, run.task_id)
    if task is None or task.spec is None:
        # Its events have not arrived yet, so the gateway does not know its ranks.
        detail = f"attempt {run.attempt} of {run.task_id} is not known here yet; try again"
        raise ProblemError(UNAVAILABLE, detail, headers={"retry-after": "1"})
    gpus_max = max((size.gpus or 0 for size in sizes_of(task.spec).values()), default=0)
    ranks = task.spec.nodes * max(processes_max, gpus_max)
    if rank >= ranks:
        raise invalid("rank", rank, f"is no rank of {run.task_id}", f"give 0 to {ranks - 1}")


@router.get("/tasks/{task_id}/state", response_model=shapes.LifeState, tags=["tasks"])
@allows(Action.READ_SECRETS)
async def task_life_state(task_id: str, caller: Caller, parts: Parts) -> Response:
    """What the task's program keeps across attempts; for its owner and administrators."""
    async with parts.store.transaction() as tx:
        row = await task_or_404(tx, task_id, caller.sight)
    require_owner(caller, row, "read its life state")
    return await _answer_state(parts, task_id)
