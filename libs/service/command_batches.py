"""Handles incoming commands; those that wait for their turn share one transaction.

Called by ``runner.py`` for every command that is served. The reply is sent after the commit. A
command that arrives alone gets its own transaction at once; those that arrive meanwhile share the
next one, so that load means fewer commits instead of later replies. A command that fails does not
affect the others, which are handled without it. A command whose requester stopped waiting before
its turn, or before its transaction began, is rejected and not handled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from libs.bus.command_replies import answer_until, expired, too_late
from libs.contracts.base import Message
from libs.service.definition import Service
from libs.service.observability import log_about
from libs.store.port import ConflictError, StoreUnavailableError, TermOverError, Tx
from libs.tracing.context import Context, entered, get_current

COMMAND_TRIES = 3
# Caused by the database or the leadership, not by any command.
SHARED_FAILURES = (StoreUnavailableError, TermOverError)


@dataclass(eq=False)
class _PendingCommand:
    """A command and its future reply."""

    command: Message
    reply: asyncio.Future[Message]
    # When the requester stops waiting for the reply, in the event loop's seconds.
    until: float | None
    # Where its requester works, in a trace.
    context: Context = field(default_factory=get_current)


@dataclass
class CommandBatches:
    """Handles one service's commands. ``epoch`` None: any process answers, not only the leader."""

    service: Service
    epoch: int | None
    turn: asyncio.Lock
    together_max: int
    waiting: deque[_PendingCommand] = field(default_factory=deque[_PendingCommand])

    async def answer(self, command: Message) -> Message:
        """Handle a command and return its reply after the commit. Raises what the handler or the
        database raised."""
        if self.epoch is None:
            return await self._alone(command, answer_until.get())
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        mine = _PendingCommand(command, future, answer_until.get())
        self.waiting.append(mine)
        try:
            while not mine.reply.done():
                # The first caller that gets the turn handles all waiting commands.
                async with self.turn:
                    if not mine.reply.done():
                        await self._carry_out(self._take())
        finally:
            if mine in self.waiting:
                self.waiting.remove(mine)
        return mine.reply.result()

    def _take(self) -> list[_PendingCommand]:
        taken: list[_PendingCommand] = []
        while self.waiting and len(taken) < self.together_max:
            each = self.waiting.popleft()
            if not expired(each.until):
                taken.append(each)
            elif not each.reply.done():
                each.reply.set_result(too_late(type(each.command)))
        return taken

    async def _carry_out(self, taken: Sequence[_PendingCommand]) -> None:
        """Settle every command, whatever happens."""
        try:
            if len(taken) > 1:
                await self._together(taken)
            for each in taken:
                if not each.reply.done():
                    await self._settle(each)
        finally:
            # Only a cancellation of this task leaves one open: its own caller handles it again.
            self.waiting.extendleft(each for each in reversed(taken) if not each.reply.done())

    async def _together(self, taken: Sequence[_PendingCommand]) -> None:
        """Handle all in one transaction. If it fails, nothing is stored, and the caller handles
        each in its own."""
        try:
            async with self.service.ports.store.transaction(epoch=self.epoch) as tx:
                await self._prepare(tx, [each.command for each in taken])
                replies = [await self._handle_one(tx, each) for each in taken]
        except SHARED_FAILURES as problem:
            for each in taken:
                _fail(each, problem)
        except Exception:  # noqa: BLE001 - handling each alone shows which one fails
            return
        else:
            for each, reply in zip(taken, replies, strict=True):
                if not each.reply.done():
                    each.reply.set_result(reply)

    async def _settle(self, one: _PendingCommand) -> None:
        try:
            with entered(one.context):
                reply = await self._alone(one.command, one.until)
        except Exception as problem:  # noqa: BLE001 - it is raised where the reply is waited for
            _fail(one, problem)
        else:
            if not one.reply.done():
                one.reply.set_result(reply)

    async def _alone(self, command: Message, until: float | None) -> Message:
        """Handle one command. Two commands may conflict at a unique index: the retry sees the other
        one's row."""
        for _ in range(COMMAND_TRIES - 1):
            try:
                return await self._once(command, until)
            except ConflictError:
                continue
        return await self._once(command, until)

    async def _once(self, command: Message, until: float | None) -> Message:
        async with self.service.ports.store.transaction(epoch=self.epoch) as tx:
            return await self._handle(tx, command, until)

    async def _prepare(self, tx: Tx, commands: Sequence[Message]) -> None:
        if self.service.prepare is not None:
            await self.service.prepare(tx, commands)

    async def _handle_one(self, tx: Tx, one: _PendingCommand) -> Message:
        with entered(one.context):
            return await self._handle(tx, one.command, one.until)

    async def _handle(self, tx: Tx, command: Message, until: float | None) -> Message:
        if expired(until):
            # It waited for the database for too long.
            return too_late(type(command))
        with log_about(command):
            return await self.service.commands[type(command)](tx, command)


def _fail(one: _PendingCommand, problem: Exception) -> None:
    if not one.reply.done():
        one.reply.set_exception(problem)
        # The caller may be gone; this call makes the exception count as retrieved.
        one.reply.exception()
