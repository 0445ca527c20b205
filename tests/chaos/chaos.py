"""One chaos run: a real platform with real tasks, people who change their minds, and parts that are
killed or frozen; then everything heals, and ``invariants.py`` checks what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from libs.bus.connection import Credentials as BusCredentials
from libs.service import observability
from services.allinone.client import admin_client, items
from services.allinone.data_folder import DataFolder, Options
from services.allinone.dev import Dev
from services.allinone.embedded.credentials import NATS_ADMIN
from services.launcher.runtimes.supervisor_shutdown import end_supervisors
from tests.chaos import invariants
from tests.chaos.faults import DISK, PARTS, Faults, schedule
from tests.chaos.people import People
from tests.chaos.workload import KINDS, Workload
from tests.kit.checkers import LIVENESS, SAFETY, History, verdict
from tests.kit.small_disk import SmallDisk, can_mount, small_disk

ENDED = frozenset(("succeeded", "failed", "stopped", "rejected"))
# Shorter waits than in production, so that a short run sees many retries.
SETTINGS = {
    "SHIFTWORK_SCHEDULER_RETRY_DELAY_SECONDS": "0.5",
    "SHIFTWORK_SCHEDULER_RETRY_DELAY_SECONDS_MAX": "2",
}
DISK_MIB = 768
SETTLE_SECONDS_MAX = 60.0
PROGRESS_SECONDS = 5.0


@dataclass(frozen=True)
class Plan:
    """The length and the size of the run."""

    seed: int
    seconds: float
    nodes: int = 3
    slots: int = 2
    pause_seconds: tuple[float, float] = (0.5, 4.0)
    heal_seconds_max: float = 180.0
    two_schedulers: bool = True
    # The platform's folder lies on a small disk, which is full now and then.
    full_disk: bool = field(default_factory=can_mount)


@dataclass
class Report:
    """The outcome of the run."""

    complaints: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)


@contextlib.asynccontextmanager
async def running(dev: Dev) -> AsyncIterator[None]:
    """The platform runs inside the context; it has ended behind it, its supervisors too."""
    dev.data_folder.take()
    task = asyncio.ensure_future(dev.run())
    try:
        ready = asyncio.ensure_future(dev.ready.wait())
        await asyncio.wait((task, ready), return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if task.done():
            task.result()
        password = dev.data_folder.credentials.nats_password(NATS_ADMIN)
        await invariants.keep_history(dev.servers.nats.url, BusCredentials(NATS_ADMIN, password))
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.to_thread(end_supervisors, dev.data_folder.machine)
        dev.data_folder.release()


@contextlib.contextmanager
def scratch(prefix: str, *, keep_if: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """A folder of its own, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        if not keep_if():
            shutil.rmtree(folder, ignore_errors=True)


