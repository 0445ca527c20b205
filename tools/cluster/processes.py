"""Child processes that outlive their starter, and are ended only if they are provably ours.

A program is started in a session of its own with its output in a log file. What is written down
about it (``run/NAME.json``: pid, start time, this boot) is enough for another process to
find it again and to end exactly it: a pid that another process got since has another start time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

LOG_BYTES_SHOWN = 2_000
POLL_SECONDS = 0.05
CHILD_SECONDS = 10.0


class ProcessError(RuntimeError):
    """A program did not start, or did not end."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What one process is and no later one can be."""

    pid: int
    start_ticks: int
    boot_id: str


def boot_id() -> str:
    """This boot of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def start_ticks(pid: int) -> int | None:
    """When this process started, in clock ticks since boot; None where it is not, or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses and may hold anything; the fields after it are plain.
    fields = text.rpartition(")")[2].split()
    state, started = fields[0], int(fields[19])
    return None if state in "ZX" else started


def is_running(identity: Identity) -> bool:
    """Whether exactly this process runs."""
    return identity.boot_id == boot_id() and start_ticks(identity.pid) == identity.start_ticks


class Processes:
    """The programs of one folder, by name."""

    def __init__(self, folder: Path) -> None:
        self._run = folder / "run"
        self._log = folder / "log"
        # What we started ourselves, to take leave of when it ends: by name, pids.
        self._children: dict[str, int] = {}

    def log(self, name: str) -> Path:
        """Where this program's output goes."""
        return self._log / f"{name}.log"

    def names(self) -> list[str]:
        """Every program that was started and not ended through here."""
        return sorted(path.stem for path in self._run.glob("*.json"))

    def identity(self, name: str) -> Identity | None:
        """What was written down about this program; None: nothing (or half of it)."""
        try:
            return Identity(**json.loads((self._run / f"{name}.json").read_text("utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def is_running(self, name: str) -> bool:
        """Whether the program runs now."""
        identity = self.identity(name)
        if identity is None:
            return False
        self._reap(name)
        return is_running(identity)

    def start(
        self,
        name: str,
        arguments: Sequence[str | Path],
        environment: Mapping[str, str] | None = None,
        *,
        wrapped: bool = False,
    ) -> None:
        """Start the program unless it runs; its output is appended to its log.

        Args:
            name: By which it is found again.
            arguments: The program's path first.
            environment: Added to ours.
            wrapped: The arguments are a program that starts the one that is meant as its child
                and ends with it (``nsenter``): the child is what is signalled.

        Raises:
            ProcessError: It could not be executed.
        """
        if self.is_running(name):
            return
        for folder in (self._run, self._log):
            folder.mkdir(parents=True, exist_ok=True)
        log = os.fspath(self.log(name))
        command = [os.fspath(argument) for argument in arguments]
        try:
            pid = os.posix_spawn(
                command[0],
                command,
                {**os.environ, **(environment or {})},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGQUIT, signal.SIGPIPE],
            )
        except OSError as problem:
            raise ProcessError(f"{name}: {command[0]} does not start: {problem}") from problem
        self._children[name] = pid
        meant = self._child_of(name, pid) if wrapped else pid
        ticks = start_ticks(meant)
        if ticks is None:
            raise ProcessError(f"{name} ended at once.\n{self.tail(name)}")
        text = json.dumps(asdict(Identity(meant, ticks, boot_id())))
        unfinished = self._run / f"{name}.new"
        unfinished.write_text(text, "utf-8")
        unfinished.rename(self._run / f"{name}.json")

    def start_command(self, name: str, *arguments: str) -> None:
        """Start a command of ``python -m tools.cluster`` as a program of its own."""
        root = str(Path(__file__).resolve().parents[2])
        command = [sys.executable, "-m", "tools.cluster", *arguments]
        self.start(name, command, {"PYTHONPATH": root})

    def signal(self, name: str, number: signal.Signals) -> bool:
        """Send a signal to exactly this program; False: it does not run."""
        identity = self.identity(name)
        if identity is None or not self.is_running(name):
            return False
        try:
            descriptor = os.pidfd_open(identity.pid)
        except ProcessLookupError:
            return False
        try:
            # Only now can the pid not be given away between the look and the signal.
            if not is_running(identity):
                return False
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True

    def stop(self, name: str, *, grace_seconds: float = 10, kill: bool = False) -> None:
        """SIGTERM, then SIGKILL after ``grace_seconds`` (``kill``: SIGKILL at once).

        Raises:
            ProcessError: It still runs after SIGKILL.
        """
        steps = [(signal.SIGKILL, 10.0)]
        if not kill:
            steps.insert(0, (signal.SIGTERM, grace_seconds))
        for number, seconds in steps:
            if not self.signal(name, number) or self._ends_within(name, seconds):
                (self._run / f"{name}.json").unlink(missing_ok=True)
                return
        raise ProcessError(f"{name} does not end (pid {self.identity(name)})")

    def _ends_within(self, name: str, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.is_running(name):
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def tail(self, name: str) -> str:
        """The end of the program's output, for messages."""
        try:
            with self.log(name).open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - LOG_BYTES_SHOWN))
                return file.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def _child_of(self, name: str, pid: int) -> int:
        until = time.monotonic() + CHILD_SECONDS
        while not (children := children_of(pid)):
            self._reap(name)
            if start_ticks(pid) is None or time.monotonic() > until:
                raise ProcessError(f"{name} ended at once.\n{self.tail(name)}")
            time.sleep(POLL_SECONDS)
        return children[0]

    def _reap(self, name: str) -> None:
        """Take leave of our child if it has ended."""
        pid = self._children.get(name)
        if pid is None:
            return
        try:
            ended, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            ended = pid
        if ended:
            del self._children[name]


def children_of(pid: int) -> list[int]:
    """The pids of this process's children."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                text = (folder / "stat").read_text("utf-8", errors="replace")
            except OSError:
                continue
            if int(text.rpartition(")")[2].split()[1]) == pid:
                found.append(int(folder.name))
    return found
