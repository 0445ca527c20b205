"""An event loop whose time advances only by waiting, and which behaves the same in every run.

It never polls sockets, so a step costs microseconds. Tasks are hashed by their
number instead of their address, so that a set of them has one order.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

from tests.kit.clock import at

T = TypeVar("T")
P = ParamSpec("P")
START_SECONDS = 1000.0
# A correct simulation takes less than a hundredth of these iterations for one point in time.
TURNS_MAX = 50_000


class StuckError(Exception):
    """Time does not pass: every task waits for nothing, or one never does."""


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set does not depend on where it lies in memory."""

    def __init__(self, number: int, coro: Any, **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class InlineExecutor(ThreadPoolExecutor):
    """Runs at once what other loops run in a thread, which takes real time: the order of events
    would depend on the machine."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - any of the function's
            future.set_exception(error)
        return future


class VirtualLoop(asyncio.SelectorEventLoop):
    """Jumps to the next timer as soon as nothing else is left to do."""

    def __init__(self) -> None:
        self._passed = START_SECONDS
        self._turns = 0
        super().__init__()
        self._selector.select = self._pass_time  # type: ignore[method-assign]
        self.set_default_executor(InlineExecutor(max_workers=1))
        numbers = itertools.count(1)
        self.set_task_factory(
            lambda loop, coro, **options: NumberedTask(next(numbers), coro, loop=loop, **options)
        )

    def time(self) -> float:
        return self._passed

    def _pass_time(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StuckError("every task waits, and no timer is set")
        if timeout > 0:
            self._passed = max(self._passed, self._scheduled[0]._when)
            self._turns = 0
        self._turns += 1
        if self._turns > TURNS_MAX:
            self._turns = 0
            raise StuckError(f"something turns without pause at {self._passed:.3f}")
        return []


def virtually(main: Coroutine[Any, Any, T]) -> T:
    """Run ``main`` to its end on a fresh loop; end what it left behind."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main)
    finally:
        loop.run_until_complete(_end_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


class LoopClock:
    """The running loop's time as a calendar, ``skew_seconds`` ahead of it (a jump of a clock)."""

    def __init__(self) -> None:
        self.skew_seconds = 0.0

    def now(self) -> datetime:
        """The current time in UTC."""
        return at(asyncio.get_running_loop().time() + self.skew_seconds)


async def _end_all() -> None:
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