class Chaos:
    """One run in one folder."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        log_line: Callable[[str], None],
        disk: SmallDisk | None = None,
    ) -> None:
        self.plan = plan
        self.disk = disk
        self.folder = folder
        self.log_line = log_line
        self.report = Report()
        self.log = (folder / "services.log").open("a", encoding="utf-8", buffering=1)
        options = Options(port=0, nodes=plan.nodes, slots=plan.slots, tasks_as_root=True)
        self.dev = Dev(
            DataFolder(folder / "platform"),
            options,
            os.getpid(),
            report=lambda name, line: void(self.log.write(f"{name} | {line}\n")),
            settings=SETTINGS,
        )

    async def run(self) -> Report:
        """Everything; the complaints are in the report."""
        observability.set_up_logs("console", "info", self.log)
        async with running(self.dev):
            if self.plan.two_schedulers:
                self.dev.processes.add("scheduler")
                await self.dev.processes.until_ready()
            self.log_line(f"ready at {self.dev.url}, folder {self.folder}")
            async with admin_client(self.dev.data_folder, self.dev.url) as client:
                workload = Workload(self.plan.seed, client, self.folder)
                people = People(self.plan.seed, client, workload, self.log_line)
                await self._storm(client, workload, people)
                await people.settle()
                self.complain(people.problems)
                if await self._heal(client, workload):
                    await self._check(client, workload, people)
        self.complain(
            f"left behind: {process.pid} {' '.join(process.cmdline())[:200]}"
            for process in invariants.living_processes(str(self.folder))
        )
        self.log.close()
        return self.report

    def complain(self, texts: Any) -> None:
        self.report.complaints.extend(texts)

    async def _storm(self, client: httpx.AsyncClient, workload: Workload, people: People) -> None:
        """Submit, change minds and kill until the time is over."""
        faults = Faults(self.dev, self.log_line, str(workload.records), self.disk)
        self.report.faults = faults.done
        states: Counter[str] = Counter()

        async def alive() -> int:
            with contextlib.suppress(httpx.HTTPError):
                listed = await items(client, "/v1/tasks", all="false")
                states.clear()
                states.update(task["state"] for task in listed)
            return states.total()

        async def progress() -> None:
            while True:
                await asyncio.sleep(PROGRESS_SECONDS)
                now = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
                self.log_line(
                    f"{time.monotonic() - faults.began:7.2f} s  {len(faults.done)} faults, "
                    f"{len(workload.accepted)} tasks accepted, {workload.retries} retries; {now}"
                )

        parts = (*PARTS, DISK) if self.disk is not None else PARTS
        following = schedule(self.plan.seed, self.plan.pause_seconds, parts)
        most = 2 * self.plan.nodes * self.plan.slots
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.plan.seconds), asyncio.TaskGroup() as group:
                group.create_task(workload.run(alive, most))
                group.create_task(people.run())
                group.create_task(faults.run(following))
                group.create_task(progress())
        self.complain(workload.problems)

    async def _heal(self, client: httpx.AsyncClient, workload: Workload) -> bool:
        """Nothing dies any more: every task must end by itself, and in time."""
        began = time.monotonic()
        self.log_line(f"healing: waiting for {len(workload.accepted)} tasks to end")
        living: list[dict[str, Any]] = [{}]
        shown = began
        while living:
            if time.monotonic() - began > self.plan.heal_seconds_max:
                self.complain(
                    f"{task.get('id')} {task.get('name')} still {task.get('state')} after "
                    f"{self.plan.heal_seconds_max:g} s: {task.get('reason')}"
                    for task in living
                )
                return False
            await asyncio.sleep(0.25)
            with contextlib.suppress(httpx.HTTPError):
                known = {task["id"]: task for task in await items(client, "/v1/tasks")}
                living = [task for task in known.values() if task["state"] not in ENDED]
                living += [{"id": lost} for lost in workload.accepted.keys() - known.keys()]
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                self.log_line(f"{len(living)} tasks live")
        self.log_line(f"all ended {time.monotonic() - began:.1f} s after the last fault")
        return True

    async def _check(self, client: httpx.AsyncClient, workload: Workload, people: People) -> None:
        secrets = self.dev.data_folder.credentials
        admin = BusCredentials(NATS_ADMIN, secrets.nats_password(NATS_ADMIN))
        url = self.dev.servers.nats.url
        lived = invariants.lives(workload.records)
        published = await self._settled(admin, lived, workload)
        history = invariants.history_of(published, lived, set(workload.accepted))
        self.complain(verdict(history, (*SAFETY, *LIVENESS)))
        self.complain(invariants.acknowledged_steps_are_kept(lived))
        self.complain(invariants.processes_were_announced(history, lived))
        self.complain(await invariants.dead_letters(url, admin))
        self.complain(await self._event_log(client, history))
        for life in lived:
            self.complain(invariants.output_is_complete(life, await self._output(client, life)))
        for task in await items(client, "/v1/tasks"):
            self.complain(_as_expected(task, workload, people))
        self.complain(
            f"a task's process lives on: {process.pid} {' '.join(process.cmdline())[:200]}"
            for process in invariants.living_processes(str(workload.records))
        )
        self.report.counts = {
            "faults": len(self.report.faults),
            "tasks": len(workload.accepted),
            "client retries": workload.retries,
            "changes of mind": people.done.total(),
            "processes": len(lived),
            "acknowledged checkpoints": len(history.acks),
            "events": len(history.envelopes),
        }

    async def _settled(
        self, admin: BusCredentials, lived: list[invariants.Life], workload: Workload
    ) -> list[Any]:
        """The events, once every end of a run has been published."""
        ends_at = time.monotonic() + SETTLE_SECONDS_MAX
        while True:
            published = await invariants.envelopes(self.dev.servers.nats.url, admin)
            history = invariants.history_of(published, lived, set(workload.accepted))
            if not verdict(history, LIVENESS) or time.monotonic() > ends_at:
                return published
            await asyncio.sleep(0.5)

    async def _event_log(self, client: httpx.AsyncClient, history: History) -> list[str]:
        """What is wrong with the event log, once what was in flight has come again."""
        began = time.monotonic()
        while True:
            log: list[Any] = await items(client, "/v1/events", limit=1000)
            problems = list(invariants.event_log_is_complete(history, log))
            waited = time.monotonic() - began
            if not problems or waited > SETTLE_SECONDS_MAX:
                self.log_line(f"event log of {len(log)} checked after {waited:.1f} s")
                return problems
            await asyncio.sleep(0.5)

    async def _output(self, client: httpx.AsyncClient, life: invariants.Life) -> bytes:
        """A rank's whole kept output, once the platform reports that it is complete."""
        span = life.span
        path = f"/v1/tasks/{span.task_id}/logs"
        ends_at = time.monotonic() + SETTLE_SECONDS_MAX
        while True:
            wanted: dict[str, int] = {"attempt": span.attempt, "rank": span.rank, "offset": 0}
            answer = await client.get(path, params=wanted | {"limit_bytes": 1 << 20})
            complete = answer.headers.get("x-shiftwork-complete") == "true"
            if answer.is_success and (complete or time.monotonic() > ends_at):
                if not complete:
                    self.complain([f"output of {span} is not complete"])
                return answer.content
            if time.monotonic() > ends_at:
                self.complain([f"output of {span}: {answer.status_code} {answer.text[:200]}"])
                return b""
            await asyncio.sleep(0.2)


def _as_expected(task: dict[str, Any], workload: Workload, people: People) -> list[str]:
    known = workload.accepted.get(task["id"])
    if known is None:
        # Submitted by a request whose answer was cut off by the end of the storm.
        return []
    wanted = KINDS[known.kind].ends
    stopped = task["state"] == "stopped" and task["id"] in people.stopped
    if task["state"] == wanted or stopped:
        return []
    return [f"{task['id']} ({known.key}) {task['state']}, not {wanted}: {task['reason']}"]


def void(_: object) -> None:
    return


async def play(plan: Plan, log_line: Callable[[str], None]) -> Report:
    """A run in a folder of its own, which stays if there are complaints."""
    report: list[Report] = []
    with scratch("swc-", keep_if=lambda: not report or bool(report[0].complaints)) as folder:
        small = (
            small_disk(folder / "platform", DISK_MIB)
            if plan.full_disk
            else contextlib.nullcontext()
        )
        with small as disk:
            report.append(await Chaos(plan, folder, log_line, disk).run())
    return report[0]


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
