"""A gang whose worker waits until its server is ready, by the real program."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Done, Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(180)]

# Rank 0 counts from the beginning, and is ready when a file is there.
SERVER = """
import time
from pathlib import Path
import shiftwork

saved = shiftwork.resume_from()
step = int(Path(saved.uri).read_text()) if saved else 0
print("server from", step, flush=True)
reported = False
while True:
    step += 1
    time.sleep(0.05)
    if not reported and Path("READY").exists():
        shiftwork.ready()
        reported = True
    if shiftwork.should_preempt():
        path = Path(f"FOLDER/step-{step}")
        path.write_text(str(step))
        shiftwork.checkpoint_saved(step, str(path))
        shiftwork.exit_preempted()
"""
TASK = """
name: ordered
contract: none
gpus_per_node: 1
completion: {success: ['worker[all]']}
roles:
  - name: ps
    replicas: 1
    command: [PYTHON, SERVER]
    ports: [{name: rpc}]
  - name: worker
    replicas: 1
    command: [sh, -c, 'echo worker; sleep 600']
    starts_after: [{role: ps, condition: ready}]
"""


@pytest.fixture
def ordered(shiftwork: Shiftwork, tmp_path: Path) -> str:
    server, task = tmp_path / "server.py", tmp_path / "task.yaml"
    server.write_text(
        SERVER.replace("FOLDER", str(tmp_path)).replace("READY", str(tmp_path / "ready"))
    )
    task.write_text(TASK.replace("PYTHON", sys.executable).replace("SERVER", str(server)))
    return shiftwork.submit("--file", str(task))


def until(shiftwork: Shiftwork, text: str, *arguments: str) -> Done:
    deadline = time.monotonic() + 30
    while True:
        done = shiftwork(*arguments)
        if text in done.out:
            return done
        assert time.monotonic() < deadline, (text, done)
        time.sleep(0.3)


def test_a_task_runs_with_its_first_role_while_the_next_one_waits(
    shiftwork: Shiftwork, ordered: str, tmp_path: Path
) -> None:
    shiftwork.wait(ordered, "running")
    until(shiftwork, "server from 0", "logs", ordered, "--rank", "0")
    waits = "role worker waits until role ps is ready (0 of 1 rank so far)"
    until(shiftwork, waits, "show", ordered)
    assert waits in shiftwork.good("explain", ordered).out
    # Where later roles will be is known from the beginning.
    assert "rpc" in shiftwork.good("show", ordered).out
    done = shiftwork.good("exec", ordered, "--rank", "0", "--", "sh", "-c", "echo $SHIFTWORK_ROLE")
    assert done.out == "ps\n"
    done = shiftwork("exec", ordered, "--rank", "1", "--", "true")
    assert done.code != 0
    assert "role worker waits until role ps is ready" in done.err
    assert shiftwork.good("logs", ordered, "--rank", "1").out == ""
    # A pause saves by rank 0, and the next attempt goes on from there.
    shiftwork.good("pause", ordered)
    shiftwork.wait(ordered, "paused")
    paused = shiftwork.task(ordered)
    assert paused["checkpoint"]["step"] > 0
    until(shiftwork, "used", "events", ordered)
    shiftwork.good("resume", ordered)
    shiftwork.wait(ordered, "running")
    step = paused["checkpoint"]["step"]
    until(shiftwork, f"server from {step}", "logs", ordered, "--rank", "0")
    (tmp_path / "ready").touch()
    until(shiftwork, "worker", "logs", ordered, "--rank", "1")
    assert "waits until" not in until(shiftwork, "running", "show", ordered).out
    assert shiftwork.good("exec", ordered, "--rank", "1", "--", "echo", "in").out == "in\n"
    shiftwork.good("stop", ordered, "--now")
    shiftwork.wait(ordered, "stopped")
