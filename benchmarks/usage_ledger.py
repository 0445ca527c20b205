"""How long questions about usage take on a ledger of many attempts, in the database itself.

    python -m benchmarks.usage_ledger [--attempts 100000] [--rounds 5]

The ledger is filled by SQL: a year of attempts of 50 users, some of which still run. Then the
gateway's own question is asked as a route asks it, in a transaction of its own, on one connection.
The floor is the plain sum of one product over the same rows.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.guard import run
from benchmarks.harness import connected
from benchmarks.report import Benchmark, Goal, Report, spread
from libs.service.clock import SystemClock
from libs.store.connections import Address
from libs.store.migrate import upgrade
from libs.store.sql import SqlStore
from services.allinone.embedded.credentials import ensure_credentials
from services.allinone.embedded.postgres import DATABASE, Postgres
from services.gateway import usage
from services.gateway.main import WIRING
from services.gateway.rows import UsageRow
from services.gateway.tables import TABLES
from services.gateway.usage import Selection

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
YEAR = timedelta(days=365)
QUESTIONS = {
    "year_by_user": Selection(NOW - YEAR, NOW, ("user", "team")),
    "year_by_outcome": Selection(NOW - YEAR, NOW, ("priority", "outcome")),
    "year_by_day": Selection(NOW - YEAR, NOW, ("day", "team")),
    "week_by_user": Selection(NOW - timedelta(days=7), NOW, ("user",)),
    "month_of_one_user": Selection(
        NOW - timedelta(days=30), NOW, ("day", "group"), {"user": "user7"}
    ),
}
BENCHMARK = Benchmark(
    name="usage_ledger",
    alias="usage",
    question="How long do questions about usage take?",
    method=(
        "100,000 attempts of a year in the database; the gateway's own questions, as its route asks"
        " them. Floor: one plain sum over the same rows, in SQL."
    ),
    goals=tuple(
        Goal(figure=f"{name}_p50_ms", label=name.replace("_", " "), at_most=1000.0)
        for name in QUESTIONS
    ),
    smoke=("--attempts", "5000", "--rounds", "2"),
)
# Attempts of minutes to two days. One in a hundred of the newest still runs.
FILL = """
INSERT INTO gateway.usage
SELECT 't' || n / 3, n % 3 + 1, 'user' || n % 50, 'team' || n % 8, 'group' || n % 3,
       (ARRAY['low', 'normal', 'high', 'auto'])[n % 4 + 1], 1, n % 65, n % 9 + 1,
       began, began + interval '20 seconds', began + lasted * 0.9, NULL, '', 'ok',
       began, CASE WHEN n > $1 * 0.99 THEN NULL ELSE began + lasted END,
       CASE WHEN n > $1 * 0.99 THEN 'running' ELSE
         (ARRAY['succeeded', 'failed', 'preempted', 'stopped', 'lost'])[n % 5 + 1] END
FROM (
  SELECT n, $2::timestamptz + (n::float8 / $1) * interval '364 days' AS began,
         (60 + (n * 7919) % 172800) * interval '1 second' AS lasted
  FROM generate_series(1, $1::int) AS n
) AS attempts
"""
FLOOR = 'SELECT sum(gpus * extract(epoch FROM held_until - held_from)) FROM "gateway"."usage"'


@asynccontextmanager
async def ledger() -> AsyncGenerator[tuple[Postgres, Address]]:
    """A server of the benchmark's own with the gateway's schema, and the gateway's account."""
    folder = Path(tempfile.mkdtemp(prefix="shiftwork-bench-usage-"))
    credentials = ensure_credentials(folder)
    server = Postgres(folder, credentials)
    try:
        await server.start()
        await server.prepare()
        gateway = Address(server.url("gateway"), credentials.postgres_password("gateway"))
        await upgrade(gateway, TABLES, WIRING.migrations)
        yield server, gateway
    finally:
        await server.stop()
        server.remove_temporary()
        shutil.rmtree(folder, ignore_errors=True)


async def ask(store: SqlStore, selection: Selection) -> float:
    """Seconds of one question."""
    began = time.perf_counter()
    async with store.transaction() as tx:
        groups = await tx.span_sums(UsageRow, usage.query(selection, 10_001))
    assert usage.sums(selection, groups), "the ledger has attempts of every range"
    return time.perf_counter() - began


async def measure(attempts: int, rounds: int, report: Report) -> None:
    """Fill the ledger, ask each question in turns."""
    async with ledger() as (server, gateway):
        async with connected(server.url("postgres", DATABASE), server.admin_password) as connection:
            await connection.execute(FILL, attempts, NOW - YEAR)
            await connection.execute("ANALYZE gateway.usage")
            times: list[float] = []
            for _ in range(rounds):
                began = time.perf_counter()
                await connection.fetchval(FLOOR)
                times.append(time.perf_counter() - began)
        floor = spread(times, "sum")["sum_p50_ms"]
        store = SqlStore(gateway, TABLES, clock=SystemClock(), source="benchmark", new_id=str)
        try:
            for name, selection in QUESTIONS.items():
                await ask(store, selection)
                asked = [await ask(store, selection) for _ in range(rounds)]
                report.measured |= spread(asked, name)
                report.floor[f"{name}_p50_ms"] = floor
        finally:
            await store.close()


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    report = Report(BENCHMARK, f"{asked.attempts:,} attempts", BENCHMARK.goals)
    asyncio.run(measure(asked.attempts, asked.rounds, report))
    report.publish()


if __name__ == "__main__":
    run(main)
