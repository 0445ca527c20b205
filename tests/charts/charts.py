"""The packed charts, rendered for the tests of this folder."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
CHARTS = ROOT / "deploy" / "k8s" / "charts"
SERVICES = ("submit", "scheduler", "launcher", "log-collector", "quota", "monitor", "gateway")
SERVERS = ("nats", "postgres")
UMBRELLA = "shiftwork"
NAMESPACE, TASKS = "shiftwork", "shiftwork-tasks"

Json = dict[str, Any]


class HelmError(Exception):
    """helm failed; the text is its message."""


@dataclass(frozen=True)
class Helm:
    """helm on the packed charts."""

    program: Path
    packed: Path
    home: Path
    kubeconfig: Path | None = None
    rendered: dict[str, list[Json]] = field(default_factory=dict)

    def chart(self, name: str) -> str:
        (found,) = self.packed.glob(f"{name}-[0-9]*.tgz")
        return str(found)

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> str:
        """HelmError if it fails."""
        given = ["--values", "-"] if values is not None else []
        done = subprocess.run(
            [str(self.program), *arguments, *given],
            input=yaml.safe_dump(dict(values)) if values is not None else None,
            capture_output=True,
            text=True,
            check=False,
            env={
                **{key: text for key, text in os.environ.items() if not key.startswith("HELM_")},
                "HELM_CONFIG_HOME": str(self.home / "config"),
                "HELM_CACHE_HOME": str(self.home / "cache"),
                "HELM_DATA_HOME": str(self.home / "data"),
                "KUBECONFIG": str(self.kubeconfig or "/dev/null"),
            },
        )
        if done.returncode != 0:
            raise HelmError(done.stderr.strip() or done.stdout.strip())
        return done.stdout

    def template(self, chart: str, values: Mapping[str, Any], *more: str) -> list[Json]:
        """What a chart gives, hooks among it; rendered once for the same values."""
        command = ("template", UMBRELLA, self.chart(chart), "--namespace", NAMESPACE, *more)
        key = json.dumps([command, values])
        if key not in self.rendered:
            text = self.run(*command, values=values)
            self.rendered[key] = [
                each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each
            ]
        return deepcopy(self.rendered[key])


def named(objects: list[Json], kind: str, name: str) -> Json:
    """The one object of this kind and name."""
    (found,) = (o for o in objects if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return found


def of_kind(objects: list[Json], *kinds: str) -> list[Json]:
    return [each for each in objects if each["kind"] in kinds]


def pod_specs(objects: list[Json]) -> Iterator[tuple[str, Json]]:
    """Every pod that the objects would make: whose it is, and its spec."""
    for each in of_kind(objects, "Deployment", "StatefulSet", "DaemonSet", "Job"):
        yield f"{each['kind']} {each['metadata']['name']}", each["spec"]["template"]["spec"]


def containers(objects: list[Json]) -> Iterator[tuple[str, Json]]:
    for whose, spec in pod_specs(objects):
        for each in (*spec.get("initContainers", ()), *spec["containers"]):
            yield f"{whose}: {each['name']}", each


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Values on top of one another, as helm lays them."""
    found: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            here = found.get(key)
            both = isinstance(here, dict) and isinstance(value, dict)
            found[key] = merged(here, value) if both else value
    return found
