"""Measures the node and pods of runs on it, when the launcher asks. Used by ``http_app.py``.

It reads the container's own /proc, and of the host only what ``AgentSettings`` names: the control
groups, the list of network devices, the kubelet's list of devices. NVML measures GPUs. Samples are
on the way of nothing: they have a thread of their own, and a defect or a driver that hangs is an
error for the launcher, while output is collected as before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from libs.contracts.messages import GpuSample, RankValues
from libs.signals.agent_protocol import NodeMeasured, PodMeasured, SampledPod
from libs.signals.control_groups import PodGroups, read_groups
from libs.signals.gpu_sampler import GpuSampler, MeasuringNvml
from libs.signals.gpus import find_gpus
from libs.signals.host import HostSystem
from libs.signals.machine import MachineSampler
from libs.signals.pod_resources import PodResources
from libs.signals.rates import Rates
from services.log_collector.agent.settings import AgentSettings

# A driver may come later, and GPUs be divided otherwise.
FIND_GPUS_SECONDS = 60.0


class BusyError(Exception):
    """A sample is being taken; the text says since when."""


@dataclass
class NodeSampler:
    """The samplers of one node. Called by one thread at a time."""

    settings: AgentSettings
    nvml: MeasuringNvml | None = None
    clock_s: Callable[[], float] = time.monotonic
    _rates: Rates = field(default_factory=Rates)
    _gpus: GpuSampler = field(default_factory=lambda: GpuSampler(()))
    _gpus_found_at: float = float("-inf")

    def __post_init__(self) -> None:
        settings = self.settings
        # The file system of the node's logs is the one that pods write to by default.
        self._machine = MachineSampler(settings.spool_dir, HostSystem(settings.net_dev_file))
        self._groups = PodGroups(settings.cgroup_dir, self.clock_s)
        self._resources = PodResources(settings.pod_resources_socket)

    def sample(self, pods: Sequence[SampledPod]) -> NodeMeasured:
        """Measure. Nothing that cannot be read raises."""
        values = self._machine.sample(self.clock_s())
        gpus = self._sample_gpus()
        devices = self._devices(gpus)
        found: list[PodMeasured] = []
        for pod in pods:
            measured = self._measure(pod.uid)
            if measured is not None:
                held = None if devices is None else devices.get(pod.pod, ())
                found.append(PodMeasured(pod=pod.pod, values=measured, gpus=held))
        uids = {pod.uid for pod in pods}
        self._groups.keep(uids)
        self._rates.keep({(uid, name) for uid in uids for name in ("cpu", "read", "write")})
        return NodeMeasured(values=values, gpus=gpus, pods=tuple(found))

    def close(self) -> None:
        """Let the driver go."""
        self._gpus.close()

    def _measure(self, uid: str) -> RankValues | None:
        """None without a control group: a gap, not a pod that uses nothing."""
        folders = self._groups.find(uid)
        if not folders:
            return None
        usage, now_s = read_groups(folders), self.clock_s()
        values = RankValues(
            cpu_cores=self._rates.rate((uid, "cpu"), usage.cpu_seconds, now_s),
            memory_bytes=usage.memory_bytes,
            read_bytes_per_second=self._rates.rate((uid, "read"), usage.read_bytes, now_s),
            write_bytes_per_second=self._rates.rate((uid, "write"), usage.write_bytes, now_s),
            processes=self._groups.processes(uid),
        )
        return None if usage.cpu_seconds is None and values == RankValues() else values

    def _sample_gpus(self) -> tuple[GpuSample, ...]:
        found = self._gpus.sample()
        if found or self.clock_s() - self._gpus_found_at < FIND_GPUS_SECONDS:
            return found
        self._gpus_found_at = self.clock_s()
        uuids = [gpu.uuid for gpu in find_gpus(self.nvml).gpus]
        if uuids != list(self._gpus.uuids):
            self._gpus.close()
            self._gpus = GpuSampler(uuids, self.nvml)
        return self._gpus.sample()

    def _devices(self, gpus: Sequence[GpuSample]) -> Mapping[str, tuple[int, ...]] | None:
        """The GPUs of each pod, by its name; None if the kubelet does not say."""
        if not gpus:
            return None
        held = self._resources.devices(self.settings.namespace)
        if held is None:
            return None
        index = {gpu.uuid: gpu.index for gpu in gpus}
        return {
            pod: tuple(sorted({index[each] for each in devices if each in index}))
            for pod, devices in held.items()
        }


class Sampling:
    """Takes samples in a thread of its own, one at a time."""

    def __init__(self, sampler: NodeSampler) -> None:
        self._sampler = sampler
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sample")
        self._under_way: asyncio.Future[NodeMeasured] | None = None
        self._began_at = 0.0

    async def sample(self, pods: Sequence[SampledPod]) -> NodeMeasured:
        """Measure. Raises ``BusyError`` while another sample is being taken, and whatever defect
        ended this one."""
        if self._under_way is not None and not self._under_way.done():
            seconds = time.monotonic() - self._began_at
            raise BusyError(
                f"a sample has been under way for {seconds:.0f} s; ask again. If that grows, a disk"
                " or the GPU driver of this node hangs"
            )
        loop = asyncio.get_running_loop()
        self._began_at = time.monotonic()
        self._under_way = loop.run_in_executor(self._thread, self._sampler.sample, pods)
        # It goes on when the request is cut off: its answer is then lost.
        return await asyncio.shield(self._under_way)
