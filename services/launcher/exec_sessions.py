"""Terminals and commands in running ranks: the launcher's end of each session.

The leader answers ``OpenExec`` by finding the rank, starting the command through the runtime, and
taking part in the session (``libs/bus/sessions.py``) until the command ends or the gateway is gone.
Nothing is stored: when this process dies, the runtime ends the command, and the gateway notices the
silence. Wired in ``main.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from libs.bus.port import Bus, BusError
from libs.bus.sessions import Session, SessionLostError, SessionTimes, open_session
from libs.contracts.ids import RunId, TaskId
from libs.contracts.messages import (
    ExecEnd,
    ExecOutput,
    ExecStream,
    OpenExec,
    OpenExecReply,
    Refusal,
    RefusalCode,
)
from libs.store.port import Op, Store, Where
from services.launcher.domain.exec_target import find_rank
from services.launcher.domain.model import Run
from services.launcher.runtimes.exec_port import (
    ExecOrder,
    ExecProcess,
    ExecRefusedError,
    ExecRuntime,
)
from services.launcher.runtimes.port import Runtime, RuntimeDeniedError, RuntimeUnavailableError

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ExecLimits:
    """The numbers of this module."""

    sessions_max: int
    times: SessionTimes


class ExecSessions:
    """The sessions of one leader."""

    def __init__(
        self,
        bus: Bus,
        store: Store,
        runtime: Runtime,
        limits: ExecLimits,
        now: Callable[[], datetime],
    ) -> None:
        self._bus, self._store, self._runtime = bus, store, runtime
        self._limits, self._now = limits, now
        self._tasks: set[asyncio.Task[None]] = set()
        # Requests whose rank is being looked up: each has its place already.
        self._opening = 0

    async def open(self, command: OpenExec) -> OpenExecReply:
        """Answer a request for a session; it goes on after the answer."""
        if not isinstance(self._runtime, ExecRuntime):
            detail = f"the runtime {self._runtime.name} runs no commands in ranks"
            return _refused(RefusalCode.CONFLICT, detail)
        if self._limits.sessions_max == 0:
            return _refused(RefusalCode.CONFLICT, "this site runs no sessions in ranks")
        if len(self._tasks) + self._opening >= self._limits.sessions_max:
            detail = f"{self._limits.sessions_max} sessions are open on this platform; close one"
            return _refused(RefusalCode.UNAVAILABLE, detail)
        self._opening += 1
        try:
            async with self._store.transaction() as tx:
                runs = await tx.select(Run, Where("task_id", Op.EQ, command.task_id))
        finally:
            self._opening -= 1
        found = find_rank(command.task_id, runs, command.rank, command.role)
        if isinstance(found, Refusal):
            return OpenExecReply(refusal=found)
        run, place = found
        order = ExecOrder(
            session=command.session,
            run_id=RunId(TaskId(run.task_id), run.attempt),
            place=place,
            owner=run.owner,
            argv=command.command,
            terminal=command.terminal,
            rows=command.rows,
            columns=command.columns,
            term=command.term,
        )
        opened: asyncio.Future[OpenExecReply] = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(self._run(self._runtime, order, opened))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(opened)
        except asyncio.CancelledError:
            # Nobody waits for the answer any more, so nobody will take part.
            task.cancel()
            raise

    def end_all(self) -> None:
        """This process leads no longer: its sessions end."""
        for task in self._tasks:
            task.cancel()

    async def hold(self) -> None:
        """Run until the service stops, and end every session then."""
        try:
            await asyncio.Event().wait()
        finally:
            self.end_all()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(
        self, runtime: ExecRuntime, order: ExecOrder, opened: asyncio.Future[OpenExecReply]
    ) -> None:
        """One session from its begin to its end; the answer goes into ``opened``."""
        log = _log.bind(run=str(order.run_id), rank=order.place.rank, session=order.session[:8])
        try:
            async with open_session(
                self._bus, order.session, ExecOutput, self._now, self._limits.times
            ) as session:
                async with runtime.open_exec(order) as process:
                    opened.set_result(
                        OpenExecReply(
                            attempt=order.run_id.attempt,
                            rank=order.place.rank,
                            node_id=order.place.node_id,
                        )
                    )
                    end = await self._end_of(session, process)
                if end is not None:
                    await session.end(end)
        except ExecRefusedError as problem:
            _settle(opened, RefusalCode.CONFLICT, str(problem))
        except (RuntimeUnavailableError, RuntimeDeniedError, BusError) as problem:
            _settle(opened, RefusalCode.UNAVAILABLE, f"{problem}; try again")
        except SessionLostError as problem:
            log.info("a session was lost", problem=str(problem))
        except Exception as problem:
            # A defect ends this session only.
            log.exception("a session failed")
            _settle(opened, RefusalCode.FAILED, f"the session failed ({type(problem).__name__})")
        finally:
            _settle(opened, RefusalCode.UNAVAILABLE, "the launcher stops; try again")

    async def _end_of(self, session: Session, process: ExecProcess) -> ExecEnd | None:
        """How the command ends, or why the session ends before it. A defect ends this session
        only; the other side learns the reason instead of waiting for its silence to end."""
        try:
            return await converse(session, process)
        except ExecRefusedError as problem:
            return ExecEnd(problem=str(problem))
        except asyncio.CancelledError:
            with contextlib.suppress(BusError):
                await session.end(ExecEnd(problem="the launcher stops, or leads no longer"))
            raise
        except SessionLostError:
            raise
        except Exception as problem:  # noqa: BLE001 - one session's failure is its own
            _log.exception("a session failed")
            return ExecEnd(problem=f"the session failed ({type(problem).__name__})")


async def converse(session: Session, process: ExecProcess) -> ExecEnd | None:
    """Carry data between a session and its command until the command ends. None if the other side
    ended the session. Raises ``SessionLostError``."""

    async def outputs() -> ExecEnd:
        while (piece := await process.read()) is not None:
            await session.send(*piece)
        return await process.wait()

    async def inputs() -> None:
        while True:
            frame = await session.receive()
            if frame.rows > 0 and frame.columns > 0:
                await process.resize(frame.rows, frame.columns)
            if frame.data:
                await process.write(frame.data)
            if frame.eof and frame.stream is ExecStream.STDIN:
                await process.close_input()

    ended = asyncio.ensure_future(outputs())
    parts: list[asyncio.Future[Any]] = [
        ended,
        *_started(inputs(), session.run(), session.over.wait()),
    ]
    try:
        done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        for part in done:
            # Raises what went wrong in it.
            part.result()
        return ended.result() if ended in done else None
    finally:
        for part in parts:
            part.cancel()
        await asyncio.gather(*parts, return_exceptions=True)


def _started(*parts: Coroutine[Any, Any, Any]) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(part) for part in parts]


def _settle(opened: asyncio.Future[OpenExecReply], code: RefusalCode, detail: str) -> None:
    if not opened.done():
        opened.set_result(_refused(code, detail))


def _refused(code: RefusalCode, detail: str) -> OpenExecReply:
    return OpenExecReply(refusal=Refusal(code=code, detail=detail))
