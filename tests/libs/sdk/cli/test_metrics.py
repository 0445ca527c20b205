"""``shiftwork metrics``, and what ``nodes`` and ``top`` show of the newest samples."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import pytest
from shiftwork.cli import charts

from tests.libs.sdk.cli.server import CliServer, a_task

if TYPE_CHECKING:
    from tests.libs.sdk.cli.conftest import Shiftwork

server_test = pytest.mark.server


def a_series(signal: str, values: list[float], **more: Any) -> dict[str, Any]:
    return {
        "signal": signal,
        "source": "sampled",
        "node": "n0",
        "gpu": None,
        "attempt": 1,
        "step_seconds": 10,
        "points": [
            {"at_seconds": 1000.0 + 10 * place, "average": v, "minimum": v - 1, "maximum": v + 1}
            for place, v in enumerate(values)
        ],
        **more,
    }


def points(*values: float, begin: float = 0.0, step: float = 10.0) -> list[dict[str, Any]]:
    return [
        {"at_seconds": begin + step * place, "average": value} for place, value in enumerate(values)
    ]


def test_a_chart_rises_with_its_values() -> None:
    assert charts.sparkline(points(*range(8)), 0, 80, 8, step=10) == charts.BARS
    assert charts.sparkline(points(*range(8)), 0, 80, 8, step=10, plain=True) == charts.PLAIN_BARS


def test_a_missing_sample_is_a_gap_and_a_point_fills_its_step() -> None:
    known = [*points(1, 9), *points(9, begin=30)]
    assert charts.sparkline(known, 0, 40, 8, step=10) == "▁▁██  ██"
    # What a program reported stands for its moment alone.
    assert charts.sparkline(points(1, 9, step=20.0), 0, 40, 8) == "▁   █"


def test_equal_values_and_values_that_are_no_numbers() -> None:
    assert charts.sparkline(points(5, 5), 0, 20, 2, step=10) == "▅▅"
    assert charts.sparkline([{"at_seconds": 0, "average": "NaN"}], 0, 20, 2, step=10) == ""


@pytest.mark.parametrize(
    ("signal", "value", "shown"),
    [
        ("gpu_percent", 97.0, "97 %"),
        ("memory_bytes", 3.5 * 2**30, "3.5 GiB"),
        ("memory_bytes", 1023.0, "1023 B"),
        ("memory_bytes", 512.0 * 2**20, "512 MiB"),
        ("memory_bytes", 2.0**60, "1048576 TiB"),
        ("read_bytes_per_second", 2048.0, "2 KiB/s"),
        ("gpu_power_watts", 412.5, "412 W"),
        ("loss", 0.012345, "0.0123"),
        ("loss", None, "-"),
    ],
)
def test_values_have_the_unit_of_their_signal(signal: str, value: float | None, shown: str) -> None:
    assert charts.valued(signal, value) == shown


@pytest.fixture
def measured(server: CliServer) -> None:
    server.tasks["t1"] = a_task("t1", name="train")
    server.metrics = {
        "items": [
            {
                "rank": 0,
                "series": [
                    a_series("loss", [3, 2, 1], source="reported", node=None, step_seconds=None),
                    a_series("gpu_percent", [0, 50, 100], gpu=3),
                ],
            },
            {"rank": 1, "series": [a_series("cpu_cores", [])]},
        ],
        "next_cursor": None,
    }


@server_test
@pytest.mark.usefixtures("measured")
def test_metrics_are_charts_of_what_was_sampled_and_reported(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    done = shiftwork("metrics", "train", "--from", "15m", "--rank", "0", "--signal", "loss")
    header, loss, gpu = done.out.splitlines()
    assert header.split() == ["SIGNAL", "RANK", "GPU", "LAST", "MIN", "MEAN", "MAX", "OVER", "TIME"]
    assert loss.split()[:6] == ["loss", "0", "1", "0", "2", "4"]
    assert gpu.split()[:5] == ["gpu_percent", "0", "3", "100", "%"]
    assert gpu.split()[5:11] == ["-1", "%", "50", "%", "101", "%"]
    assert "█" in gpu
    query = server.asked("GET", "/v1/tasks/t1/metrics").query
    assert (query["signal"], query["rank"], query["series"]) == ("loss", "0", "true")
    assert query["from"].endswith("Z")


@server_test
@pytest.mark.usefixtures("measured")
def test_metrics_as_csv_have_a_line_for_each_point(shiftwork: Shiftwork) -> None:
    rows = list(csv.DictReader(io.StringIO(shiftwork("metrics", "train", "--csv").out)))
    assert [(row["signal"], row["source"], row["gpu"], row["average"]) for row in rows] == [
        *(("loss", "reported", "", value) for value in ("3", "2", "1")),
        *(("gpu_percent", "sampled", "3", value) for value in ("0", "50", "100")),
    ]


@server_test
@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("command", [("metrics", "train"), ("node", "metrics", "n0")])
def test_what_metrics_write_as_csv_is_no_formula(
    shiftwork: Shiftwork, server: CliServer, command: tuple[str, ...]
) -> None:
    named = [a_series(name, [-1]) for name in ("=1+1", "@x", "loss\x1b]0;title\x07")]
    server.metrics["items"][0]["series"] = named
    if command[0] == "node":
        server.metrics = {"node": "n0", "series": named}
    out = shiftwork(*command, "--csv").out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["signal"][:2] for row in rows] == ["'=", "'@", "lo"]
    # Numbers stay numbers.
    assert {row["average"] for row in rows} == {"-1"}
    assert not {"\x1b", "\x07"} & set(out)


@server_test
@pytest.mark.usefixtures("measured")
def test_missing_samples_are_said_and_what_was_reported_is_shown(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.metrics["series_problem"] = "sampled series are missing: nobody answers"
    done = shiftwork("metrics", "train")
    assert "nobody answers" in done.err
    assert "loss" in done.out
    server.metrics = {"items": [], "next_cursor": None}
    assert "nothing was measured" in shiftwork("metrics", "train").err


@server_test
def test_a_node_has_charts(shiftwork: Shiftwork, server: CliServer) -> None:
    server.metrics = {"node": "n0", "series": [a_series("cpu_percent", [10.0, 20.0])]}
    assert "cpu_percent" in shiftwork("node", "metrics", "n0").out
    assert server.asked("GET", "/v1/nodes/n0/metrics")


@server_test
def test_nodes_and_top_show_what_is_in_use(shiftwork: Shiftwork, server: CliServer) -> None:
    node = {"id": "n0", "group": "g", "gpus": 2, "free_gpus": 0, "schedulable": True, "ready": True}
    server.nodes = [{**node, "tasks": []}]
    server.tasks["t1"] = {**a_task("t1", name="train"), "state": "running"}
    gpus = [{"gpu_percent": 90.0}, {"gpu_percent": 30.0}, {"gpu_percent": None}]
    used = {"ranks": 4, "gpus": 2, "cpu_cores": 7.5, "memory_bytes": 2.0**31}
    server.utilization = {
        "nodes": [{"node": "n0", "cpu_percent": 41.6, "gpus": gpus}],
        "tasks": [
            {"task": "t1", **used, "gpu_percent": 55.0, "gpu_memory_used_bytes": None},
        ],
    }
    row = shiftwork("nodes").out.splitlines()[1]
    assert "42 %" in row
    assert "60 %" in row
    text = shiftwork("top", "--once").out
    (line,) = [each for each in text.splitlines() if "7.5" in each]
    assert line.split() == ["t1", "train", "4", "7.5", "2", "GiB", "2", "55", "%", "-"]


@server_test
@pytest.mark.parametrize(
    ("option", "value", "fix"),
    [
        ("--signal", "gpu_precent", "did you mean gpu_percent? there are gpu_percent, loss"),
        ("--rank", "99", "there are 0"),
    ],
)
def test_a_filter_that_nothing_matches_names_what_there_is(
    shiftwork: Shiftwork, server: CliServer, option: str, value: str, fix: str
) -> None:
    server.tasks["ta"] = a_task("ta", state="running")
    empty = {"items": [], "next_cursor": None}
    series = [a_series("gpu_percent", [1.0]), a_series("loss", [1.0])]
    server.metrics = {"items": [{"rank": 0, "series": series}], "next_cursor": None}
    server.first["GET", "/v1/tasks/ta/metrics"] = [(200, empty)]
    done = shiftwork("metrics", "ta", option, value)
    assert done.code == 2
    assert f"where: {option}" in done.err
    assert fix in done.err


@server_test
@pytest.mark.parametrize("step", ["0", "0s", "0.5s"])
def test_a_step_of_less_than_a_second_is_refused(
    shiftwork: Shiftwork, server: CliServer, step: str
) -> None:
    server.tasks["ta"] = a_task("ta", state="running")
    done = shiftwork("metrics", "ta", "--step", step)
    assert (done.code, "where: --step" in done.err) == (2, True)
