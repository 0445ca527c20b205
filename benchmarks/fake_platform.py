"""A platform as ``shiftwork up`` keeps it, on nodes that are not there. Started by ``harness.py``.

    python -m benchmarks.fake_platform --data DIR --group cohort0=120 --group cohort1=120
        [--apart scheduler+launcher]

NATS, PostgreSQL and every service are the real ones with their real configuration; only the
launcher's runtime keeps time instead of starting processes, and so there is no output to collect.
Services that are named with ``--apart`` run in a process of their own, as on a real cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.fake_service import GROUPS, PROFILE, groups_from, on_fake_nodes
from benchmarks.sampler import sampling
from libs.service.wiring import Wiring
from services.allinone.data_folder import DataFolder, Options
from services.allinone.machine import Machine
from services.allinone.platform import Platform
from services.allinone.platform_process import keep_here

# A file for the output of services that run in processes of their own.
LOG = "SHIFTWORK_BENCHMARK_LOG"


def wirings(groups: dict[str, int]) -> tuple[Wiring, ...]:
    """The platform's services; two of them see other machines than this one."""
    from services.allinone.composition import WIRINGS  # noqa: PLC0415 - slow to import

    return tuple(on_fake_nodes(wiring, groups) for wiring in WIRINGS)


class Apart(Platform):
    """The platform with some of its services in other processes: each name with the process that
    runs it, which is given by the names of all that it runs."""

    groups: str = ""
    homes: dict[str, Sequence[str]]

    async def _wait_until_ready(self, services: int) -> None:
        await super()._wait_until_ready(services - len(self.homes))

    async def _run_service(self, wiring: Wiring, machine: Machine) -> None:
        names = self.homes.get(wiring.name)
        if names is None:
            await super()._run_service(wiring, machine)
        elif wiring.name != names[0]:
            # The first of them brings the others along.
            await asyncio.Event().wait()
        else:
            await self._run_apart(names, machine)

    async def _run_apart(self, names: Sequence[str], machine: Machine) -> None:
        from services.allinone.composition import WIRINGS, environment_of  # noqa: PLC0415

        # Whatever a benchmark submits, it submits as one user.
        environment = {"SHIFTWORK_SUBMIT_LIVE_TASKS_PER_USER_MAX": "1000000"}
        environment |= dict(os.environ) | {GROUPS: self.groups}
        for each in WIRINGS:
            if each.name in names:
                environment |= environment_of(each, machine)
        log = os.open(
            os.environ.get(LOG, os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "benchmarks.fake_service", *names),
                env=environment,
                stdout=log,
                stderr=log,
            )
        finally:
            os.close(log)
        try:
            status = await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise
        raise RuntimeError(f"{'+'.join(names)} ended with status {status}")


def main() -> int:
    """Run it until a signal ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--group", action="append", required=True, metavar="NAME=NODES")
    parser.add_argument("--apart", action="append", default=[], metavar="SERVICE+SERVICE")
    asked = parser.parse_args()
    group_texts = ",".join(asked.group)
    processes = [each.split("+") for each in asked.apart]

    def make(data_folder: DataFolder, options: Options, pid: int) -> Platform:
        made = Apart(data_folder, options, pid, wirings=partial(wirings, groups_from(group_texts)))
        made.groups = group_texts
        made.homes = {name: names for names in processes for name in names}
        return made

    options = Options(port=0, nodes=1, slots=0, tasks_as_root=True)
    run = partial(keep_here, DataFolder(asked.data), options, make=make)
    into = os.environ.get(PROFILE)
    with sampling(into and f"{into}.up"):
        return run()


if __name__ == "__main__":
    sys.exit(main())
