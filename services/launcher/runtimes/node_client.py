"""One node of the process runtime: its supervisor's life, and the connection to it.

Used by ``process.py``. The supervisor is started where none answers and commanded over JSON lines.
Only the supervisor knows what runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from libs.contracts.messages import Node
from libs.service.loop import pause
from libs.service.observability import log
from services.launcher.runtimes.node import proc
from services.launcher.runtimes.port import (
    RuntimeDeniedError,
    RuntimeUnavailableError,
    StartFailedError,
    way_back,
)
from services.launcher.runtimes.supervisor import PROTOCOL
from services.launcher.task_users import TaskUsers

PROGRAM = Path(__file__).with_name("supervisor.py")
LINE_BYTES_MAX = 8 << 20
GONE_POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node as configured. ``devices``: the entry of CUDA_VISIBLE_DEVICES for each GPU index;
    empty on virtual slots."""

    node: Node
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """The runtime's folders, limits and timeouts."""

    # Holds nodes/<node>/ (a supervisor's records, and runs/<run>/<rank>/output.log) and
    # work/<run>/ (where a run works that names no folder of its own).
    folder: Path
    call_seconds: float
    # A listing is used again so long, unless the supervisor reports a change.
    listing_seconds: float
    # A supervisor without work and connections exits after this.
    idle_seconds: float
    # The output of a forgotten run is kept so long after its last byte.
    keep_seconds: float
    # A supervisor that lives but has not answered for so long hangs, and is ended with its ranks.
    hung_seconds: float
    # The limit of one rank's output in its file.
    output_bytes_max: int
    # Processes and threads of one rank; of one user where control groups cannot limit them.
    pids_max: int
    # The users of ranks. None: the launcher's own.
    users: TaskUsers | None = None
    # A node that did not answer is not asked again for so long.
    retry_seconds: float = 1.0


class RefusedByNodeError(RuntimeUnavailableError):
    """The supervisor could not carry out a request."""


