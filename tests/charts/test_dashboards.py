"""The dashboards on a real Prometheus that scrapes a real platform, and Grafana's own schema."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from services.allinone.service_processes import free_port
from tests.charts.charts import CHARTS, ROOT, UMBRELLA, Helm, of_kind
from tests.charts.test_alerts import alerts
from tests.integration.test_metrics import addresses
from tests.kit.kubernetes import cannot
from tests.kit.platform import Platform, running_platform, until
from tools import dashboards
from tools.cluster.programs import BuildError, program

pytestmark = pytest.mark.kubernetes

FILES = sorted((CHARTS / UMBRELLA / "dashboards").glob("*.json"))
# What stands for Grafana's variables: everything.
VARIABLES = {"$__rate_interval": "30s", "$namespace": ".*", "$group": ".*"}
# Panels that show nothing here: nodes of this test have no GPUs that are measured, there are no log
# agents, and a healthy platform has none of these errors.
WITHOUT_SERIES = {
    *("Utilization of held GPUs", "Utilization", "Power", "Temperature"),
    *("Last XID error", "Double-bit errors", "Waits for PostgreSQL and NATS"),
    *("Log agents: given out", "Log agents: in the spools", "Log agents: lost"),
}


@dataclass(frozen=True)
class Prometheus:
    """A server of its own for one test."""

    url: str
    client: httpx.AsyncClient

    async def get(self, path: str, **parameters: str) -> Any:
        answer = await self.client.get(f"{self.url}/api/v1/{path}", params=parameters)
        return answer.json()

    async def up(self) -> int:
        """The number of targets that were scraped."""
        if not (await self.client.get(f"{self.url}/-/ready")).is_success:
            return 0
        found = (await self.get("query", query="sum(up)"))["data"]["result"]
        return int(found[0]["value"][1]) if found else 0


@asynccontextmanager
async def prometheus(targets: Mapping[str, str], folder: Path) -> AsyncIterator[Prometheus]:
    """Prometheus as built from its module, without its web pages: it needs only the API here."""
    try:
        path = await asyncio.to_thread(program, "prometheus")
    except BuildError as problem:
        cannot(problem)
    jobs = [
        {"job_name": name, "static_configs": [{"targets": [url.split("/")[2]]}]}
        for name, url in targets.items()
    ]
    rules = CHARTS / UMBRELLA / "files" / "alerts.yaml"
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": jobs,
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        path,
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        cwd=folder,
    )
    try:
        async with httpx.AsyncClient() as client:
            server = Prometheus(f"http://127.0.0.1:{port}", client)

            async def all_scraped() -> bool:
                return await server.up() == len(targets)

            await until(all_scraped, 30.0, "every process is scraped")
            yield server
    finally:
        process.terminate()
        await process.wait()


async def preempt_somebody(platform: Platform) -> None:
    """A run that is preempted by another and saves; one that fails with work that is not saved."""
    low = await platform.submit("low", "--steps", "4000", gpus_per_node=2, priority="low")
    await platform.until_state(low, "running")
    high = await platform.submit("high", "--steps", "20", gpus_per_node=2, priority="high")
    await platform.until_state(high, "succeeded", 40.0)
    await platform.until_state(low, "running", 40.0)
    await platform.client.put(f"/v1/tasks/{low}/goal", json={"goal": "stop"})
    failing = await platform.submit("failing", "--steps", "10", "--failures", "1", gpus_per_node=2)
    await platform.until_state(failing, "failed", 40.0)


def queries() -> Iterator[tuple[str, str, str]]:
    """Panel, legend and query of every file, as Grafana would send it."""
    for path in FILES:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"]
                for name, text in VARIABLES.items():
                    expression = expression.replace(name, text)
                yield panel["title"], target["legendFormat"], expression


@pytest.mark.timeout(300)
async def test_every_query_of_dashboards_and_alerts_is_answered_by_a_real_prometheus(
    tmp_path: Path,
) -> None:
    promtool = await asyncio.to_thread(program, "promtool")
    async with (
        running_platform(settings={"SHIFTWORK_MONITOR_SERIES_WRITE_SECONDS": "2"}) as platform,
        prometheus(addresses(platform), tmp_path) as server,
    ):
        await preempt_somebody(platform)
        await asyncio.sleep(5)
        for name, url in addresses(platform).items():
            text = (await server.client.get(url)).text
            # DCGM's names are not ours to choose, and prometheus_client's own neither.
            ours = [line for line in text.splitlines() if "DCGM_" not in line]
            done = await asyncio.to_thread(
                subprocess.run,
                [promtool, "check", "metrics"],
                input="\n".join(ours) + "\n",
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stdout + done.stderr) == (0, ""), name
        silent: set[str] = set()
        answering: set[str] = set()
        for panel, legend, expression in queries():
            found = await server.get("query", query=expression)
            assert found["status"] == "success", (panel, expression, found)
            # Prometheus notes here what is no counter but is used as one, and the like.
            assert not found.get("warnings"), (panel, expression, found)
            assert not found.get("infos"), (panel, expression, found)
            series = found["data"]["result"]
            (answering if series else silent).add(panel)
            for each in series:
                assert labels_of(legend) <= each["metric"].keys(), (panel, each)
        assert silent - answering - WITHOUT_SERIES == set()
        rules = (await server.get("rules"))["data"]["groups"][0]["rules"]
        assert {each["name"] for each in rules} == {each["alert"] for each in alerts()}
        assert {each["health"] for each in rules} == {"ok"}
        critical = [
            each["name"]
            for each in rules
            if each["state"] == "firing" and each["labels"]["severity"] == "critical"
        ]
        assert critical == []


def labels_of(legend: str) -> set[str]:
    """The labels that a legend shows."""
    return {part.split("}}")[0] for part in legend.split("{{")[1:]}


def test_the_files_are_dashboards_by_grafanas_published_schema(tmp_path: Path) -> None:
    try:
        check = program("dashboards")
    except BuildError as problem:
        cannot(problem)

    def checked(*paths: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([check, *paths], capture_output=True, text=True, check=False)

    assert {path.stem for path in FILES} == {board.uid for board in dashboards.BOARDS}
    done = checked(*FILES)
    assert done.returncode == 0, done.stderr
    # The schema knows each field, down to the options of a panel and to a query.
    good = FILES[0].read_text()
    for number, (right, wrong) in enumerate(
        [
            ('"schemaVersion"', '"shemaVersion"'),
            ('"showPoints"', '"showDots"'),
            ('"expr"', '"expression"'),
            ('"placement": "bottom"', '"placement": 7'),
        ]
    ):
        bad = tmp_path / f"{number}.json"
        bad.write_text(good.replace(right, wrong))
        assert checked(bad).returncode == 1, wrong


def test_dashboards_are_config_maps_that_grafanas_sidecar_finds(helm: Helm) -> None:
    def found(**given: object) -> dict[str, Any]:
        maps = of_kind(helm.template(UMBRELLA, {"dashboards": given}), "ConfigMap")
        return {
            each["metadata"]["name"]: each
            for each in maps
            if each["metadata"]["name"].endswith("-dashboard")
        }

    assert found() == {}
    made = found(enabled=True)
    assert made.keys() == {
        f"shiftwork-{name}-dashboard" for name in ("overview", "services", "signals")
    }
    for each in made.values():
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        ((name, text),) = each["data"].items()
        assert json.loads(text) == json.loads((ROOT / dashboards.FOLDER / name).read_text())
        assert len(text) < 1_000_000
    folder = found(enabled=True, labels={"grafana_dashboard": "1", "team": "ml"})
    assert all(each["metadata"]["labels"]["team"] == "ml" for each in folder.values())
