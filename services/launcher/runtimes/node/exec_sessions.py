"""Commands and terminals that people run inside the ranks of one node.

Used by ``ranks.py``. A session is one process in the rank's control group and with the rank's user,
environment and working directory. Its standard streams go to the launcher as open files over the
connection that asked for it, so its data never passes through the supervisor. The session ends with
its command, with that connection (so a killed launcher leaves nothing), or with its rank. Then
everything that it has started is killed.

Nothing of a session is in the journal: if the supervisor dies, its successor finds the processes by
the context variable of their rank, and ends them with the rank.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from services.launcher.runtimes.node import proc
from services.launcher.runtimes.node.spawn import Program, spawn

VARIABLE = "SHIFTWORK_EXEC"
# Below the supervisor's limit of connections, because each session has one.
SESSIONS_MAX = 16
DELAY_FIRST_S, DELAY_MOST_S = 0.001, 0.05
# What is left is searched until nothing was found so many times in a row.
EMPTY_SCANS = 2


@dataclass(eq=False)
class ExecSession:
    """One command, and how it ended."""

    name: str
    run: str
    rank: int
    pid: int
    uid: int
    # Its end is the end of the session.
    connection: object
    # Called once nothing of it is left, with how the command ended.
    done: Callable[[Mapping[str, Any]], None]
    status: dict[str, Any] | None = None
    ending: bool = False
    delay_s: float = DELAY_FIRST_S

    @property
    def variable(self) -> bytes:
        """The variable by which its processes are found."""
        return f"{VARIABLE}={self.name}".encode()


Members = Callable[[ExecSession], Sequence[proc.Stat]]


@dataclass
class ExecSessions:
    """The sessions of one node."""

    table: list[ExecSession] = field(default_factory=list[ExecSession])

    @property
    def pids(self) -> set[int]:
        """The main processes, whose ends are awaited here."""
        return {session.pid for session in self.table}

    def start(
        self,
        session: ExecSession,
        rank: Program,
        order: Mapping[str, Any],
        *,
        cgroup: str,
        join: Callable[[int, bool], None],
    ) -> list[int]:
        """Start the command of a session. Returns the supervisor's ends of its streams, which the
        caller passes on and closes. ``rank`` is the rank's own program; ``join`` gets the number of
        the child, and whether it is in its version 2 control group already. Raises ``OSError``,
        and leaves nothing then."""
        ends, stdio = _terminal(order) if order["terminal"] else _pipes()
        program = replace(
            rank,
            argv=order["argv"],
            env={**rank.env, **order["env"], VARIABLE: session.name},
            output=stdio[1],
            stdio=stdio,
            terminal=order["terminal"],
        )
        try:
            gated = spawn(program, cgroup=cgroup)
            session.pid = gated.pid
            self.table.append(session)
            try:
                join(gated.pid, gated.joined)
            except OSError:
                session.ending = True
                raise
            finally:
                gated.open(run=not session.ending)
        except OSError:
            _close(ends)
            raise
        finally:
            _close(set(stdio))
        return ends

    def end_of(self, run: str, rank: int) -> bool:
        """End the sessions of a rank; True while anything of them is left."""
        found = [each for each in self.table if (each.run, each.rank) == (run, rank)]
        for session in found:
            session.ending = True
        return bool(found)

    def end_with(self, connection: object | None) -> None:
        """End the sessions of a connection; None: all sessions."""
        for session in self.table:
            if connection is None or session.connection is connection:
                session.ending = True

    def tend(self, members: Members) -> list[float]:
        """Find commands that ended, and kill what is left of ended sessions. Returns in how many
        seconds to call again; nothing if the next signal suffices."""
        delays: list[float] = []
        for session in list(self.table):
            if session.status is None:
                session.status = proc.ending(session.pid)
            if session.status is None and not session.ending:
                continue
            if self._is_clear(session, members):
                os.waitpid(session.pid, 0)
                self.table.remove(session)
                assert session.status is not None, "its main process has ended"
                session.done(session.status)
            else:
                delays.append(session.delay_s)
                session.delay_s = min(DELAY_MOST_S, session.delay_s * 2)
        return delays

    def _is_clear(self, session: ExecSession, members: Members) -> bool:
        if session.status is None:
            # Not reaped, so the number is still its own. It may not lead its group yet.
            proc.sent(os.kill, session.pid, signal.SIGKILL)
        proc.sent(os.killpg, session.pid, signal.SIGKILL)
        for _ in range(EMPTY_SCANS):
            left = members(session)
            for member in left:
                proc.kill(member)
            if left:
                return False
        return session.status is not None


def _terminal(order: Mapping[str, Any]) -> tuple[list[int], tuple[int, int, int]]:
    """A terminal: our end, and the three streams of the command."""
    ours, theirs = os.openpty()
    if order["rows"] > 0 and order["columns"] > 0:
        size = struct.pack("4H", order["rows"], order["columns"], 0, 0)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    return [ours], (theirs, theirs, theirs)


def _pipes() -> tuple[list[int], tuple[int, int, int]]:
    """Three pipes: our ends, and those of the command."""
    read_in, write_in = os.pipe()
    read_out, write_out = os.pipe()
    read_error, write_error = os.pipe()
    return [write_in, read_out, read_error], (read_in, write_out, write_error)


def _close(ends: Sequence[int] | set[int]) -> None:
    for end in ends:
        os.close(end)
