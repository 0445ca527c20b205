"""A platform as ``shiftwork up`` keeps it, on nodes that are not there. Started by ``stage.py``.

    python -m benchmarks.fake_platform --data DIR --group cohort0=120 --group cohort1=120

NATS, PostgreSQL and every service are the real ones with their real configuration; only the
launcher's runtime keeps time instead of starting processes, and so there is no output to collect.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.fake_nodes import FakeNodes
from libs.contracts.messages import Node
from libs.service.wiring import Wiring
from services.allinone.keep import keep_here
from services.allinone.place import Options, Place
from services.allinone.platform import Platform
from services.log_collector.sources.memory import MemorySource

GIB = 1 << 30


def nodes_of(groups: dict[str, int], gpus: int) -> list[Node]:
    """So many like nodes in each group."""
    return [
        Node(
            id=f"{group}-{number:03d}",
            group=group,
            gpus=gpus,
            cpus=8.0,
            memory_bytes=64 * GIB,
            schedulable=True,
            ready=True,
        )
        for group, count in groups.items()
        for number in range(count)
    ]


def wirings(nodes: list[Node]) -> tuple[Wiring, ...]:
    """The platform's services; two of them see other machines than this one."""
    from services.allinone.composition import WIRINGS  # noqa: PLC0415 - slow to import

    instead: dict[str, dict[str, Any]] = {
        "launcher": {"runtime": FakeNodes(nodes)},
        "log_collector": {"source": MemorySource()},
    }
    return tuple(
        replace(wiring, build=partial(wiring.build, **instead.get(wiring.name, {})))
        for wiring in WIRINGS
    )


def main() -> int:
    """Keep it until told to end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--group", action="append", required=True, metavar="NAME=NODES")
    parser.add_argument("--gpus", type=int, default=1)
    asked = parser.parse_args()
    groups = {name: int(count) for name, _, count in (each.partition("=") for each in asked.group)}
    found = nodes_of(groups, asked.gpus)

    def make(place: Place, options: Options, pid: int) -> Platform:
        return Platform(place, options, pid, wirings=partial(wirings, found))

    run = partial(keep_here, Place(asked.data), Options(port=0, nodes=1, slots=0), make=make)
    into = os.environ.get("SHIFTWORK_BENCHMARK_PROFILE")
    if not into:
        return run()
    profile = cProfile.Profile()
    try:
        return profile.runcall(run)
    finally:
        profile.dump_stats(into)


if __name__ == "__main__":
    sys.exit(main())