class _Link(asyncio.Protocol):
    """One connection to a supervisor: requests by number, and its hints."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._last_id = 0
        self.open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.open = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        self._received += data
        *lines, rest = self._received.split(b"\n")
        self._received = rest
        for line in lines:
            answer: dict[str, Any] = json.loads(line)
            waiter = self._waiting.pop(answer.get("id", 0), None)
            if waiter is None:
                self._changed()
            elif not waiter.done():
                waiter.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.open = False
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(RuntimeUnavailableError("the supervisor hung up"))
        self._waiting.clear()
        self._changed()

    async def call(self, seconds: float, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its answer. A timeout closes the connection, so that the
        supervisor never reads the rest of the request."""
        if self._transport is None or not self.open:
            raise RuntimeUnavailableError("the supervisor hung up")
        self._last_id += 1
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[self._last_id] = waiter
        line = json.dumps({"id": self._last_id, **request}, separators=(",", ":")).encode()
        if len(line) >= LINE_BYTES_MAX:
            raise RuntimeUnavailableError(f"an order of {len(line)} bytes is too long")
        self._transport.write(line + b"\n")
        try:
            async with asyncio.timeout(seconds):
                answer = await waiter
        except TimeoutError:
            self.close()
            raise RuntimeUnavailableError(
                f"the supervisor did not answer within {seconds} s"
            ) from None
        if "denied" in answer:
            held = answer.get("epoch")
            advice = "" if held is None else f"; {way_back(int(held))}"
            raise RuntimeDeniedError(f"{answer['denied']}{advice}")
        if "error" in answer:
            raise RefusedByNodeError(answer["error"])
        return answer

    def close(self) -> None:
        """Hang up."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()


class NodeClient:
    """One node: its supervisor's life and our connection to it."""

    def __init__(self, plan: NodePlan, machine: Machine, retired: bool) -> None:
        self.plan, self.machine, self.retired = plan, machine, retired
        self.folder = machine.folder / "nodes" / plan.node.id
        self.epoch = 0
        self.problem = ""
        self.warnings: tuple[str, ...] = ()
        self.hint: Callable[[], None] = lambda: None
        self._link: _Link | None = None
        # What the supervisor understands.
        self._protocol = PROTOCOL
        self._connecting = asyncio.Lock()
        self._not_before_s = 0.0
        self._listing: dict[str, Any] = {}
        # When it last answered, or we began to ask, in the event loop's seconds.
        self._answered_s: float | None = None
        # When the listing was asked for, in the event loop's seconds; None: ask again.
        self._listed_s: float | None = None

    async def call(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the node's supervisor, which is started if none answers."""
        link = await self._connected()
        self._listed_s = None
        return await self._ask(link, request)

    async def launch(self, run: str, ranks: Sequence[Mapping[str, Any]]) -> None:
        """Start ranks. Raises ``RuntimeUnavailableError`` for a supervisor of an earlier version:
        it does not know all parts of an order, so it is ordered to leave once it has nothing to
        run."""
        link = await self._connected()
        if self._protocol < PROTOCOL:
            await self._ask(link, {"op": "stop"})
            self.hang_up()
            raise RuntimeUnavailableError(
                f"the supervisor of node {self.plan.node.id} is of an earlier version; it leaves"
                " when its runs are over, and a new one starts"
            )
        try:
            await self.call({"op": "launch", "run": run, "ranks": ranks})
        except RefusedByNodeError as problem:
            raise StartFailedError(frozenset({self.plan.node.id}), str(problem)) from None

    async def list(self) -> dict[str, Any]:
        """Its runs; the last answer while nothing has changed."""
        link = await self._connected()
        now_s = asyncio.get_running_loop().time()
        if self._listed_s is None or now_s - self._listed_s >= self.machine.listing_seconds:
            # Set before the answer arrives: a change reported meanwhile clears it again.
            self._listed_s = now_s
            self._listing = (await self._ask(link, {"op": "list"}))["runs"]
        return self._listing

    async def fence(self) -> None:
        """Replace a supervisor that is dead; its successor ends what it left.

        One that lives is on this very machine, and so are its ranks: that it is slow (a disk that
        stalls, a machine that swaps) is no reason to end healthy work. Only one that has not
        answered for ``hung_seconds`` is killed. RuntimeUnavailableError before that.
        """
        holder = self._holder()
        if holder is not None:
            silent_s = asyncio.get_running_loop().time() - (self._answered_s or 0.0)
            if silent_s < self.machine.hung_seconds:
                raise RuntimeUnavailableError(
                    f"its supervisor, process {holder.pid}, lives (state {holder.state}) but has"
                    f" not answered for {silent_s:.0f} s; its ranks go on, and it is ended after"
                    f" {self.machine.hung_seconds:.0f} s"
                )
            if self._link is not None:
                self._link.close()
            if not proc.kill(holder):
                raise RuntimeUnavailableError(f"we may not end process {holder.pid}")
            await self._gone(holder)
        self._not_before_s = 0.0
        await self._connected()

    def _holder(self) -> proc.Stat | None:
        """The living supervisor."""
        try:
            return proc.by_signature((self.folder / "lock").read_text())
        except FileNotFoundError:
            return None

    async def _gone(self, holder: proc.Stat) -> None:
        """Wait until a killed process holds nothing; RuntimeUnavailableError if it stays."""
        ends_s = asyncio.get_running_loop().time() + self.machine.call_seconds
        while (found := proc.stat(holder.pid)) is not None:
            if found.ticks != holder.ticks or not found.alive:
                return
            if asyncio.get_running_loop().time() > ends_s:
                raise RuntimeUnavailableError(f"process {holder.pid} cannot be killed")
            await pause(GONE_POLL_SECONDS)

    def hang_up(self) -> None:
        """Disconnect. The next call connects again with the current epoch."""
        if self._link is not None:
            self._link.close()
        self._link = None

    async def close(self) -> None:
        """Hang up; a supervisor with nothing to run leaves."""
        if self._link is not None and self._link.open:
            try:
                await self._link.call(self.machine.call_seconds, {"op": "stop"})
            except (RuntimeUnavailableError, RuntimeDeniedError) as problem:
                self.problem = str(problem)
        self.hang_up()

    async def _ask(self, link: _Link, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            answer = await link.call(self.machine.call_seconds, request)
        except RuntimeUnavailableError as problem:
            if not link.open:
                self._failed(str(problem))
            raise
        self._answered_s = asyncio.get_running_loop().time()
        return answer

    async def _connected(self) -> _Link:
        async with self._connecting:
            if self._link is not None and self._link.open:
                return self._link
            now_s = asyncio.get_running_loop().time()
            if self._answered_s is None:
                self._answered_s = now_s
            if now_s < self._not_before_s:
                raise RuntimeUnavailableError(self.problem)
            try:
                self._link = await self._connect()
            except (OSError, subprocess.SubprocessError, RuntimeUnavailableError) as problem:
                self._failed(str(problem))
                raise RuntimeUnavailableError(self.problem) from problem
            self.problem, self._listed_s = "", None
            return self._link

    def _failed(self, problem: str) -> None:
        self.problem = f"node {self.plan.node.id}: {problem}"
        loop = asyncio.get_running_loop()
        self._not_before_s = loop.time() + self.machine.retry_seconds

    async def _connect(self) -> _Link:
        try:
            link = await self._open()
        except (FileNotFoundError, ConnectionRefusedError):
            await asyncio.to_thread(self._start)
            link = await self._open()
        hello = {"op": "hello", "epoch": self.epoch}
        try:
            answer = await link.call(self.machine.call_seconds, hello)
        except BaseException:
            link.close()
            raise
        self.warnings = tuple(answer["warnings"])
        self._protocol = int(answer["protocol"])
        if self.machine.users is not None:
            self._let_tasks_pass()
        if answer.get("damaged"):
            log("launcher").error(
                "the node's journal was damaged; damaged lines are set apart",
                node=self.plan.node.id,
                lines=answer["damaged"],
                file=str(self.folder / "journal.damaged"),
            )
        self._answered_s = asyncio.get_running_loop().time()
        return link

    async def _open(self) -> _Link:
        """Connect by way of the folder's descriptor: a socket's path may have 107 bytes only."""
        holder = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _, link = await asyncio.get_running_loop().create_unix_connection(
                lambda: _Link(self._changed), f"/proc/self/fd/{holder}/socket"
            )
        finally:
            os.close(holder)
        return link

    def _changed(self) -> None:
        self._listed_s = None
        self.hint()

    def _let_tasks_pass(self) -> None:
        """Let ranks of other users pass through to their context file and work folder. At each
        connection, because a supervisor may have been started when ranks were to run as us."""
        machine, nodes = self.machine.folder, self.folder.parent
        for folder in (machine, nodes, self.folder, self.folder / "runs", machine / "work"):
            folder.chmod(0o711)

    def _start(self) -> None:
        """Run the supervisor; it detaches, and leaves again if another one has the node."""
        work = self.machine.folder / "work"
        self.machine.folder.mkdir(parents=True, exist_ok=True)
        # Individually, because parents that mkdir creates on the way would not be private.
        for folder in (self.folder.parent, self.folder, self.folder / "runs", work):
            folder.mkdir(mode=0o700, exist_ok=True)
        options: dict[str, Any] = {
            "idle_seconds": self.machine.idle_seconds,
            "keep_seconds": self.machine.keep_seconds,
            "output_bytes_max": self.machine.output_bytes_max,
            "pids_max": self.machine.pids_max,
        }
        argv = [sys.executable, "-I", "-S", str(PROGRAM), str(self.folder), str(work)]
        argv.append(json.dumps(options))
        log_fd = os.open(
            self.folder / "supervisor.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        with open(log_fd, "ab") as output:  # noqa: PTH123 - a descriptor
            subprocess.run(  # noqa: S603 - our own program
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                env={},
                timeout=self.machine.call_seconds * 3,
                check=True,
            )
