"""Another process finds the programs again, and programs of others are never ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tools.cluster.processes import ProcessError, Processes, children_of, start_ticks

SLEEP = "/bin/sleep"


def test_a_program_outlives_its_starter_and_is_ended_by_another(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tools.cluster.processes import Processes; "
        f"Processes(Path(sys.argv[1])).start('one', ['{SLEEP}', '60'])"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, cwd=root)
    processes = Processes(tmp_path)
    assert processes.names() == ["one"]
    assert processes.is_running("one")
    identity = processes.identity("one")
    assert identity is not None
    # A session of its own: a Ctrl-C in the starter's terminal does not reach it.
    assert os.getsid(identity.pid) == identity.pid
    processes.stop("one")
    assert processes.names() == []
    assert start_ticks(identity.pid) is None


def test_a_pid_that_was_given_away_is_left_alone(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("one", [SLEEP, "60"])
    identity = processes.identity("one")
    assert identity is not None
    for other in (
        replace(identity, start_ticks=identity.start_ticks - 1),
        replace(identity, boot_id="another boot"),
    ):
        (tmp_path / "run" / "one.json").write_text(json.dumps(asdict(other)))
        assert not processes.is_running("one")
        processes.stop("one")
        assert start_ticks(identity.pid) == identity.start_ticks
    os.kill(identity.pid, signal.SIGKILL)
    os.waitpid(identity.pid, 0)


def test_started_twice_it_runs_once(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("one", [SLEEP, "60"])
    first = processes.identity("one")
    processes.start("one", [SLEEP, "60"])
    assert processes.identity("one") == first
    processes.stop("one")


def test_a_program_that_ends_is_not_running_and_starts_again(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("one", ["/bin/sh", "-c", "echo printed; sleep 0.3; exit 3"])
    until = time.monotonic() + 5
    while processes.is_running("one"):
        assert time.monotonic() < until
    assert processes.tail("one") == "printed\n"
    processes.start("one", [SLEEP, "60"])
    assert processes.is_running("one")
    processes.stop("one")


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    processes.start("deaf", ["/bin/sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done"])
    while "up" not in processes.tail("deaf"):
        time.sleep(0.02)
    processes.stop("deaf", grace_seconds=0.2)
    assert not processes.is_running("deaf")


def test_of_a_wrapper_the_child_is_meant(tmp_path: Path) -> None:
    processes = Processes(tmp_path)
    command = ["/bin/sh", "-c", f"{SLEEP} 60; echo child ended"]
    processes.start("wrapped", command, wrapped=True)
    identity = processes.identity("wrapped")
    assert identity is not None
    assert identity.pid not in children_of(os.getpid())
    processes.stop("wrapped")
    until = time.monotonic() + 5
    while "child ended" not in processes.tail("wrapped"):
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_program_that_cannot_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match="/no/such/program does not start"):
        Processes(tmp_path).start("none", ["/no/such/program"])
