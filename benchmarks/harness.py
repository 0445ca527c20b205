"""What the benchmarks of the whole platform share: a platform of their own, and ways to reach it.

The platform is ``shiftwork up`` as a process on a temporary folder, as a user starts it; nothing
of it runs in the process that measures. What its HTTP costs a client is kept small, because both
share the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from services.allinone.embedded.credentials import Credentials
from services.allinone.embedded.postgres import DATABASE, POSTGRES_SUPERUSER, SOCKET_NAME, Postgres

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
ANSWER_SECONDS_MAX = 60.0
IDLE_SECONDS_MAX = 2.0
# Where to leave the platform's log.
KEPT_LOG = "SHIFTWORK_BENCHMARK_UP_LOG"
Json = dict[str, Any]
# The command line of a service that is a process of its own.
SERVICE = re.compile(r"fake_service\0([\w\0]+)")
ENDED = {"succeeded", "failed", "stopped", "rejected"}


class BenchmarkError(Exception):
    """The benchmark could not be carried out."""


def now_s() -> float:
    """The time of day, which every process of the machine reads from one clock."""
    return time.time_ns() / 1e9


class Platform:
    """One ``shiftwork up`` on one folder."""

    def __init__(
        self, folder: Path, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self.data = folder / "platform"
        self._command = [*command, "--data", str(self.data)]
        # Settings of its services, beside the options of the command.
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        """The process of ``up``."""
        assert self._process is not None, "start() first"
        return self._process.pid

    @property
    def token(self) -> str:
        """The administrator's token."""
        return (self.data / "admin-token").read_text().strip()

    def start(self) -> float:
        """Start it; returns the seconds until it reports that it is ready."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        own = {
            "HOME": str(home),
            "XDG_CONFIG_HOME": str(home / ".config"),
            # Whatever a benchmark submits, it submits as one user.
            "SHIFTWORK_SUBMIT_LIVE_TASKS_PER_USER_MAX": "1000000",
        }
        environment = {**os.environ, **own, **self._environment}
        began = time.monotonic()
        self._process = subprocess.Popen(
            self._command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        lines: list[str] = []
        for line in self._process.stdout:
            lines.append(line)
            if "ready at " in line:
                self.url = line.rpartition("ready at ")[2].strip()
                return time.monotonic() - began
            if time.monotonic() - began > READY_SECONDS_MAX:
                break
        raise BenchmarkError(f"the platform does not get ready: {''.join(lines[-20:])}")

    def stop(self) -> None:
        """End it at once; what tasks ran is ended as well."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGQUIT)
        try:
            process.communicate(timeout=STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired as error:
            for pid in self.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()
            raise BenchmarkError(f"it did not end within {STOP_SECONDS_MAX:g} s") from error
        finally:
            self._process = None

    def keep_log(self) -> None:
        """Copy the services' log to the path in ``KEPT_LOG``, before the folder goes."""
        if kept := os.environ.get(KEPT_LOG):
            shutil.copy(self.data / "up.log", kept)

    def processes(self) -> dict[int, str]:
        """The platform's own processes (servers, services, supervisors) and what each is."""
        found: dict[int, str] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace")
                cwd = str((entry / "cwd").readlink())
                at = str(self.data)
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                ours = self.pid in (int(entry.name), int(parent))
                if ours or at in words or cwd.startswith(at):
                    found[int(entry.name)] = _kind(words)
        return found

    def pss_mib(self) -> dict[str, float]:
        """Memory by kind of process in MiB: proportional set size, shared pages counted once."""
        sums: dict[str, float] = {}
        for pid, kind in self.processes().items():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        sums[kind] = sums.get(kind, 0.0) + int(line.split()[1]) / 1024
        return sums

    def cpu_seconds(self) -> dict[str, float]:
        """Processor time by kind of process since each began."""
        tick, sums = os.sysconf("SC_CLK_TCK"), dict[str, float]()
        for pid, kind in self.processes().items():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                used = sum(int(value) for value in fields[11:13]) / tick
                sums[kind] = sums.get(kind, 0.0) + used
        return sums


def _kind(words: str) -> str:
    for part, kind in (("supervisor.py", "supervisors"), ("nats-server", "nats")):
        if part in words:
            return kind
    if found := SERVICE.search(words):
        return found[1].strip("\0").replace("\0", "+")
    return "postgres" if "postgres" in words.replace("/postgres/", "/") else "services"


def up(nodes: int, slots: int) -> list[str]:
    """``shiftwork up`` with virtual nodes."""
    script = Path(sys.executable).with_name("shiftwork")
    program = [sys.executable, "-m", "services.allinone.command"]
    options = ["--port", "0", "--nodes", str(nodes), "--slots", str(slots)]
    if os.geteuid() == 0:
        options.append("--tasks-as-root")
    return [*([str(script)] if script.exists() else program), "up", *options]


def up_on_fake_nodes(groups: Mapping[str, int], apart: Sequence[str] = ()) -> list[str]:
    """The same on nodes that are not there: one GPU each, so many in each group. ``apart``: the
    services of each further process, with ``+`` between them."""
    options = [word for group, nodes in groups.items() for word in ("--group", f"{group}={nodes}")]
    options += [word for names in apart for word in ("--apart", names)]
    return [sys.executable, "-m", "benchmarks.fake_platform", *options]


@contextlib.contextmanager
def running_platform(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> Generator[Platform]:
    """A platform that runs while the context is open; its folder goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="shiftwork-bench-"))
    made = Platform(folder, command, environment)
    try:
        yield made
    finally:
        made.stop()
        made.keep_log()
        shutil.rmtree(folder, ignore_errors=True)


def database_address(up: Platform) -> tuple[str, str]:
    """URL and password of the platform's database, of its administrator."""
    (socket,) = up.data.rglob(SOCKET_NAME)
    url = f"postgresql://{POSTGRES_SUPERUSER}@/{DATABASE}?host={socket.parent}"
    return url, Postgres(up.data, Credentials(up.data)).admin_password


@contextlib.asynccontextmanager
async def database_of(up: Platform) -> AsyncGenerator[Any]:
    """A connection to the platform's database, as its administrator."""
    async with connected(*database_address(up)) as database:
        yield database


@contextlib.asynccontextmanager
async def connected(url: str, password: str) -> AsyncGenerator[Any]:
    """A connection to a database, for as long as the context is open."""
    # Its signature is not typed.
    connect: Any = vars(asyncpg)["connect"]
    database: Any = await connect(url, password=password)
    try:
        yield database
    finally:
        await database.close()


class Http:
    """HTTP/1.1 on kept-open connections, as many as are used at once."""

    def __init__(self, url: str, token: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._host, self._port = host, int(port)
        self._head = f"host: {host}\r\nauthorization: Bearer {token}\r\n"
        # With the time of the last use: a server closes what is idle for too long.
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = []

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Status and JSON of the answer."""
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self._head}content-length: {len(data)}\r\n"
        kind = "content-type: application/json\r\n\r\n"
        reader, writer = await self._take()
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            writer.write((head + kind).encode() + data)
            status, headers = await _answer_head(reader)
            answer = await reader.readexactly(int(headers["content-length"]))
        self._idle.append((reader, writer, time.monotonic()))
        return status, json.loads(answer) if answer else None

    async def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON
        """What is there; BenchmarkError if the answer is not 200."""
        status, found = await self.call("GET", path)
        if status != 200:
            raise BenchmarkError(f"GET {path}: {status} {found}")
        return found

    async def submit(self, **fields: object) -> str:
        """A new task's id."""
        status, found = await self.call("POST", "/v1/tasks", fields)
        if status != 201:
            raise BenchmarkError(f"POST /v1/tasks: {status} {found}")
        return str(found["id"])

    async def tasks(self, ids: Collection[str]) -> dict[str, Json]:
        """These tasks by id, of the newest ones."""
        found: dict[str, Json] = {}
        cursor = ""
        while len(found) < len(ids):
            page = await self.get(f"/v1/tasks?limit=1000{cursor}")
            found |= {item["id"]: item for item in page["items"] if item["id"] in ids}
            if not page["next_cursor"]:
                break
            cursor = f"&cursor={page['next_cursor']}"
        return found

    async def until(
        self, ids: Collection[str], states: Collection[str] = frozenset(ENDED), *, seconds: float
    ) -> dict[str, Json]:
        """Wait until all these tasks are in such a state."""
        ends_at = time.monotonic() + seconds
        while True:
            found = await self.tasks(ids)
            if len(found) == len(ids) and all(each["state"] in states for each in found.values()):
                return found
            if time.monotonic() > ends_at:
                counts: dict[str, int] = {}
                for each in found.values():
                    counts[each["state"]] = counts.get(each["state"], 0) + 1
                raise BenchmarkError(f"after {seconds:g} s: {counts}, wanted {sorted(states)}")
            await asyncio.sleep(0.1)

    async def runs(self, task_id: str) -> list[Json]:
        """A task's attempts, oldest first."""
        found: list[Json] = (await self.get(f"/v1/tasks/{task_id}/runs?limit=1000"))["items"]
        return found

    async def events(self) -> AsyncGenerator[Json]:
        """Every event from the next one on."""
        reader, writer = await self._connect()
        try:
            head = f"GET /v1/events HTTP/1.1\r\n{self._head}accept: text/event-stream\r\n\r\n"
            writer.write(head.encode())
            status, _ = await _answer_head(reader)
            if status != 200:
                raise BenchmarkError(f"GET /v1/events: {status}")
            async for line in reader:
                if line.startswith(b"data: "):
                    yield json.loads(line.removeprefix(b"data: "))
        finally:
            writer.close()

    async def _take(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer, used_at = self._idle.pop()
            if time.monotonic() - used_at < IDLE_SECONDS_MAX and not reader.at_eof():
                return reader, writer
            writer.close()
        return await self._connect()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._host, self._port, limit=1 << 26)

    def close(self) -> None:
        """Drop every connection."""
        for _, writer, _ in self._idle:
            writer.close()
        self._idle.clear()


async def _answer_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}


@dataclass
class Timeline:
    """The platform's events: (task, attempt, type) -> when it was published."""

    at: dict[tuple[str, int, str], float] = field(default_factory=dict)
    data: dict[tuple[str, int, str], Json] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self, http: Http) -> None:
        """Record events until cancelled."""
        async for event in http.events():
            key = (event["task"] or "", event["attempt"] or 0, event["type"])
            self.at.setdefault(key, seconds(event["at"]))
            self.data.setdefault(key, event["data"])
            self.changed.set()

    async def until(self, keys: Iterable[tuple[str, int, str]], *, wait_s: float) -> None:
        """Wait until all of these were published."""
        missing = set(keys)
        try:
            async with asyncio.timeout(wait_s):
                while missing := {key for key in missing if key not in self.at}:
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            raise BenchmarkError(
                f"not published within {wait_s:g} s: {sorted(missing)[:3]}"
            ) from None


@contextlib.asynccontextmanager
async def timeline(http: Http) -> AsyncGenerator[Timeline]:
    """A timeline that is kept while the context is open."""
    kept = Timeline()
    following = asyncio.ensure_future(kept.follow(http))
    await asyncio.sleep(0.2)
    try:
        yield kept
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def seconds(text: str) -> float:
    """An RFC 3339 time as seconds since 1970."""
    from datetime import datetime  # noqa: PLC0415 - here alone

    return datetime.fromisoformat(text).timestamp()


async def ready_nodes(http: Http, count: int) -> None:
    """Wait until so many nodes are ready."""
    ends_at = time.monotonic() + READY_SECONDS_MAX
    while True:
        nodes = (await http.get("/v1/nodes?limit=1000"))["items"]
        if sum(node["ready"] for node in nodes) >= count:
            return
        if time.monotonic() > ends_at:
            raise BenchmarkError(f"{len(nodes)} of {count} nodes are ready")
        await asyncio.sleep(0.05)


def writes_its_time(prefix: Path) -> list[str]:
    """The smallest child that reports when it runs: it writes the time by its own clock."""
    return ["/bin/sh", "-c", f'exec date +%s.%N >"{prefix}.$RANK"']


def written_times(prefix: Path, ranks: int) -> list[float] | None:
    """What the ranks wrote; None while one is missing."""
    found: list[float] = []
    for rank in range(ranks):
        try:
            found.append(float(Path(f"{prefix}.{rank}").read_text()))
        except (FileNotFoundError, ValueError):
            return None
    return found


def median(values: Iterable[float]) -> float:
    """The middle one."""
    return statistics.median(values)


def parts(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What each grew by."""
    return {kind: after[kind] - before.get(kind, 0.0) for kind in after}
