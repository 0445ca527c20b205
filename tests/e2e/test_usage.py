"""The usage ledger by the real program: what ran, what runs, and what a preemption cost."""

from __future__ import annotations

import csv
import io
import time
from datetime import UTC, datetime

import pytest

from tests.e2e.conftest import Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]

LONG = ("--preempt", "kill", "--", "sleep", "600")


def test_usage_counts_what_ended_what_runs_and_what_was_lost(shiftwork: Shiftwork) -> None:
    # Tasks of before may be on this platform, too; they have ended.
    since = datetime.now(UTC).isoformat()
    done = shiftwork.submit("--name", "done", "--gpus-per-node", "1", "--", "sleep", "1")
    shiftwork.wait(done, "succeeded")
    low = shiftwork.submit(
        "--name", "low", "--priority", "low", "--nodes", "2", "--gpus-per-node", "2", *LONG
    )
    shiftwork.wait(low, "running")
    high = shiftwork.submit(
        "--name", "high", "--priority", "high", "--nodes", "2", "--gpus-per-node", "2", *LONG
    )
    shiftwork.wait(high, "running")
    time.sleep(1)
    found = shiftwork.good("usage", "--from", since, "--group-by", "task,outcome", "--json").json
    rows = {each["task"]: each for each in found["items"]}
    assert {task: each["outcome"] for task, each in rows.items()} == {
        done: "succeeded",
        low: "preempted",
        high: "running",
    }
    assert 1 <= rows[done]["held_gpu_seconds"] < 60
    assert rows[low]["held_gpu_seconds"] == rows[low]["lost_to_preemption_gpu_seconds"] > 0
    assert rows[high]["held_gpu_seconds"] == pytest.approx(2 * rows[high]["held_node_seconds"])
    assert rows[high]["held_gpu_seconds"] >= 4
    # What runs counts until now.
    again = shiftwork.good("usage", "--from", since, "--json").json["total"]
    assert again["held_gpu_seconds"] > found["total"]["held_gpu_seconds"]
    table = shiftwork.good("usage", "--from", since, "--group-by", "outcome,priority").out
    assert [line.split()[0] for line in table.splitlines()] == [
        *("OUTCOME", "preempted", "running", "succeeded", "total")
    ]
    text = shiftwork.good("usage", "--from", since, "--group-by", "day,user", "--csv").out
    held = [float(row["held_gpu_seconds"]) for row in csv.DictReader(io.StringIO(text))]
    assert sum(held) >= again["held_gpu_seconds"]
    wrong = shiftwork("usage", "--group-by", "users")
    assert wrong.code == 1
    assert "--group-by" in wrong.err
    for task in (low, high):
        shiftwork.good("stop", task)
