"""A scheduler with three groups of one node each, in which something fails on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY

from libs.contracts.messages import RunAssigned
from services.scheduler import store
from services.scheduler.domain.model.rows import Task
from tests.kit.builders import a_node, a_spec, a_task
from tests.services.scheduler.scheduler_harness import SchedulerHarness

NODES = (a_node("a0", group="a"), a_node("b0", group="b"), a_node("c0", group="c"))


class PoisonError(Exception):
    """What a defect raises."""


def of(group: str, task_id: str, *, submitted: float = 0.0, **spec: object) -> Task:
    return a_task(task_id, spec=a_spec(group=group, **spec), submitted=submitted)


async def a_scheduler(**settings: object) -> SchedulerHarness:
    return await SchedulerHarness(**settings).start(*NODES)


async def started(scheduler: SchedulerHarness) -> list[str]:
    return [each.task_id for each in await scheduler.published() if isinstance(each, RunAssigned)]


def metric(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"shiftwork_scheduler_{name}", labels) or 0.0


def raising(honest: Callable[..., Any], poisonous: Callable[..., bool]) -> Callable[..., Any]:
    """The function, but for arguments with which it fails."""

    def function(*args: Any, **more: Any) -> Any:
        if poisonous(*args):
            raise PoisonError("poison")
        return honest(*args, **more)

    return function


def loads_of(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with each load of all tables."""
    loads: list[Any] = []
    honest = store.load

    async def load(*args: Any) -> Any:
        loads.append(args)
        return await honest(*args)

    monkeypatch.setattr(store, "load", load)
    return loads
