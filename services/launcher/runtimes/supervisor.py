"""One node's supervisor: outlives the launcher, because only a parent learns how a process ended.

Started by ``node_client.py``, one for each (virtual) node:

    python -I -S supervisor.py NODE_FOLDER WORK_FOLDER OPTIONS

``OPTIONS`` is a JSON object: see ``Options``. It detaches, takes the node folder's lock (a second
one leaves at once, content), ends what a dead predecessor left, and serves JSON lines on
``NODE_FOLDER/socket``. One launcher commands it: the one with the highest epoch, also after a
restart. Without ranks and connections it exits after a while.

Standard library only, no site-packages. Everything happens in one thread, which never waits for
the disk: the journal has a thread of its own, the ranks' output a process (``output_writer.py``),
and an order is answered when its record is on disk, while others are served.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.insert(0, __file__.rsplit("/", 4)[0])

import _thread
import ctypes
import json
import os
import resource
import selectors
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, NoReturn

from libs.service.deletion_limit import DAY_SECONDS, DeletionLimit
from services.launcher.runtimes.node import cgroups, proc
from services.launcher.runtimes.node.journal import Journal, take_lock
from services.launcher.runtimes.node.outputs import Outputs
from services.launcher.runtimes.node.ranks import EndedError, Ranks, RefusedError
from services.launcher.runtimes.node.supervisor_log import report

# 2: each rank's order names the user that it runs as. 3: and its files beside the context. 4: and
# how often it was restarted, with a notice for its output. 5: and which of its variables are
# secrets, whose values are masked in its output.
PROTOCOL = 5
LINE_BYTES_MAX = 8 << 20
CONNECTIONS_MAX = 32
PR_SET_CHILD_SUBREAPER = 36
PEER_FORMAT = "3i"
PRUNE_SECONDS = 600.0


@dataclass(frozen=True)
class Options:
    """The supervisor's options from the command line."""

    # Without work and connections it exits after this.
    idle_seconds: float
    # The output of a forgotten run is kept so long after its last byte; None: for ever.
    keep_seconds: float | None
    # So much of one rank's output goes into its file.
    output_bytes_max: int
    # Processes and threads of one rank; of one user where control groups cannot limit them.
    pids_max: int


