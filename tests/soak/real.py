"""A whole platform, each service a process, on NATS and PostgreSQL: rows, messages, consumers and
memory after many tasks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import nats
import psutil

from libs.bus.topology import EVENTS
from libs.store.connections import Address, connect
from services.allinone.composition import WIRINGS
from services.allinone.embedded.credentials import POSTGRES_SUPERUSER
from tests.kit.platform import ENDED, Platform, running_platform, until
from tests.soak.growth import Samples

# Longer than an event is on its way: a row that a late event makes again has no end.
KEEP_SECONDS, REST_STEPS = 12.0, 6
# Rows and messages: what a moment's work leaves, independently of how many tasks there were.
SLACK = 60
# A process grows by pools and fragments, and so much for all tasks together is no leak of theirs.
MEMORY_MIB_MAX = 24
AT_ONCE = 100
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = $1"


def short_retention() -> dict[str, str]:
    """Every retention of every service, in seconds, as environment variables."""
    found: dict[str, str] = {}
    for wiring in WIRINGS:
        prefix = str(wiring.settings.model_config.get("env_prefix", ""))
        values: dict[str, float] = {
            name: KEEP_SECONDS
            for name in wiring.settings.model_fields
            if name.endswith("_keep_seconds") and not name.startswith("kube_")
        }
        values |= {"outbox_keep_seconds": 1.0, "outbox_period_seconds": 0.5}
        values |= {"prune_tick_seconds": 1.0, "prune_days_per_hour": 0}
        if "keep_days" in wiring.settings.model_fields:
            values["keep_days"] = KEEP_SECONDS / 86_400
        if wiring.name == "gateway":
            values |= {"requests_burst": 100_000, "events_kept_max": 1000}
        found |= {f"{prefix}{name.upper()}": f"{value:g}" for name, value in values.items()}
    return found


async def soak_real(tasks: int, per_sample: int) -> list[str]:
    """Run it; what grows."""
    begin, samples, memory = time.monotonic(), Samples(), Samples()
    async with running_platform(nodes=4, slots=8, settings=short_retention()) as platform:
        await _let_the_stream_forget(platform)
        for first in range(0, tasks, per_sample):
            for number in range(first, min(first + per_sample, tasks), AT_ONCE):
                await _through(platform, min(AT_ONCE, per_sample, tasks - number), number)
            await _rest(platform)
            samples.add(await rows(platform), await streams(platform))
            memory.add(resident_mib(platform))
            last = samples.taken[-1]
            print(
                f"{min(first + per_sample, tasks)} tasks, {time.monotonic() - begin:.0f} s:"
                f" {sum(n for name, n in last.items() if name.startswith('rows '))} rows,"
                f" {sum(n for name, n in last.items() if name.startswith('messages '))} messages,"
                f" {dict(memory.taken[-1])} MiB",
                flush=True,
            )
    return samples.growing(SLACK) + memory.growing(MEMORY_MIB_MAX)


async def _let_the_stream_forget(platform: Platform) -> None:
    """The kit's platforms keep all events for checks; here they go once every service has them."""
    admin = platform.admin
    client = await nats.connect(
        platform.dev.servers.nats.url, user=admin.user, password=admin.password
    )
    try:
        await client.jetstream().delete_consumer(EVENTS, "chaos")
    finally:
        await client.close()


async def _through(platform: Platform, count: int, first: int) -> None:
    bodies = [
        {"name": f"t{first + number}", "gpus_per_node": 1, "command": ["true"]}
        for number in range(count)
    ]
    answer = await platform.client.post("/v1/tasks:batch", json={"tasks": bodies})
    assert answer.is_success, answer.text

    async def ended() -> bool:
        return not [task for task in await platform.tasks() if task["state"] not in ENDED]

    await until(ended, 120.0, f"{count} tasks ended")


async def _rest(platform: Platform) -> None:
    """All that is kept for a while grows old; a task now and then, because the outbox counts time
    in which something is published."""
    for number in range(REST_STEPS):
        await _through(platform, 1, 10_000_000 + time.monotonic_ns() + number)
        await asyncio.sleep(2 * KEEP_SECONDS / REST_STEPS)


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


async def streams(platform: Platform) -> Counter[str]:
    """Messages and consumers of each stream."""
    found: Counter[str] = Counter()
    admin = platform.admin
    client = await nats.connect(
        platform.dev.servers.nats.url, user=admin.user, password=admin.password
    )
    try:
        for info in await client.jetstream().streams_info():
            found[f"messages {info.config.name}"] = info.state.messages
            found[f"consumers {info.config.name}"] = info.state.consumer_count
    finally:
        await client.close()
    return found


def resident_mib(platform: Platform) -> Counter[str]:
    """Resident memory of each service's process."""
    found: Counter[str] = Counter()
    for process in psutil.Process().children(recursive=True):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        for wiring in WIRINGS:
            if f"services.{wiring.name}" in words:
                found[wiring.name] += process.memory_info().rss >> 20
    return found
