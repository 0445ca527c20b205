"""Every service as a process of its own, kept running; for ``dev`` and the chaos tests.

Each is ``python -m services.<name>`` with its settings in the environment. One that dies is started
again with growing pauses; several instances of one service may run, of which one leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from libs.service.loop import pause
from services.allinone.composition import WIRINGS, environment_of
from services.allinone.machine import Machine
from services.allinone.supervision import PartStatuses, supervise

READY_POLL_SECONDS = 0.05
END_SECONDS = 10.0
PR_SET_PDEATHSIG = 1
# What a service process takes over of ours; the rest is its settings.
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "XDG_CACHE_HOME")
_CODE = Path(__file__).resolve().parents[2]
_LIBC = ctypes.CDLL(None)

# Called with a service's name and one line of its output.
Report = Callable[[str, str], None]


class ServiceEndedError(Exception):
    """A service's process ended without being asked to; it is started again."""


@dataclass
class Instance:
    """One process slot of a service, and the process in it now."""

    name: str
    # Where it serves /readyz and /metrics.
    port: int
    environment: Mapping[str, str]
    process: Process | None = None
    starts: int = 0


@dataclass
class ServiceProcesses:
    """The processes of all services. ``keep`` runs them until cancelled."""

    machine: Machine
    statuses: PartStatuses
    report: Report
    # More settings, as environment variables.
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self._instances: dict[tuple[str, int], Instance] = {}
        self._group: asyncio.TaskGroup | None = None

    async def keep(self) -> None:
        """Run one process of each service; when cancelled, end them all."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for wiring in WIRINGS:
                    self.add(wiring.name)
                await asyncio.Event().wait()
        finally:
            self._group = None
            await self._end()

    def add(self, name: str) -> int:
        """Run one more process of a service; returns its index, 0 for the first one."""
        assert self._group is not None, "keep() first"
        index = sum(known == name for known, _ in self._instances)
        (wiring,) = (each for each in WIRINGS if each.name == name)
        first_gateway = name == "gateway" and index == 0
        port = self.machine.options.port if first_gateway else free_port()
        environment = environment_of(wiring, self.machine) | {
            f"SHIFTWORK_{name.upper()}_HTTP_PORT": str(port),
            f"SHIFTWORK_{name.upper()}_LOG_FORMAT": "console",
            **self.settings,
        }
        instance = Instance(name if index == 0 else f"{name}-{index}", port, environment)
        self._instances[name, index] = instance
        run = partial(self._run, name, instance)
        self._group.create_task(supervise(instance.name, run, self.statuses), name=instance.name)
        return index

    def instances(self) -> Iterable[tuple[str, int]]:
        """Every service's name and index."""
        return tuple(self._instances)

    def port(self, name: str, index: int = 0) -> int:
        """The address at which a process serves HTTP, the same over all its restarts."""
        return self._instances[name, index].port

    def starts(self, name: str, index: int = 0) -> int:
        """How often it was started."""
        return self._instances[name, index].starts

    def alive(self, name: str, index: int = 0) -> bool:
        """True while its process runs."""
        return self.pid(name, index) != 0

    def pid(self, name: str, index: int = 0) -> int:
        """Its process now; 0 if none runs just now."""
        process = self._instances[name, index].process
        return process.pid if process is not None and process.returncode is None else 0

    def kill(self, name: str, index: int = 0, number: signal.Signals = signal.SIGKILL) -> bool:
        """Signal its process; False if none runs just now."""
        process = self._instances[name, index].process
        if process is None or process.returncode is not None:
            return False
        process.send_signal(number)
        return True

    async def until_ready(self) -> None:
        """Wait until every process reports that it is ready."""
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            for instance in tuple(self._instances.values()):
                while not await _is_ready(client, instance.port):
                    await pause(READY_POLL_SECONDS)

    async def _run(self, name: str, instance: Instance) -> None:
        """Start a process and report its output until it ends."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"services.{name}"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            cwd=_CODE,
            env={key: os.environ[key] for key in _INHERITED if key in os.environ}
            | dict(instance.environment),
            # Ctrl-C reaches this process alone; if it is killed, its children end with it.
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        instance.process = process
        instance.starts += 1
        await self._pass_on(process, instance.name)
        raise ServiceEndedError(f"its process ended with status {await process.wait()}")

    async def _pass_on(self, process: Process, name: str) -> None:
        assert process.stdout is not None, "it is a pipe"
        rest = b""
        while data := await process.stdout.read(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.report(name, line.decode(errors="replace"))
        if rest:
            self.report(name, rest.decode(errors="replace"))

    async def _end(self) -> None:
        """Send SIGTERM to all processes, and SIGKILL to those that do not end."""
        living = [
            instance.process
            for instance in self._instances.values()
            if instance.process is not None and instance.process.returncode is None
        ]
        for process in living:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        ends = asyncio.gather(*(_drained(process) for process in living))
        try:
            async with asyncio.timeout(END_SECONDS):
                await asyncio.shield(ends)
        except TimeoutError:
            for process in living:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await ends


async def _drained(process: Process) -> None:
    """Wait for the end; a full pipe must not keep it from ending."""
    assert process.stdout is not None, "it is a pipe"
    while await process.stdout.read(1 << 16):
        pass
    await process.wait()


async def _is_ready(client: httpx.AsyncClient, port: int) -> bool:
    try:
        return (await client.get(f"http://127.0.0.1:{port}/readyz")).is_success
    except httpx.HTTPError:
        return False


def free_port() -> int:
    """A TCP port of this machine that nobody listens on now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _end_with_parent() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
