"""What pods and nodes use is measured by the node agents, from the outside of the pods."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.kubernetes_demo.platform import Platform

pytestmark = pytest.mark.kubernetes
# Both ranks print where they are; rank 0 computes and holds memory, rank 1 sleeps.
PROGRAM = """
import os, time
block = bytearray(96 * 2**20)
while os.environ["SHIFTWORK_RANK"] == "0":
    pass
time.sleep(3600)
"""


async def newest(platform: Platform, task_id: str) -> dict[tuple[int, str], float]:
    """The last point of each signal of each rank."""
    page = await platform.request("GET", f"/v1/tasks/{task_id}/metrics", params={"series": "true"})
    assert "series_problem" not in page, page
    return {
        (item["rank"], series["signal"]): series["points"][-1]["average"]
        for item in page["items"]
        for series in item["series"]
        if series["points"]
    }


async def shown(platform: Platform, task_id: str) -> str:
    """What a person sees of it."""
    token = platform.client.headers["authorization"].removeprefix("Bearer ")
    done = subprocess.run(  # noqa: ASYNC221 - nothing else runs here
        [str(Path(sys.executable).with_name("shiftwork")), "metrics", task_id],
        env={
            **os.environ,
            "SHIFTWORK_URL": str(platform.client.base_url),
            "SHIFTWORK_TOKEN": token,
            "COLUMNS": "120",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_the_pods_and_nodes_of_a_run_are_measured(platform: Platform) -> None:
    task_id = await platform.submit(
        "burner", ["python3", "-c", PROGRAM], nodes=2, gpus_per_node=0, cpus=0.5
    )
    await platform.until_state(task_id, "running")
    listed = await platform.request("GET", "/v1/nodes")
    nodes = [str(node["id"]) for node in listed["items"]]
    assert nodes

    async def look() -> dict[tuple[int, str], float]:
        return await newest(platform, task_id)

    def complete(found: dict[tuple[int, str], float]) -> bool:
        return found.get((0, "cpu_cores"), 0.0) > 0.2 and (1, "cpu_cores") in found

    found = await platform.wait(look, complete, "both ranks were sampled", seconds=60)
    assert found[1, "cpu_cores"] < 0.1
    for rank in (0, 1):
        assert 96 * 2**20 < found[rank, "memory_bytes"] < 2**30
    assert "cpu_cores" in await shown(platform, task_id)

    async def values(node_id: str) -> dict[str, Any]:
        page = await platform.request("GET", f"/v1/nodes/{node_id}/metrics")
        return {
            series["signal"]: series["points"][-1]["average"]
            for series in page["series"]
            if series["points"]
        }

    for node_id in nodes:
        measured = await values(node_id)
        assert {
            *("cpu_percent", "load_processes", "memory_used_bytes", "disk_used_bytes"),
            *("network_receive_bytes_per_second", "network_transmit_bytes_per_second"),
        } <= set(measured)
        assert measured["network_receive_bytes_per_second"] > 0
    await platform.request("PUT", f"/v1/tasks/{task_id}/goal", json={"goal": "stop"})


async def test_the_agent_sees_of_its_node_what_it_measures_and_nothing_else(
    platform: Platform,
) -> None:
    """It has no way to change a control group, and sees no process of others."""
    label = "app.kubernetes.io/component=log-agent"
    names = await platform.kube.pods_of(platform.namespace, label)
    script = (
        "import os, glob\n"
        "pids = [each for each in os.listdir('/proc') if each.isdecimal()]\n"
        "own = {open(f'/proc/{pid}/comm').read().strip() for pid in pids}\n"
        "found = [each for each in glob.glob('/host/cgroup/**/cgroup.procs', recursive=True)"
        " if 'kubepods' in each]\n"
        "assert found, 'the groups of pods are there'\n"
        "refused = 0\n"
        "for each in found[:50]:\n"
        "    try:\n"
        "        open(each, 'w').close()\n"
        "    except OSError:\n"
        "        refused += 1\n"
        "print(sorted(os.listdir('/host')), len(pids) < 5, refused == len(found[:50]))\n"
    )
    for name in names:
        run = ("exec", "-n", platform.namespace, name, "--", "python", "-c", script)
        output = await platform.kube.run(*run)
        assert output.strip() == "['cgroup', 'net-dev', 'pod-resources'] True True"
