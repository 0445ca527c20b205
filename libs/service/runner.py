"""Run a service: everything it is made of under one TaskGroup, which also owns HTTP.

A part that dies takes the process down (or, in the all-in-one, the service); nothing goes on half
alive. What is *down* - database, bus - is waited for, not ready meanwhile. The leader's parts
(consumer, relay, loops, leader-only commands) run while the leadership lasts and no longer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import cast

from libs.bus.port import BusError, InvalidCommandError, NotNowError
from libs.contracts.base import Message
from libs.contracts.messages import ReplayDeadLetters
from libs.service import dead_letters, observability, traces
from libs.service.command_batches import CommandBatches
from libs.service.consume import Consumption
from libs.service.definition import QueryHandler, Service
from libs.service.loop import Backoff, Loop, Wake
from libs.service.relay import Relay
from libs.service.settings import BaseServiceSettings
from libs.service.token_bucket import TokenBucket
from libs.store.port import (
    ConflictError,
    DatabaseFaultError,
    EventTooLargeError,
    ObserverError,
    StoreUnavailableError,
    TermOverError,
    UnfitValueError,
    UnreadableRow,
    UnreadableRowError,
)

DOWN = (StoreUnavailableError, DatabaseFaultError, BusError)
# Errors that may pass: the same command may succeed a little later.
PASSING = (*DOWN, TermOverError, ConflictError, TimeoutError)


UNREADABLE_NAMED_MAX = 1_000


class LeadershipLostError(Exception):
    """Another process may lead now; the leader's parts stop."""


