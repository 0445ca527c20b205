"""Some services of a platform in one process of their own, on simulated nodes if asked to.

    SHIFTWORK_BENCHMARK_GROUPS=cohort0=120,cohort1=120 python -m benchmarks.fake_service launcher

Started by ``fake_platform --apart``; settings come from the environment, as every service's.
``SHIFTWORK_BENCHMARK_PROFILE=FILE`` samples into a file of this name and the services'.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import uvloop

from benchmarks.fake_nodes import FakeNodes, nodes_of
from benchmarks.sampler import sampling
from libs.service import observability
from libs.service.run import collect_rarely, load_settings, run_with_http, stop_on_signal
from libs.service.runner import Runner
from libs.service.wiring import Wiring, connect
from services.launcher.runtimes.port import Runtime
from services.log_collector.sources.memory import MemorySource
from services.log_collector.sources.port import LogSource

GROUPS = "SHIFTWORK_BENCHMARK_GROUPS"
PROFILE = "SHIFTWORK_BENCHMARK_PROFILE"


def stand_ins(name: str, groups: dict[str, int]) -> dict[str, Any]:
    """What a service's ``build`` is given in place of this machine's own parts; without groups,
    nothing."""
    if not groups:
        return {}
    # Declared, so that the type checker compares each with its port: ``build`` takes anything.
    runtime: Runtime = FakeNodes(nodes_of(groups))
    source: LogSource = MemorySource()
    return {"launcher": {"runtime": runtime}, "log_collector": {"source": source}}.get(name, {})


def groups_from(listed: str) -> dict[str, int]:
    """``NAME=NODES`` pairs with commas between them."""
    pairs = (each.partition("=") for each in listed.split(",") if each)
    return {name: int(count) for name, _, count in pairs}


def on_fake_nodes(wiring: Wiring, groups: dict[str, int]) -> Wiring:
    """The service as it is, on other machines than this one."""
    return replace(wiring, build=partial(wiring.build, **stand_ins(wiring.name, groups)))


async def _run(names: Sequence[str]) -> None:
    groups = groups_from(os.environ.get(GROUPS, ""))
    found: list[Wiring] = [
        importlib.import_module(f"services.{name}.main").WIRING for name in names
    ]
    task = asyncio.current_task()
    assert task is not None
    async with stop_on_signal(task.cancel):
        with contextlib.suppress(asyncio.CancelledError):
            async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as group:
                for wiring in found:
                    settings = load_settings(wiring)
                    ports = await stack.enter_async_context(connect(wiring, settings))
                    service = on_fake_nodes(wiring, groups).build(settings, ports)
                    group.create_task(run_with_http(Runner(service, settings)))
                collect_rarely()


def main() -> None:
    """Run the services that the command line names."""
    names = sys.argv[1:]
    observability.set_up_logs("console", "info")
    into = os.environ.get(PROFILE)
    with sampling(into and ".".join([into, *names])):
        uvloop.run(_run(names))


if __name__ == "__main__":
    main()
