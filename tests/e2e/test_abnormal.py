"""Tasks that really idle or lack a rank are found, listed, tagged, and, as configured, stopped."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]

RULES = """
no_progress: {threshold: 3, actions: [notify, tag, stop]}
ranks_missing: {threshold: 1, actions: [tag, stop], dry_run: true}
"""
SETTINGS = {
    "SHIFTWORK_LAUNCHER_SAMPLE_SECONDS": "1",
    "SHIFTWORK_MONITOR_SERIES_FINE_STEP_SECONDS": "1",
    "SHIFTWORK_MONITOR_SERIES_WRITE_SECONDS": "1",
    "SHIFTWORK_MONITOR_QUIET_SECONDS": "2",
    "SHIFTWORK_MONITOR_RULES_TICK_SECONDS": "0.5",
}
BUSY = "while :; do sleep 0.005; done"
# The second role waits for a first one that is never ready.
LACKING = f"""
name: lacking
gpus_per_node: 0
roles:
  - name: ps
    command: [sh, -c, '{BUSY}']
  - name: worker
    command: ["true"]
    starts_after: [{{role: ps, condition: ready}}]
"""
# People debug: one rank ends, the other one waits for them.
DEBUGGED = """
name: debugged
gpus_per_node: 0
run_mode: debug
roles:
  - name: worker
    replicas: 2
    command: ["true"]
    debug:
      command: [sh, -c, 'test "$RANK" = 1 && exit 0; exec sleep 600']
"""
# It is busy, and makes no step after the first.
STALLS = "import shiftwork\nshiftwork.report(step=1)\nwhile True: pass"


@pytest.fixture
def own() -> Iterator[Shiftwork]:
    """A platform of this test's own, with rules."""
    home = Path(tempfile.mkdtemp(prefix="sw-e2e-"))
    rules = home / "rules.yaml"
    rules.write_text(RULES)
    user = Shiftwork(home, {**SETTINGS, "SHIFTWORK_MONITOR_RULES_FILE": str(rules)})
    try:
        user.bring_up()
        yield user
        user.take_down()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def eventually(read: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first answer that is not empty."""
    until = time.monotonic() + seconds
    while not (found := read()):
        assert time.monotonic() < until, "nothing came"
        time.sleep(0.2)
    return found


def test_tasks_that_idle_or_lack_a_rank_are_found_and_acted_on(own: Shiftwork) -> None:
    idle = own.submit("--name", "idle", "--gpus", "0", "--", "sleep", "600")
    stalls = own.submit("--name", "stalls", "--gpus", "0", "--", sys.executable, "-c", STALLS)
    (own.home / "debugged.yaml").write_text(DEBUGGED)
    debugged = own.submit("--file", str(own.home / "debugged.yaml"))

    def findings(task: str, *options: str) -> Any:
        return own.good("abnormal", task, *options, "--json").json["items"]

    # The rule stops the idle one in its own name; the finding is over with the task.
    own.wait(idle, "stopped")
    (found,) = eventually(lambda: [each for each in findings(idle, "--all") if each["ended_at"]])
    assert (found["rule"], found["owner"]) == ("no_progress", "admin")
    assert found["detail"].startswith("none of its ranks has used a processor or a GPU for")
    assert [(each["action"], each["outcome"]) for each in found["actions"]] == [("stop", "done")]
    events = own.good("events", idle, "--json").json["items"]
    by = [each["data"].get("changed_by") for each in events if each["type"] == "task.goal_changed"]
    assert by == ["rule:no_progress"]
    # So is one that is busy and reports no new step.
    own.wait(stalls, "stopped")
    (found,) = eventually(lambda: findings(stalls, "--all"))
    assert found["rule"] == "no_progress"
    assert found["detail"].startswith("its program has reported no new step since step 1, ")
    # Nothing is found of people who debug.
    assert own.task(debugged)["state"] == "running"
    assert "rank_ended" in own.good("events", debugged, "--json").out
    assert findings(debugged, "--all") == []
    own.good("stop", debugged)
    own.wait(debugged, "stopped")
    # One that lacks a rank is tagged, and the dry run says what would be done.
    (own.home / "lacking.yaml").write_text(LACKING)
    lacking = own.submit("--file", str(own.home / "lacking.yaml"))
    (found,) = eventually(
        lambda: [
            each
            for each in findings(lacking)
            if [step["outcome"] for step in each["actions"]] == ["dry_run"]
        ]
    )
    assert found["rule"] == "ranks_missing"
    assert "ps" in found["detail"]
    assert own.task(lacking)["abnormal"] == ["ranks_missing"]
    assert own.task(lacking)["state"] == "running"
    for command in ("show", "explain"):
        out = own.good(command, lacking).out
        assert "ranks_missing: 1 rank of its run has been missing" in " ".join(out.split())
        assert "stop: dry run (would stop it)" in " ".join(out.split())
    entries = own.good("audit", "--action", "abnormal", "--json").json["items"]
    assert {(each["who"], each["action"], each["outcome"]) for each in entries} == {
        ("rule:no_progress", "abnormal.stop", "done"),
        ("rule:ranks_missing", "abnormal.stop", "dry_run"),
    }
    rules = own.good("abnormal", "--rules").out
    assert "ranks_missing" in rules
    assert "(dry run)" in rules
    wrong = own("abnormal", "--rule", "no_progres")
    assert "did you mean no_progress?" in wrong.err
