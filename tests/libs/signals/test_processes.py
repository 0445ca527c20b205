"""What is measured of ranks: real processes, and tables in which some cannot be read."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from libs.signals.control_groups import Usage, read_groups
from libs.signals.processes import RankProcesses, RankSampler, SystemProcesses

KEY = ("trun.1", 0, 0)

BUSY_FAMILY = """
import subprocess, sys, time
block = bytearray(64 * 2**20)
child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
print(child.pid, flush=True)
sys.stdin.read()
child.kill()
"""


@contextmanager
def family() -> Iterator[tuple[int, int]]:
    """A rank: a process that holds memory, and a child that computes."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY_FAMILY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as main:
        assert main.stdout is not None
        assert main.stdin is not None
        child = int(main.stdout.readline())
        try:
            yield main.pid, child
        finally:
            main.stdin.close()
            main.wait(10)


def test_a_rank_is_its_main_process_and_everything_below_it() -> None:
    sampler = RankSampler(SystemProcesses)
    with family() as (pid, child):
        rank = RankProcesses(KEY, pid)
        assert SystemProcesses().members(rank) == {pid, child}
        begin = time.monotonic()
        first = sampler.sample([rank], begin)[KEY]
        time.sleep(0.3)
        second = sampler.sample([rank], time.monotonic())[KEY]
    assert first.cpu_cores is None
    assert (second.cpu_cores or 0) > 0.05
    assert (second.memory_bytes or 0) > 64 * 2**20
    assert second.processes == 2
    assert second.gpu_process_memory_bytes is None
    assert sampler.sample([rank], time.monotonic()) == {}, "a rank that is over is a gap"


def test_another_process_with_the_number_of_the_rank_is_not_taken_for_it() -> None:
    with family() as (pid, _):
        assert not SystemProcesses().members(RankProcesses(KEY, pid, ticks=1))


class Table:
    """A table of processes that the test sets."""

    def __init__(self, usages: dict[int, Usage | None]) -> None:
        self.usages = usages

    def members(self, rank: RankProcesses) -> frozenset[int]:
        del rank
        return frozenset(self.usages)

    def usage(self, pid: int) -> Usage | None:
        return self.usages[pid]


def test_a_process_that_vanishes_or_hides_a_value_harms_nothing_else() -> None:
    table = Table({1: Usage(10.0, 100.0, None, 7.0), 2: None, 3: Usage(2.0, None, None, 3.0)})
    sampler = RankSampler(lambda: table)
    rank = RankProcesses(KEY, 1)
    sampler.sample([rank], 0.0)
    table.usages[3] = Usage(7.0, None, None, 13.0)
    found = sampler.sample([rank], 10.0, {1: 5.0, 99: 1.0})[KEY]
    assert found.cpu_cores == pytest.approx(0.5)
    assert found.memory_bytes == 100.0
    assert found.read_bytes_per_second is None
    assert found.write_bytes_per_second == pytest.approx(1.0)
    assert found.gpu_process_memory_bytes == 5.0


def test_a_restarted_rank_begins_its_rates_again() -> None:
    table = Table({1: Usage(10.0, 1.0, 0.0, 0.0)})
    sampler = RankSampler(lambda: table)
    sampler.sample([RankProcesses(KEY, 1)], 0.0)
    table.usages = {1: Usage(500.0, 1.0, 0.0, 0.0)}
    again = RankProcesses(("trun.1", 0, 1), 1)
    assert sampler.sample([again], 10.0)[again.key].cpu_cores is None


def test_control_groups_of_version_2(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 300\n")
    assert read_groups([str(tmp_path)]) == Usage(2.5, 700.0, None, None)


def test_control_groups_of_version_1_lie_in_several_folders(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu", tmp_path / "memory"
    cpu.mkdir()
    memory.mkdir()
    (cpu / "cpuacct.usage").write_text("2500000000\n")
    (memory / "memory.usage_in_bytes").write_text("1000\n")
    (memory / "memory.stat").write_text("total_inactive_file 300\n")
    assert read_groups([str(cpu), str(memory)]) == Usage(2.5, 700.0, None, None)


def test_control_groups_that_cannot_be_read_leave_the_figures_of_the_processes(
    tmp_path: Path,
) -> None:
    (tmp_path / "cpu.stat").write_text("nonsense\n")
    (tmp_path / "memory.current").write_text("many\n")
    assert read_groups([str(tmp_path), str(tmp_path / "gone")]) == Usage(None, None, None, None)
    table = Table({1: Usage(1.0, 11.0, 1.0, 1.0)})
    rank = RankProcesses(KEY, 1, groups=(str(tmp_path),))
    assert RankSampler(lambda: table).sample([rank], 0.0)[KEY].memory_bytes == 11.0