class Connection:
    """One connected client: a launcher, or an observer."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.to_send = bytearray()
        self.commands = False
        # It belongs to a session in a rank, and is sent nothing else.
        self.of_session = False


class Supervisor:
    """The server: everything happens in ``run``, one thing at a time."""

    def __init__(self, folder: str, ranks: Ranks, options: Options) -> None:
        self.ranks = ranks
        self.folder = folder
        self.idle_seconds = options.idle_seconds
        self.keep_seconds = options.keep_seconds
        # Bounds deletions, because the node's clock may jump.
        self.limit = DeletionLimit()
        self.pruned_s = -inf
        self.leaving = False
        self.selector = selectors.DefaultSelector()
        self.connections: set[Connection] = set()
        self.listener = _listen(folder)
        self.selector.register(self.listener, selectors.EVENT_READ, self._accept)
        self.wake, wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector.register(self.wake, selectors.EVENT_READ, self._drain)
        self.wake_writer = wake_writer
        ranks.journal.wake = self._wake
        ranks.outputs.watch = self._watch
        signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._child_ended)
        signal.signal(signal.SIGTERM, self._leave_when_idle)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def run(self) -> None:
        """Serve until idle for long enough, or until a stop order while nothing runs."""
        idle_since = time.monotonic()
        while True:
            over, delay_s = self.ranks.tend()
            if over:
                self._broadcast({"event": "changed"})
            if self.connections or self.ranks.running:
                idle_since = time.monotonic()
            if time.monotonic() - self.pruned_s >= PRUNE_SECONDS:
                self._prune()
            idle_s = time.monotonic() - idle_since
            busy = self.ranks.running or not self.ranks.journal.idle
            if not busy and (self.leaving or idle_s >= self.idle_seconds):
                return
            wait_s = self.idle_seconds - idle_s if delay_s is None else delay_s
            wait_s = min(wait_s, PRUNE_SECONDS)
            for key, mask in self.selector.select(max(0.0, wait_s)):
                key.data(key.fileobj, mask)

    def _prune(self) -> None:
        """Clear old output away, beside everything else: nothing depends on it, and it may take
        a while."""
        self.pruned_s = time.monotonic()
        if self.keep_seconds is not None:
            known = frozenset(run for run, _ in self.ranks.table)
            wanted = time.time() - self.keep_seconds
            given = (self.ranks.runs_folder, wanted, known, self.limit)
            _thread.start_new_thread(_clear_away, given)

    def _wake(self) -> None:
        """Wake ``run``; called from another thread."""
        with suppress(BlockingIOError):
            # A full pipe wakes it as well.
            os.write(self.wake_writer, b"!")

    def _watch(self, writer: socket.socket) -> None:
        """The former writer's socket left the selector when it was closed."""
        for key in list(self.selector.get_map().values()):
            if key.data == self._writer_readable:
                self.selector.unregister(key.fileobj)
        self.selector.register(writer, selectors.EVENT_READ, self._writer_readable)

    def _writer_readable(self, *_: object) -> None:
        """Nothing to do here: ``tend`` polls the writer."""

    def close(self) -> None:
        """Take the socket and the control groups away; the lock goes with the process."""
        self.ranks.cgroups.close()
        self.ranks.outputs.close()
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
            report(f"cannot accept: {error}")
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
            # A broken connection, or one with another protocol.
            report(f"connection dropped: {error!r}")
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
            serve = self._open_session if request["op"] == "exec" else self._serve_request
            serve(connection, request)
            if connection not in self.connections:
                return
        if len(connection.received) > LINE_BYTES_MAX:
            raise ValueError(f"a line of more than {LINE_BYTES_MAX} bytes")

    def _serve_request(self, connection: Connection, request: Mapping[str, Any]) -> None:
        number, op = request["id"], request["op"]

        def answer(found: Mapping[str, Any]) -> None:
            self._send(connection, {"id": number, **found})

        def done(refusal: RefusedError | None) -> None:
            """Called when the disk has answered; the connection may be gone."""
            if connection in self.connections:
                try:
                    answer(_reply_to(refusal))
                except OSError:
                    self._drop(connection)

        if op == "list":
            answer({"runs": self.ranks.listing()})
        elif op == "hello":
            answer(self._hello(connection, int(request["epoch"])))
        elif not connection.commands:
            answer({"denied": "a newer leader commands this node"})
        else:
            try:
                self._command(op, request, done)
            except RefusedError as refusal:
                answer(_reply_to(refusal))
            except OSError as problem:
                answer({"error": str(problem)})

    def _command(
        self, op: str, request: Mapping[str, Any], done: Callable[[RefusedError | None], None]
    ) -> None:
        """Carry out an order; ``done`` is called once it is carried out for good."""
        if op == "launch":
            self.ranks.launch(request["run"], request["ranks"], done)
        elif op == "end":
            grace_s = float(request.get("grace", 0.0))
            self.ranks.end(request["run"], done, request.get("ranks"), grace_s)
        elif op == "forget":
            self.ranks.forget(request["run"], done)
        elif op == "signal":
            self.ranks.signal(request["run"], int(request["signal"]))
            done(None)
        elif op == "stop":
            self.leaving = True
            done(None)
        else:
            raise RefusedError(f"no such operation: {op}")

    def _open_session(self, connection: Connection, request: Mapping[str, Any]) -> None:
        """Start a command in a rank. Its streams go back with the answer; its end follows on the
        same connection, and the end of the connection ends it."""
        number, connection.of_session = request["id"], True
        if int(request["epoch"]) != self.ranks.epoch:
            self._send(connection, {"id": number, "denied": "another leader commands this node"})
            return

        def done(status: Mapping[str, Any]) -> None:
            if connection in self.connections:
                try:
                    self._send(connection, {"exit": status})
                except OSError:
                    self._drop(connection)

        try:
            ends = self.ranks.open_session(request, connection, done)
        except (RefusedError, OSError) as problem:
            self._send(connection, {"id": number, "error": str(problem)})
            return
        try:
            socket.send_fds(connection.sock, [json.dumps({"id": number}).encode() + b"\n"], ends)
        finally:
            for end in ends:
                os.close(end)

    def _hello(self, connection: Connection, epoch: int) -> Mapping[str, Any]:
        if epoch < self.ranks.epoch:
            return {
                "denied": f"epoch {epoch} is over, {self.ranks.epoch} commands this node",
                "epoch": self.ranks.epoch,
            }
        if epoch > self.ranks.epoch:
            # Sessions belong to the launcher that led before.
            self.ranks.sessions.end_with(None)
            self.ranks.commanded_by(epoch)
        self.leaving = False
        for other in list(self.connections):
            # Its further orders no longer count.
            if other is not connection and other.commands:
                self._drop(other)
        connection.commands = True
        return {
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "warnings": self.ranks.cgroups.warnings,
            "damaged": self.ranks.journal.damaged,
        }

    def _broadcast(self, message: Mapping[str, Any]) -> None:
        for connection in [each for each in self.connections if not each.of_session]:
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
            self.ranks.sessions.end_with(connection)
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


