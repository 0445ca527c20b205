"""One node's supervisor: outlives the launcher, because only a parent learns how a process ended.

Started by ``node_client.py``, one for each (virtual) node:

    python -I -S supervisor.py NODE_FOLDER WORK_FOLDER IDLE_SECONDS KEEP_SECONDS [UID:GID:GID,...]

It detaches, takes the node folder's lock (a second one leaves at once, content), ends what a dead
predecessor left, and serves JSON lines on ``NODE_FOLDER/socket``. One launcher commands it: the one
with the highest epoch. With nothing to run and nobody connected it leaves after a while.
Standard library only, single-threaded, no site-packages.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/", 4)[0])

import ctypes
import json
import os
import selectors
import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, NoReturn

from services.launcher.runtimes.node import cgroups, proc, retention
from services.launcher.runtimes.node.journal import Journal, take_lock
from services.launcher.runtimes.node.ranks import EndedError, Ranks, RefusedError
from services.launcher.runtimes.node.spawn import Identity

PROTOCOL = 1
LINE_BYTES_MAX = 8 << 20
CONNECTIONS_MAX = 32
PR_SET_CHILD_SUBREAPER = 36
PEER_FORMAT = "3i"
PRUNE_SECONDS = 600.0


class Connection:
    """One launcher (or onlooker) that is connected."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.to_send = bytearray()
        self.commands = False


