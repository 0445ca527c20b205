"""One number for what is released together."""

from __future__ import annotations

from pathlib import Path

import shiftwork
import yaml

from libs.service.version import VERSION

ROOT = Path(__file__).resolve().parent.parent


def test_the_platform_the_sdk_and_the_charts_have_one_version() -> None:
    found = {"shiftwork": shiftwork.__version__}
    for chart in sorted((ROOT / "deploy/k8s/charts").glob("*/Chart.yaml")):
        values = yaml.safe_load(chart.read_text())
        found[chart.parent.name] = values["version"]
        found[f"{chart.parent.name} (app)"] = values.get("appVersion", VERSION)
    assert set(found.values()) == {VERSION}, found
    assert len(found) > 5
