"""The command line against the session's control plane: real API server, helm and kubectl.

kwok plays the kubelets: pods become Ready, and nothing runs in them.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tools.cluster import simulated
from tools.cluster.control_plane import ControlPlane
from tools.cluster.programs import program

PROGRAM = Path(sys.executable).with_name("shiftwork")
NODES = ("operators-0", "operators-1")
_numbers = itertools.count(1)


@dataclass
class Operator:
    """An operator with a kubeconfig, a home, and a namespace of their own."""

    plane: ControlPlane
    home: Path
    kubeconfig: Path
    namespace: str
    more: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def tasks(self) -> str:
        return f"{self.namespace}-tasks"

    @property
    def where(self) -> tuple[str, ...]:
        return ("--kubeconfig", str(self.kubeconfig), "--namespace", self.namespace)

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(PROGRAM), *words, *self.where],
            env={
                **{key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ},
                "HOME": str(self.home),
                "HELM": str(program("helm")),
                "KUBECTL": str(program("kubectl")),
                **self.more,
            },
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode == code, f"{words}: {done.stderr}{done.stdout}"
        return done

    def up(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        own = ("--no-persistence", "--tasks-namespace", self.tasks)
        return self.run("k8s", "up", *own, *words, code=code)

    def dryrun(self, *words: str) -> dict[str, list[dict[str, Any]]]:
        own = ("--no-persistence", "--tasks-namespace", self.tasks, "--json")
        found: dict[str, list[dict[str, Any]]] = {}
        for each in json.loads(self.run("k8s", "dryrun", *own, *words).stdout)["changes"]:
            found.setdefault(each["change"], []).append(each)
        return found

    def doctor(self, *words: str, code: int = 0) -> list[dict[str, str]]:
        done = self.run("doctor", "--kubernetes", "--json", *words, code=code)
        return json.loads(done.stdout)["findings"]

    def exists(self, path: str) -> bool:
        return bool(self.plane.api.items(path))


@pytest.fixture(scope="module")
def nodes(control_plane: ControlPlane) -> Iterator[tuple[str, ...]]:
    simulated.add_nodes(control_plane.api, NODES, gpus=4)
    yield NODES
    for name in NODES:
        control_plane.api.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
def operator(
    control_plane: ControlPlane, nodes: tuple[str, ...], tmp_path: Path
) -> Iterator[Operator]:
    home = tmp_path / "home"
    home.mkdir()
    name = f"operators-{next(_numbers)}"
    it = Operator(control_plane, home, control_plane.kubeconfig, name)
    yield it
    it.kubeconfig = control_plane.kubeconfig
    it.run("k8s", "down", "--now", "--purge")
    control_plane.api.delete(f"/api/v1/namespaces/{it.namespace}")
