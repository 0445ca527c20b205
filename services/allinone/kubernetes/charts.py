"""The charts: where they are, and the umbrella chart with its parts put in place.

In the source every chart stands by itself and names the others as ``file://../NAME``. They are
copied together into a folder of this call, so that nothing is written beside the source and nothing
is fetched.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import yaml
from shiftwork.cli.failures import usage

UMBRELLA = "shiftwork"
BESIDE = Path(__file__).resolve().parents[3] / "deploy" / "k8s" / "charts"


def find(given: Path | None) -> Path:
    """The folder of the charts, or an archive of the umbrella chart. Failure if there is none."""
    where = given or BESIDE
    if where.is_file() or (where / UMBRELLA / "Chart.yaml").is_file():
        return where
    if (where / "Chart.yaml").is_file():
        return where.parent
    raise usage(
        f"the charts are not in {where}",
        where="--charts",
        fix="name deploy/k8s/charts of the source, or shiftwork-VERSION.tgz: --charts PATH",
    )


@contextlib.contextmanager
def assembled(charts: Path) -> Generator[Path]:
    """The umbrella chart, complete, while the context is open."""
    if charts.is_file():
        yield charts
        return
    with tempfile.TemporaryDirectory(prefix="shiftwork-charts-") as folder:
        made = Path(folder) / UMBRELLA
        _put(charts, UMBRELLA, made)
        yield made


def _put(charts: Path, name: str, to: Path) -> None:
    """One chart with what it depends on, each in the ``charts`` folder of the one above."""
    shutil.copytree(charts / name, to)
    for other in _local(to):
        if not (to / "charts" / other).exists():
            _put(charts, other, to / "charts" / other)


def _local(chart: Path) -> list[str]:
    read: dict[str, Any] = yaml.safe_load((chart / "Chart.yaml").read_text())
    needs: list[dict[str, Any]] = read.get("dependencies") or []
    return [
        str(each["name"])
        for each in needs
        if str(each.get("repository", "")).startswith("file://../")
    ]
