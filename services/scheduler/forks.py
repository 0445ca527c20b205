"""Work on a copy of this process: a query on the working set costs the leader one fork().

Called by ``explaining.py`` and ``policy_commands.py`` (from the event loop) and, inside such a
copy, by the explanation itself, which gives each trial a copy of its own. A copy shares the memory
until one side writes, so nothing is serialized and the leader is not delayed. The copy computes,
writes its answer into a pipe and ends; it never returns to the event loop and touches none of the
leader's connections.

The copy ends by itself after its time (an alarm), so it outlives neither its question nor, for
long, a leader that was killed. Its descriptors are closed first: a database connection that stayed
open in it would keep the leadership of a dead leader.
"""

from __future__ import annotations

import asyncio
import gc
import io
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from services.scheduler.domain.facts.index import Index

R = TypeVar("R")
# A lower priority than the leader's, where both want the processor.
NICENESS = 10
# An answer that has no alternative (the process would end) still has this long.
SECONDS_MIN = 0.05


class NoAnswerError(Exception):
    """The copy ended without an answer: its time was over, it was killed, or it failed."""


class FailedError(NoAnswerError):
    """The work raised an exception, which is a defect; the message is its traceback."""

    def __init__(self, trace: str, partial: object) -> None:
        super().__init__(trace)
        # The last result before it; None: there was none.
        self.partial = partial


@dataclass(frozen=True, slots=True)
class _Failed:
    """How a copy reports a defect."""

    trace: str


def fork(work: Callable[[], Iterable[object]], seconds: float) -> tuple[int, int]:
    """Start ``work`` in a copy of this process, for so long at most: its pid, and the pipe on
    which its pickled results come. Raises OSError where no process can be made."""
    read, write = os.pipe()
    with _signals_blocked():
        try:
            pid = os.fork()
        except OSError:
            os.close(read)
            os.close(write)
            raise
        if pid == 0:
            _work(work, write, seconds)
    os.close(write)
    return pid, read


@contextmanager
def _signals_blocked() -> Generator[None]:
    """A signal must not reach the copy before it has let go of the leader's handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(work: Callable[[], Iterable[object]], write: int, seconds: float) -> NoReturn:
    """The copy's whole life. Whatever happens, it ends here."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(each, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, max(SECONDS_MIN, seconds))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.closerange(3, write)
        os.closerange(write + 1, _descriptors_max())
        # A garbage collection would write to, and so copy, every page.
        gc.disable()
        with suppress(OSError):
            os.nice(NICENESS)
        pipe = os.fdopen(write, "wb")
        try:
            for result in work():
                pickle.dump(result, pipe)
                pipe.flush()
        except Exception:  # noqa: BLE001 - the leader logs it
            pickle.dump(_Failed(traceback.format_exc()), pipe)
            pipe.flush()
        # Not closed: the pipe ends with the process, when its memory is given back already, so that
        # the leader never waits for that.
        code = 0
    finally:
        os._exit(code)


def _descriptors_max() -> int:
    """More than any open descriptor: the limit on them may be a thousand million."""
    try:
        return max(int(each.name) for each in Path("/dev/fd").iterdir()) + 1
    except (OSError, ValueError):
        return 65_536


def _reap(pid: int) -> None:
    """Wait for a copy that has closed its pipe: it has ended, or is about to."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _last(data: bytes) -> Any:  # noqa: ANN401 - what the work made
    """The last result that is complete."""
    found: list[object] = []
    stream = io.BytesIO(data)
    with suppress(EOFError, pickle.UnpicklingError):
        while True:
            found.append(pickle.load(stream))  # noqa: S301 - from our own copy
    if not found:
        raise NoAnswerError("it ran out of time, or was killed")
    if isinstance(found[-1], _Failed):
        raise FailedError(found[-1].trace, found[-2] if found[1:] else None)
    return found[-1]


def call(work: Callable[[], Iterable[R]], seconds: float) -> R:
    """The last result of ``work``, done in a copy, waited for. Raises NoAnswerError."""
    pid, read = fork(work, seconds)
    try:
        with os.fdopen(read, "rb") as pipe:
            data = pipe.read()
    finally:
        _reap(pid)
    found: R = _last(data)
    return found


async def ask(work: Callable[[], Iterable[R]], seconds: float) -> R:
    """The same from the event loop, which goes on meanwhile. Cancelled, the copy is killed."""
    pid, read = fork(work, seconds)
    try:
        found: R = _last(await _read(read))
    except BaseException:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise
    finally:
        _reap(pid)
    return found


async def _read(read: int) -> bytes:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader, loop=loop), os.fdopen(read, "rb")
    )
    try:
        return await reader.read()
    finally:
        transport.close()


class Forks:
    """Index copies that are forks of this process; only used inside a copy, not in the leader."""

    def __init__(self, until: float) -> None:
        # Of ``time.monotonic()``.
        self._until = until

    def with_copy(self, index: Index, simulation: Callable[[Index], R]) -> R | None:
        """The result of ``simulation`` on a copy of the index of its own; None: no time is left.
        Raises FailedError for a defect."""
        try:
            return call(lambda: map(simulation, [index]), self._until - time.monotonic())
        except FailedError:
            raise
        except (NoAnswerError, OSError):
            return None
