"""Tasks accepted and read through one gateway process, by many clients at once.

    python -m benchmarks.durable_gateway [--submits 10000] [--reads 10000] [--bulk 20000]

A 201 is sent after the task's row and its event are committed. The platform is the whole one, on
nodes that are not there; the gateway and the clients share the machine with everything else. The
floor is what anybody writes first, measured with the same clients: FastAPI on the same database,
one insert and one commit for each POST, one row for each GET.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Generator, Sequence

from benchmarks.guard import run
from benchmarks.harness import (
    BenchmarkError,
    Http,
    Platform,
    database_address,
    parts,
    ready_nodes,
    running_platform,
    up_on_fake_nodes,
)
from benchmarks.http_load import Answers, load, requests
from benchmarks.report import Benchmark, Goal, Report, percentile

CLIENTS = (32, 500)
BULK_CLIENTS, BATCH = 4, 500
BENCHMARK = Benchmark(
    name="durable_gateway",
    alias="p7",
    question="How many tasks does one gateway accept and show, when each is stored first?",
    method=(
        "32 and 500 clients on kept-open connections against one platform on this machine: single"
        " submissions, reads of one task, batches of 500. Floor: a bare FastAPI application on the"
        " same database with one commit for each POST, with the same clients."
    ),
    goals=(
        *(
            goal
            for clients in CLIENTS
            for goal in (
                Goal(
                    figure=f"submits_per_s_{clients}",
                    label=f"submissions a second, {clients} clients",
                    at_least=1000.0,
                ),
                Goal(
                    figure=f"submit_p99_ms_{clients}",
                    label=f"a submission, p99, {clients} clients",
                    at_most=100.0,
                ),
                Goal(
                    figure=f"reads_per_s_{clients}",
                    label=f"reads a second, {clients} clients",
                    at_least=4000.0,
                ),
                Goal(
                    figure=f"read_p99_ms_{clients}",
                    label=f"a read, p99, {clients} clients",
                    at_most=20.0,
                ),
            )
        ),
        Goal(figure="bulk_tasks_per_s", label="tasks a second in batches", at_least=8000.0),
    ),
    smoke=("--submits", "64", "--reads", "64", "--bulk", "1000"),
)
RUNNING = re.compile(r"running on (http://[\d.:]+)")
# One client's limit is not what is measured.
UNLIMITED = {
    "SHIFTWORK_GATEWAY_REQUESTS_PER_SECOND": "1000000",
    "SHIFTWORK_GATEWAY_REQUESTS_BURST": "1000000",
}


def spec(number: int) -> dict[str, object]:
    """A submission as people write it."""
    command = ["python", "train.py", "--seed", str(number)]
    return {"name": f"task-{number}", "nodes": 1, "gpus_per_node": 1, "command": command}


@contextlib.contextmanager
def naive(platform: Platform) -> Generator[str]:
    """The bare application, on the platform's own database server."""
    address, password = database_address(platform)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.naive_gateway", address],
        env={**os.environ, "PGPASSWORD": password},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := RUNNING.search(line):
                yield found[1]
                return
        raise BenchmarkError("the bare application does not start")
    finally:
        process.terminate()
        process.communicate()


async def singles(
    url: str, token: str, clients: int, numbers: Sequence[int], paths: Sequence[str]
) -> tuple[Answers, Answers]:
    """Submissions, then reads of what is there."""
    wanted = requests(
        "POST",
        url,
        ["/v1/tasks"] * len(numbers),
        token,
        [json.dumps(spec(each)).encode() for each in numbers],
    )
    submitted = await load(url, clients, wanted)
    submitted.only(201)
    read = await load(url, clients, requests("GET", url, paths, token, [b""] * len(paths)))
    read.only(200)
    return submitted, read


def figures(clients: int, submitted: Answers, read: Answers) -> dict[str, float]:
    """Rates, and the slowest hundredth."""
    found: dict[str, float] = {}
    for word, answers in (("submit", submitted), ("read", read)):
        found[f"{word}s_per_s_{clients}"] = round(answers.per_second, 1)
        for share in (50, 99):
            found[f"{word}_p{share}_ms_{clients}"] = round(
                percentile(answers.seconds, share / 100) * 1000, 2
            )
    return found


async def bulk(url: str, token: str, tasks: int) -> float:
    """Tasks a second in batches."""
    bodies = [
        json.dumps({"tasks": [spec(10**6 + first + each) for each in range(BATCH)]}).encode()
        for first in range(0, tasks, BATCH)
    ]
    paths = ["/v1/tasks:batch"] * len(bodies)
    answers = await load(url, BULK_CLIENTS, requests("POST", url, paths, token, bodies))
    answers.only(200)
    return round(len(bodies) * BATCH / answers.wall_s, 1)


async def main() -> None:
    """Measure, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submits", type=int, default=10_000)
    parser.add_argument("--reads", type=int, default=10_000)
    parser.add_argument("--bulk", type=int, default=20_000)
    asked = parser.parse_args()
    report = Report(
        BENCHMARK,
        f"{asked.submits:,} submissions and {asked.reads:,} reads each, {asked.bulk:,} in batches",
        BENCHMARK.goals,
    )
    with running_platform(up_on_fake_nodes({"default": 1}), UNLIMITED) as platform:
        platform.start()
        http = Http(platform.url, platform.token)
        try:
            await ready_nodes(http, 1)
            known = [
                await http.submit(name=f"known-{number}", command=["/bin/true"])
                for number in range(100)
            ]
        finally:
            http.close()
        for place, clients in enumerate(CLIENTS):
            numbers = range(place * asked.submits, (place + 1) * asked.submits)
            paths = [f"/v1/tasks/{known[each % len(known)]}" for each in range(asked.reads)]
            before = platform.cpu_seconds()
            found = await singles(platform.url, platform.token, clients, numbers, paths)
            used = parts(before, platform.cpu_seconds())
            report.measured |= figures(clients, *found)
            report.measured[f"cpu_s_{clients}"] = round(sum(used.values()), 1)
        report.measured["bulk_tasks_per_s"] = await bulk(platform.url, platform.token, asked.bulk)
        with naive(platform) as url:
            for clients in CLIENTS:
                paths = [f"/v1/tasks/{1 + each % asked.submits}" for each in range(asked.reads)]
                found = await singles(url, "-", clients, range(asked.submits), paths)
                report.floor |= figures(clients, *found)
    report.publish()


if __name__ == "__main__":
    run(main)
