"""What it costs the monitor to keep the signals of many GPUs.

    python -m benchmarks.signal_series [--gpus 10000] [--minutes 10]

Samples of nodes with eight GPUs each, on which one rank for each GPU runs, are read as they come
from the bus, entered, written to a database of the benchmark's own every minute, and folded. The
values wander as real ones do: a sum of noise, in whole units of the driver.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, cast

from benchmarks.guard import run
from benchmarks.harness import connected
from benchmarks.report import Benchmark, Goal, Report, spread
from libs.bus.memory import MemoryBus
from libs.bus.memory_broker import MemoryBroker
from libs.contracts.messages import (
    GpuSample,
    GpuValues,
    NodeSampled,
    NodeValues,
    RankSample,
    RankValues,
    ReadSeries,
)
from libs.service.definition import Ports, Service
from libs.store.connections import Address
from libs.store.migrate import upgrade
from libs.store.sql import SqlStore
from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.embedded.postgres import DATABASE, Postgres
from services.monitor.main import WIRING
from services.monitor.settings import MonitorSettings

GPUS_PER_NODE = 8
Step = Callable[[int], Awaitable[float | None]]
STEP_SECONDS = 10
BEGIN = datetime(2026, 11, 23, 12, tzinfo=UTC)
BENCHMARK = Benchmark(
    name="signal_series",
    alias="series",
    question="What does it cost to keep the signals of 10,000 GPUs?",
    method=(
        "Ten minutes of samples of 1,250 nodes with eight GPUs and eight ranks each, every ten"
        " seconds, read as from the bus, written each minute and folded, in one process."
    ),
    goals=(
        Goal(
            figure="processor_percent",
            label="processor time, of one core",
            at_most=50.0,
        ),
        Goal(figure="bytes_per_value", label="stored bytes of one value", at_most=4.0),
        Goal(figure="read_hour_p50_ms", label="series of a task of 64 GPUs", at_most=500.0),
    ),
    smoke=("--gpus", "160", "--minutes", "10"),
)


@dataclass
class StepClock:
    """A clock that the benchmark moves."""

    at: datetime = BEGIN

    def now(self) -> datetime:
        """Its time."""
        return self.at


class Cluster:
    """Nodes whose values wander."""

    def __init__(self, gpus: int, seed: int = 7) -> None:
        self.random = Random(seed)
        self.nodes = max(1, gpus // GPUS_PER_NODE)
        self.percent = [float(self.random.randrange(100)) for _ in range(gpus)]
        self.memory = [float(self.random.randrange(80)) * 2**30 for _ in range(gpus)]

    def sample(self, node: int, at: datetime) -> bytes:
        """A node's sample as it is on the bus."""
        first = node * GPUS_PER_NODE
        walk = self.random.gauss
        gpus: list[GpuSample] = []
        ranks: list[RankSample] = []
        for index in range(GPUS_PER_NODE):
            place = first + index
            percent = self.percent[place] = min(100.0, max(0.0, self.percent[place] + walk(0, 5)))
            if self.random.random() < 0.05:
                self.memory[place] = float(self.random.randrange(80)) * 2**30
            gpus.append(
                GpuSample(
                    index=index,
                    uuid=f"GPU-{place:08d}-aaaa-bbbb-cccc-dddddddddddd",
                    model="NVIDIA H100 80GB HBM3",
                    values=GpuValues(
                        gpu_percent=round(percent),
                        gpu_memory_used_bytes=self.memory[place],
                        gpu_memory_total_bytes=80.0 * 2**30,
                        gpu_power_watts=round(100 + 6 * percent + walk(0, 5), 3),
                        gpu_temperature_celsius=round(35 + percent / 3),
                        gpu_ecc_errors=0.0,
                    ),
                )
            )
            ranks.append(
                RankSample(
                    task_id=f"t{place // 64:020d}".replace("0", "a").replace("1", "b"),
                    attempt=1,
                    rank=place % 64,
                    gpus=(index,),
                    values=RankValues(
                        cpu_cores=round(abs(walk(8, 1)), 4),
                        memory_bytes=30.0 * 2**30 + self.random.randrange(2**20) * 4096.0,
                        read_bytes_per_second=round(abs(walk(1e6, 1e5))),
                        write_bytes_per_second=0.0,
                        processes=17.0,
                    ),
                )
            )
        sample = NodeSampled(
            node_id=f"node-{node:05d}",
            sampled_at=at,
            hostname=f"host-{node:05d}",
            values=NodeValues(
                cpu_percent=round(abs(walk(60, 5)), 2),
                load_processes=round(abs(walk(70, 5)), 2),
                memory_used_bytes=300.0 * 2**30 + self.random.randrange(2**20) * 4096.0,
                memory_total_bytes=2.0**41,
                disk_used_bytes=1e12,
                disk_total_bytes=4e12,
                disk_read_bytes_per_second=round(abs(walk(1e6, 1e5))),
                disk_write_bytes_per_second=round(abs(walk(1e6, 1e5))),
                network_receive_bytes_per_second=round(abs(walk(1e9, 1e7))),
                network_transmit_bytes_per_second=round(abs(walk(1e9, 1e7))),
            ),
            gpus=tuple(gpus),
            ranks=tuple(ranks),
        )
        return sample.to_json()


