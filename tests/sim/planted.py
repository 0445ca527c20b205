"""Defects of the kinds that this platform must not have, each switched on for a while.

``test_planted.py`` proves with them that the simulation would find such a defect. Each context
manager breaks one promise in the services' own code, the way a plausible mistake would.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

from libs.contracts.envelope import Envelope
from libs.contracts.messages import AckCheckpoint, PreemptMode
from libs.service.answer import Answering
from libs.service.consume import Consumption
from libs.service.loop import pause
from libs.service.relay import Relay
from libs.service.runner import DOWN, Runner
from libs.store import memory
from libs.store.memory import MemoryStore
from libs.store.port import NotLeaderError
from services.scheduler import handlers as scheduler_handlers
from services.scheduler import loop as scheduler_loop
from services.scheduler import store as scheduler_store
from services.scheduler.domain import model
from services.scheduler.domain.lifecycle import Trigger
from services.scheduler.domain.model import Kill, Preempt
from services.scheduler.domain.placement.place import Capacity
from tests.sim.plan import Plan, Strike
from tests.sim.world import World


@contextlib.contextmanager
def replaced(*places: tuple[Any, str, Any]) -> Generator[None]:
    """Other functions in these places."""
    with contextlib.ExitStack() as undo:
        for owner, name, other in places:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, other)
        yield


def double_assignment() -> contextlib.AbstractContextManager[None]:
    """Placement forgets what is taken; neither the check nor the slots of the tables object."""
    return replaced(
        (Capacity, "take", lambda _self, _slots: None),
        (scheduler_loop, "check", lambda _snapshot, _plan: []),
        (scheduler_store, "_slots", lambda _task: iter(())),
    )


class _PeekError(Exception):
    """The reply is known; nothing is stored yet."""


def reply_before_storing() -> contextlib.AbstractContextManager[None]:
    """The launcher answers a checkpoint at once and stores it a little later."""
    honest = Runner._endpoint

    def endpoint(self: Runner, kind: type, answering: Answering) -> Callable[[Any], Any]:
        answer, epoch = honest(self, kind, answering), answering.epoch
        if kind is not AckCheckpoint:
            return answer

        async def later(command: Any) -> None:
            await pause(0.3)
            with contextlib.suppress(NotLeaderError, *DOWN):
                await answer(command)

        async def hasty(command: Any) -> Any:
            replies: list[Any] = []
            with contextlib.suppress(_PeekError):
                async with self.turn, self.service.ports.store.transaction(epoch=epoch) as tx:
                    replies.append(await self.service.commands[kind](tx, command))
                    raise _PeekError
            # It dies with its process, as a queue in memory does.
            _OF_PROCESS.add(asyncio.get_running_loop().create_task(later(command)))
            return replies[0]

        return hasty

    return replaced((Runner, "_endpoint", endpoint))


_OF_PROCESS: set[asyncio.Task[None]] = set()


def unfenced_attempts() -> contextlib.AbstractContextManager[None]:
    """The scheduler takes the end of any attempt for the end of the live one."""
    honest = scheduler_handlers.facts.on_run_exited

    def on_run_exited(task: Any, event: Any, *more: Any) -> Any:
        if task.live_attempt is not None:
            event = event.model_copy(update={"attempt": task.live_attempt})
        return honest(task, event, *more)

    return replaced((scheduler_handlers.facts, "on_run_exited", on_run_exited))


class InterleavedStore(MemoryStore):
    """Some events become visible later than others with higher ids, as they do when a slower
    transaction drew its number first."""

    HIDDEN_SHARE, HIDDEN_SECONDS = 0.1, 0.4

    async def outgoing(self, limit: int, *, look: bool = True) -> list[tuple[int, Envelope]]:  # noqa: ARG002 - every time
        found = await super().outgoing(limit * 2)
        now, seen = asyncio.get_running_loop().time(), self._seen_at()
        shown: list[tuple[int, Envelope]] = []
        for row_id, envelope in found:
            first = seen.setdefault(row_id, now)
            slow = Random(f"{envelope.source} {row_id}").random() < self.HIDDEN_SHARE
            if not slow or now >= first + self.HIDDEN_SECONDS:
                shown.append((row_id, envelope))
        return shown[:limit]

    def _seen_at(self) -> dict[int, float]:
        # Kept with the schema, for it is a matter of the database.
        return self._schema.__dict__.setdefault("seen_at", {})


class CursorStore(InterleavedStore):
    """The outbox is read from a moving position instead of by what is not published."""

    async def outgoing(self, limit: int, *, look: bool = True) -> list[tuple[int, Envelope]]:  # noqa: ARG002 - every time
        cursor = self._schema.__dict__.get("cursor", 0)
        return [row for row in await super().outgoing(limit) if row[0] > cursor]

    async def published(self, row_ids: Sequence[int]) -> None:
        await super().published(row_ids)
        if row_ids:
            self._schema.__dict__["cursor"] = max(row_ids)


class InterleavedWorld(World):
    """Every service on such a store."""

    def store_of(self, reach: object, tables: object, **more: object) -> MemoryStore:
        return InterleavedStore(reach, tables, **more)  # type: ignore[arg-type]


class CursorWorld(World):
    """Every service with such a relay."""

    def store_of(self, reach: object, tables: object, **more: object) -> MemoryStore:
        return CursorStore(reach, tables, **more)  # type: ignore[arg-type]


def hanging_programs(plan: Plan) -> Plan:
    """Worlds in which every program hangs when it is asked to go, and schedulers die often."""
    jobs = tuple(
        replace(job, mode=PreemptMode.SDK, program=replace(job.program, way="hang", steps=40))
        for job in plan.jobs
    )
    strikes = tuple(
        Strike(at=5.0 * number, kind="crash", target="scheduler") for number in range(20)
    )
    return replace(plan, jobs=jobs, strikes=strikes)


def repeated_facts(plan: Plan) -> Plan:
    """Worlds in which the launcher often says again what it knows."""
    strikes = tuple(
        Strike(at=4.0 * number, kind="facts again", target="launcher") for number in range(25)
    )
    return replace(plan, strikes=tuple(sorted((*plan.strikes, *strikes), key=lambda s: s.at)))


def failing_commits(plan: Plan) -> Plan:
    """Worlds in which every program hangs when it is asked to go, and the scheduler's commits fail
    again and again; nothing else strikes, so that nobody loads the rows for another reason."""
    strikes = tuple(
        Strike(at=5.0 + 8.0 * number, kind="commits fail", target="scheduler", seconds=6.0)
        for number in range(12)
    )
    return replace(hanging_programs(plan), strikes=strikes)


def failed_commits_forgotten() -> contextlib.AbstractContextManager[None]:
    """What a plan looked at counts as done although the plan was not committed."""
    honest = scheduler_loop.Brain.step

    async def step(self: Any, epoch: int) -> float | None:
        self._stale = False
        return await honest(self, epoch)

    return replaced((scheduler_loop.Brain, "step", step))


def forgotten_republishing() -> contextlib.AbstractContextManager[None]:
    """A bus server that lost its last seconds is taken for the one it was."""

    async def nothing(_self: Any, _server_id: str, _window: Any) -> int:
        return 0

    return replaced((MemoryStore, "meet_bus_server", nothing))


def inbox_apart() -> contextlib.AbstractContextManager[None]:
    """The inbox is committed by itself: what was rolled back is never handled again."""
    honest = memory._MemorySession._close

    def close(self: Any, *, undo: bool) -> None:
        self._entered = []
        honest(self, undo=undo)

    return replaced((memory._MemorySession, "_close", close))


def mark_before_publishing() -> contextlib.AbstractContextManager[None]:
    """The relay marks what it is about to publish."""

    async def once(self: Relay, *, look: bool = True) -> int:
        ports = self.service.ports
        await ports.store.meet_bus_server(ports.bus.server_id, timedelta(minutes=10))
        rows = await ports.store.outgoing(self.settings.relay_rows_max)
        await ports.store.published([row_id for row_id, _ in rows])
        await ports.bus.publish([envelope for _, envelope in rows])
        return len(rows)

    return replaced((Relay, "once", once))


def ack_before_commit() -> contextlib.AbstractContextManager[None]:
    """Deliveries are acknowledged, then recorded."""
    honest = Consumption._record

    async def record(self: Any, deliveries: Any) -> None:
        await asyncio.gather(*(delivery.ack() for delivery in deliveries))
        await honest(self, deliveries)

    return replaced((Consumption, "_record", record))


def deadlines_in_memory() -> contextlib.AbstractContextManager[None]:
    """A deadline is a timer of the leader that asked, instead of a column."""
    honest = scheduler_loop.Brain._commit

    async def commit(self: Any, plan: model.Plan, epoch: int) -> bool:
        timers = self.__dict__.setdefault("timers", set())
        timers |= {each.task_id for each in plan.decisions if isinstance(each, Preempt)}
        kept = tuple(
            each
            for each in plan.decisions
            if not (
                isinstance(each, Kill)
                and each.trigger is Trigger.ACK_EXPIRED
                and each.task_id not in timers
            )
        )
        if len(kept) < len(plan.decisions):
            self._decided_version = plan.version
            if not kept:
                await pause(0.5)
                return True
        return await honest(self, replace(plan, decisions=kept), epoch)

    return replaced((scheduler_loop.Brain, "_commit", commit))
