"""What operators see and do of an installed platform, on nodes that run containers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from services.allinone.kubernetes import installing, reach, removing
from services.allinone.kubernetes.helm import Helm
from services.allinone.kubernetes.kubectl import Kubectl, Target
from tests.kit.kubernetes import NodesCluster
from tools.cluster.programs import program
from tools.kubernetes_demo.platform import Platform

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(600)]
SERVICES = {"submit", "scheduler", "launcher", "log-collector", "quota", "monitor", "gateway"}
# Saves when it is asked to leave, and prints the step from which it resumes.
TRAINING = """
import shiftwork, time
found = shiftwork.resume_from()
print("resumes from", found.step if found else None, flush=True)
while not shiftwork.should_preempt():
    time.sleep(0.1)
shiftwork.checkpoint_saved(7, "/tmp/7")
shiftwork.exit_preempted()
"""


def shiftwork(cluster: NodesCluster, *words: str) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("shiftwork")), *words],
        env={**os.environ, "KUBECONFIG": str(cluster.kubeconfig), "HELM": str(program("helm"))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def nodes_of(platform: Platform) -> list[dict[str, Any]]:
    return (await platform.request("GET", "/v1/nodes"))["items"]


async def open_nodes(platform: Platform) -> list[str]:
    return [node["id"] for node in await nodes_of(platform) if node["schedulable"]]


async def test_status_names_leaders_nodes_and_tasks(
    installed: NodesCluster, platform: Platform
) -> None:
    output = await asyncio.to_thread(shiftwork, installed, "k8s", "status", "--json")
    found = json.loads(output)
    assert found["ready"]
    leads = {each["name"]: each["leader"] for each in found["services"] if each["leader"]}
    assert set(leads) == SERVICES
    assert all(f"-{name}-" in pod for name, pod in leads.items())
    assert found["nodes"]["ready"] == len(installed.node_names)
    assert found["nodes"]["gpus"] == sum(node["gpus"] for node in await nodes_of(platform))
    assert found["problem"] == ""


async def test_doctor_finds_nothing_wrong_with_the_launchers_rights(
    installed: NodesCluster,
) -> None:
    output = await asyncio.to_thread(
        subprocess.run,
        [str(Path(sys.executable).with_name("shiftwork")), "doctor", "--kubernetes", "--json"],
        env={**os.environ, "KUBECONFIG": str(installed.kubeconfig), "HELM": str(program("helm"))},
        capture_output=True,
        text=True,
        check=False,
    )
    findings = json.loads(output.stdout)["findings"]
    bad = [each["what"] for each in findings if each["level"] == "bad"]
    assert bad == []
    assert any("the launcher has the" in each["what"] for each in findings)


async def test_a_stop_lets_tasks_save_and_the_next_start_opens_what_it_closed(
    installed: NodesCluster, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECTL", str(installed.kubectl))
    monkeypatch.setenv("HELM", str(program("helm")))
    to = Target(kubeconfig=str(installed.kubeconfig))
    kubectl = Kubectl(to)
    it = reach.installed(to, Helm(to))
    task = await platform.submit("saves", ["python3", "-c", TRAINING], gpus_per_node=1)
    await platform.until_logged(task, "resumes from None")
    output: list[str] = []
    await asyncio.to_thread(removing.save_first, kubectl, it, output.append)
    assert "asking 1 running task to save and leave" in output
    saved = await platform.task(task)
    assert (saved["state"], saved["checkpoint"]["step"]) == ("queued", 7)
    # The list of nodes is a copy that lags a little.
    await platform.wait(lambda: open_nodes(platform), lambda found: not found, "nodes are closed")
    # Dying here leaves the list where the next start finds it.
    await asyncio.to_thread(installing.reopen, kubectl, it, output.append)
    run_all = len(installed.node_names)
    await platform.wait(
        lambda: open_nodes(platform), lambda found: len(found) == run_all, "nodes open"
    )
    await platform.until_logged(task, "resumes from 7", attempt=2)
    assert (
        kubectl.maybe("configmap", f"{it.prefix}-{installing.DRAINED}", "-n", to.namespace) is None
    )
