from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from libs.service import observability
from libs.service.log_size import keep_below
from tests.kit.small_disk import needs_small_disk, small_disk


def test_a_log_and_its_predecessor_stay_below_their_size_and_the_newest_lines_are_kept(
    tmp_path: Path,
) -> None:
    file = tmp_path / "up.log"
    with file.open("a", encoding="utf-8") as stream:
        observability.set_up_logs("json", "info", stream, bytes_max=10_000)
        try:
            for number in range(1_000):
                observability.log("x").info("line", number=number)
        finally:
            structlog.reset_defaults()
    former, now = (tmp_path / "up.log.1").read_text(), file.read_text()
    assert len(now) <= 10_000 < len(former) < 10_200
    assert "\0" not in now
    lines = (former + now).splitlines()
    first = 1_000 - len(lines)
    assert all(f'"number": {first + at},' in line for at, line in enumerate(lines))
    assert (tmp_path / "up.log.1").stat().st_mode & 0o777 == 0o600


def test_another_process_goes_on_in_the_same_file(tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("ab", buffering=0) as ours, file.open("ab", buffering=0) as theirs:
        ours.write(b"x" * 200)
        keep_below(ours.fileno(), 100)
        theirs.write(b"theirs")
    assert file.read_bytes() == b"theirs"


def test_a_file_that_is_not_appended_to_is_left_alone(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as stream:
        stream.write(b"x" * 200)
        keep_below(stream.fileno(), 100)
        assert os.fstat(stream.fileno()).st_size == 200


@needs_small_disk
def test_on_a_full_disk_the_log_frees_space(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 4) as disk:
        file = disk.folder / "log"
        with file.open("ab", buffering=0) as stream:
            stream.write(b"x" * (1 << 20))
            disk.fill()
            keep_below(stream.fileno(), 1 << 19)
            assert stream.write(b"next") == 4
        assert file.read_bytes() == b"next"


def test_what_a_nodes_programs_report_is_bounded(tmp_path: Path) -> None:
    program = (
        "from services.launcher.runtimes.node import supervisor_log\n"
        "supervisor_log.BYTES_MAX = 1000\n"
        "for number in range(500): supervisor_log.report(f'line {number}')\n"
    )
    file = tmp_path / "supervisor.log"
    with file.open("ab") as log:
        subprocess.run([sys.executable, "-c", program], stderr=log, check=True)
    assert file.stat().st_size <= 1000
    text = (tmp_path / "supervisor.log.1").read_text() + file.read_text()
    assert text.endswith("line 499\n")
    assert "line 450\n" in text


@pytest.mark.parametrize("size", [100, 99])
def test_a_log_within_its_size_is_not_touched(tmp_path: Path, size: int) -> None:
    with (tmp_path / "log").open("ab", buffering=0) as stream:
        stream.write(b"x" * size)
        keep_below(stream.fileno(), 100)
    assert (tmp_path / "log").stat().st_size == size
    assert not (tmp_path / "log.1").exists()
