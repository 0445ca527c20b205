"""Writes ranks' output from their pipes to their files: one process for each node.

Started by ``outputs.py`` with a socket to the supervisor as standard input. It is a process of its
own because ranks must be able to go on writing whatever happens to the supervisor: without the
supervisor it goes on until nothing can write into its pipes any more, and then leaves. A rank
therefore never writes to a file itself, cannot truncate it by opening ``/dev/stderr``, and cannot
fill the disk: output beyond ``bytes_max``, or without disk space, is dropped, and a note in the
output reports it. A slow disk makes ranks wait; it loses nothing. The values of a rank's secrets,
which its folder names, are masked before anything is written.

A rank that runs as our user can put anything in the place of its pipe and its file, or remove both.
Then only its own output is lost, which the log reports.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/", 5)[0])

import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import termios
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast

from libs.service.disk import spare_problem
from libs.service.masking import Masker, secret_forms
from services.launcher.runtimes.node import proc
from services.launcher.runtimes.node.journal import take_lock
from services.launcher.runtimes.node.supervisor_log import report

PIPE, FILE, SECRETS = "output.pipe", "output.log", "secrets.json"
READ_BYTES_MAX = 1 << 16
MESSAGE_BYTES_MAX = 1 << 16
# No environment is larger.
SECRETS_BYTES_MAX = 8 << 20
# The time for a predecessor without a supervisor to exit.
PREDECESSOR_SECONDS = 5.0
POLL_SECONDS = 0.5
# How long one or two letters with which a secret begins wait for what follows.
HELD_SECONDS = 0.25
# How long an output that is over waits for disk space for the note about missing bytes.
ROOM_SECONDS = 60.0
FULL = (errno.ENOSPC, errno.EDQUOT)
LIMIT = "the limit of {} bytes is reached; what follows is not kept"
LOST = "{} bytes of output are missing here: {}"
BROKEN = "what follows is not kept: {}"
RESUMED = "output may be missing here: the process that writes it was killed"
CUT = "this file was cut to {} bytes, not by the platform; what was not collected before is missing"


def open_pipe(folder: str) -> int:
    """The reading end of a rank's pipe. OSError if what is there now is none."""
    return _opened(f"{folder}/{PIPE}", os.O_RDONLY, stat.S_ISFIFO, "the pipe was replaced")


def open_file(folder: str) -> int:
    """The file of a rank's output. OSError if what is there is none."""
    flags = os.O_WRONLY | os.O_CREAT
    return _opened(f"{folder}/{FILE}", flags, stat.S_ISREG, "the file was replaced")


def secret_values(folder: str) -> list[str]:
    """The values of a rank's secrets, which the supervisor has written there. OSError or ValueError
    if they cannot be read."""
    try:
        fd = _opened(f"{folder}/{SECRETS}", os.O_RDONLY, stat.S_ISREG, "the secrets were replaced")
    except FileNotFoundError:
        return []
    with os.fdopen(fd, "rb") as file:
        text = file.read(SECRETS_BYTES_MAX)
    try:
        values: object = json.loads(text)
    except RecursionError:
        raise ValueError("lists in lists without end") from None
    if not isinstance(values, list):
        raise ValueError("no list")  # noqa: TRY004 - what the file holds, not what a caller gave
    return [str(value) for value in cast("list[object]", values)]


