"""The nodes of this machine: its GPUs, or declared slots where there are none."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

import psutil

from services.allinone.gpus import Gpu, find_gpus
from services.allinone.place import Options

GROUP = "default"


@dataclass(frozen=True, slots=True)
class Nodes:
    """What the launcher is told, and a sentence for people."""

    json: str
    told: str


def nodes_of(options: Options) -> Nodes:
    """Virtual nodes if they were asked for, otherwise this machine as one node."""
    if options.nodes is not None or options.slots is not None:
        count, slots = options.nodes or 1, 1 if options.slots is None else options.slots
        return _nodes(count, slots, (), f"{count} virtual nodes x {slots} slots")
    found = find_gpus()
    if found.gpus:
        models = ", ".join(sorted({gpu.model for gpu in found.gpus}))
        return _nodes(1, len(found.gpus), found.gpus, f"{len(found.gpus)} GPUs ({models})")
    return _nodes(1, 1, (), f"1 node x 1 slot, no GPU ({found.reason}); --nodes and --slots set more")


def _nodes(count: int, gpus: int, real: tuple[Gpu, ...], told: str) -> Nodes:
    each = {
        "group": GROUP,
        "gpus": gpus,
        "cpus": round((os.cpu_count() or 1) / count, 3),
        "memory_bytes": psutil.virtual_memory().total // count,
        "gpu_model": real[0].model if real else "",
        # Empty on virtual slots: CUDA_VISIBLE_DEVICES then shows no device.
        "devices": [gpu.uuid for gpu in real],
    }
    nodes = [{"id": f"local-{index}", **each} for index in range(count)]
    return Nodes(json.dumps(nodes), told)
