"""A whole platform, each service a process, on NATS and PostgreSQL: what its tables, streams, files
and processes hold after many tasks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import nats
import psutil

from libs.bus.topology import EVENTS, LOGS
from libs.store.connections import Address, connect
from services.allinone.client import items
from services.allinone.composition import WIRINGS
from services.allinone.embedded.credentials import POSTGRES_SUPERUSER
from tests.chaos.invariants import living_processes
from tests.kit.platform import Platform, running_platform, until
from tests.soak.growth import Samples

# Longer than an event is on its way: a row that a late event makes again has no end.
KEEP_SECONDS, REST_STEPS = 12.0, 6
# Rows and messages: what a moment's work leaves, independently of how many tasks there were.
SLACK = 60
# Bytes of a stream: as much as its messages may be more.
SLACK_BYTES = SLACK << 10
# A process grows by pools and fragments, and so much in the second half of the tasks is no leak.
MEMORY_MIB_MAX = 12
# Below this a server may grow: NATS's heap doubles before it is collected, and each of PostgreSQL's
# connections fills its caches.
FULL_MIB = {"NATS": 64, "PostgreSQL": 256}
AT_ONCE, ENDED_SECONDS = 100, 120.0
NAMED_MAX = 5
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = $1"


def short_retention(keep_seconds: float) -> dict[str, str]:
    """Every retention of every service, in seconds, as environment variables."""
    found: dict[str, str] = {}
    for wiring in WIRINGS:
        prefix = str(wiring.settings.model_config.get("env_prefix", ""))
        values: dict[str, float] = {
            name: keep_seconds
            for name in wiring.settings.model_fields
            # Series are kept for two blocks at least, which is minutes: nothing is sampled here.
            if name.endswith("_keep_seconds") and not name.startswith(("kube_", "series_"))
        }
        values |= {"outbox_keep_seconds": 1.0, "outbox_period_seconds": 0.5}
        values |= {"prune_tick_seconds": 1.0, "prune_days_per_hour": 0}
        if "keep_days" in wiring.settings.model_fields:
            values["keep_days"] = keep_seconds / 86_400
        if wiring.name == "launcher":
            values["sample_seconds"] = 0
        if wiring.name == "monitor":
            # Facts of a task grow old once its rules were compared for the last time.
            values["rules_tick_seconds"] = 1.0
        if wiring.name == "gateway":
            values |= {"requests_burst": 100_000, "events_kept_max": 1000}
        found |= {f"{prefix}{name.upper()}": f"{value:g}" for name, value in values.items()}
    return found


@dataclass
class Counts:
    """What was counted after each part of the tasks."""

    kept: Samples = field(default_factory=Samples)
    sizes: Samples = field(default_factory=Samples)
    memory: Samples = field(default_factory=Samples)

    async def add(self, platform: Platform) -> str:
        """One more sample of each; returns it for people."""
        messages, sizes = await streams(platform)
        self.kept.add(await rows(platform), messages, kept_files(platform))
        self.sizes.add(sizes)
        self.memory.add(private_mib(platform))
        kept = self.kept.taken[-1]

        def sum_of(kind: str) -> int:
            return sum(count for name, count in kept.items() if name.startswith(kind))

        return (
            f"{sum_of('rows ')} rows, {sum_of('messages ')} messages of"
            f" {sum(sizes.values())} bytes, {sum_of('files ')} files,"
            f" MiB {dict(self.memory.taken[-1])}"
        )

    def growing(self) -> list[str]:
        """What grows. Rows in memory have a number at most (``libs/store/recent.py``), and the
        garbage of a while is kept, so memory counts from the middle on."""
        middle = len(self.memory.taken) // 2
        memory = self.memory.growing(MEMORY_MIB_MAX, FULL_MIB, since=middle)
        return self.kept.growing(SLACK) + self.sizes.growing(SLACK_BYTES) + memory


async def soak_real(
    tasks: int, per_sample: int, *, keep_seconds: float = KEEP_SECONDS
) -> list[str]:
    """Run it; what grows."""
    begin, counts = time.monotonic(), Counts()
    settings = short_retention(keep_seconds)
    async with running_platform(nodes=4, slots=8, settings=settings) as platform:
        await _let_the_streams_forget(platform, keep_seconds)
        for first in range(0, tasks, per_sample):
            last = min(first + per_sample, tasks)
            for number in range(first, last, AT_ONCE):
                await _through(platform, min(AT_ONCE, last - number), number)
            await _rest(platform, keep_seconds)
            found = await counts.add(platform)
            print(f"{last} tasks, {time.monotonic() - begin:.0f} s: {found}", flush=True)
    return counts.growing()


async def _let_the_streams_forget(platform: Platform, keep_seconds: float) -> None:
    """The kit's platforms keep all events for checks; here they go once every service has them, and
    live output when it is old."""
    admin = platform.admin
    client = await nats.connect(
        platform.dev.servers.nats.url, user=admin.user, password=admin.password
    )
    try:
        streams = client.jetstream()
        await streams.delete_consumer(EVENTS, "chaos")
        logs = (await streams.stream_info(LOGS)).config
        await streams.update_stream(
            logs.evolve(max_age=keep_seconds, duplicate_window=min(1.0, keep_seconds))
        )
    finally:
        await client.close()


async def _through(platform: Platform, count: int, first: int) -> None:
    bodies = [
        {"name": f"t{first + number}", "gpus_per_node": 1, "command": ["echo", "a line"]}
        for number in range(count)
    ]
    answer = await platform.client.post("/v1/tasks:batch", json={"tasks": bodies})
    assert answer.is_success, answer.text
    live: list[str] = []

    async def ended() -> bool:
        found = await items(platform.client, "/v1/tasks", all="false")
        live[:] = [f"{each['id']} {each['state']}: {each['reason']}" for each in found]
        return not live

    try:
        await until(ended, ENDED_SECONDS)
    except AssertionError:
        named = ", ".join(live[:NAMED_MAX])
        text = f"{len(live)} of {count} tasks have not ended in {ENDED_SECONDS:g} s: {named}"
        raise AssertionError(text) from None


async def _rest(platform: Platform, keep_seconds: float) -> None:
    """All that is kept for a while grows old; a task now and then, because the outbox counts time
    in which something is published."""
    for number in range(REST_STEPS):
        await _through(platform, 1, 10_000_000 + time.monotonic_ns() + number)
        await asyncio.sleep(2 * keep_seconds / REST_STEPS)


async def rows(platform: Platform) -> Counter[str]:
    """Rows of each table of each service."""
    found: Counter[str] = Counter()
    postgres = platform.dev.servers.postgres
    url = postgres.url(POSTGRES_SUPERUSER)
    connection = await connect(Address(url, postgres.admin_password))
    try:
        for wiring in WIRINGS:
            schema = wiring.tables.schema
            names = await connection.fetch(TABLES, schema)
            for (name,) in names:
                # Both names are the catalogue's own.
                count = await connection.fetchval(f'SELECT count(*) FROM "{schema}"."{name}"')
                found[f"rows {wiring.name}.{name}"] = int(count)
    finally:
        await connection.close()
    return found


async def streams(platform: Platform) -> tuple[Counter[str], Counter[str]]:
    """Messages and consumers of each stream; bytes of each stream."""
    found, sizes = Counter[str](), Counter[str]()
    admin = platform.admin
    client = await nats.connect(
        platform.dev.servers.nats.url, user=admin.user, password=admin.password
    )
    try:
        for info in await client.jetstream().streams_info():
            found[f"messages {info.config.name}"] = info.state.messages
            found[f"consumers {info.config.name}"] = info.state.consumer_count
            sizes[f"bytes {info.config.name}"] = info.state.bytes
    finally:
        await client.close()
    return found, sizes


def kept_files(platform: Platform) -> Counter[str]:
    """Files of kept output. The nodes' own are cleared every ten minutes, so they are not here."""
    logs = platform.dev.data_folder.logs
    return Counter({"files of kept output": sum(1 for each in logs.rglob("*") if each.is_file())})


def private_mib(platform: Platform) -> Counter[str]:
    """The memory that belongs to the processes of each service, server and node alone."""
    found: Counter[str] = Counter()
    supervisors = list(living_processes(str(platform.dev.data_folder.machine)))
    others = psutil.Process().children(recursive=True)
    for process in {*supervisors, *others, *(each for one in supervisors for each in below(one))}:
        try:
            name = _part_of(process.cmdline())
            if name:
                found[name] += process.memory_full_info().uss >> 10
        except psutil.Error:
            continue
    return Counter({name: kib >> 10 for name, kib in sorted(found.items())})


def below(process: psutil.Process) -> list[psutil.Process]:
    """The children of a process that may be gone."""
    try:
        return process.children()
    except psutil.Error:
        return []


def _part_of(words: Sequence[str]) -> str:
    """Which part of the platform has this command line; empty: none."""
    for wiring in WIRINGS:
        if f"services.{wiring.name}" in words:
            return wiring.name
    text = " ".join(words[:4])
    programs = {"supervisor.py": "nodes", "output_writer.py": "output writers"}
    programs |= {"nats-server": "NATS", "postgres": "PostgreSQL"}
    return next((name for program, name in programs.items() if program in text), "")
