"""The unit for systemd: it must not end tasks together with `up`."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from services.launcher.runtimes.node import cgroups

UNIT = Path(__file__).parents[1] / "deploy/systemd/shiftwork.service"


def test_tasks_outlive_a_crash_of_up_and_the_end_of_one_another() -> None:
    unit = configparser.ConfigParser(strict=False, delimiters=("=",))
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    # The default, control-group, ends supervisors and tasks whenever `up` ends.
    assert service["KillMode"] == "process"
    # The default, stop, ends the whole unit when the kernel ends one task for its memory.
    assert service["OOMPolicy"] == "continue"
    assert service["Restart"] == "always"
    assert {"cpu", "memory", "pids"} == set(service["Delegate"].split())
    assert service["DelegateSubgroup"] == cgroups.SERVICES


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    text = UNIT.read_text().replace("/opt/shiftwork/.venv/bin/shiftwork", "/bin/true")
    # Units that they name are not installed everywhere.
    text = text.replace("network-online.target", "basic.target")
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    complaints = [
        line
        for line in done.stderr.splitlines()
        # Unknown to systemd before 254, which ignores it.
        if UNIT.name in line and "DelegateSubgroup" not in line
    ]
    assert complaints == [], done.stderr