class Supervisor:
    """The server: everything happens in ``run``, one thing at a time."""

    def __init__(self, folder: str, ranks: Ranks, idle_seconds: float, keep_seconds: float) -> None:
        self.ranks = ranks
        self.folder = folder
        self.idle_seconds = idle_seconds
        self.keep_seconds = keep_seconds
        self.pruned_s = -inf
        self.epoch = 0
        self.leaving = False
        self.selector = selectors.DefaultSelector()
        self.connections: set[Connection] = set()
        self.listener = _listen(folder)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.wake, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector.register(self.wake, selectors.EVENT_READ, self._drain)
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._child_ended)
        signal.signal(signal.SIGTERM, self._leave_when_idle)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Serve until idle for long enough, or told to stop while nothing runs."""
        idle_since = time.monotonic()
        while True:
            over, delay_s = self.ranks.tend()
            if over:
                self._tell({"event": "changed"})
            if self.connections or self.ranks.running:
                idle_since = time.monotonic()
            if time.monotonic() - self.pruned_s >= PRUNE_SECONDS:
                self._prune()
            idle_s = time.monotonic() - idle_since
            if not self.ranks.running and (self.leaving or idle_s >= self.idle_seconds):
                return
            wait_s = self.idle_seconds - idle_s if delay_s is None else delay_s
            wait_s = min(wait_s, PRUNE_SECONDS)
            for key, mask in self.selector.select(max(0.0, wait_s)):
                key.data(key.fileobj, mask)

    def _prune(self) -> None:
        """Clear old output away; nothing depends on it."""
        self.pruned_s = time.monotonic()
        known = {run for run, _ in self.ranks.table}
        folder = self.ranks.runs_folder
        try:
            for run in retention.old_runs(folder, time.time() - self.keep_seconds):
                if run not in known:
                    retention.remove(f"{folder}/{run}")
        except OSError as error:
            # No reason to fall over: ranks depend on us.
            print(f"cannot clear old output away: {error}", file=sys.stderr)  # noqa: T201 - its log

    def close(self) -> None:
        """Take the socket and the control groups away; the lock goes with the process."""
        self.ranks.cgroups.close()
        os.unlink(f"{self.folder}/socket")  # noqa: PTH108 - small imports

    def _child_ended(self, *_: object) -> None:
        """The signal's number in the wake pipe is enough."""

    def _leave_when_idle(self, *_: object) -> None:
        self.leaving = True

    def _drain(self, fd: int, _mask: int) -> None:
        os.read(fd, 4096)

    def _accept(self, listener: socket.socket, _mask: int) -> None:
        try:
            sock, _ = listener.accept()
        except OSError as error:
            print(f"cannot accept: {error}", file=sys.stderr)  # noqa: T201 - its log
            return
        if len(self.connections) >= CONNECTIONS_MAX or not _is_ours(sock):
            sock.close()
            return
        sock.setblocking(False)
        connection = Connection(sock)
        self.connections.add(connection)
        serve = partial(self._serve, connection)
        self.selector.register(sock, selectors.EVENT_READ, serve)

    def _serve(self, connection: Connection, _sock: socket.socket, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                self._flush(connection)
            if mask & selectors.EVENT_READ:
                self._receive(connection)
        except (OSError, ValueError, KeyError, TypeError) as error:
            # A broken connection, or one that does not speak our language.
            print(f"connection dropped: {error!r}", file=sys.stderr)  # noqa: T201 - its log
            self._drop(connection)

    def _receive(self, connection: Connection) -> None:
        data = connection.sock.recv(1 << 18)
        if not data:
            self._drop(connection)
            return
        connection.received += data
        while (end := connection.received.find(b"\n")) >= 0:
            line = bytes(connection.received[:end])
            del connection.received[: end + 1]
            request = json.loads(line)
            answer = {"id": request["id"], **self._answer(connection, request)}
            self._send(connection, answer)
            if connection not in self.connections:
                return
        if len(connection.received) > LINE_BYTES_MAX:
            raise ValueError(f"a line of more than {LINE_BYTES_MAX} bytes")

    def _answer(self, connection: Connection, request: Mapping[str, Any]) -> Mapping[str, Any]:
        op = request["op"]
        if op == "list":
            return {"runs": self.ranks.listing()}
        if op == "hello":
            return self._hello(connection, int(request["epoch"]))
        if not connection.commands:
            return {"denied": "a newer leader commands this node"}
        try:
            self._command(op, request)
        except EndedError as refusal:
            return {"denied": str(refusal)}
        except (RefusedError, OSError) as refusal:
            return {"error": str(refusal)}
        return {}

    def _command(self, op: str, request: Mapping[str, Any]) -> None:
        if op == "launch":
            self.ranks.launch(request["run"], request["ranks"])
        elif op == "signal":
            self.ranks.signal(request["run"], int(request["signal"]))
        elif op == "end":
            self.ranks.end(request["run"])
        elif op == "forget":
            self.ranks.forget(request["run"])
        elif op == "stop":
            self.leaving = True
        else:
            raise RefusedError(f"no such operation: {op}")

    def _hello(self, connection: Connection, epoch: int) -> Mapping[str, Any]:
        if epoch < self.epoch:
            return {"denied": f"epoch {epoch} is over, {self.epoch} commands this node"}
        self.epoch, self.leaving = epoch, False
        for other in list(self.connections):
            # What it still had to say is of no account any more.
            if other is not connection and other.commands:
                self._drop(other)
        connection.commands = True
        return {
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "warnings": self.ranks.cgroups.warnings,
        }

    def _tell(self, message: Mapping[str, Any]) -> None:
        for connection in list(self.connections):
            try:
                self._send(connection, message)
            except OSError:
                self._drop(connection)

    def _send(self, connection: Connection, message: Mapping[str, Any]) -> None:
        connection.to_send += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        if len(connection.to_send) > LINE_BYTES_MAX:
            raise OSError("it does not read its answers")
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            sent = connection.sock.send(connection.to_send) if connection.to_send else 0
        except BlockingIOError:
            sent = 0
        del connection.to_send[:sent]
        wants = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.to_send else 0)
        key = self.selector.get_key(connection.sock)
        if key.events != wants:
            self.selector.modify(connection.sock, wants, key.data)

    def _drop(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self.selector.unregister(connection.sock)
            connection.sock.close()


def _listen(folder: str) -> socket.socket:
    """A socket for our user alone. It is bound by way of the folder's descriptor, because a
    socket's path may have 107 bytes and a folder's may be longer."""
    path = f"{folder}/socket"
    if os.path.lexists(path):
        os.unlink(path)  # noqa: PTH108 - small imports
    holder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(f"/proc/self/fd/{holder}/socket")
    finally:
        os.umask(mask)
        os.close(holder)
    listener.listen(CONNECTIONS_MAX)
    listener.setblocking(False)
    return listener


def _is_ours(sock: socket.socket) -> bool:
    size = struct.calcsize(PEER_FORMAT)
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return struct.unpack(PEER_FORMAT, raw)[1] in (0, os.getuid())


def _become_subreaper() -> None:
    """Orphans among the ranks' processes come to us instead of to the first process."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def _identity(text: str) -> Identity:
    uid, gid, groups = text.split(":")
    return Identity(int(uid), int(gid), [int(group) for group in groups.split(",") if group])


def _serve_node(arguments: Sequence[str], ready: int) -> None:
    folder, work_folder, idle_seconds, keep_seconds, *user = arguments
    lock = take_lock(folder, proc.signature(os.getpid()))
    if lock is None:
        os.write(ready, b"+")
        return
    _become_subreaper()
    # The name has the lock's inode in it, so that no two nodes can meet in one group.
    name = f"shiftwork-{os.path.basename(folder)}-{os.fstat(lock).st_ino}"  # noqa: PTH119 - small imports
    ranks = Ranks(
        runs_folder=f"{folder}/runs",
        work_folder=work_folder,
        journal=Journal(folder),
        cgroups=cgroups.find(name),
        now=time.time,
        identity=_identity(user[0]) if user else None,
    )
    supervisor = Supervisor(folder, ranks, float(idle_seconds), float(keep_seconds))
    os.write(ready, b"+")
    os.close(ready)
    supervisor.run()
    supervisor.close()


def main() -> NoReturn:
    """Detach and serve. The first process returns 0 once somebody serves the node, else 1."""
    heard, ready = os.pipe()
    if os.fork() != 0:
        os.close(ready)
        os._exit(0 if os.read(heard, 1) else 1)
    os.setsid()
    os.close(heard)
    code = 1
    try:
        _serve_node(sys.argv[1:], ready)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the last words of a program of its own
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
