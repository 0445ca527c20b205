"""The charts, packed once; and a control plane that checks and takes what they give."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.charts.charts import ROOT, Helm
from tests.kit.kubernetes import StartControlPlane, cannot
from tools.cluster import simulated
from tools.cluster.control_plane import ControlPlane
from tools.cluster.programs import BuildError, program


@pytest.fixture(scope="session", params=["helm", "helm3"])
def helm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """helm of either kind in use, and the charts as `deploy/k8s/package` packs them."""
    packed, home = tmp_path_factory.mktemp("packed"), tmp_path_factory.mktemp("helm")
    try:
        found = program(request.param)
    except BuildError as problem:
        cannot(problem)
    done = subprocess.run(
        [ROOT / "deploy" / "k8s" / "package", packed],
        env={**os.environ, "HELM": str(found)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Helm(found, packed, home)


@pytest.fixture(scope="session")
def plane(control_plane_start: StartControlPlane) -> ControlPlane:
    """A cluster with controllers and simulated nodes, so that pods become Ready and Jobs end."""
    made = control_plane_start()
    simulated.add_nodes(made.api, ["n0", "n1"], gpus=8)
    return made


@pytest.fixture(scope="session")
def kubectl(plane: ControlPlane) -> Kubectl:
    return Kubectl(program("kubectl"), plane.kubeconfig)


class Kubectl:
    """kubectl as the administrator of the plane."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._start = [str(program), f"--kubeconfig={kubeconfig}"]

    def __call__(self, *arguments: str, given: str | None = None) -> tuple[int, str]:
        done = subprocess.run(
            [*self._start, *arguments], input=given, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr
