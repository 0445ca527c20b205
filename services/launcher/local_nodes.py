"""Describes this machine as nodes of the process runtime: virtual ones with slots, or one with its
GPUs. Called by ``main.py`` at the start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from libs.contracts.messages import Node
from libs.signals.gpus import Gpu
from services.launcher.domain.node_labels import by_key
from services.launcher.nodes_file import NodeConfig, read_nodes_file
from services.launcher.runtimes.node_client import NodePlan
from services.launcher.settings import LauncherSettings

REAL_NODE = "local-0"
PID_MAX = Path("/proc/sys/kernel/pid_max")


def plan_nodes(settings: LauncherSettings, gpus: Sequence[Gpu]) -> tuple[NodePlan, ...]:
    """The machine itself with these GPUs, or virtual nodes that share its processors and memory
    evenly."""
    cpus = float(os.cpu_count() or 1)
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    count = settings.virtual_nodes
    if count == 0:
        node = _node(
            settings,
            _node_configs(settings, (REAL_NODE,)).get(REAL_NODE),
            node_id=REAL_NODE,
            gpus=len(gpus),
            cpus=cpus,
            memory_bytes=memory_bytes,
            gpu_model=gpus[0].model if gpus else "",
        )
        return (NodePlan(node, tuple(gpu.uuid for gpu in gpus)),)
    ids = [f"local-{index}" for index in range(count)]
    configs = _node_configs(settings, ids)
    return tuple(
        NodePlan(
            _node(
                settings,
                configs.get(node_id),
                node_id=node_id,
                gpus=settings.slots_per_node,
                cpus=cpus / count,
                memory_bytes=memory_bytes // count,
                gpu_model="virtual" if settings.slots_per_node else "",
            )
        )
        for node_id in ids
    )


def pids_max(settings: LauncherSettings, pid_max: Path = PID_MAX) -> int:
    """The limit of processes and threads for one rank or one user. It leaves some for other tasks
    and for an operator's shell."""
    return max(1, min(settings.pids_max, int(int(pid_max.read_text()) * settings.pids_part_max)))


def _node_configs(settings: LauncherSettings, node_ids: Sequence[str]) -> Mapping[str, NodeConfig]:
    path = settings.nodes_file
    return read_nodes_file(path, node_ids) if path is not None else {}


def _node(
    settings: LauncherSettings,
    configs: NodeConfig | None,
    *,
    node_id: str,
    gpus: int,
    cpus: float,
    memory_bytes: int,
    gpu_model: str,
) -> Node:
    own = configs or NodeConfig()
    taints = {**by_key(settings.node_taints), **by_key(own.taints)}
    return Node(
        id=node_id,
        group=own.group or settings.node_group,
        gpus=gpus,
        cpus=cpus,
        memory_bytes=memory_bytes,
        labels={**settings.node_labels, **own.labels},
        taints=tuple(sorted(taints.values())),
        schedulable=True,
        ready=True,
        gpu_model=gpu_model,
    )
