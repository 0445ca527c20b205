from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.libs.sdk.cli.server import NOW, CliServer, a_task, an_exit, problem

if TYPE_CHECKING:
    from tests.libs.sdk.cli.conftest import Shiftwork

pytestmark = pytest.mark.server


def test_ls_shows_live_tasks_newest_first(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks = {
        "ta": a_task("ta", checkpoint={"no": 2, "step": 40, "uri": "file:///c"}),
        "tb": a_task("tb", state="succeeded"),
        "tc": a_task("tc", state="running", gpus_per_node=None, nodes=4),
    }
    lines = [line.split() for line in shiftwork("ls").out.splitlines()]
    assert lines[0][:6] == ["ID", "NAME", "OWNER", "STATE", "PRIORITY", "SIZE"]
    assert [(row[0], row[3], row[5]) for row in lines[1:]] == [
        ("tc", "running", "4"),
        ("ta", "queued", "1x1"),
    ]
    assert "waits for 1 GPU" in " ".join(lines[2])
    assert [row["id"] for row in shiftwork("ls", "--all", "--json").json["items"]] == [
        "tc",
        "tb",
        "ta",
    ]


def test_ls_filters(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks = {"ta": a_task("ta"), "tb": a_task("tb", owner="bob", state="failed")}
    assert "tb" not in shiftwork("ls", "--all", "--mine").out
    assert "ta" not in shiftwork("ls", "--state", "failed,stopped").out
    done = shiftwork("ls", "--state", "dreaming")
    assert done.code == 2
    assert "queued" in done.err


def test_ls_joins_pages_up_to_the_limit(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks = {f"t{number:04}": a_task(f"t{number:04}") for number in range(1500)}
    assert len(shiftwork("ls", "--json", "--limit", "5000").json["items"]) == 1500
    done = shiftwork("ls", "--limit", "1200")
    assert len(done.out.splitlines()) == 1201
    assert "raise --limit" in done.err


def test_an_empty_list_is_reported_on_standard_error(shiftwork: Shiftwork) -> None:
    done = shiftwork("ls")
    assert (done.code, done.out) == (0, "")
    assert "no live tasks" in done.err
    assert shiftwork("ls", "-q").err == ""


def test_show_prints_the_task_and_its_runs(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task(
        "ta",
        state="failed",
        exit=an_exit("failed", 9),
        attempts_without_progress=3,
        labels={"b": "2", "a": "1"},
        attempt=1,
    )
    server.runs = [
        {
            "attempt": 1,
            "placements": [
                {"node": "local-1", "rank": 1},
                {"node": "local-0", "rank": 0},
                {"node": "local-1", "rank": 2},
                {"node": "local-1", "rank": 4},
            ],
            "started_at": "2026-11-21T10:00:00Z",
            "finished_at": None,
            "exit": {"kind": "failed"},
            "checkpoint": {"step": 7},
        }
    ]
    done = shiftwork("show", "ta")
    assert "exit       failed (code 9): rank 0 exited" in done.out
    assert "labels     a=1 b=2" in done.out
    assert "python train.py" in done.out
    assert "2026-11-21 10:00:00Z (" in done.out
    assert "local-0,local-1" in done.out
    assert "ranks      rank 0 on local-0, ranks 1-2+4 on local-1" in done.out
    assert "3 attempts in a row" in done.err


@pytest.mark.parametrize("text", ["taaaaaaaa", "train", "taaaa"])
def test_show_has_the_activity_of_a_task_by_id_name_and_part_of_its_id(
    shiftwork: Shiftwork, server: CliServer, text: str
) -> None:
    used = {"gpus": 2, "idle_gpus": 0, "idle_since": None, "quiet_since": None}
    server.tasks["taaaaaaaa"] = a_task("taaaaaaaa", name="train", state="running", activity=used)
    assert "uses 2 GPUs" in shiftwork("show", text).out
    assert shiftwork("show", text, "--json").json["activity"] == used


def test_show_has_the_ports_of_the_live_run(shiftwork: Shiftwork, server: CliServer) -> None:
    endpoints = [
        {"rank": rank, "role": "worker", "name": "board", "address": "127.0.0.1", "port": 20_000}
        for rank in range(22)
    ]
    server.tasks["ta"] = a_task("ta", state="running", endpoints=endpoints)
    shown = shiftwork("show", "ta").out
    assert "PORT   RANK  ROLE    AT" in shown
    assert "board  0     worker  127.0.0.1:20000" in shown
    assert "board  20 " not in shown
    assert "and 2 more: --json has all" in shown
    assert shiftwork("show", "ta", "--json").json["endpoints"] == endpoints


def test_show_marks_facts_of_an_earlier_attempt(shiftwork: Shiftwork, server: CliServer) -> None:
    saved = {"no": 1, "step": 7, "uri": "file:///c", "saved_at": NOW, "attempt": 1}
    ended = an_exit("preempted", 75)
    fields = {"exit": ended, "checkpoint": saved}
    server.tasks["ta"] = a_task("ta", state="running", attempt=2, **fields)
    output = shiftwork("show", "ta").out
    assert "exit        preempted (code 75), attempt 1: rank 0 exited" in output
    assert "ago, attempt 1: file:///c" in output
    server.tasks["ta"] = a_task("ta", state="paused", attempt=1, **fields)
    assert "exit        preempted (code 75): rank 0 exited" in shiftwork("show", "ta").out


@pytest.mark.parametrize("failed_rank", [1, None])
def test_the_last_lines_of_the_rank_that_failed_first_are_shown(
    shiftwork: Shiftwork, server: CliServer, failed_rank: int | None
) -> None:
    ended = an_exit("failed", 1) | {
        "ranks": [{"rank": 0, "code": None, "signal": 9}, {"rank": 1, "code": 1, "signal": None}]
    }
    if failed_rank is not None:
        ended["failed_rank"] = failed_rank
    server.tasks["ta"] = a_task("ta", state="failed", attempt=1, exit=ended)
    text = "".join(f"line {number}\n" for number in range(3000))
    text += "\r 99%\r100%\n\x1b[31mred\x1b[0m\n\x1b]0;title\x07No module named 'torch'\n"
    server.output = {(1, 0): b"innocent\n", (1, 1): text.encode()}
    expected = [
        "last output of rank 1, attempt 1:",
        *(f"  line {number}" for number in range(2993, 3000)),
        "  100%",
        "  red",
        "  \\x1b]0;title\\x07No module named 'torch'",
    ]
    assert shiftwork("show", "ta").out.splitlines()[-11:] == expected
    assert shiftwork("explain", "ta").out.splitlines()[-11:] == expected
    done = shiftwork("wait", "ta")
    assert (done.code, done.out) == (1, "failed\n")
    assert done.err.splitlines()[0] == expected[0]
    assert sum(int(one.query.get("limit_bytes", 0)) > 8192 for one in server.seen) == 0


def test_error_lines_are_shown_without_a_terminals_commands(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks["ta"] = a_task("ta", state="failed", attempt=2, exit=an_exit("failed", 1))
    server.output = {(1, 0): b"KeyError: 'seen'\nend\n"}
    lines = [
        ("0", ["KeyError: 'seen'"]),
        ("1", ["CUDA error \x1b[2J\x1b]0;title\x07x"]),
        ("2", ["b"]),
        ("3", ["c"]),
    ]
    found = [{"rank": rank, "kind": "cuda", "lines": each} for rank, each in lines]
    run = {"task": "ta", "live": False, "placements": [], "exit": an_exit("failed", 1)}
    server.runs = [
        {**run, "attempt": 1, "error_lines": [{"rank": 5, "kind": "cuda", "lines": ["old"]}]},
        {**run, "attempt": 2, "error_lines": found},
    ]
    expected = [
        "error lines of rank 1, attempt 2:",
        "  CUDA error \\x1b]0;title\\x07x",
        "error lines of rank 2, attempt 2:",
        "  b",
        "1 more rank with error lines: --json has all",
        "last output of rank 0, attempt 1:",
        "  KeyError: 'seen'",
        "  end",
    ]
    for command in ("show", "explain"):
        assert shiftwork(command, "ta").out.splitlines()[-8:] == expected
    # Of a task that runs again, the error lines of the attempt before.
    server.tasks["ta"] = a_task("ta", state="running", attempt=2)
    assert expected[1] in shiftwork("show", "ta").out.splitlines()


def test_a_failed_task_is_shown_although_its_output_cannot_be_read(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks["ta"] = a_task("ta", state="failed", attempt=1, exit=an_exit("failed", 1))
    server.first["GET", "/v1/tasks/ta/logs"] = [problem(404, "not-found", "no output")]
    done = shiftwork("show", "ta")
    assert (done.code, done.err) == (0, "")
    assert "last output" not in done.out


def test_progress_is_shown_in_the_list_and_for_the_task(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    values = {"step": 1200.0, "epoch": 3.0, "loss": 0.31416, "lr": "NaN"}
    progress = {"attempt": 1, "at": "2026-11-21T10:00:00Z", "values": values}
    server.tasks = {
        "ta": a_task("ta", attempt=2, progress=progress),
        "tb": a_task("tb", checkpoint={"no": 2, "step": 40, "uri": "file:///c"}),
        "tc": a_task("tc"),
    }
    lines = {line.split()[0]: line for line in shiftwork("ls").out.splitlines()}
    assert "PROGRESS" in lines["ID"]
    assert "  step 1200  loss 0.3142  " in lines["ta"]
    assert "  step 40  " in lines["tb"]
    shown = shiftwork("show", "ta").out
    assert "progress   step 1200  epoch 3  loss 0.3142  lr NaN (" in shown
    assert "ago, attempt 1)" in shown


def test_what_a_start_waits_for_is_shown(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta", state="starting", attempt=2)
    why = "rank 0 on n7: image a/b cannot be pulled"
    delayed = {"detail": why, "ranks": 1, "noted_at": "2026-11-21T10:00:00Z"}
    server.runs = [
        {"attempt": 1, "delayed": None, "exit": {"kind": "lost"}},
        {"attempt": 2, "delayed": delayed},
    ]
    assert f"not started  {why}" in shiftwork("show", "ta").out
    server.explanation = {"delayed": delayed}
    assert f"not started  {why}" in shiftwork("explain", "ta").out
    server.explanation = {"delayed": None}
    assert "not started" not in shiftwork("explain", "ta").out


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("taaa", "taaa"),
        ("tab", "tabb"),
        ("one", "taaa"),
        ("twice", "tadd"),
        ("old", "taee"),
        ("shared", "taff"),
    ],
)
def test_a_task_is_an_id_a_unique_prefix_or_a_name(
    shiftwork: Shiftwork, server: CliServer, text: str, found: str
) -> None:
    server.tasks = {
        task["id"]: task
        for task in (
            a_task("taaa", name="one"),
            a_task("tabb"),
            a_task("tacc", name="twice", state="failed"),
            a_task("tadd", name="twice"),
            a_task("tade", name="old", state="failed"),
            a_task("taee", name="old", state="succeeded"),
            a_task("taff", name="shared"),
            a_task("tagg", name="shared", owner="bob"),
        )
    }
    assert shiftwork("show", text, "--json").json["id"] == found


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("ta", "fits 2 tasks: tabb (theirs of eve), taaa (theirs of bob)"),
        ("x/../y", "there is no task"),
        ("theirs", "names several tasks"),
    ],
)
def test_an_ambiguous_task_argument_is_refused(
    shiftwork: Shiftwork, server: CliServer, text: str, error: str
) -> None:
    server.tasks = {
        "taaa": a_task("taaa", name="theirs", owner="bob"),
        "tabb": a_task("tabb", name="theirs", owner="eve"),
    }
    done = shiftwork("show", text)
    assert done.code == 1
    assert error in done.err


def test_the_history_for_the_policy_lab(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta", state="running")
    server.tasks["tb"] = a_task("tb", state="succeeded", submitted_at="2020-01-01T00:00:00Z")
    server.tasks["tc"] = a_task("tc", state="failed", submitted_at="2999-01-01T00:00:00Z")
    found = shiftwork("ls", "--history").json["items"]
    assert [each["id"] for each in found] == ["tb", "tc"]
    assert server.asked("GET", "/v1/tasks").query["run_seconds"] == "true"
    recent = shiftwork("ls", "--history", "--since", "7d").json["items"]
    assert [each["id"] for each in recent] == ["tc"]


def test_explain_shows_why_and_what_would_help(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta")
    server.explanation = {
        "reason": {"code": "waits_for_victims", "text": "waits for tb to save"},
        "position": 1,
        "queue_length": 4,
        "victims": ["tb"],
        "remedies": ["1 more GPU", "a higher priority"],
    }
    done = shiftwork("explain", "ta")
    assert "waits for tb to save" in done.out
    assert "1 of 4 in the queue" in done.out
    assert done.out.count("to start") == 2
    assert shiftwork("explain", "ta", "--json").json["victims"] == ["tb"]


def test_explain_shows_the_order_the_victims_and_the_forecast(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.tasks["ta"] = a_task("ta")
    server.explanation = {
        "reason": {"code": "waits_for_victims", "text": "waits for tb to save"},
        "position": 3,
        "queue_length": 4,
        "victims": ["tb"],
        "remedies": [],
        "order": {
            "level": "high",
            "policy": "timeshare",
            "above": 1,
            "before": 1,
            "submitted_at": "2026-01-01T00:00:00Z",
            "tag_seconds": 60.0,
            "delay_seconds": 3600.0,
            "load_scale": 1.0,
            "granted": False,
            "virtual_cluster": "vision",
            "guaranteed_nodes": 4.0,
            "held_nodes": 1.5,
            "covered": True,
        },
        "promised": [
            {"node": "n0", "gpus": [0], "held_by": ["tb"]},
            {"node": "n1", "gpus": [0], "held_by": []},
        ],
        "chosen": [
            {
                "task": "tb",
                "level": "low",
                "nodes": 2.0,
                "cost_node_seconds": 240.0,
                "deadline_at": "2026-01-01T00:01:00Z",
                "why": "level low is below high",
            }
        ],
        "forecast": {
            "starts_at": "2026-01-01T00:01:00Z",
            "unknown": None,
            "assumptions": ["nothing fails"],
        },
    }
    lines = shiftwork("explain", "ta").out.splitlines()
    rows = [" ".join(line.split()) for line in lines]
    assert (
        "1 task comes before it by a higher level or a guarantee, 1 by the order of level high"
        " (policy timeshare)" in rows
    )
    (order,) = [line for line in rows if "the earliest comes first" in line]
    assert order.endswith(
        ", and counts as 1m later for what its owner submitted before and 1h later for its size and"
        " how long it may run"
    )
    assert any("within its guarantee of 4 nodes, of which it holds 1.5" in line for line in rows)
    (asked,) = [line for line in rows if line.startswith("asked to leave")]
    assert asked.startswith(
        "asked to leave tb (low, 2 nodes, loses about 4m of one node's time, until 2026-"
    )
    assert asked.endswith("): level low is below high")
    assert "kept for it n0, still held by tb" in rows
    assert "kept for it n1, free" in rows
    assert any(line.startswith("forecast starts about 2026-01-01 00:01:00Z (") for line in rows)
    assert "assuming nothing fails" in rows
    server.explanation["forecast"] = {"starts_at": None, "unknown": "nobody knows"}
    assert "nobody knows" in shiftwork("explain", "ta").out


def test_explain_with_the_history_of_decisions(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta")
    assert "DECISION" not in shiftwork("explain", "ta").out
    server.decisions = [
        {
            "no": number,
            "decided_at": "2026-01-01T00:00:00Z",
            "attempt": attempt,
            "kind": kind,
            "reason": {"text": text},
        }
        for number, (attempt, kind, text) in enumerate(
            [(0, "hold", "waits for 2 nodes"), (1, "assign", "has 2 nodes")]
        )
    ]
    lines = shiftwork("explain", "ta", "--history").out.splitlines()
    rows = [" ".join(line.split()) for line in lines]
    assert "DECIDED ATTEMPT DECISION REASON" in rows
    assert rows[-2].endswith("hold waits for 2 nodes")
    assert rows[-1].endswith("1 assign has 2 nodes")
    with_json = shiftwork("explain", "ta", "--history", "--json").json
    assert [each["kind"] for each in with_json["decisions"]] == ["hold", "assign"]


@pytest.mark.parametrize(
    ("verb", "goal"), [("pause", "pause"), ("resume", "run"), ("stop", "stop")]
)
def test_goals(shiftwork: Shiftwork, server: CliServer, verb: str, goal: str) -> None:
    server.tasks["ta"] = a_task("ta", name="demo")
    done = shiftwork(verb, "demo")
    assert (done.code, done.out) == (0, "")
    assert server.asked("PUT", "/v1/tasks/ta/goal").body == {"goal": goal}
    assert shiftwork(verb, "demo", "--json").json == {"id": "ta", "task": "ta", "revision": 3}


@pytest.mark.parametrize("verb", ["pause", "stop"])
def test_a_goal_with_now(shiftwork: Shiftwork, server: CliServer, verb: str) -> None:
    server.tasks["ta"] = a_task("ta", name="demo")
    assert shiftwork(verb, "--now", "demo").code == 0
    assert server.asked("PUT", "/v1/tasks/ta/goal").body == {"goal": verb, "now": True}


LONG_AGO, NEVER = "2026-01-01T00:00:00Z", "2999-01-01T00:00:00Z"
A_RUN = {"attempt": 2, "started_at": LONG_AGO, "listening_at": None}


@pytest.mark.parametrize(
    ("run", "task", "sentence"),
    [
        ({}, {}, "start from the beginning when preempted"),
        ({}, {"checkpoint": {"no": 1, "step": 7, "uri": "/c"}}, "go back to step 7 when preempted"),
        ({}, {"preemption": {"mode": "kill"}}, ""),
        ({}, {"preemption": {"mode": "signal"}}, ""),
        ({}, {"state": "preempting"}, ""),
        ({"listening_at": LONG_AGO}, {}, ""),
        ({"started_at": NEVER}, {}, ""),
        ({"started_at": None}, {}, ""),
        ({"attempt": 1}, {}, ""),
    ],
)
def test_show_warns_that_a_program_does_not_poll_for_requests(
    shiftwork: Shiftwork,
    server: CliServer,
    run: dict[str, Any],
    task: dict[str, Any],
    sentence: str,
) -> None:
    runs = {"state": "running", "attempt": 2, "preemption": {"mode": "sdk"}}
    server.tasks["ta"] = a_task("ta", **{**runs, **task})
    server.runs = [{**A_RUN, **run}]
    out = shiftwork("show", "ta").out
    assert (sentence in out) if sentence else "has not asked for preemption" not in out
    # A server from before does not know.
    server.runs[0].pop("listening_at")
    assert "has not asked for preemption" not in shiftwork("show", "ta").out


def test_a_goal_on_an_ended_task_is_refused(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta", state="failed")
    done = shiftwork("pause", "ta", "--json")
    assert done.code == 1
    assert json.loads(done.err)["status"] == 409


def test_priority(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta")
    assert shiftwork("priority", "ta", "very-high").code == 0
    assert server.asked("PUT", "/v1/tasks/ta/priority").body == {"priority": "very_high"}
    assert shiftwork("priority", "ta", "urgent").code == 2


@pytest.mark.parametrize(
    ("state", "ended", "code"),
    [
        ("succeeded", an_exit("ok", 0), 0),
        ("failed", an_exit("failed", 9), 9),
        ("failed", an_exit("ok", 0), 1),
        ("stopped", None, 1),
        ("rejected", None, 1),
        ("failed", an_exit("killed", 137), 137),
        ("failed", an_exit("lost", None), 1),
    ],
)
def test_wait_takes_the_tasks_code(
    shiftwork: Shiftwork, server: CliServer, state: str, ended: object, code: int
) -> None:
    server.tasks["ta"] = a_task("ta", state=state, exit=ended)
    done = shiftwork("wait", "ta")
    assert (done.code, done.out) == (code, state + "\n")


def test_wait_blocks_until_the_end(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta", state="running")
    threading.Timer(0.15, lambda: server.move("ta", "failed", exit=an_exit("failed", 4))).start()
    assert shiftwork("wait", "ta").code == 4


def test_wait_for_a_state(shiftwork: Shiftwork, server: CliServer) -> None:
    server.tasks["ta"] = a_task("ta", state="running")
    assert shiftwork("wait", "ta", "--for", "running").code == 0
    began = time.monotonic()
    done = shiftwork("wait", "ta", "--for", "paused", "--timeout", "0.2")
    assert done.code == 1
    assert time.monotonic() - began > 0.15
    assert "is still running after 0.2" in done.err
    server.tasks["ta"]["state"] = "stopped"
    assert "will not be paused" in shiftwork("wait", "ta", "--for", "paused").err
    assert shiftwork("wait", "ta", "--for", "flying").code == 2


WARNINGS = [
    {"code": "pods-only", "field": "pod.image", "value": "x:1", "message": "there are no pods"},
    {"code": "spread-unused", "field": "roles[0].spread", "value": "true", "message": "no effect"},
]
WARNED = ["warning: pod.image: there are no pods", "warning: roles[0].spread: no effect"]


def test_what_a_submission_warns_of_is_shown(shiftwork: Shiftwork, server: CliServer) -> None:
    task = a_task("ta", warnings=WARNINGS)
    server.first["POST", "/v1/tasks"] = [(201, task), (201, task)]
    done = shiftwork("submit", "--force", "--", "true")
    assert done.out.splitlines() == ["ta"]
    assert [line for line in done.err.splitlines() if "warning" in line] == WARNED
    done = shiftwork("submit", "--json", "--force", "--", "true")
    assert done.json["warnings"] == WARNINGS
    assert "warning" not in done.err
    server.tasks["ta"] = task
    assert shiftwork("show", "ta").out.splitlines()[-2:] == WARNED
    answer = {"task": {**a_dry_task(), "warnings": WARNINGS}, "free_nodes": 1, "ahead": 0}
    server.first["POST", "/v1/tasks:dry-run"] = [(200, answer)]
    err = shiftwork("submit", "--dry-run", "--force", "--", "true").err.splitlines()
    assert [line for line in err if "warning" in line] == WARNED


def a_dry_task() -> dict[str, Any]:
    return a_task("", node_selector={}, preemption={"mode": "sdk"})


def test_show_and_dry_run_print_what_each_role_has(shiftwork: Shiftwork, server: CliServer) -> None:
    roles = [
        {"name": "chief", "replicas": 1, "command": ["a"], "args": ["b"]},
        {
            "name": "ps",
            "replicas": 2,
            "command": [],
            "args": ["--port", "1"],
            "working_directory": "/data",
            "cpus_request": 0.5,
            "cpus": 2,
            "memory_request_bytes": 3 << 29,
            "pod": {"image": "x:1", "storage": ["sets"]},
        },
        {"name": "worker", "replicas": 1, "command": ["w"], "cpus_request": 1},
    ]
    task = {**a_dry_task(), "roles": roles, "contract": "tf_config", "cpus": 4}
    server.tasks["ta"] = {**task, "id": "ta"}
    answer = {"task": task, "free_nodes": None, "ahead": None}
    server.first["POST", "/v1/tasks:dry-run"] = [(200, answer)]
    for words in (("show", "ta"), ("submit", "--dry-run", "--force", "--", "true")):
        lines = {" ".join(line.split()) for line in shiftwork(*words).out.splitlines()}
        assert {
            "command chief x1: a b; ps x2: (the image's) --port 1; worker x1: w",
            "contract tf_config",
            "resources 4 CPUs",
            "directory /home/ada",
            "role ps in /data, 0.5 CPUs (limit 2 CPUs), 1.5 GiB (no limit), x:1, mounts sets",
            # Its limit is the task's.
            "role worker 1 CPU (limit 4 CPUs)",
        } <= lines
        assert not any(line.startswith("role chief") for line in lines)