def _clear_away(
    runs_folder: str, wanted: float, known: frozenset[str], limit: DeletionLimit
) -> None:
    try:
        clear_output(runs_folder, wanted, known, limit, time.monotonic())
    except OSError as error:
        # No reason to fall over: ranks depend on us.
        report(f"cannot clear old output away: {error}")
    if limit.held_seconds > DAY_SECONDS:
        held = f"{limit.held_seconds / DAY_SECONDS:.1f} days"
        report(f"old output is cleared away slowly, {held} are held back: check the clock")


def clear_output(
    runs_folder: str,
    wanted: float,
    known: frozenset[str],
    limit: DeletionLimit,
    monotonic_s: float,
) -> list[str]:
    """Remove runs in which nothing was written since ``wanted`` (seconds of the day's clock),
    except the known ones; return their names. ``limit`` bounds how far this may go now."""
    try:
        names = os.listdir(runs_folder)  # noqa: PTH208 - small imports
    except FileNotFoundError:
        names = []
    written = {name: _newest(f"{runs_folder}/{name}") for name in names if name not in known}
    before = limit.before(min(written.values(), default=None), wanted, monotonic_s)
    old = [name for name, newest in written.items() if newest < before]
    for name in old:
        _remove(f"{runs_folder}/{name}")
    return old


def _remove(folder: str) -> None:
    """Remove a folder with what is in it; links are removed and never followed."""
    for where, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.unlink(f"{where}/{name}")  # noqa: PTH108 - as above
        for name in folders:
            path = f"{where}/{name}"
            if os.path.islink(path):  # noqa: PTH114 - as above
                os.unlink(path)  # noqa: PTH108 - as above
            else:
                os.rmdir(path)  # noqa: PTH106 - as above
    os.rmdir(folder)  # noqa: PTH106 - as above


def _newest(folder: str) -> float:
    """The time of the last write in a folder, including the folder itself."""
    times = [os.lstat(folder).st_mtime]
    for where, folders, files in os.walk(folder):
        times += [os.lstat(f"{where}/{name}").st_mtime for name in (*folders, *files)]
    return max(times)


def _reply_to(refusal: RefusedError | None) -> Mapping[str, Any]:
    if refusal is None:
        return {}
    return {"denied" if isinstance(refusal, EndedError) else "error": str(refusal)}


def _serve_node(folder: str, work_folder: str, options: Options, ready: int) -> None:
    lock = take_lock(f"{folder}/lock", proc.signature(os.getpid()))
    if lock is None:
        os.write(ready, b"+")
        return
    _become_subreaper()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    ranks = Ranks(
        runs_folder=f"{folder}/runs",
        work_folder=work_folder,
        journal=Journal(folder),
        outputs=Outputs(folder, options.output_bytes_max),
        cgroups=cgroups.find(cgroups.name_of(folder, lock), options.pids_max),
        now=time.time,
    )
    supervisor = Supervisor(folder, ranks, options)
    os.write(ready, b"+")
    os.close(ready)
    supervisor.run()
    supervisor.close()


def main() -> NoReturn:
    """Detach and serve. The first process returns 0 once a supervisor serves the node, else 1."""
    served, ready = os.pipe()
    if os.fork() != 0:
        os.close(ready)
        os._exit(0 if os.read(served, 1) else 1)
    os.setsid()
    os.close(served)
    code = 1
    try:
        folder, work_folder, options = sys.argv[1:]
        _serve_node(folder, work_folder, Options(**json.loads(options)), ready)
        code = 0
    except BaseException as error:  # noqa: BLE001 - the top of a program
        with suppress(OSError):
            sys.excepthook(type(error), error, error.__traceback__)
    with suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
