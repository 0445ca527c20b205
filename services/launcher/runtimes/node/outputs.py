"""Manages the pipes into which ranks write, and the process that copies them into files.

Used by ``ranks.py``. The writer is ``output_writer.py``; one that ends is started again, and what
stands in the pipes meanwhile stays, because their reading ends are open here as well. Each rank
holds its pipe for reading, too, so that a write never finds a pipe without readers and SIGPIPE ends
no rank, whichever process of ours lives.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from services.launcher.runtimes.node.output_writer import MESSAGE_BYTES_MAX, PIPE, open_pipe
from services.launcher.runtimes.node.supervisor_log import report

PROGRAM = f"{os.path.dirname(os.path.abspath(__file__))}/output_writer.py"  # noqa: PTH100, PTH120 - small imports
START_AGAIN_SECONDS = 1.0


class Outputs:
    """The outputs of a node's ranks, by number. ``watch`` is called with the
    socket of each new writer: ``poll`` has something to do when it is readable."""

    def __init__(self, folder: str, bytes_max: int) -> None:
        self._folder, self._bytes_max = folder, bytes_max
        self._channel: socket.socket | None = None
        self.writer_pid = 0
        self._start_at_s = 0.0
        self._to_send: deque[bytes] = deque()
        # By number: the folder and the reading end (-1 where there is no pipe) of each output that
        # is not finished.
        self._open: dict[int, tuple[str, int]] = {}
        self._last = 0
        # Those that the writer was asked to finish; True: at once, because the run is ended.
        self._finishing: dict[int, bool] = {}
        self.watch: Callable[[socket.socket], None] = lambda _: None

    def create(self, folder: str) -> tuple[int, int]:
        """Make a rank's pipe; the number of its output, and the end for the rank, which the caller
        closes. The writer begins to read at once."""
        path = f"{folder}/{PIPE}"
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108 - as above
        os.mkfifo(path, 0o600)
        end = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        return self._add(folder, resumed=False), end

    def adopt(self, folder: str) -> int:
        """Take over the output of a rank that an earlier supervisor started; its number. The pipe
        is there unless a writer has finished it, or there never was one."""
        return self._add(folder, resumed=True)

    def finish(self, number: int, *, ending: bool = True) -> bool:
        """Whether all output of a rank without processes is in its file. The first call requests
        this of the writer; call it again after ``poll``. ``ending``: the run is to end, so it does
        not wait for space on a full disk."""
        if number in self._open and self._finishing.get(number) not in (ending, True):
            self._finishing[number] = ending
            self._send({"op": "finish", "id": number, "ending": ending})
        return number not in self._open

    def _add(self, folder: str, *, resumed: bool) -> int:
        reader = -1
        try:
            reader = open_pipe(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            report(f"the output in {folder} is lost: {error}")
        self._last += 1
        self._open[self._last] = folder, reader
        self._send({"op": "open", "id": self._last, "folder": folder, "resumed": resumed})
        return self._last

    def poll(self) -> float | None:
        """Read the writer's messages, and restart it if it has ended. Returns in how many seconds
        to call again at the latest, if that matters."""
        self._flush()
        while self._channel is not None:
            try:
                message = self._channel.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                break
            except OSError:
                message = b""
            if message:
                self._finished(json.loads(message)["id"])
            else:
                self._writer_ended()
        if self._channel is None and self._open:
            if time.monotonic() < self._start_at_s:
                return START_AGAIN_SECONDS
            self._start()
        return 0.01 if self._to_send else None

    def close(self) -> None:
        """Let the writer leave."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _finished(self, number: int) -> None:
        self._finishing.pop(number, None)
        _, reader = self._open.pop(number, ("", -1))
        if reader >= 0:
            os.close(reader)

    def _writer_ended(self) -> None:
        report("the writer of output has ended; it is started again")
        self.close()
        with suppress(OSError):
            # It may be hung up and yet alive; two must not read one pipe.
            os.kill(self.writer_pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.writer_pid, 0)
        self.writer_pid = 0
        self._start_at_s = time.monotonic() + START_AGAIN_SECONDS

    def _start(self) -> None:
        """Start the writer and send it all outputs. If that fails, a later call tries again; ranks
        wait with full pipes meanwhile."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.writer_pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", PROGRAM],
                {},
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
                setsid=True,
                setsigdef=[signal.SIGPIPE],
            )
        except OSError as error:
            report(f"cannot start the writer of output: {error}")
            ours.close()
            self._start_at_s = time.monotonic() + START_AGAIN_SECONDS
            return
        finally:
            theirs.close()
        ours.setblocking(False)
        self._channel = ours
        self.watch(ours)
        # An output that no former writer has opened is not resumed.
        orders = [json.loads(text) for text in self._to_send]
        new = {order["id"] for order in orders if order["op"] == "open" and not order["resumed"]}
        self._to_send.clear()
        self._send({"op": "begin", "folder": self._folder, "bytes_max": self._bytes_max})
        for number, (folder, _) in self._open.items():
            resumed = number not in new
            self._send({"op": "open", "id": number, "folder": folder, "resumed": resumed})
        for number, ending in self._finishing.items():
            self._send({"op": "finish", "id": number, "ending": ending})

    def _send(self, order: Mapping[str, Any]) -> None:
        self._to_send.append(json.dumps(order).encode())
        self._flush()

    def _flush(self) -> None:
        while self._channel is not None and self._to_send:
            try:
                self._channel.send(self._to_send[0])
            except BlockingIOError:
                return
            except OSError:
                # It has ended; ``poll`` finds that out.
                return
            self._to_send.popleft()
