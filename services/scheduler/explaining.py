"""The Explain query: answered by copies of the leader's process, beside its loop.

Wired in ``main.py``. What a task's row contains is answered at once. A task that waits is explained
by ``domain/explain`` in a copy (``forks.py``): the leader pays for the fork, not for the
answer. A bounded number of copies work at a time, each for a bounded time. A query that is
repeated while its answer is being computed, and nothing has changed, shares that answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial

from libs.contracts.base import Message
from libs.contracts.messages import (
    Explain,
    ExplainQuota,
    ExplainQuotaReply,
    ExplainReply,
    Forecast,
    ReasonCode,
    Refusal,
    RefusalCode,
    TaskState,
)
from libs.service import observability
from libs.service.definition import Ports
from libs.service.metrics import Metrics
from services.scheduler import forks, store
from services.scheduler.domain.explain.explanation import of_row, step_by_step
from services.scheduler.domain.explain.forecast import NO_TIME
from services.scheduler.domain.explain.group_simulation import Bounds
from services.scheduler.domain.explain.quota_explanation import permissions
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.model.rows import Task
from services.scheduler.loop import Brain

declare = Metrics("scheduler")
SECONDS = declare.histogram("shiftwork_scheduler_explain_seconds", "Duration of one explanation")
UNANSWERED = declare.counter(
    "shiftwork_scheduler_explains_unanswered_total", "Explanations cut short", ["why"]
)
HELD_UP = "the decisions about it are held up"
TOO_LARGE = "it cannot start as it is"
FAILED = "the scheduler failed to compute it; the error is in its log"
BUSY = "many explanations are asked for now; ask again"
# The reasons for a short answer, as the counter names them.
_LABELS = {BUSY: "busy", NO_TIME: "no time", FAILED: "failed"}


def unknown(task_id: str) -> Refusal:
    """The refusal for a task that the scheduler does not know."""
    detail = f"no task {task_id[:80]!r} is known to the scheduler"
    return Refusal(code=RefusalCode.NOT_FOUND, detail=detail)


def work(index: Index, task: Task, now: datetime, seconds: float) -> Iterator[ExplainReply]:
    """Computes the answer in a copy of the process, which has an index of its own.

    Yields what is known so far first, in case the copy runs out of time.
    """
    began = time.monotonic()
    bounds = Bounds(used=lambda: (time.monotonic() - began) / seconds)
    for known in step_by_step(index, task, now, forks.Forks(began + seconds), bounds):
        yield known.reply


class Explaining:
    """The query with its settings."""

    def __init__(
        self,
        ports: Ports,
        brain: Brain,
        *,
        processes_max: int,
        waiting_max: int,
        seconds_max: float,
    ) -> None:
        self._ports = ports
        self._brain = brain
        self._free_processes = asyncio.Semaphore(processes_max)
        self._waiting_max = waiting_max
        self._seconds_max = seconds_max
        # The answers that are being computed, by the version of the working set and the task.
        self._answers: dict[tuple[int, str], asyncio.Task[ExplainReply]] = {}
        self._log = observability.log("scheduler")

    async def answer(self, query: Explain) -> Message:
        """Why the task is in its state."""
        index = self._brain.index
        task = index.tasks.get(query.task_id)
        if task is None:
            return await self._not_there(query.task_id)
        if task.state is not TaskState.QUEUED:
            return of_row(index, task, self._ports.clock.now())
        if task.reason.code is ReasonCode.EVENT_TOO_LARGE:
            # Known only from the commit that failed: ``decide`` would start it.
            reply = of_row(index, task, self._ports.clock.now())
            return reply.model_copy(update={"forecast": Forecast(unknown=TOO_LARGE)})
        key = self._brain.version, task.id
        shared = self._answers.get(key)
        if shared is None:
            if len(self._answers) >= self._waiting_max:
                return await self._short(task.id, BUSY)
            shared = self._answers[key] = asyncio.ensure_future(self._explain(task.id))
            shared.add_done_callback(partial(self._over, key))
        # One of the callers may be cancelled; the others still wait for the answer.
        return await asyncio.shield(shared)

    async def quota(self, query: ExplainQuota) -> Message:
        """What a user may hold, and which rows decide that: a few lookups for each group."""
        snapshot = self._brain.snapshot()
        return ExplainQuotaReply(
            permissions=permissions(snapshot.index, query.user, query.team, query.group),
            explained_at=self._ports.clock.now(),
        )

    def _over(self, key: tuple[int, str], answer: asyncio.Future[ExplainReply]) -> None:
        self._answers.pop(key, None)
        if not answer.cancelled():
            # Perhaps no caller waits for it any more.
            answer.exception()

    async def _explain(self, task_id: str) -> ExplainReply:
        seconds = self._seconds_max
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._free_processes.acquire()
            try:
                return await self._in_a_copy(task_id, seconds)
            finally:
                self._free_processes.release()
        return await self._short(task_id, BUSY)

    async def _in_a_copy(self, task_id: str, seconds: float) -> ExplainReply:
        # Read again: the query may have waited for other answers.
        index, now = self._brain.index, self._ports.clock.now()
        task = index.tasks.get(task_id)
        if task is None:
            return await self._not_there(task_id)
        try:
            with SECONDS.time():
                reply = await forks.ask(lambda: work(index, task, now, seconds), seconds)
                return self._held_up(task, reply)
        except forks.FailedError as defect:
            self._log.error("explanation failed", task=task_id, problem=str(defect))
            known = defect.partial if isinstance(defect.partial, ExplainReply) else None
            return await self._short(task_id, FAILED, known)
        except (forks.NoAnswerError, OSError) as problem:
            self._log.warning("task not explained", task=task_id, problem=str(problem))
            return await self._short(task_id, NO_TIME)

    async def _short(
        self, task_id: str, why: str, known: ExplainReply | None = None
    ) -> ExplainReply:
        """What is ``known``, else the answer from the row alone, with a note that the rest is
        missing."""
        UNANSWERED.labels(_LABELS[why]).inc()
        task = self._brain.index.tasks.get(task_id)
        if task is None:
            return await self._not_there(task_id)
        reply = known or of_row(self._brain.index, task, self._ports.clock.now())
        return self._held_up(task, reply.model_copy(update={"forecast": Forecast(unknown=why)}))

    def _held_up(self, task: Task, reply: ExplainReply) -> ExplainReply:
        """If the group's plans are refused, the reply gives that as the reason instead."""
        why = self._brain.held_up(task.group)
        if why is None:
            return reply
        general = of_row(self._brain.index, task, self._ports.clock.now()).remedies
        update = {"reason": why, "remedies": general, "forecast": Forecast(unknown=HELD_UP)}
        return reply.model_copy(update=update)

    async def _not_there(self, task_id: str) -> ExplainReply:
        """The answer about a task that is not in the index."""
        apart = self._brain.apart.task(task_id)
        if apart is None:
            return await self._ended(task_id)
        return ExplainReply(
            # A row that the store cannot decode has no state; the gateway has its own row.
            state=apart.row.state if apart.row else TaskState.UNSPECIFIED,
            reason=apart.reason,
            forecast=Forecast(unknown=HELD_UP),
            explained_at=self._ports.clock.now(),
        )

    async def _ended(self, task_id: str) -> ExplainReply:
        """The answer about a task that has ended."""
        async with self._ports.store.transaction() as tx:
            over = await store.ended(tx, task_id)
            if over is None:
                return ExplainReply(refusal=unknown(task_id))
            last = over.last
            return ExplainReply(state=last.state, reason=last.reason, explained_at=tx.now)
