"""Run modes by the real program: debugging on a task's nodes, and tasks that begin paused."""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import TRAINING, Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(180)]
SMALL = ("--gpus-per-node", "1")


def until_attempt(shiftwork: Shiftwork, task: str, attempt: int, state: str) -> Any:
    """The task once this attempt of it is in a state."""
    ends = time.monotonic() + 40
    while True:
        found = shiftwork.task(task)
        if found["attempt"] == attempt and found["state"] == state:
            return found
        assert time.monotonic() < ends, found
        time.sleep(0.1)


def test_people_enter_a_task_in_debug_mode_and_then_its_program_runs(shiftwork: Shiftwork) -> None:
    program = "print('trained', flush=True)"
    line = ("--", "python", "-c", program)
    task = shiftwork.submit("--mode", "debug", "--nodes", "2", *SMALL, *line)
    found = until_attempt(shiftwork, task, 1, "running")
    assert (found["run_mode"], found["debug"]) == ("debug", True)
    assert "mode " in shiftwork.good("show", task).out
    command = "echo $SHIFTWORK_COMMAND; echo $RANK of $WORLD_SIZE"
    entered = shiftwork.good("exec", task, "--rank", "1", "--", "sh", "-c", command)
    shown, place = entered.out.splitlines()
    # With the interpreter of the environment that is active at the submission.
    assert shlex.split(shown)[1:] == ["-c", program]
    assert place == "1 of 2"
    again = shiftwork.good("debug", task)
    assert f"shiftwork exec {task}" in again.out
    assert "trained" in again.out
    assert "debug mode is on already" in again.err
    shiftwork.good("debug", task, "--off")
    assert shiftwork("wait", task, "--timeout", "60s").code == 0
    ended = shiftwork.task(task)
    assert (ended["state"], ended["attempt"], ended["run_mode"]) == ("succeeded", 2, "normal")
    found = shiftwork.good("events", task, "--json").json["items"]
    types = [each["type"] for each in found]
    assert "task.mode_changed" in types
    refused = shiftwork("debug", task)
    assert (refused.code, "has already succeeded" in refused.err) == (1, True)


def test_debug_mode_on_a_running_task_asks_it_to_save(shiftwork: Shiftwork, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINING)
    task = shiftwork.submit(*SMALL, "--", "python", str(script))
    until_attempt(shiftwork, task, 1, "running")
    time.sleep(1.0)
    shiftwork.good("debug", task)
    found = until_attempt(shiftwork, task, 2, "running")
    step = found["checkpoint"]["step"]
    shiftwork.good("debug", task, "--off")
    found = until_attempt(shiftwork, task, 3, "running")
    assert (found["checkpoint"]["step"], found["run_mode"]) == (step, "normal")
    runs = shiftwork.good("show", task).out
    assert "killed (debug)" in runs
    shiftwork.good("stop", task, "--now")


def test_a_task_that_is_submitted_paused_runs_once_it_is_resumed(shiftwork: Shiftwork) -> None:
    task = shiftwork.submit("--paused", *SMALL, "--", "true")
    found = shiftwork.task(task)
    assert (found["state"], found["run_mode"], found["attempt"]) == ("paused", "pause", 0)
    shiftwork.good("resume", task)
    assert shiftwork("wait", task, "--timeout", "60s").code == 0


def test_debug_mode_ends_paused_when_every_rank_has_ended(
    shiftwork: Shiftwork, tmp_path: Path
) -> None:
    role = {
        "name": "worker",
        "replicas": 2,
        "command": ["true"],
        "debug": {"command": ["sh", "-c"], "args": ["sleep $RANK; exit 3"]},
    }
    document = {"run_mode": "debug", "gpus_per_node": 1, "roles": [role]}
    file = tmp_path / "task.json"
    file.write_text(json.dumps(document))
    task = shiftwork.submit("--file", str(file))
    shiftwork.wait(task, "paused")
    found = shiftwork.task(task)
    assert (found["goal"], found["held_nodes"], found["retries_used"]["max_retries"]) == (
        "run",
        0,
        0,
    )
    assert "in debug mode, has ended" in found["reason"]["text"]
    (ended,) = [
        each
        for each in shiftwork.good("events", task, "--json").json["items"]
        if each["type"] == "run.rank_ended" and each["data"]["exit"]["rank"] == 0
    ]
    assert ended["data"]["exit"]["code"] == 3
    shiftwork.good("resume", task)
    until_attempt(shiftwork, task, 2, "paused")
    shiftwork.good("debug", task, "--off")
    # Its pause stays: the program runs once somebody resumes it.
    assert shiftwork.task(task)["state"] == "paused"
    shiftwork.good("resume", task)
    assert shiftwork("wait", task, "--timeout", "60s").code == 0
