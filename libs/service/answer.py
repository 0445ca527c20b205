"""Commands in: those that wait for their turn are carried out together, in one transaction.

Called by ``runner.py`` for every command that is served. An answer is given after the commit. One
command alone has a transaction of its own and waits for nobody; what comes meanwhile shares the
next one: under load the commits are fewer, not the answers later. A command that fails is alone
with its failure: the others are carried out without it. A command whose requester has gone before
its turn came, or before its transaction began, is refused and not carried out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from libs.bus.commands import answer_until, expired, too_late
from libs.contracts.base import Message
from libs.service.shape import Service
from libs.store.port import ConflictError, StoreUnavailableError, TermOverError, Tx

COMMAND_TRIES = 3
# The database's state or the leader's, and no fault of any command.
EVERYBODYS = (StoreUnavailableError, TermOverError)


@dataclass(eq=False)
class _Waiting:
    """A command and whoever waits for its reply."""

    command: Message
    reply: asyncio.Future[Message]
    # Until when somebody waits for the reply, in the event loop's seconds.
    until: float | None


@dataclass
class Answering:
    """One service's commands, while it may answer them. ``epoch`` None: any process answers."""

    service: Service
    epoch: int | None
    turn: asyncio.Lock
    together_max: int
    waiting: deque[_Waiting] = field(default_factory=deque[_Waiting])

    async def answer(self, command: Message) -> Message:
        """The reply, committed. Raises what the handler or the database raised."""
        if self.epoch is None:
            return await self._alone(command, answer_until.get())
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        mine = _Waiting(command, future, answer_until.get())
        self.waiting.append(mine)
        try:
            while not mine.reply.done():
                # Whoever gets the turn first carries out what waits, the others' commands too.
                async with self.turn:
                    if not mine.reply.done():
                        await self._carry_out(self._take())
        finally:
            if mine in self.waiting:
                self.waiting.remove(mine)
        return mine.reply.result()

    def _take(self) -> list[_Waiting]:
        taken: list[_Waiting] = []
        while self.waiting and len(taken) < self.together_max:
            each = self.waiting.popleft()
            if not expired(each.until):
                taken.append(each)
            elif not each.reply.done():
                each.reply.set_result(too_late(type(each.command)))
        return taken

    async def _carry_out(self, taken: Sequence[_Waiting]) -> None:
        """Settle every one of them, whatever happens."""
        try:
            if len(taken) > 1:
                await self._together(taken)
            for each in taken:
                if not each.reply.done():
                    await self._settle(each)
        finally:
            # Only a cancellation of whoever does the work leaves one open: its asker tries again.
            self.waiting.extendleft(each for each in reversed(taken) if not each.reply.done())

    async def _together(self, taken: Sequence[_Waiting]) -> None:
        """One transaction for all; if it fails, nothing is stored and each has its own."""
        try:
            async with self.service.ports.store.transaction(epoch=self.epoch) as tx:
                await self._prepare(tx, [each.command for each in taken])
                replies = [await self._handle(tx, each.command, each.until) for each in taken]
        except EVERYBODYS as problem:
            for each in taken:
                _fail(each, problem)
        except Exception:  # noqa: BLE001 - whose fault it is shows when each is alone
            return
        else:
            for each, reply in zip(taken, replies, strict=True):
                if not each.reply.done():
                    each.reply.set_result(reply)

    async def _settle(self, one: _Waiting) -> None:
        try:
            reply = await self._alone(one.command, one.until)
        except Exception as problem:  # noqa: BLE001 - it is raised where the reply is waited for
            _fail(one, problem)
        else:
            if not one.reply.done():
                one.reply.set_result(reply)

    async def _alone(self, command: Message, until: float | None) -> Message:
        """Two commands may meet at a unique index: the next try sees the other one's row."""
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

    async def _handle(self, tx: Tx, command: Message, until: float | None) -> Message:
        if expired(until):
            # The database kept it waiting.
            return too_late(type(command))
        with structlog.contextvars.bound_contextvars(command=type(command).__name__):
            return await self.service.commands[type(command)](tx, command)


def _fail(one: _Waiting, problem: Exception) -> None:
    if not one.reply.done():
        one.reply.set_exception(problem)
        # Its asker may have gone; then nobody is to be told.
        one.reply.exception()
