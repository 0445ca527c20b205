"""The disk of the platform fills up, stays full for a while, and has free space again."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.allinone.data_folder import DataFolder
from tests.integration.test_up import Home
from tests.kit.platform import scratch
from tests.kit.small_disk import SmallDisk, needs_small_disk, small_disk

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    pytest.mark.timeout(240),
    needs_small_disk,
]
DISK_MIB, FULL_SECONDS = 512, 10.0
SCRIPT = """
echo ready
until [ -e {go} ]; do sleep 0.05; done
seq 20000
touch {written}
until [ -e {leave} ]; do sleep 0.05; done
echo end
"""


class HomeOnSmallDisk(Home):
    """Data on a disk of its own."""

    disk: SmallDisk

    @property
    def data(self) -> Path:
        return self.disk.folder / "data"

    def sh(self, script: str) -> str:
        words = (
            "submit",
            "--name",
            "prints",
            "--gpus-per-node",
            "1",
            "--workdir",
            str(self.folder),
        )
        return self.run(*words, "--", "sh", "-c", script).stdout.strip()


@pytest.fixture
def home() -> Iterator[HomeOnSmallDisk]:
    with scratch() as folder, small_disk(folder / "disk", DISK_MIB) as disk:
        made = HomeOnSmallDisk(folder)
        made.disk = disk
        made.records.mkdir()
        try:
            yield made
        finally:
            disk.empty()
            with contextlib.suppress(AssertionError):
                made.run("down", "--now", "--data", str(made.data), check=False)


def until(home: HomeOnSmallDisk, seconds_max: float, *words: str) -> str:
    """The output of a command, once it succeeds."""
    ends_at = time.monotonic() + seconds_max
    while (done := home.run(*words, check=False)).returncode != 0:
        assert time.monotonic() < ends_at, f"{words}: {done.stderr}"
        time.sleep(0.5)
    return done.stdout


def test_a_full_disk_ends_nothing_and_everything_heals_once_there_is_space(
    home: HomeOnSmallDisk,
) -> None:
    home.up()
    holder = DataFolder(home.data).holder()
    assert holder is not None
    go, written, leave = (home.folder / name for name in ("go", "written", "leave"))
    task = home.sh(SCRIPT.format(go=go, written=written, leave=leave))
    home.until(task, "running")
    home.disk.fill()
    go.touch()
    ends_at = time.monotonic() + FULL_SECONDS
    while time.monotonic() < ends_at:
        home.disk.fill()
        # A new task has to be scheduled, published and stored, all of which fails.
        home.run("submit", "--name", "more", "--", "true", check=False)
        time.sleep(0.3)
    assert Path(f"/proc/{holder.pid}").exists()
    # A full disk does not hold up what a task does; only what it prints is missing.
    assert written.exists()
    assert DataFolder(home.data).is_kept()

    home.disk.empty()
    leave.touch()
    until(home, 90.0, "ls")
    assert DataFolder(home.data).holder() == holder
    home.until(task, "succeeded", 60.0)
    lines = until(home, 60.0, "logs", task).splitlines()
    assert (lines[0], lines[-1]) == ("ready", "end")
    numbers = [line for line in lines[1:-1] if line.isdecimal()]
    marks = [line for line in lines if "bytes of output are missing here" in line]
    assert marks or numbers == [str(number) for number in range(1, 20_001)]
    until(home, 60.0, "submit", "--name", "after", "-f", "--", "sh", "-c", "echo well")
    findings = json.loads(until(home, 60.0, "--json", "doctor", "--data", str(home.data)))
    assert [each for each in findings["findings"] if each["level"] == "bad"] == []
