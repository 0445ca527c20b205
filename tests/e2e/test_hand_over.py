"""A program that hands its nodes over on its own, keeps a state, and is gone on with."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "hand_over.py"


def test_the_example_yields_keeps_its_state_and_goes_on(
    shiftwork: Shiftwork, tmp_path: Path
) -> None:
    command = [sys.executable, str(EXAMPLE), "--out", str(tmp_path / "rounds")]
    first = shiftwork.submit("--name", "rounds", "--", *command)
    assert shiftwork("wait", first, "--timeout", "60s").code == 0
    task = shiftwork.task(first)
    assert (task["state"], task["attempt"], task["checkpoint"]["step"]) == ("succeeded", 3, 3)
    assert (task["chain"], task["continues"], task["attempts_without_progress"]) == (first, None, 0)
    assert (task["life_state"]["version"], task["life_state"]["bytes"]) == (3, 17)
    assert shiftwork("logs", first).out.splitlines()[-1] == "all rounds done: sum 3"
    events = shiftwork("events", first).out
    assert events.count("hands its nodes over on its own: until the next round") == 2
    assert events.count("left on its own (exit code 75)") == 2
    assert "retry" not in events
    # Another lap, with the checkpoint and the state of the first.
    second = shiftwork.good("continue", "rounds").out.strip()
    assert shiftwork("wait", second, "--timeout", "60s").code == 0
    task = shiftwork.task(second)
    assert (task["chain"], task["continues"], task["checkpoint"]["step"]) == (first, first, 6)
    assert task["checkpoint"]["no"] == 6
    assert shiftwork("logs", second).out.splitlines()[-1] == "all rounds done: sum 6"
    listed = json.loads(shiftwork.good("ls", "--chain", first, "--json").out)["items"]
    assert [each["id"] for each in listed] == [second, first]


def test_a_program_that_yields_and_stays_is_ended(shiftwork: Shiftwork) -> None:
    program = "import shiftwork, time; shiftwork.yield_now('stays'); time.sleep(600)"
    task = shiftwork.submit("--name", "stays", "--", sys.executable, "-c", program)
    shiftwork.wait(task, "running")
    # It is queued again once its exit grace is over, and not before.
    shiftwork.wait(task, "queued")
    assert "left on its own (signal 15)" in shiftwork("events", task).out
    shiftwork.good("stop", "--now", task)
