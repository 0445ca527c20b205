"""An interrupted benchmark leaves no process and no temporary folder."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
# A child, a process in a session of its own, and a daemon whose parent is gone.
STARTS = """
import os, subprocess, sys, tempfile, time
from benchmarks.guard import run

def main():
    sleep = ["/bin/sleep", "600"]
    open(os.path.join(tempfile.mkdtemp(), "file"), "w").close()
    subprocess.Popen(sleep)
    subprocess.Popen(sleep, start_new_session=True)
    subprocess.run(["/bin/sh", "-c", "setsid sleep 600 & exit 0"], check=True)
    print("started", tempfile.gettempdir(), flush=True)
    if sys.argv[1] == "deaf":
        import signal
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.argv[1] != "end":
        time.sleep(600)

run(main)
"""


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start() -> Iterator[Start]:
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen[str]:
            return stack.enter_context(
                subprocess.Popen(
                    [sys.executable, *arguments],
                    cwd=ROOT,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": str(ROOT)},
                )
            )

        yield start


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return alive == []


def tree(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_benchmark_ends_all_that_it_started(
    start: Start, number: signal.Signals
) -> None:
    benchmark = start("-c", STARTS, "sleep")
    assert benchmark.stdout is not None
    folder = Path(benchmark.stdout.readline().split()[1])
    processes = tree(benchmark)
    assert len(processes) == 4
    benchmark.send_signal(number)
    assert benchmark.wait(20) == 128 + number
    assert gone(processes)
    assert not folder.exists()


def test_a_second_signal_kills_a_benchmark_that_ignores_the_first(start: Start) -> None:
    benchmark = start("-c", STARTS, "deaf")
    assert benchmark.stdout is not None
    benchmark.stdout.readline()
    processes = tree(benchmark)
    time.sleep(0.2)
    benchmark.send_signal(signal.SIGINT)
    time.sleep(0.2)
    assert benchmark.poll() is None
    benchmark.send_signal(signal.SIGTERM)
    assert benchmark.wait(20) == 128 + signal.SIGINT
    assert gone(processes)


def test_a_benchmark_that_is_killed_leaves_nothing(start: Start) -> None:
    benchmark = start("-c", STARTS, "sleep")
    assert benchmark.stdout is not None
    benchmark.stdout.readline()
    processes = tree(benchmark)
    psutil.Process(benchmark.pid).children()[0].kill()
    assert benchmark.wait(20) == 128 + signal.SIGKILL
    assert gone(processes)


def test_processes_that_a_benchmark_leaves_behind_are_ended(start: Start) -> None:
    benchmark = start("-c", STARTS, "end")
    assert benchmark.stdout is not None
    benchmark.stdout.readline()
    assert benchmark.wait(20) == 0


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_benchmark_of_the_platform_leaves_no_server(
    start: Start, number: signal.Signals
) -> None:
    benchmark = start("-m", "benchmarks.submit_to_running", "--chains", "5")

    def serves(name: str) -> Callable[[], bool]:
        return lambda: any(name in " ".join(words(each)) for each in tree(benchmark))

    until(serves("shiftwork"), benchmark)
    until(serves("nats-server"), benchmark)
    processes = tree(benchmark)
    benchmark.send_signal(number)
    assert benchmark.wait(50) == 128 + number
    assert gone(processes)


def words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def until(condition: Callable[[], bool], benchmark: subprocess.Popen[str]) -> None:
    ends_at = time.monotonic() + 40
    while not condition():
        assert benchmark.poll() is None
        assert time.monotonic() < ends_at
        time.sleep(0.05)
