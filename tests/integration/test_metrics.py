"""What the real processes show on /metrics is what the catalogue says."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from libs.service.metrics import Metric
from services.allinone.composition import WIRINGS
from services.allinone.service_processes import free_port
from tests.kit.platform import Platform, running_platform, until
from tools.metrics_page import EVERY, catalogue

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]
# Of prometheus_client itself.
LIBRARY = ("python_", "process_")


def addresses(platform: Platform) -> dict[str, str]:
    """Where each service's process shows its metrics, as `make dev` reports it."""
    lines = [line.removeprefix("dev | ") for line in platform.output if "/metrics" in line]
    return dict(line.split(": ", 1) for line in lines)


def shown(text: str) -> dict[str, tuple[str, set[str]]]:
    """The metrics of one answer: type, and the labels of their samples."""
    found: dict[str, tuple[str, set[str]]] = {}
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        if not name.startswith(LIBRARY):
            labels = {label for sample in family.samples for label in sample.labels}
            found[name] = (family.type, labels - {"le"})
    return found


def declared(*parts: str) -> dict[str, Metric]:
    return {name: each for name, each in catalogue().items() if each.part in parts}


def compare(text: str, *parts: str, perhaps: tuple[str, ...] = ()) -> None:
    found, wanted = shown(text), declared(*parts)
    switched_off = {name for name, each in wanted.items() if each.setting}
    assert wanted.keys() - found.keys() <= switched_off
    assert found.keys() - wanted.keys() <= declared(*perhaps).keys()
    for name, (kind, labels) in found.items():
        metric = catalogue()[name]
        assert kind == metric.kind, name
        assert labels <= {*metric.labels}, name


async def test_every_process_shows_the_metrics_of_its_part_and_no_others() -> None:
    settings = {"SHIFTWORK_MONITOR_TASK_METRICS_MAX": "10"}
    async with running_platform(settings=settings) as platform:
        found = addresses(platform)
        assert found.keys() == {wiring.name for wiring in WIRINGS}
        task = await platform.submit("one", "--steps", "400")
        await platform.until_state(task, "running")
        async with httpx.AsyncClient() as client:

            async def measured() -> bool:
                return "shiftwork_task_cpu_cores{" in (await client.get(found["monitor"])).text

            await until(measured, 40.0, "the task is measured")
            for name, url in found.items():
                text = (await client.get(url)).text
                perhaps = ("launcher in Kubernetes",) if name == "launcher" else ()
                compare(text, EVERY, name, perhaps=perhaps)


async def test_a_log_agent_shows_its_metrics(tmp_path: Path) -> None:
    pods, spool, token = tmp_path / "pods", tmp_path / "spool", tmp_path / "token"
    pods.mkdir()
    token.write_text("x" * 32)
    port = free_port()
    environment = {
        **os.environ,
        "SHIFTWORK_LOG_AGENT_PODS_DIR": str(pods),
        "SHIFTWORK_LOG_AGENT_SPOOL_DIR": str(spool),
        "SHIFTWORK_LOG_AGENT_HOST": "127.0.0.1",
        "SHIFTWORK_LOG_AGENT_PORT": str(port),
        "SHIFTWORK_LOG_AGENT_TOKEN_FILE": str(token),
    }
    command = [sys.executable, "-m", "services.log_collector.agent"]
    process = await asyncio.create_subprocess_exec(*command, env=environment, cwd=ROOT)
    try:
        async with httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{port}/metrics"

            async def answers() -> bool:
                return (await client.get(url)).status_code == 200

            await until(answers, 20.0)
            compare((await client.get(url)).text, "log agent", perhaps=(EVERY,))
    finally:
        process.terminate()
        await process.wait()


def test_what_the_launcher_shows_in_kubernetes_is_declared_where_it_is_counted() -> None:
    assert declared("launcher in Kubernetes").keys() == {
        "shiftwork_launcher_kube_calls_total",
        "shiftwork_launcher_kube_lists_total",
        "shiftwork_launcher_kube_watch_events_total",
        "shiftwork_launcher_node_agent_failures_total",
    }
