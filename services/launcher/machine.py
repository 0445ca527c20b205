"""What this machine is, as the process runtime's nodes: virtual ones with slots, or itself with its
GPUs. Called by ``main.py`` at the start, and by ``doctor``.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass

from libs.contracts.messages import Node
from services.launcher.runtimes.node_client import NodePlan, TaskUser
from services.launcher.settings import LauncherSettings

REAL_NODE = "local-0"


@dataclass(frozen=True, slots=True)
class Gpus:
    """The machine's GPUs as NVML lists them."""

    count: int = 0
    model: str = ""
    # Why none could be listed, if NVML is there and failed.
    problem: str = ""


def find_gpus() -> Gpus:
    """Ask NVML; a machine without it has none."""
    try:
        import pynvml  # noqa: PLC0415 - only where there may be GPUs
    except ImportError:
        return Gpus()
    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
        model = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0)) if count else ""
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        code: object = error.args[0] if error.args else None
        absent = code == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return Gpus(problem="" if absent else f"NVML: {error}")
    return Gpus(count, model if isinstance(model, str) else model.decode())


def plan_nodes(settings: LauncherSettings, gpus: Gpus | None) -> tuple[NodePlan, ...]:
    """The nodes of this machine; virtual ones share its processors and memory evenly."""
    cpus = float(os.cpu_count() or 1)
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    gpus, count = gpus or Gpus(), settings.virtual_nodes
    if count == 0:
        node = _node(
            settings,
            node_id=REAL_NODE,
            gpus=gpus.count,
            cpus=cpus,
            memory_bytes=memory_bytes,
            gpu_model=gpus.model,
        )
        return (NodePlan(node, tuple(str(index) for index in range(gpus.count))),)
    return tuple(
        NodePlan(
            _node(
                settings,
                node_id=f"local-{index}",
                gpus=settings.slots_per_node,
                cpus=cpus / count,
                memory_bytes=memory_bytes // count,
                gpu_model="virtual" if settings.slots_per_node else "",
            )
        )
        for index in range(count)
    )


def _node(
    settings: LauncherSettings,
    *,
    node_id: str,
    gpus: int,
    cpus: float,
    memory_bytes: int,
    gpu_model: str,
) -> Node:
    labels: Mapping[str, str] = settings.node_labels
    return Node(
        id=node_id,
        group=settings.node_group,
        gpus=gpus,
        cpus=cpus,
        memory_bytes=memory_bytes,
        labels=labels,
        schedulable=True,
        ready=True,
        gpu_model=gpu_model,
    )


@dataclass(frozen=True, slots=True)
class Person:
    """As whom tasks run, and what they are told about it."""

    name: str
    home: str
    # None: as the launcher itself.
    user: TaskUser | None


def task_person(task_user: str) -> Person:
    """The user of tasks. ValueError if there is no such user, or we are not root."""
    if not task_user:
        own = pwd.getpwuid(os.getuid())
        return Person(own.pw_name, own.pw_dir, None)
    try:
        found = pwd.getpwnam(task_user)
    except KeyError:
        raise ValueError(f"task_user {task_user!r} is no user of this machine") from None
    if os.getuid() != 0:
        raise ValueError("task_user is set, but only root can run tasks as another user")
    groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
    return Person(found.pw_name, found.pw_dir, TaskUser(found.pw_uid, found.pw_gid, groups))
