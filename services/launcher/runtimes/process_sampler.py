"""Measures this machine and the ranks of the process runtime on it, for ``process.py``.

It reads what the supervisors listed and asks the kernel and the driver; nothing here delays an
order to a supervisor. Virtual nodes of one machine all have the figures of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from libs.contracts.ids import RunId
from libs.contracts.messages import NodeSampled, RankSample
from libs.signals.gpu_sampler import GpuSampler
from libs.signals.machine import MachineSampler
from libs.signals.processes import RankProcesses, RankSampler, SystemProcesses
from services.launcher.runtimes.sample_port import HeldGpus

# A supervisor's listing of one node: run, rank, what is known of the rank.
Listed = Mapping[str, Mapping[str, Mapping[str, Any]]]


@dataclass
class ProcessSampler:
    """The samplers of one machine. ``devices``: the GPUs of each node by index, as in
    ``NodePlan``."""

    folder: Path
    devices: Mapping[str, Sequence[str]]
    hostname: str
    clock_s: Callable[[], float] = time.monotonic
    ranks: RankSampler = field(default_factory=lambda: RankSampler(SystemProcesses))

    def __post_init__(self) -> None:
        self._machine = MachineSampler(self.folder)
        self._gpus = {node_id: GpuSampler(uuids) for node_id, uuids in self.devices.items()}

    def sample(
        self, nodes: Mapping[str, Listed], held: HeldGpus, now: datetime
    ) -> list[NodeSampled]:
        """Measure. It takes some milliseconds for each hundred processes: call it in a thread."""
        values = self._machine.sample(self.clock_s())
        gpus = {node_id: self._gpus[node_id].sample() for node_id in nodes if node_id in self._gpus}
        memory: dict[int, float] | None = None
        for sampler in self._gpus.values():
            if sampler.memory_by_process is not None:
                memory = (memory or {}) | sampler.memory_by_process
        places = {
            node_id: [
                place
                for run, ranks in listed.items()
                for rank, found in ranks.items()
                if (place := _place(run, rank, found)) is not None
            ]
            for node_id, listed in nodes.items()
        }
        every = [processes for node in places.values() for _, _, processes in node]
        measured = self.ranks.sample(every, self.clock_s(), memory)
        return [
            NodeSampled(
                node_id=node_id,
                sampled_at=now,
                hostname=self.hostname,
                values=values,
                gpus=gpus.get(node_id, ()),
                ranks=tuple(
                    RankSample(
                        task_id=run_id.task_id,
                        attempt=run_id.attempt,
                        rank=rank,
                        gpus=held.get((str(run_id.task_id), run_id.attempt, rank), ()),
                        values=measured[processes.key],
                    )
                    for run_id, rank, processes in places[node_id]
                    if processes.key in measured
                ),
            )
            for node_id in nodes
        ]

    def close(self) -> None:
        """Let the drivers go."""
        for sampler in self._gpus.values():
            sampler.close()


def _place(
    run: str, rank: str, found: Mapping[str, Any]
) -> tuple[RunId, int, RankProcesses] | None:
    """Where a listed rank's processes are; None if it is over, if its supervisor is of a version
    that does not say it, or if its run has no readable id."""
    if "pid" not in found:
        return None
    try:
        run_id, number = RunId.parse(run), int(rank)
    except ValueError:
        return None
    key = (run, number, int(found.get("start", 0)))
    return (
        run_id,
        number,
        RankProcesses(key, int(found["pid"]), int(found["ticks"]), tuple(found["groups"])),
    )