@asynccontextmanager
async def database() -> AsyncGenerator[tuple[Postgres, Address]]:
    """A server of the benchmark's own with the monitor's schema."""
    folder = Path(tempfile.mkdtemp(prefix="shiftwork-bench-series-"))
    credentials = ensure_credentials(folder)
    server = Postgres(folder, credentials)
    try:
        await server.start()
        await server.prepare()
        monitor = Address(server.url("monitor"), credentials.postgres_password("monitor"))
        await upgrade(monitor, WIRING.tables, WIRING.migrations)
        yield server, monitor
    finally:
        await server.stop()
        server.remove_temporary()
        shutil.rmtree(folder, ignore_errors=True)


async def measure(gpus: int, minutes: int, report: Report) -> None:
    """Enter, write, fold and read."""
    async with database() as (server, address):
        clock = StepClock()
        store = SqlStore(
            address,
            WIRING.tables,
            clock=clock,
            source="monitor",
            new_id=lambda: str(time.time_ns()),
        )
        try:
            epoch = (await store.lead()).epoch
            bus = MemoryBus(MemoryBroker(Random(1), None), "monitor", ())
            ports = Ports(store=store, bus=bus, clock=clock)
            service = WIRING.build(MonitorSettings(database_url="-", nats_url="-"), ports)
            assert service.on_lead is not None
            await service.on_lead(epoch)
            await _fill(service, epoch, clock, Cluster(gpus), minutes, report)
            report.measured |= await _read(service, clock)
        finally:
            await store.close()
        async with connected(server.url("postgres", DATABASE), server.admin_password) as connection:
            row = await connection.fetchrow(
                "SELECT sum(length(data)) AS bytes, count(*) AS rows FROM monitor.series"
                " WHERE step_seconds = 10"
            )
            size = await connection.fetchval("SELECT pg_total_relation_size('monitor.series')")
    assert row is not None
    report.measured["bytes_per_value"] = round(row["bytes"] / report.measured["values"], 2)
    report.measured["rows_of_ten_minutes"] = row["rows"]
    report.measured["table_mib"] = round(size / 2**20, 1)


async def _fill(  # noqa: PLR0917 - what a run of the benchmark has
    service: Service, epoch: int, clock: StepClock, cluster: Cluster, minutes: int, report: Report
) -> None:
    loops = {loop.name: loop.step for loop in service.loops}
    recorder = cast("Any", loops["write-series"]).__self__
    spent: dict[str, float] = dict.fromkeys(
        ("take", "write-series", "activity", "fold-series"), 0.0
    )
    values = 0
    for round_ in range(minutes * 60 // STEP_SECONDS):
        bodies = [cluster.sample(node, clock.at) for node in range(cluster.nodes)]
        began = time.process_time()
        for body in bodies:
            recorder.take(NodeSampled.model_validate_json(body))
        spent["take"] += time.process_time() - began
        values += cluster.nodes * (10 + GPUS_PER_NODE * (6 + 5))
        clock.at += timedelta(seconds=STEP_SECONDS)
        names = ("write-series",) if round_ % 6 else ("write-series", "activity")
        await _work(loops, names, epoch, spent)
    clock.at += timedelta(seconds=130)
    await _work(loops, ("write-series", "fold-series"), epoch, spent)
    seconds = minutes * 60
    report.measured |= {
        "values": values,
        "values_per_second": round(values / seconds),
        "processor_percent": round(100 * sum(spent.values()) / seconds, 1),
        **{
            f"{name.replace('-', '_')}_percent": round(100 * each / seconds, 1)
            for name, each in spent.items()
        },
    }


async def _work(
    loops: dict[str, Step], names: tuple[str, ...], epoch: int, spent: dict[str, float]
) -> None:
    for name in names:
        began = time.process_time()
        while await loops[name](epoch) == 0.0:
            pass
        spent[name] += time.process_time() - began


async def _read(service: Service, clock: StepClock) -> dict[str, float]:
    """The series of one task's GPUs over the last hour."""
    times: list[float] = []
    for _ in range(9):
        began = time.perf_counter()
        query = ReadSeries(
            task_id=f"t{0:020d}".replace("0", "a"),
            attempt=1,
            signals=("gpu_percent",),
            begins_at=clock.at - timedelta(hours=1),
            ends_at=clock.at,
        )
        reply = await service.queries[ReadSeries](query)
        assert getattr(reply, "series", ()), "the task has GPUs"
        times.append(time.perf_counter() - began)
    return spread(times, "read_hour")


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--minutes", type=int, default=10)
    asked = parser.parse_args()
    report = Report(BENCHMARK, f"{asked.gpus:,} GPUs", BENCHMARK.goals)
    asyncio.run(measure(asked.gpus, asked.minutes, report))
    report.publish()


if __name__ == "__main__":
    run(main)