def _opened(path: str, flags: int, is_right: Callable[[int], bool], otherwise: str) -> int:
    """Opening never waits: a pipe in the place of a file would have no reader."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    if not is_right(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, otherwise)
    return fd


class Output:
    """One rank's output. ``folder`` holds its pipe and its file."""

    def __init__(self, folder: str, bytes_max: int, *, resumed: bool) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        # -1: it has ended.
        self.pipe = -1
        self.finishing = False
        # The time at which the last notes stop waiting for disk space; None: it has not ended.
        self.gives_up_s: float | None = None
        # There never was a pipe, or it is finished.
        self.over = False
        self._file = -1
        self._size = 0
        self._in_line = False
        self._full = False
        # Bytes that could not be written since the last one that could, and why.
        self._lost, self._why = 0, ""
        # Notes that still have to be written.
        self._notes: list[str] = []
        self._masker: Masker | None = None
        self._read_at_s = 0.0
        try:
            self.pipe = open_pipe(folder)
            self._masker = _masker(folder, resumed=resumed)
            if resumed:
                self._notes.append(RESUMED)
        except FileNotFoundError:
            self.over = True
        except OSError as error:
            self.lose(error)

    @property
    def holds(self) -> bool:
        """Whether ``release`` has something, now or soon."""
        return self._masker is not None and self._masker.may_release

    def release(self) -> None:
        """Write what is held back and tells nothing of a secret, if nothing followed for a
        while."""
        if self._masker and self.holds and time.monotonic() - self._read_at_s >= HELD_SECONDS:
            self.write(self._masker.release())

    def copy(self, bytes_max: int = READ_BYTES_MAX) -> int:
        """Move what is in the pipe to the file; the number of bytes. At the end of the pipe it is
        closed and removed."""
        try:
            data = os.read(self.pipe, bytes_max)
        except BlockingIOError:
            return 0
        if not data:
            self.close_pipe()
        elif self._masker is None:
            self.write(data)
        else:
            self._read_at_s = time.monotonic()
            if masked := self._masker.feed(data):
                self.write(masked)
        return len(data)

    def drain(self) -> None:
        """Move what is in the pipe now, and close it: nothing of the rank is left, so a process
        that still writes into it does not belong to it."""
        if self.pipe < 0:
            return
        left = _bytes_in(self.pipe)
        while left > 0 and self.pipe >= 0 and (count := self.copy(min(left, READ_BYTES_MAX))):
            left -= count
        self.close_pipe()

    def write(self, data: bytes) -> None:
        """Append to the file, or count what could not be."""
        if self._full:
            return
        if self._size + len(data) > self.bytes_max:
            data = data[: self.bytes_max - self._size]
            self._full = True
        try:
            self._check_file()
            problem = spare_problem(self._file)
            if problem:
                self._lose(data, problem)
            else:
                self.settle()
                done = self._put(data)
                if done < len(data):
                    self._lose(data[done:], os.strerror(errno.ENOSPC))
        except OSError as error:
            self._lose(data, error.strerror or str(error))
        if self._full:
            self._notes.append(LIMIT.format(self.bytes_max))
            with suppress(OSError):
                self.settle()

    def settle(self) -> None:
        """Write the notes about missing bytes. Raises ``OSError`` if that is impossible now."""
        self._check_file()
        if self._lost:
            self._write_note(LOST.format(self._lost, self._why))
            self._lost, self._why = 0, ""
        while self._notes:
            self._write_note(self._notes[0])
            del self._notes[0]

    def lose(self, error: OSError) -> None:
        """Give it up, with a note in its file."""
        report(f"the output in {self.folder} is lost: {error}")
        self._flush()
        self._notes.append(BROKEN.format(error.strerror or error))
        self.close_pipe()

    def close_pipe(self) -> None:
        """Read no more."""
        self._flush()
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1
            for name in (PIPE, SECRETS):
                with suppress(OSError):
                    os.unlink(f"{self.folder}/{name}")  # noqa: PTH108 - small imports

    def close(self) -> None:
        """Close the pipe and the file."""
        self.close_pipe()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _flush(self) -> None:
        """Write what was held back as the beginning of a secret."""
        if self._masker is not None and (rest := self._masker.flush()):
            self.write(rest)

    def _lose(self, data: bytes, why: str) -> None:
        self._lost += len(data)
        self._why = why

    def _write_note(self, text: str) -> None:
        """Write a note as a whole line. Raises ``OSError`` and writes nothing if the disk is
        full."""
        line = f"[shiftwork: {text}]\n".encode(errors="replace")
        before = self._size, self._in_line
        if self._in_line:
            line = b"\n" + line
        if self._put(line) < len(line):
            self._size, self._in_line = before
            os.ftruncate(self._file, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _put(self, data: bytes) -> int:
        """Append as much as the disk takes; the number of bytes. OSError if it takes none."""
        done = 0
        while done < len(data):
            try:
                done += os.pwrite(self._file, data[done:], self._size + done)
            except OSError:
                if not done:
                    raise
                break
        self._size += done
        self._in_line = not data[:done].endswith(b"\n")
        return done

    def _check_file(self) -> None:
        """Open the file, and notice if it was truncated or removed: bytes that were not collected
        are gone, and offsets must stay what they were."""
        if self._file < 0:
            self._file = open_file(self.folder)
            self._size = os.fstat(self._file).st_size
            return
        found = os.fstat(self._file)
        if found.st_nlink == 0:
            fresh = open_file(self.folder)
            os.close(self._file)
            self._file = fresh
            found = os.fstat(fresh)
        if found.st_size < self._size:
            self._notes.append(CUT.format(found.st_size))
            os.ftruncate(self._file, self._size)


def _masker(folder: str, *, resumed: bool) -> Masker | None:
    """What masks the secrets of a rank; None if it has none. OSError if they cannot be read: its
    output is not written then."""
    try:
        forms = secret_forms(secret_values(folder))
    except ValueError as error:
        raise OSError(errno.EINVAL, f"the secrets are damaged: {error!r}") from None
    return Masker(forms, resumed=resumed) if forms else None


class Writer:
    """All outputs of a node. ``channel`` leads to the supervisor; None once that is gone."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel: socket.socket | None = channel
        self.outputs: dict[int, Output] = {}
        self.bytes_max = 0
        self.poll = select.epoll()
        self.by_pipe: dict[int, Output] = {}

    def run(self) -> None:
        """Serve until the supervisor is gone and every pipe has ended."""
        assert self.channel is not None, "a writer begins with its supervisor"
        control = self.channel.fileno()
        self.poll.register(control, select.EPOLLIN)
        while self._has_supervisor() or self.outputs:
            waits = not self._has_supervisor() or any(
                output.pipe < 0 or output.holds for output in self.outputs.values()
            )
            for fd, _ in self.poll.poll(POLL_SECONDS if waits else None):
                if fd == control:
                    self._receive()
                elif (output := self.by_pipe.get(fd)) is not None:
                    self._copy(output)
            for number, output in list(self.outputs.items()):
                output.release()
                if output.finishing or output.pipe < 0 or not self._has_supervisor():
                    self._tend(number, output)

    def _has_supervisor(self) -> bool:
        """Whether the supervisor is still there."""
        return self.channel is not None

    def _receive(self) -> None:
        assert self.channel is not None, "it is registered only while it is there"
        message = self.channel.recv(MESSAGE_BYTES_MAX)
        if not message:
            self.poll.unregister(self.channel.fileno())
            self.channel.close()
            self.channel = None
            return
        self._handle(json.loads(message))

    def _handle(self, order: Mapping[str, Any]) -> None:
        if order["op"] == "begin":
            self.bytes_max = order["bytes_max"]
            _take_over(order["folder"])
        elif order["op"] == "open":
            self._open(order["id"], order["folder"], resumed=order["resumed"])
        elif order["op"] == "finish":
            output = self.outputs.get(order["id"])
            if output is None:
                # It has ended already.
                self._report_finished(order["id"])
            else:
                output.finishing = True
                if order["ending"]:
                    output.gives_up_s = time.monotonic()

    def _open(self, number: int, folder: str, *, resumed: bool) -> None:
        output = Output(folder, self.bytes_max, resumed=resumed)
        if output.over:
            return
        self.outputs[number] = output
        if output.pipe >= 0:
            self.by_pipe[output.pipe] = output
            self.poll.register(output.pipe, select.EPOLLIN)

    def _copy(self, output: Output) -> None:
        pipe = output.pipe
        try:
            output.copy()
        except OSError as error:
            output.lose(error)
        if output.pipe < 0:
            del self.by_pipe[pipe]

    def _tend(self, number: int, output: Output) -> None:
        """Forget an output that is over, once the file has its notes."""
        pipe = output.pipe
        # Without our supervisor, its successor removes the pipe when it is done with the rank.
        orphaned = self.channel is None and not os.path.lexists(f"{output.folder}/{PIPE}")
        if output.finishing or orphaned:
            try:
                output.drain()
            except OSError as error:
                output.lose(error)
        if output.pipe >= 0:
            return
        self.by_pipe.pop(pipe, None)
        if not self._settle(output):
            return
        output.close()
        del self.outputs[number]
        if output.finishing:
            self._report_finished(number)

    def _settle(self, output: Output) -> bool:
        """Write what the output still needs. Returns False if the disk is full: the line about the
        missing bytes is worth waiting for, but not for ever, and an ended run does not wait."""
        if output.gives_up_s is None:
            output.gives_up_s = time.monotonic() + ROOM_SECONDS
        try:
            output.settle()
        except OSError as error:
            if error.errno in FULL and time.monotonic() < output.gives_up_s:
                return False
            report(f"the output in {output.folder} ends without its last lines: {error}")
        return True

    def _report_finished(self, number: int) -> None:
        if self.channel is not None:
            with suppress(OSError):
                self.channel.send(json.dumps({"id": number}).encode())


def _take_over(node_folder: str) -> None:
    """Wait until the node's former writer, whose supervisor is dead, has left: two must not read
    one pipe. One that stays (a process that cannot be ended has its pipe) is killed."""
    path = f"{node_folder}/output.lock"
    ends_s = time.monotonic() + PREDECESSOR_SECONDS
    while take_lock(path, proc.signature(os.getpid())) is None:
        if time.monotonic() > ends_s:
            with open(path, encoding="ascii") as file:  # noqa: PTH123 - small imports
                holder = proc.by_signature(file.read())
            if holder is not None:
                proc.kill(holder)
        time.sleep(0.01)


def _bytes_in(pipe: int) -> int:
    raw = fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4)
    return int(struct.unpack("i", raw)[0])


def main() -> None:
    """Serve the supervisor at standard input."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # It ends with what it writes for, not before.
        signal.signal(number, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    Writer(socket.socket(fileno=0)).run()


if __name__ == "__main__":
    main()
