"""Why a task waits and until when, and last week under other quotas, by the real program."""

from __future__ import annotations

import csv
import json
from datetime import datetime, timedelta

import pytest

from tests.e2e.conftest import Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_forecast_and_what_comes_of_it(shiftwork: Shiftwork) -> None:
    hold = ("--preempt", "kill", "--", "sleep", "600")
    first = shiftwork.submit("--name", "first", "--max-run-time", "8s", *hold)
    second = shiftwork.submit("--name", "second", "--max-run-time", "10m", *hold)
    for task in (first, second):
        shiftwork.wait(task, "running")
    third = shiftwork.submit("--name", "third", "--max-run-time", "1m", "--", "true")
    shiftwork.wait(third, "queued")
    explanation = shiftwork.good("explain", third, "--json").json
    assert (explanation["position"], explanation["queue_length"]) == (1, 1)
    assert explanation["remedies"]
    started = datetime.fromisoformat(shiftwork.task(first)["started_at"])
    forecast = datetime.fromisoformat(explanation["forecast"]["starts_at"])
    assert abs(forecast - started - timedelta(seconds=8)) < timedelta(seconds=1)
    assert "runs end at their owners' time limits" in explanation["forecast"]["assumptions"]
    assert shiftwork("wait", third, "--timeout", "40").code == 0
    began = datetime.fromisoformat(shiftwork.task(third)["started_at"])
    assert abs(began - forecast) < timedelta(seconds=5)
    assert " assign " in shiftwork.good("explain", third, "--history").out
    decisions = shiftwork.good("explain", third, "--history", "--json").json["decisions"]
    assert [each["kind"] for each in decisions][-2:] == ["hold", "assign"]


def test_the_history_under_a_changed_quota(shiftwork: Shiftwork) -> None:
    tasks = [
        shiftwork.submit("--name", f"past{number}", "--gpus-per-node", "2", "--", "sleep", "2")
        for number in range(4)
    ]
    for task in tasks:
        assert shiftwork("wait", task, "--timeout", "40").code == 0
    history = shiftwork.good("ls", "--history", "--since", "1h").json
    history["items"] = [each for each in history["items"] if each["id"] in tasks]
    assert [each["id"] for each in history["items"]] == tasks
    assert all(1.5 < each["run_seconds"] < 6 for each in history["items"])
    (shiftwork.home / "week.json").write_text(json.dumps(history))
    scope = ("--user", "admin", "--group", "default")
    shiftwork.good("quota", "set", *scope, "--gpus", "2")
    try:
        quotas = shiftwork.good("quota", "ls", "--json").out
    finally:
        shiftwork.good("quota", "set", *scope, "--unlimited")
    (shiftwork.home / "quotas.json").write_text(quotas)
    cluster = ("--nodes", "2", "--gpus-per-node", "2", "--policy", "ours")
    ends: list[float] = []
    for more in ((), ("--quota", "quotas.json")):
        done = shiftwork.good("simulate", "week.json", *cluster, *more, "--out", "out")
        assert done.out.splitlines()[1].split()[0] == "ours"
        assert (shiftwork.home / "out" / "report.html").stat().st_size > 10_000
        with (shiftwork.home / "out" / "jobs-ours.csv").open() as file:
            ends.append(max(float(row["finish_s"]) for row in csv.DictReader(file)))
    # Two at once as it was, one after the other under the quota.
    assert 4 < ends[0] < 8 < ends[1]
