from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from shiftwork.cli import main, render, session

from services.scheduler.lab import cli
from services.scheduler.lab.drive import drive
from tests.services.scheduler.lab import drivers


class Shiftwork:
    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self._capture.readouterr()
        code = main.run(["simulate", *arguments])
        captured = self._capture.readouterr()
        return code, captured.out, captured.err


@pytest.fixture
def simulate(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shiftwork:
    app = session.App(name="plugins")
    cli.register(app)
    app.callback()(session._nothing)
    commands = dict(session.typer.main.get_group(app).commands)
    monkeypatch.setattr(session, "plugins", lambda: commands)
    monkeypatch.setattr(cli, "_driver", lambda: drivers.drive)
    return Shiftwork(capfd)


CSV = "submit_time_s,duration_s,num_gpus,user,vc\n0,100,8,a,v\n10,100,16,b,v\n20,50,8,,w\n"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(CSV)
    return str(path)


def test_simulate_writes_results_report_and_jobs(
    simulate: Shiftwork, trace: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    code, output, errors = simulate(
        trace, "--nodes", "2", "--policy", "fifo,backfill,fifo", "--out", str(out)
    )
    assert code == 0, errors
    assert [line.split()[0] for line in output.splitlines()] == ["policy", "fifo", "backfill"]
    assert str(out / "report.html") in errors
    found = json.loads((out / "results.json").read_text())
    assert {key: found[key] for key in ("trace", "nodes", "gpus_per_node", "jobs", "skipped")} == {
        "trace": "trace.csv",
        "nodes": 2,
        "gpus_per_node": 8,
        "jobs": 3,
        "skipped": 0,
    }
    # fifo: 0-100, 100-200, 200-250; backfill: the third overtakes the second: 20-70.
    assert found["policies"]["fifo"]["mean_jct_s"] == pytest.approx((100 + 190 + 230) / 3)
    assert found["policies"]["backfill"]["mean_jct_s"] == pytest.approx((100 + 190 + 50) / 3)
    assert sorted(path.name for path in out.iterdir()) == [
        "jobs-backfill.csv",
        "jobs-fifo.csv",
        "report.html",
        "results.json",
    ]
    with (out / "jobs-backfill.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert (rows[2]["first_start_s"], rows[2]["finish_s"], rows[2]["wait_s"]) == ("20", "70", "0")


def test_json_output_equals_the_file(simulate: Shiftwork, trace: str, tmp_path: Path) -> None:
    code, output, errors = simulate(
        trace, "--nodes", "2", "--policy", "fifo", "--out", str(tmp_path), "--json"
    )
    assert (code, errors) == (0, "")
    assert json.loads(output) == json.loads((tmp_path / "results.json").read_text())


def test_scale_limit_and_options(simulate: Shiftwork, trace: str, tmp_path: Path) -> None:
    arguments = ["--nodes", "2", "--policy", "fifo", "--out", str(tmp_path), "--limit", "2"]
    more = ["--arrival-scale", "0.5", "--restart-cost", "5m", "--checkpoint-interval", "1h"]
    code, _, errors = simulate(trace, *arguments, *more, "--with-limits", "--node-mtbf-hours", "10")
    assert code == 0, errors
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["jobs"] == 2
    # The second comes after 5 s instead of 10, and waits for both nodes.
    assert found["policies"]["fifo"]["max_wait_s"] == 95
    assert found["options"] == {
        "restart_cost_s": 300.0,
        "checkpoint_interval_s": 3600.0,
        "with_limits": True,
        "node_mtbf_s": 36_000.0,
        "node_repair_s": 3600.0,
        "seed": 0,
    }


def test_virtual_clusters_are_compared_with_their_private_nodes(
    simulate: Shiftwork, trace: str, tmp_path: Path
) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(
        "groups: {default: {nodes: [{count: 3, gpus: 8}], virtual_clusters:"
        " [{name: v, nodes: 1}, {name: w, nodes: 1}]}}"
    )
    arguments = [trace, "--cluster", str(cluster), "--policy", "fifo", "--out", str(tmp_path)]
    assert simulate(*arguments)[0] == 0
    by_vc = json.loads((tmp_path / "results.json").read_text())["policies"]["fifo"]["by_vc"]
    # One of v's jobs fits a node alone. w does not wait on its own node.
    assert (by_vc["v"]["jobs"], by_vc["v"]["private_jobs"]) == (2, 1)
    assert (by_vc["w"]["mean_wait_s"], by_vc["w"]["private_mean_wait_s"]) == (80, 0)
    assert simulate(*arguments, "--no-private")[0] == 0
    by_vc = json.loads((tmp_path / "results.json").read_text())["policies"]["fifo"]["by_vc"]
    assert by_vc["w"]["private_mean_wait_s"] is None


def test_a_synthetic_workload(simulate: Shiftwork, tmp_path: Path) -> None:
    arguments = ["--nodes", "8", "--policy", "fifo", "--out", str(tmp_path)]
    assert simulate("synthetic:50:3", *arguments)[0] == 0
    first = json.loads((tmp_path / "results.json").read_text())
    assert simulate("synthetic:50", *arguments, "--seed", "3")[0] == 0
    again = json.loads((tmp_path / "results.json").read_text())
    assert again["policies"] == first["policies"]
    assert (again["trace"], again["options"]["seed"]) == (first["trace"], 3)
    assert simulate("synthetic:50", "--policy", "fifo", "--out", str(tmp_path))[0] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (("--nodes", "2", "--policy", "best"), 2, "'best' is no policy"),
        (("--nodes", "2", "--policy", ","), 2, "is no policy"),
        (("--nodes", "0"), 2, "--nodes"),
        (("--nodes", "2", "--restart-cost", "long"), 2, "'long' is not a duration"),
        (("--nodes", "2", "--arrival-scale", "0"), 2, "0 is no scale"),
        (("--nodes", "2", "--arrival-scale", "nan"), 2, "nan is no scale"),
        (("--nodes", "2", "--node-mtbf-hours", "0"), 2, "too short"),
        (("--nodes", "2", "--format", "xls"), 2, "'xls' is no format"),
        ((), 1, "how large the cluster is"),
        (("--nodes", "2", "--cluster", "none.yaml"), 1, "cannot be read"),
    ],
)
def test_refusals(  # noqa: PLR0917 - three fixtures and three parameters
    simulate: Shiftwork,
    trace: str,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    what: str,
) -> None:
    ended, output, errors = simulate(trace, "--out", str(tmp_path / "out"), *arguments)
    assert (ended, output) == (code, "")
    assert what in errors
    assert not (tmp_path / "out").exists()


def test_a_trace_that_is_refused_names_its_lines(simulate: Shiftwork, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(CSV + "0,-1,1,u,v\n" * 11)
    code, _, errors = simulate(str(path), "--nodes", "2", "--out", str(tmp_path / "out"))
    assert code == 1
    assert f"{path}:5: duration_s is '-1': it cannot be negative" in errors
    assert "11 of 14 lines are bad (limit 10)" in errors


def test_out_that_cannot_be_made(simulate: Shiftwork, trace: str) -> None:
    code, _, errors = simulate(trace, "--nodes", "2", "--policy", "fifo", "--out", f"{trace}/x")
    assert code == 1
    assert "the folder cannot be made" in errors


def a_listed_task(number: int, *, owner: str, submitted: int, ran: float) -> dict[str, object]:
    """A task as ``shiftwork ls --history`` gives it."""
    stamp = f"2026-01-01T00:{submitted // 60:02d}:{submitted % 60:02d}Z"
    return {
        "id": f"t{number}",
        "owner": owner,
        "team": "vision",
        "group": "default",
        "priority": "normal",
        "nodes": 1,
        "gpus_per_node": 8,
        "max_run_seconds": None,
        "state": "succeeded",
        "attempt": 2,
        "submitted_at": stamp,
        "started_at": stamp,
        "finished_at": "2026-01-01T02:00:00Z",
        "run_seconds": ran,
    }


def test_history_under_a_changed_quota(
    simulate: Shiftwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes, ann's two tasks at once; with a quota of one node they follow each other."""
    monkeypatch.setattr(cli, "_driver", lambda: drive)
    tasks = [
        a_listed_task(0, owner="ann", submitted=0, ran=100.0),
        a_listed_task(1, owner="ann", submitted=10, ran=100.0),
        a_listed_task(2, owner="bob", submitted=20, ran=30.0),
        {**a_listed_task(3, owner="bob", submitted=30, ran=0.0), "state": "running"},
    ]
    history = tmp_path / "history.json"
    history.write_text(json.dumps({"items": tasks, "next_cursor": None}))
    row = {"group": "default", "user": "ann", "team": None, "priority": None, "unit": "gpus"}
    row |= {"limit": 8, "version": 3, "changed_by": "root", "changed_at": "2026-01-01T00:00:00Z"}
    quotas = tmp_path / "quotas.json"
    quotas.write_text(json.dumps({"items": [row], "next_cursor": None}))
    arguments = [str(history), "--nodes", "2", "--policy", "fifo", "--out", str(tmp_path / "out")]

    def waits(*more: str) -> list[str]:
        code, _, errors = simulate(*arguments, *more)
        assert code == 0, errors
        with (tmp_path / "out" / "jobs-fifo.csv").open() as file:
            return [row["wait_s"] for row in csv.DictReader(file)]

    assert waits() == ["0", "0", "80"]
    assert waits("--quota", str(quotas)) == ["0", "90", "0"]
    quotas.write_text(json.dumps({"items": [{**row, "limit": 4}], "next_cursor": None}))
    assert waits("--quota", str(quotas)) == ["", "", "0"]
    notes = json.loads((tmp_path / "out" / "results.json").read_text())["notes"]
    assert notes[-1].startswith("fifo: 2 of 3 jobs never ran")


def test_the_folder_is_named_after_the_trace_if_none_is_given(
    simulate: Shiftwork, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        code, _, errors = simulate(trace, "--nodes", "2", "--policy", "fifo")
        assert code == 0, errors
        assert "simulation-trace/report.html" in errors
    assert (tmp_path / "simulation-trace/results.json").exists()


def test_round_robin_can_be_chosen(
    simulate: Shiftwork, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_driver", lambda: drive)
    code, output, errors = simulate(
        trace, "--nodes", "2", "--policy", "roundrobin", "--out", str(tmp_path), "--json"
    )
    assert code == 0, errors
    assert json.loads(output)["policies"]["roundrobin"]["mean_jct_s"] > 0


def test_the_table_fits_a_terminal_of_80_columns(
    simulate: Shiftwork, trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(render, "is_terminal", lambda _: True)
    monkeypatch.setenv("COLUMNS", "80")
    options = ("--nodes", "2", "--policy", "backfill,fifo", "--out", str(tmp_path / "out"), "-q")
    _, output, _ = simulate(trace, *options)
    head, *rows = output.splitlines()
    assert max(map(len, (head, *rows))) <= 80
    assert head.startswith("policy")
    assert "mean completion" in head
    assert "mean wait" in head
    assert "preemptions per job" not in head
