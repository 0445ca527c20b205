"""helm's own opinion, of every chart by itself."""

from __future__ import annotations

import pytest
import yaml

from tests.charts.charts import CHARTS, SERVERS, SERVICES, UMBRELLA, Helm
from tests.charts.matrix import MATRIX

pytestmark = pytest.mark.kubernetes


@pytest.mark.parametrize("chart", ["common", *SERVICES, *SERVERS, UMBRELLA])
def test_every_chart_lints_alone(helm: Helm, chart: str) -> None:
    helm.run("lint", "--strict", helm.chart(chart))


@pytest.mark.parametrize("case", MATRIX)
def test_the_umbrella_lints_with_every_installation(helm: Helm, case: str) -> None:
    helm.run("lint", "--strict", helm.chart(UMBRELLA), values=MATRIX[case])


def test_all_charts_have_one_version() -> None:
    found = {
        (each["version"], each["appVersion"], each["kubeVersion"])
        for path in CHARTS.glob("*/Chart.yaml")
        for each in (yaml.safe_load(path.read_text()),)
    }
    assert len(found) == 1
