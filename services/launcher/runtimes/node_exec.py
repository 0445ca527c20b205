"""Commands inside ranks of the process runtime: the launcher's side of a session with a node's
supervisor (``node/exec_sessions.py``). Used by ``process.py``.

Each session has a connection of its own. The supervisor answers on it with the open ends of the
command's streams and, later, with how the command ended. Closing it ends the session, also when the
launcher is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pwd
import socket
import struct
import termios
from collections.abc import AsyncGenerator, Iterable, Mapping
from pathlib import Path
from typing import Any

from libs.contracts.messages import ExecEnd, ExecStream
from services.launcher.runtimes.exec_port import READ_BYTES, ExecOrder, ExecRefusedError
from services.launcher.runtimes.port import RuntimeUnavailableError

ANSWER_BYTES_MAX = 64 * 1024
FALLBACK_SHELL = "sh"
# Shells of accounts that nobody logs in to.
NO_SHELLS = frozenset({"nologin", "false", "sync", "halt", "shutdown"})


class NodeExec:
    """``exec_port.ExecProcess`` of a rank on this machine. ``ends`` are the streams' open ends: one
    of a terminal, else those of standard input, output and error."""

    def __init__(self, link: socket.socket, ends: list[int]) -> None:
        self._link = link
        self._terminal = len(ends) == 1
        outputs = (ends[0],) if self._terminal else ends[1:]
        self._outputs = dict(zip(outputs, (ExecStream.STDOUT, ExecStream.STDERR), strict=False))
        self._input: int | None = ends[0]
        self._received = b""
        for end in ends:
            os.set_blocking(end, False)
        link.setblocking(False)

    async def read(self) -> tuple[ExecStream, bytes] | None:
        """See ``exec_port.ExecProcess``."""
        while self._outputs:
            for end, stream in list(self._outputs.items()):
                try:
                    data = os.read(end, READ_BYTES)
                except BlockingIOError:
                    continue
                except OSError:
                    # A terminal that no process has open any more.
                    data = b""
                if data:
                    # The other stream is first the next time.
                    self._outputs[end] = self._outputs.pop(end)
                    return stream, data
                self._forget_output(end)
            if self._outputs:
                await _ready(self._outputs)
        return None

    async def write(self, data: bytes) -> None:
        """See ``exec_port.ExecProcess``."""
        while data and self._input is not None:
            try:
                data = data[os.write(self._input, data) :]
            except BlockingIOError:
                await _ready([self._input], to_write=True)
            except OSError:
                # Nobody reads it any more.
                return

    async def close_input(self) -> None:
        """See ``exec_port.ExecProcess``. A terminal's input ends with a character of its own."""
        if not self._terminal and self._input is not None:
            os.close(self._input)
            self._input = None

    async def resize(self, rows: int, columns: int) -> None:
        """See ``exec_port.ExecProcess``. The kernel signals it to the foreground processes."""
        if self._terminal and self._input is not None:
            size = struct.pack("4H", rows, columns, 0, 0)
            with contextlib.suppress(OSError):
                fcntl.ioctl(self._input, termios.TIOCSWINSZ, size)

    async def wait(self) -> ExecEnd:
        """See ``exec_port.ExecProcess``."""
        while b"\n" not in self._received:
            try:
                data = self._link.recv(ANSWER_BYTES_MAX)
            except BlockingIOError:
                await _ready([self._link.fileno()])
                continue
            except OSError:
                data = b""
            if not data:
                return ExecEnd(problem="the supervisor of its node ended")
            self._received += data
        status: Mapping[str, Any] = json.loads(self._received)["exit"]
        return ExecEnd(code=status["code"] if "code" in status else 128 + status["signal"])

    def close(self) -> None:
        """Hang up: the supervisor ends what is left."""
        if self._input is not None and self._input not in self._outputs:
            os.close(self._input)
        self._input = None
        for end in list(self._outputs):
            self._forget_output(end)
        self._link.close()

    def _forget_output(self, end: int) -> None:
        del self._outputs[end]
        if end == self._input:
            self._input = None
        os.close(end)


@contextlib.asynccontextmanager
async def open_node_exec(
    folder: Path, epoch: int, order: ExecOrder, shell: str, seconds: float
) -> AsyncGenerator[NodeExec]:
    """Open a session with the supervisor of a node's folder; see ``exec_port.ExecRuntime``."""
    request = {
        "id": 1,
        "op": "exec",
        "epoch": epoch,
        "name": order.session,
        "run": str(order.run_id),
        "rank": order.place.rank,
        "argv": order.argv or (shell,),
        "env": {"TERM": order.term} if order.terminal and order.term else {},
        "terminal": order.terminal,
        "rows": order.rows,
        "columns": order.columns,
    }
    link, ends = await asyncio.to_thread(_opened, folder, request, seconds)
    process = NodeExec(link, ends)
    try:
        yield process
    finally:
        process.close()


def _opened(
    folder: Path, request: Mapping[str, Any], seconds: float
) -> tuple[socket.socket, list[int]]:
    """Ask the supervisor, in a thread; the connection and the open ends of the streams."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    ends: list[int] = []
    try:
        link.settimeout(seconds)
        # By way of the folder's descriptor: a socket's path may have 107 bytes only.
        holder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            link.connect(f"/proc/self/fd/{holder}/socket")
        finally:
            os.close(holder)
        link.sendall(json.dumps(request).encode() + b"\n")
        raw, ends, _, _ = socket.recv_fds(link, ANSWER_BYTES_MAX, 3)
        answer: Mapping[str, Any] = json.loads(raw) if raw else {"denied": "it hung up"}
        _raise_refused(answer)
    except (OSError, ValueError) as problem:
        _abandon(link, ends)
        raise RuntimeUnavailableError(f"its node's supervisor does not answer: {problem}") from None
    except BaseException:
        _abandon(link, ends)
        raise
    return link, ends


def _raise_refused(answer: Mapping[str, Any]) -> None:
    if "error" in answer:
        raise ExecRefusedError(str(answer["error"]))
    if "denied" in answer:
        later = "a supervisor of an earlier version runs no commands and ends with its runs"
        raise RuntimeUnavailableError(f"{answer['denied']}, or {later}")


def _abandon(link: socket.socket, ends: list[int]) -> None:
    link.close()
    for end in ends:
        os.close(end)


def shell_of(uid: int) -> str:
    """The shell of a user's account; ``sh`` for a user without an account or with none to use."""
    try:
        shell = pwd.getpwuid(uid).pw_shell
    except KeyError:
        return FALLBACK_SHELL
    usable = Path(shell).name not in NO_SHELLS and os.access(shell, os.X_OK)
    return shell if shell and usable else FALLBACK_SHELL


async def _ready(ends: Iterable[int], *, to_write: bool = False) -> None:
    """Wait until one of these open files can be read, or written."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def found() -> None:
        if not ready.done():
            ready.set_result(None)

    watched = list(ends)
    watch = loop.add_writer if to_write else loop.add_reader
    forget = loop.remove_writer if to_write else loop.remove_reader
    try:
        for end in watched:
            watch(end, found)
        await ready
    finally:
        for end in watched:
            forget(end)