@dataclass
class Runner:
    """One running service. /readyz reports ``ready``."""

    service: Service
    settings: BaseServiceSettings
    epoch: int | None = None
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    relay: Relay = field(init=False)
    consumption: Consumption | None = None
    # Why a process that has the lock does not lead yet; empty while it leads or waits for the lock.
    beginning: str = ""
    # Its commands are taken now.
    serving: bool = False
    # A replay of dead letters is wanted.
    replay: Wake = field(default_factory=Wake)

    def __post_init__(self) -> None:
        # What every service answers beside its own commands.
        commands = {**self.service.commands, **dead_letters.COMMANDS}
        app, tracing = self.service.app, self.service.ports.tracing
        if app is not None:
            app = traces.TracedRequests(app, tracing, self.settings)
        self.service = replace(self.service, commands=commands, app=app)
        self.relay = Relay(self.service, self.settings)
        self._led_at: float | None = None
        self.log = observability.log(self.service.name)
        self._begin_series()
        # Named in the log once each, as often as they may be met.
        self._unreadable: dict[str, None] = {}
        self.service.ports.store.on_unreadable(self._note_unreadable)

    def _begin_series(self) -> None:
        """Begin the series of what alerts count: one that begins at its first event shows them no
        increase."""
        name = self.service.name
        observability.TERMS_FAILED.labels(name)
        observability.DEAD_LETTERS.labels(name)
        observability.EVENTS_SET_APART.labels(name)
        for kind in self.service.ports.store.kinds:
            observability.UNREADABLE_ROWS.labels(name, kind.__name__)

    def _note_unreadable(self, row: UnreadableRow) -> None:
        kind = row.kind.__name__
        observability.UNREADABLE_ROWS.labels(self.service.name, kind).inc()
        if str(row) in self._unreadable:
            return
        if len(self._unreadable) >= UNREADABLE_NAMED_MAX:
            self._unreadable.clear()
        self._unreadable[str(row)] = None
        self.log.error(
            "a stored row cannot be read: it is left out", kind=kind, id=row.id, problem=row.problem
        )

    @property
    def ready(self) -> tuple[bool, str]:
        """Can it do its work now, and if not, why."""
        if problem := self._problem():
            return False, problem
        if self._stands_by:
            return True, "waiting: another process leads"
        return True, f"ready, but {self.warning}" if self.warning else "ready"

    @property
    def _stands_by(self) -> bool:
        return self.service.commands_on_leader_only and self.epoch is None

    def _problem(self) -> str:
        """Why it cannot do its work now; empty: it can, or another process does."""
        service = self.service
        # While it leads: what was wrong in an earlier term is the present leader's matter.
        led = self.consumption is not None and (self.consumption.problem or service.problem())
        checks = (
            ("the bus is not connected", not service.ports.bus.connected),
            ("the database is not connected", not service.ports.store.connected),
            ("the outbox cannot be published", self.relay.waiting),
            (led or "", led),
            (self.beginning, self._stands_by and self.beginning),
            ("its commands are not taken yet", not self._stands_by and not self.serving),
        )
        return next((text for text, holds in checks if holds), "")

    @property
    def warning(self) -> str:
        """What is wrong although it does its work; empty if nothing is."""
        return "; ".join(each for each in (self.relay.warning, self.service.warning()) if each)

    async def run(self) -> None:
        """Run until cancelled; raises what killed a part."""
        async with asyncio.TaskGroup() as group:
            if not self.service.commands_on_leader_only:
                group.create_task(self._serve(epoch=None), name=f"{self.service.name}:commands")
            for task in self.service.tasks:
                group.create_task(_forever(task), name=f"{self.service.name}:task")
            group.create_task(self._lead_again_and_again(), name=f"{self.service.name}:leader")

    async def _lead_again_and_again(self) -> None:
        backoff, clock = Backoff(), asyncio.get_running_loop().time
        while True:
            # In a task of its own: a stop then always reaches this one, even while a part fails
            # because something is down.
            term = asyncio.ensure_future(self._lead_once())
            try:
                await asyncio.wait((term,))
                term.result()
            except* ObserverError as group:
                # A defect: the rows are loaded again, and what failed on them is named.
                observability.TERMS_FAILED.labels(self.service.name).inc()
                problem = _first(group)
                self.log.exception("leadership ended", problem=str(problem), exc_info=problem)
            except* (LeadershipLostError, TermOverError, *DOWN) as group:
                self.log.warning("leadership ended", problem=str(_first(group)))
            finally:
                term.cancel()
                await asyncio.gather(term, return_exceptions=True)
            if self._led_at is not None and clock() - self._led_at >= backoff.most_seconds:
                # It led for a while: whatever ended this term, it is not what ended the last.
                backoff.reset()
            await backoff.wait()

    async def _lead_once(self) -> None:
        service = self.service
        self._led_at, self.beginning = None, ""
        leadership = await service.ports.store.lead()
        try:
            self.beginning = "begins to lead: loads what it needs from the database"
            try:
                if service.on_lead is not None:
                    await service.on_lead(leadership.epoch)
            except DOWN as problem:
                self.beginning = f"cannot begin to lead: {problem}"
                raise
            self.beginning = ""
            self.epoch = leadership.epoch
            self._led_at = asyncio.get_running_loop().time()
            self.log.info("leads", epoch=leadership.epoch)
            observability.LEADS.labels(service.name).set(1)
            await self._leader_parts(leadership.epoch, leadership.lost)
        finally:
            self.epoch, self.consumption = None, None
            observability.LEADS.labels(service.name).set(0)
            service.on_lead_end()
            with contextlib.suppress(*DOWN):
                await leadership.release()

    async def _leader_parts(self, epoch: int, lost: Callable[[], Awaitable[None]]) -> None:
        service, settings, name = self.service, self.settings, self.service.name
        wakes = [loop.wake for loop in service.loops if loop.wake_on_commit]
        self.consumption = Consumption(
            service=service,
            epoch=epoch,
            turn=self.turn,
            wakes=wakes,
            batch_messages_max=settings.batch_messages_max,
            fetch_wait_s=settings.fetch_wait_seconds,
            breaker=TokenBucket(settings.dead_letter_burst, 1 / settings.dead_letter_seconds),
            batch_gap_s=settings.batch_gap_seconds,
        )
        letters = dead_letters.DeadLetters(
            service, settings, self.turn, self.consumption.handle_again
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(_until_lost(lost), name=f"{name}:leadership")
            group.create_task(self.relay.run(), name=f"{name}:relay")
            group.create_task(self.relay.prune(), name=f"{name}:prune")
            if service.handlers:
                consumer = service.ports.bus.consumer()
                group.create_task(self.consumption.run(consumer), name=f"{name}:consumer")
            if service.commands_on_leader_only:
                group.create_task(self._serve(epoch), name=f"{name}:commands")
            replays = Loop(
                "dead-letters", letters.step, settings.dead_letter_tick_seconds, self.replay
            )
            for loop in (*service.loops, replays):
                group.create_task(self._loop(loop, epoch), name=f"{name}:{loop.name}")

    async def _loop(self, loop: Loop, epoch: int) -> None:
        backoff, seconds = (
            Backoff(),
            observability.STEP_SECONDS.labels(self.service.name, loop.name),
        )
        while True:
            try:
                if loop.prepare is not None:
                    await loop.prepare()
                async with self.turn if loop.exclusive else contextlib.nullcontext():
                    with seconds.time():
                        pause_seconds = await loop.step(epoch)
                backoff.reset()
                await loop.wake.wait(loop.tick_seconds if pause_seconds is None else pause_seconds)
            except (*DOWN, UnreadableRowError) as problem:
                # The row that cannot be read is named by ``_note_unreadable``. A step takes this
                # as it takes an outage: its transaction is undone.
                self.log.warning("loop waits", loop=loop.name, problem=str(problem))
                observability.RETRIES.labels(self.service.name, loop.name).inc()
                await backoff.wait()

    async def _serve(self, epoch: int | None) -> None:
        """Answer commands until cancelled; connect again when the bus was down."""
        answering = CommandBatches(self.service, epoch, self.turn, self.settings.batch_commands_max)
        endpoints = {kind: self._endpoint(kind, answering) for kind in self.service.commands}
        endpoints |= {kind: self._query(kind, each) for kind, each in self.service.queries.items()}
        backoff = Backoff()
        while True:
            try:
                async with self.service.ports.bus.serve(endpoints):
                    backoff.reset()
                    self.serving = True
                    await asyncio.Event().wait()
            except BusError as problem:
                self.log.warning("commands wait", problem=str(problem))
            finally:
                self.serving = False
            await backoff.wait()

    def _endpoint(
        self, kind: type[Message], answering: CommandBatches
    ) -> Callable[[Message], Awaitable[Message]]:
        name = self.service.name

        async def answer(command: Message) -> Message:
            try:
                with traces.answering(self.service.ports.tracing, command):
                    reply = await answering.answer(command)
            except PASSING as problem:
                raise NotNowError(f"{type(problem).__name__}: {problem}") from problem
            except (UnfitValueError, EventTooLargeError) as problem:
                raise InvalidCommandError(str(problem)) from problem
            if kind is ReplayDeadLetters:
                self.replay.set()
            outcome = "refused" if getattr(reply, "refusal", None) else "done"
            observability.COMMANDS.labels(name, kind.__name__, outcome).inc()
            for loop in self.service.loops:
                if loop.wake_on_commit:
                    loop.wake.set()
            return reply

        return answer

    def _query(
        self, kind: type[Message], handler: QueryHandler
    ) -> Callable[[Message], Awaitable[Message]]:
        async def answer(query: Message) -> Message:
            tracing = self.service.ports.tracing
            with traces.answering(tracing, query), observability.log_about(query):
                reply = await handler(query)
            outcome = "refused" if getattr(reply, "refusal", None) else "done"
            observability.COMMANDS.labels(self.service.name, kind.__name__, outcome).inc()
            return reply

        return answer


def _first(problem: BaseException) -> BaseException:
    """The first of the errors that ended a term, however deep it lies."""
    while isinstance(problem, BaseExceptionGroup):
        problem = cast("BaseExceptionGroup[BaseException]", problem).exceptions[0]
    return problem


async def _until_lost(lost: Callable[[], Awaitable[None]]) -> None:
    await lost()
    raise LeadershipLostError("the leader's lock is gone")


async def _forever(task: Callable[[], Awaitable[None]]) -> None:
    await task()
    raise RuntimeError(f"{task} ended, which it never should")
