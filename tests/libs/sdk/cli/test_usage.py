"""The command ``shiftwork usage``."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from tests.libs.sdk.cli.server import CliServer

if TYPE_CHECKING:
    from tests.libs.sdk.cli.conftest import Shiftwork

pytestmark = pytest.mark.server


def amounts(hours: float) -> dict[str, Any]:
    return {
        "attempts": 2,
        "held_gpu_seconds": hours * 3600,
        "held_node_seconds": hours * 1800,
        "starting_seconds": 36.0,
        "starting_gpu_seconds": 72.0,
        "lost_to_preemption_gpu_seconds": 1800.0,
        "lost_to_preemption_node_seconds": 900.0,
        "lost_to_failure_gpu_seconds": 0.0,
        "lost_to_failure_node_seconds": 0.0,
    }


@pytest.fixture(autouse=True)
def usage(server: CliServer) -> None:
    server.usage = {
        "from": "2026-11-14T10:00:00Z",
        "to": "2026-11-21T10:00:00Z",
        "group_by": ["user", "priority"],
        "items": [
            {"user": "ann", "priority": "normal", **amounts(1500)},
            {"user": "bob", "priority": "", **amounts(0.5)},
        ],
        "total": amounts(1500.5),
    }


def test_usage_is_a_table_in_hours_with_a_total(shiftwork: Shiftwork, server: CliServer) -> None:
    done = shiftwork("usage", "--from", "7d", "--group-by", "user,priority", "--priority", "HIGH")
    header, *rows = done.out.splitlines()
    assert header.split()[:4] == ["USER", "PRIORITY", "ATTEMPTS", "GPU-HOURS"]
    assert [row.split() for row in rows] == [
        ["ann", "normal", "2", "1,500.00", "750.00", "0.02", "0.50", "0.00"],
        ["bob", "unknown", "2", "0.50", "0.25", "0.02", "0.50", "0.00"],
        ["total", "2", "1,500.50", "750.25", "0.02", "0.50", "0.00"],
    ]
    query = server.asked("GET", "/v1/usage").query
    assert (query["group_by"], query["priority"]) == ("user,priority", "high")
    age = datetime.now(UTC) - datetime.fromisoformat(query["from"])
    assert abs(age - timedelta(days=7)) < timedelta(minutes=5)
    assert set(query) == {"from", "group_by", "priority"}


def test_what_is_left_out_is_grouped_by_user_or_team(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    for arguments, group_by in (((), "user"), (("--team", "lab"), "team")):
        assert shiftwork("usage", *arguments).code == 0
        assert server.seen[-1].query["group_by"] == group_by


def test_usage_as_csv_and_json_is_in_seconds(shiftwork: Shiftwork) -> None:
    rows = list(csv.DictReader(io.StringIO(shiftwork("usage", "--csv").out)))
    assert [row["user"] for row in rows] == ["ann", "bob"]
    assert rows[0]["held_gpu_seconds"] == "5400000"
    assert shiftwork("usage", "--json").json["total"]["attempts"] == 2


def test_what_usage_writes_as_csv_is_no_formula(shiftwork: Shiftwork, server: CliServer) -> None:
    item = {"user": "=cmd()", "attempts": 1}
    answer = {"group_by": ["user"], "items": [item], "total": {"attempts": 1}}
    server.first["GET", "/v1/usage"] = [(200, answer)]
    assert shiftwork("usage", "--csv").out == "user,attempts\r\n'=cmd(),1\r\n"


def test_csv_and_json_of_usage_contradict_each_other(shiftwork: Shiftwork) -> None:
    assert shiftwork("usage", "--json", "--csv").code == 2


def test_without_usage_there_is_a_sentence(shiftwork: Shiftwork, server: CliServer) -> None:
    server.usage["items"] = []
    done = shiftwork("usage")
    assert "nothing was held in this time" in done.err
    assert "total" not in done.out


def test_usage_shows_the_idle_part_of_what_was_measured(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    measured = {"measured_gpu_seconds": 1000.0, "idle_gpu_seconds": 250.0}
    server.usage["items"] = [
        {"user": "ann", "priority": "normal", **amounts(10), **measured},
        {
            "user": "bob",
            "priority": "normal",
            **amounts(1),
            "measured_gpu_seconds": 0.0,
            "idle_gpu_seconds": 0.0,
        },
    ]
    server.usage["total"] = {**amounts(11), **measured}
    header, ann, bob, total = shiftwork("usage", "--group-by", "user,priority").out.splitlines()
    assert header.split()[-1] == "IDLE"
    assert ann.endswith("25 %")
    assert bob.endswith("0.00")
    assert total.endswith("25 %")
