"""Child servers as processes: started apart from the terminal, found again, ended in steps.

Used by ``postgres`` and ``nats`` beside this file. A server runs in a session of its own, so that a
Ctrl-C reaches only its owner, and holds a lock on its folder for as long as any of its processes
lives: whoever comes next knows for certain whether something is left over from an owner that was
killed, and ends it before starting another server on the same files.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import psutil

from services.allinone.embedded.accounts import Account

LOG_BYTES_MAX = 8 * 1024 * 1024
_POLL_SECONDS = 0.01
_LEFTOVER_SECONDS_MAX = 5.0


class ServerError(Exception):
    """An embedded server could not be started or ended; the text has the reason and the fix."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of ending a server: a signal, and how long it may take to work."""

    signal: signal.Signals
    seconds_max: float


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one server."""

    program: str
    arguments: Sequence[str]
    # Its working folder while it runs; with the program's name it is how it is known again.
    home: Path
    lock: Path
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    # Another user than ours (root only), and folders it gets as open descriptors.
    account: Account | None = None
    descriptors: Sequence[int] = ()
    # Files that a killed server leaves behind; removed once it is certain that none runs.
    stale: Sequence[Path] = ()


class Child:
    """A running server that this process started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True until the server has ended (it is then reaped)."""
        return self._process.poll() is None

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        code = self._process.poll()
        if code is None:
            return "is running"
        if code >= 0:
            return f"ended with status {code}"
        return f"was ended by signal {signal.Signals(-code).name}"

    def reload(self) -> None:
        """Let the server read its configuration again."""
        self._process.send_signal(signal.SIGHUP)

    def kill_now(self) -> None:
        """SIGKILL, without waiting: for tests of recovery."""
        self._process.kill()
        self._process.wait()

    async def end(self, steps: Sequence[Step]) -> None:
        """Signal by signal until it is gone; ServerError if nothing helps."""
        for step in steps:
            if not self.alive:
                return
            self._process.send_signal(step.signal)
            if await _until(lambda: not self.alive, step.seconds_max):
                return
        if self.alive:
            raise ServerError(f"process {self.pid} does not end; it may hang in the kernel")


async def start(launch: Launch, leftover_steps: Sequence[Step]) -> Child:
    """End what is left over from an earlier owner, then start the server.

    Raises ServerError if another living owner keeps the server, or the program cannot be run.
    """
    lock = await _take_lock(launch, leftover_steps)
    try:
        for path in launch.stale:
            path.unlink(missing_ok=True)
        rotate(launch.log)
        with _private(launch.log, os.O_APPEND) as log:
            process = _spawn(launch, (*launch.descriptors, lock), log.fileno())
        os.ftruncate(lock, 0)
        os.pwrite(
            lock,
            json.dumps(
                {"pid": process.pid, "owner_pid": os.getpid(), "owner": identity(os.getpid())}
            ).encode(),
            0,
        )
    finally:
        # The server's own copy of the descriptor keeps the lock.
        os.close(lock)
    return Child(process)


def _spawn(launch: Launch, descriptors: Sequence[int], log: int) -> subprocess.Popen[bytes]:
    account = launch.account
    try:
        return subprocess.Popen(  # noqa: S603 - a program of our own wheels, no shell
            [launch.program, *launch.arguments],
            cwd=launch.home,
            env=dict(launch.environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=descriptors,
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            umask=0o077,
        )
    except OSError as problem:
        raise ServerError(f"cannot run {launch.program}: {problem}") from problem


def _private(path: Path, flags: int) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600), "wb")


def rotate(log: Path) -> None:
    """Keep a log that grew too large as ``<name>.1`` and empty it.

    The server appends to the same file all the time, so it is copied and emptied, not moved.
    """
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size <= LOG_BYTES_MAX:
            return
        kept = log.with_name(f"{log.name}.1")
        with log.open("rb") as old, _private(kept, os.O_TRUNC) as new:
            old.seek(-LOG_BYTES_MAX, os.SEEK_END)
            new.write(old.read(LOG_BYTES_MAX))
        os.truncate(log, 0)


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def identity(pid: int) -> list[float]:
    """A process id with its start time: what no later process has again. Empty if it is gone."""
    try:
        # Field 22, counted after the name, which may hold blanks; unlike a time of day it stands
        # still when somebody sets the clock.
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return [pid, float(text.rpartition(")")[2].split()[19])]
    except FileNotFoundError:
        pass
    try:
        return [] if Path("/proc/self").exists() else [pid, psutil.Process(pid).create_time()]
    except psutil.Error:
        return []


async def _take_lock(launch: Launch, steps: Sequence[Step]) -> int:
    """The lock of the server's folder, free of any earlier server, as an open descriptor."""
    lock = os.open(launch.lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        record = _record(lock)
        if not _lock(lock) or _is_server(launch, record.get("pid", 0)):
            await _end_leftovers(launch, lock, record, steps)
    except BaseException:
        os.close(lock)
        raise
    return lock


async def _end_leftovers(
    launch: Launch, lock: int, record: Mapping[str, object], steps: Sequence[Step]
) -> None:
    owner = _number(record.get("owner_pid"))
    if owner != os.getpid() and record.get("owner") == identity(owner) != []:
        raise ServerError(
            f"the server of {launch.home} is kept by process {owner}: end that one first"
        )
    for step in steps:
        # The server first; its helpers end with it if they can.
        for process in list(_left(launch, record)):
            with contextlib.suppress(psutil.Error):
                process.send_signal(step.signal)
        if await _until(lambda: _lock(lock), step.seconds_max):
            break
    for process in _processes(launch):
        with contextlib.suppress(psutil.Error):
            process.kill()
    if not await _until(lambda: _lock(lock), _LEFTOVER_SECONDS_MAX):
        raise ServerError(
            f"{launch.lock} is held by a process that is not a server of ours: "
            f"find it with `fuser {launch.lock}` and end it"
        )


def _left(launch: Launch, record: Mapping[str, object]) -> Iterator[psutil.Process]:
    pid = record.get("pid")
    if isinstance(pid, int) and _is_server(launch, pid):
        yield psutil.Process(pid)
    else:
        yield from _processes(launch)


def _processes(launch: Launch) -> Iterator[psutil.Process]:
    """Every process of this server, its helpers included."""
    for process in psutil.process_iter():
        if _is_server(launch, process.pid):
            yield process


def _is_server(launch: Launch, pid: object) -> bool:
    """True if ``pid`` runs this program in this folder; its number alone proves nothing."""
    if not isinstance(pid, int) or pid <= 0 or pid == os.getpid():
        return False
    try:
        process = psutil.Process(pid)
        if not process.name().startswith(Path(launch.program).name):
            return False
        return os.path.samestat(os.stat(process.cwd()), launch.home.stat())  # noqa: PTH116 - both sides in the same form
    except (psutil.Error, OSError):
        return False


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _record(lock: int) -> dict[str, object]:
    try:
        record: object = json.loads(os.pread(lock, 4096, 0) or b"{}")
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}  # pyright: ignore[reportUnknownVariableType] - as written by start()


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


async def _until(condition: Callable[[], bool], seconds_max: float) -> bool:
    ends_at = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() >= ends_at:
            return False
        await asyncio.sleep(_POLL_SECONDS)
    return True
