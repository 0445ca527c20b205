"""What the agent measures, and its answers to the launcher."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from libs.contracts.messages import NodeValues
from libs.signals import agent_protocol
from libs.signals.agent_protocol import NodeMeasured, SampledPod, SampleQuery
from services.log_collector.agent import main
from services.log_collector.agent.sampling import BusyError, NodeSampler, Sampling
from services.log_collector.agent.settings import AgentSettings
from tests.kit.waiting import until
from tests.libs.signals.fake_nvml import Card, MeasuringDriver
from tests.libs.signals.test_pod_resources import kubelet as device_kubelet
from tests.libs.signals.test_pod_resources import pod as with_devices
from tests.services.log_collector.fake_agents import TOKEN, Agent
from tests.services.log_collector.fake_kubelet import NAMESPACE, Kubelet

UID, OTHER = "0f0f0f0f-1111-2222-3333-abcdefabcdef", "aaaaaaaa-1111-2222-3333-abcdefabcdef"
PODS = [SampledPod(pod="ta-1-0", uid=UID), SampledPod(pod="tb-1-0", uid=OTHER)]
SHOWN = {"authorization": f"Bearer {TOKEN}"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def settings(folder: Path) -> AgentSettings:
    token = folder / "token"
    token.write_text(TOKEN)
    return AgentSettings(
        token_file=token,
        spool_dir=folder,
        namespace=NAMESPACE,
        cgroup_dir=folder / "cgroup",
        net_dev_file=folder / "net-dev",
        pod_resources_socket=folder / "kubelet.sock",
    )


def group(folder: Path, uid: str, cpu_s: float) -> Path:
    found = folder / "cgroup" / "kubepods" / f"pod{uid}"
    found.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup" / "cgroup.controllers").write_text("cpu\n")
    (found / "cpu.stat").write_text(f"usage_usec {cpu_s * 1e6:.0f}\n")
    (found / "memory.current").write_text("1000\n")
    (found / "memory.stat").write_text("inactive_file 300\n")
    (found / "io.stat").write_text(f"8:0 rbytes={cpu_s * 100:.0f} wbytes=0\n")
    (found / "cgroup.procs").write_text("0\n")
    return found


def test_a_pod_is_measured_by_its_control_group(tmp_path: Path) -> None:
    clock = Clock()
    sampler = NodeSampler(settings(tmp_path), MeasuringDriver(), clock)
    group(tmp_path, UID, 5.0)
    (first,) = sampler.sample(PODS).pods
    assert first.values.cpu_cores is None
    clock.now_s += 10
    group(tmp_path, UID, 20.0)
    found = sampler.sample(PODS)
    (pod,) = found.pods
    assert (pod.pod, pod.gpus) == ("ta-1-0", None)
    assert pod.values.cpu_cores == pytest.approx(1.5)
    assert pod.values.memory_bytes == 700
    assert pod.values.read_bytes_per_second == pytest.approx(150)
    assert pod.values.write_bytes_per_second == 0
    assert pod.values.processes == 1
    assert found.values.memory_total_bytes
    assert found.values.disk_total_bytes
    assert found.values.network_receive_bytes_per_second is None


def test_gpus_are_those_that_the_kubelet_assigned(tmp_path: Path) -> None:
    driver = MeasuringDriver(Card("GPU-a"), Card("GPU-b", percent=7), Card("GPU-c"))
    sampler = NodeSampler(settings(tmp_path), driver, Clock())
    for uid in (UID, OTHER):
        group(tmp_path, uid, 1.0)
    found = sampler.sample(PODS)
    assert [each.gpus for each in found.pods] == [None, None], "no kubelet says it"
    answer = with_devices("ta-1-0", NAMESPACE, "GPU-c", "GPU-b") + with_devices(
        "tb-1-0", "elsewhere", "GPU-a"
    )
    with device_kubelet(tmp_path / "kubelet.sock", answer):
        found = sampler.sample(PODS)
    assert [each.gpus for each in found.pods] == [(1, 2), ()]
    assert [(each.index, each.uuid) for each in found.gpus] == [
        (0, "GPU-a"),
        (1, "GPU-b"),
        (2, "GPU-c"),
    ]
    assert found.gpus[1].values.gpu_percent == 7


def test_a_driver_that_comes_later_is_found(tmp_path: Path) -> None:
    clock, driver = Clock(), MeasuringDriver(Card("GPU-a"))
    driver.running = False
    sampler = NodeSampler(settings(tmp_path), driver, clock)
    assert sampler.sample(()).gpus == ()
    driver.running = True
    assert sampler.sample(()).gpus == ()
    clock.now_s += 60
    assert len(sampler.sample(()).gpus) == 1


async def test_the_launcher_gets_the_sample_with_the_token_alone(tmp_path: Path) -> None:
    group(tmp_path, UID, 1.0)
    agent = Agent(Kubelet(tmp_path / "log"), cgroup_dir=tmp_path / "cgroup")
    await agent.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{agent.port}") as http:
            body = agent_protocol.encode(SampleQuery(pods=tuple(PODS)))
            assert (await http.post("/sample", content=body)).status_code == 401
            got = await http.post("/sample", content=body, headers=SHOWN)
            assert got.status_code == 200
            (pod,) = agent_protocol.decode_answer(got.content, PODS).pods
            assert (pod.pod, pod.values.memory_bytes) == ("ta-1-0", 700)
            bad = json.dumps({"pods": [{"pod": "x", "uid": "../../etc"}]})
            refused = await http.post("/sample", content=bad, headers=SHOWN)
            assert refused.status_code == 400
            assert "pods.0.uid '../../etc'" in refused.json()["detail"]
            assert (await http.get("/sample", headers=SHOWN)).status_code == 405
    finally:
        await agent.stop()


class Stuck:
    """A sampler whose driver hangs until the test lets it go, or that has a defect."""

    def __init__(self) -> None:
        self.go_on, self.defect = threading.Event(), False

    def sample(self, pods: Sequence[SampledPod]) -> NodeMeasured:
        del pods
        if self.defect:
            raise RuntimeError("a defect")
        assert self.go_on.wait(10)
        return NodeMeasured(values=NodeValues())


async def test_a_hanging_driver_costs_samples_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck: Any = Stuck()
    sampling = Sampling(stuck)
    monkeypatch.setattr(main, "Sampling", lambda _: sampling)
    kubelet = Kubelet(tmp_path / "log")
    kubelet.create("t-1-0").write(b"hello\n")
    agent = Agent(kubelet)
    await agent.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{agent.port}") as http:
            body = agent_protocol.encode(SampleQuery())
            with pytest.raises(httpx.ReadTimeout):
                await http.post("/sample", content=body, headers=SHOWN, timeout=0.1)
            busy = await http.post("/sample", content=body, headers=SHOWN)
            assert (busy.status_code, "under way" in busy.text) == (503, True)
            reads = json.dumps(
                {"bytes_max": 9, "asks": [{"pod": "t-1-0", "offset": 0, "bytes_max": 9}]}
            )
            assert b"hello" in (await http.post("/read", content=reads, headers=SHOWN)).content
            stuck.go_on.set()

            async def answers() -> bool:
                return (await http.post("/sample", content=body, headers=SHOWN)).is_success

            await until(answers)
            stuck.defect = True
            assert (await http.post("/sample", content=body, headers=SHOWN)).status_code == 500
    finally:
        stuck.go_on.set()
        await agent.stop()


async def test_only_one_sample_at_a_time() -> None:
    stuck: Any = Stuck()
    sampling = Sampling(stuck)
    first = asyncio.ensure_future(sampling.sample(()))
    await asyncio.sleep(0)
    with pytest.raises(BusyError, match="under way"):
        await sampling.sample(())
    stuck.go_on.set()
    assert await first == NodeMeasured(values=NodeValues())


async def test_an_agent_that_does_not_sample_has_no_such_route(tmp_path: Path) -> None:
    agent = Agent(Kubelet(tmp_path / "log"), sample=False)
    await agent.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{agent.port}") as http:
            assert (await http.post("/sample", headers=SHOWN)).status_code == 404
    finally:
        await agent.stop()
