"""Rendered charts against the schemas of Kubernetes itself, by kubeconform, offline."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.charts.charts import UMBRELLA, Helm
from tests.charts.matrix import MATRIX
from tests.charts.openapi import LOCATION, write_schemas

if TYPE_CHECKING:
    from tests.charts.conftest import Kubectl

pytestmark = pytest.mark.kubernetes

GROUPS = (
    "api/v1",
    "apis/apps/v1",
    "apis/batch/v1",
    "apis/networking.k8s.io/v1",
    "apis/policy/v1",
    "apis/rbac.authorization.k8s.io/v1",
)
# Of the Prometheus operator, whose schemas are not Kubernetes' own.
FOREIGN = "ServiceMonitor,PrometheusRule"


@pytest.fixture(scope="module")
def schemas(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    assert write_schemas(lambda path: kubectl("get", "--raw", path)[1], folder, GROUPS) > 50
    return folder


def kubeconform(schemas: Path, text: str) -> subprocess.CompletedProcess[str]:
    from tools.cluster.programs import program

    location = str(schemas / LOCATION)
    return subprocess.run(
        [program("kubeconform"), "-summary", "-skip", FOREIGN, "-schema-location", location, "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("case", MATRIX)
def test_every_object_fits_its_schema(helm: Helm, schemas: Path, case: str) -> None:
    done = kubeconform(schemas, yaml.safe_dump_all(helm.template(UMBRELLA, MATRIX[case])))
    assert done.returncode == 0, done.stdout
    assert "Invalid: 0, Errors: 0" in done.stdout


def test_a_slip_is_found(helm: Helm, schemas: Path) -> None:
    """The schemas are strict: this check can fail."""
    objects = helm.template(UMBRELLA, {})
    for each in objects:
        if each["kind"] == "Deployment":
            each["spec"]["template"]["spec"]["serviceAcountName"] = "x"
    done = kubeconform(schemas, yaml.safe_dump_all(objects))
    assert done.returncode != 0
    assert "serviceAcountName" in done.stdout
