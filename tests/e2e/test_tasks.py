"""Tasks by the real program: submitted, found, followed, stopped; and how commands fail."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import TRAINING, Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]

TASK_FIELDS = {
    *("id", "name", "owner", "group", "priority", "labels", "roles", "nodes", "gpus_per_node"),
    *("goal", "state", "reason", "attempt", "submitted_at", "started_at", "finished_at"),
    *("checkpoint", "exit", "revision", "observed_revision"),
}
LONG = ("--gpus-per-node", "1", "--preempt", "kill", "--", "sleep", "600")


def test_following_a_task_shows_its_life_and_takes_its_exit_code(shiftwork: Shiftwork) -> None:
    line = "echo out; echo err >&2; exit 7"
    done = shiftwork("submit", "--name", "seven", "-f", "--", "sh", "-c", line)
    assert done.code == 7
    task, *output = done.out.splitlines()
    assert output == ["out", "err"]
    for word in ("submitted by admin", "assigned to local-", "started on local-", "code 7"):
        assert word in done.err
    assert shiftwork("wait", task).code == 7
    assert shiftwork("submit", "-f", "--", "true").code == 0


def test_a_task_in_json(shiftwork: Shiftwork) -> None:
    label, env = ("--label", "team=vision"), ("--env", "A=b=c")
    submitted = shiftwork.good(
        *("--json", "submit", "--name", "document", *label, *env, "--nodes", "2"),
        *("--gpus-per-node", "1", "--priority", "high", "--max-run-time", "1h", "--", "true"),
    ).json
    assert set(submitted) >= TASK_FIELDS
    shiftwork.good("wait", "document")
    task = shiftwork.task("document")
    assert set(task) >= TASK_FIELDS
    expected: dict[str, Any] = {
        "id": submitted["id"],
        "owner": "admin",
        "group": "default",
        "priority": "high",
        "labels": {"team": "vision"},
        "nodes": 2,
        "gpus_per_node": 1,
        "goal": "run",
        "state": "succeeded",
        "attempt": 1,
        "checkpoint": None,
        "max_run_seconds": 3600.0,
    }
    assert {name: task[name] for name in expected} == expected
    assert (task["roles"][0]["replicas"], task["roles"][0]["command"]) == (2, ["true"])
    assert {"code", "text"} <= set(task["reason"])
    assert (task["exit"]["kind"], task["exit"]["code"]) == ("ok", 0)
    assert task["observed_revision"] == task["revision"] == 1
    assert task["submitted_at"].endswith("Z")
    assert task["submitted_at"] <= task["started_at"] <= task["finished_at"]
    listed = shiftwork.good("ls", "--all", "--json").json["items"]
    assert next(each for each in listed if each["id"] == task["id"]) == task


def test_ranks_find_each_other_by_their_contract_and_serve_at_their_ports(
    shiftwork: Shiftwork, tmp_path: Path
) -> None:
    serve = (
        "import json, os, socket\n"
        "cluster = json.loads(os.environ['TF_CONFIG'])['cluster']\n"
        "with socket.create_server(('127.0.0.1', int(os.environ['SHIFTWORK_PORT_BOARD']))) as at:\n"
        "    at.accept()[0].sendall(json.dumps(cluster).encode())\n"
    )
    document = {
        "name": "served",
        "gpus_per_node": 1,
        "contract": "tf_config",
        "preemption": {"mode": "kill"},
        "roles": [
            {
                "name": role,
                "replicas": 1,
                "command": ["python", "-c", serve],
                "ports": [{"name": "board", "port": 6006}],
            }
            for role in ("chief", "ps")
        ],
    }
    file = tmp_path / "task.json"
    file.write_text(json.dumps(document))
    wrong = shiftwork("submit", "--file", str(file), "--contract", "mpi")
    assert (wrong.code, "needs a role launcher" in wrong.err) == (1, True)
    task = shiftwork.submit("--file", str(file))
    shiftwork.good("wait", task, "--for", "running")
    endpoints = shiftwork.task(task)["endpoints"]
    assert [(each["rank"], each["role"], each["name"]) for each in endpoints] == [
        (0, "chief", "board"),
        (1, "ps", "board"),
    ]
    shown = shiftwork.good("show", task).out
    clusters: list[Any] = []
    for each in endpoints:
        assert f"{each['address']}:{each['port']}" in shown
        clusters.append(json.loads(response_of(each["address"], each["port"])))
    assert clusters[0] == clusters[1]
    assert {role: len(listed) for role, listed in clusters[0].items()} == {"chief": 1, "ps": 1}
    assert shiftwork("wait", task).code == 0
    assert shiftwork.task(task)["endpoints"] == []


def response_of(address: str, port: int) -> str:
    ends = time.monotonic() + 20
    while True:
        try:
            with socket.create_connection((address, port), timeout=20) as connection:
                return connection.makefile().read()
        except ConnectionRefusedError:
            assert time.monotonic() < ends
            time.sleep(0.05)


def test_a_task_is_found_by_id_prefix_and_name(shiftwork: Shiftwork) -> None:
    first = shiftwork.submit("--name", "found", "--", "true")
    shiftwork.good("wait", first)
    second = shiftwork.submit("--name", "found", *LONG)
    assert shiftwork.task(first)["id"] == first
    assert shiftwork.task(second[:-1])["id"] == second
    assert shiftwork.task("found")["id"] == second
    again = shiftwork("submit", "--name", "found", *LONG)
    assert (again.code, second in again.err) == (1, True)
    shiftwork.good("stop", "found")
    shiftwork("wait", second)
    assert shiftwork.task("found")["id"] == second
    assert shiftwork.task(second[-6:])["id"] == second
    ambiguous = shiftwork("show", "t")
    assert (ambiguous.code, "write more of the id" in ambiguous.err) == (1, True)


def test_how_commands_fail(shiftwork: Shiftwork) -> None:
    for usage in (
        ("frobnicate",),
        ("submit",),
        ("submit", "true"),
        ("submit", "--priority", "huge", "--", "true"),
        ("submit", "--max-run-time", "4w", "--", "true"),
        ("ls", "--state", "asleep"),
        ("quota", "set"),
        ("ls", "--context", "nowhere"),
    ):
        done = shiftwork(*usage)
        assert (done.code, done.out) == (2, ""), usage
        assert done.err.startswith("error: "), usage
    for refused in (
        ("show", "nothing-here"),
        ("node", "cordon", "local-9"),
        ("--token", "x", "ls"),
    ):
        done = shiftwork(*refused)
        assert (done.code, done.out) == (1, ""), refused
        assert {"error:", "where:", "fix:"} <= set(done.err.split()), refused
    assert shiftwork("--url", "http://127.0.0.1:1", "ls").code == 3

    problem = shiftwork("--json", "submit", "--nodes", "9", "--", "true").problem
    assert (problem["status"], problem["errors"][0]["field"]) == (422, "nodes")
    assert set(problem) >= {"type", "title", "status", "detail", "errors"}
    assert set(problem["errors"][0]) == {"field", "option", "value", "message", "fix"}
    problem = shiftwork("--json", "--url", "http://127.0.0.1:1", "ls").problem
    assert problem["type"] == "unreachable"


def test_a_key_makes_one_task(shiftwork: Shiftwork) -> None:
    line = ("--key", "once", "--name", "keyed")
    task = shiftwork.submit(*line, "--", "true")
    assert shiftwork.submit(*line, "--", "true") == task
    other = shiftwork("submit", *line, "--", "false")
    assert (other.code, other.out) == (1, "")


def test_ctrl_c_leaves_a_followed_task_alone(shiftwork: Shiftwork) -> None:
    process = shiftwork.start("submit", "--name", "left", "-f", *LONG)
    assert process.stderr is not None
    for line in process.stderr:
        if " running" in line:
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "left goes on" in err
    assert shiftwork.task("left")["state"] == "running"


def test_output_of_a_gang(shiftwork: Shiftwork) -> None:
    line = "echo first of $RANK; echo last of $RANK in $WORLD_SIZE"
    options = ("--name", "spoken", "--nodes", "2", "--gpus-per-node", "1")
    done = shiftwork("submit", *options, "-f", "--", "sh", "-c", line)
    expected = [
        f"[{rank}] {word}"
        for rank in (0, 1)
        for word in (f"first of {rank}", f"last of {rank} in 2")
    ]
    assert sorted(done.out.splitlines()[1:]) == expected
    assert sorted(shiftwork.good("logs", "spoken").out.splitlines()) == expected
    assert sorted(shiftwork.good("logs", "spoken", "-f").out.splitlines()) == expected
    one = shiftwork.good("logs", "spoken", "--rank", "1").out
    assert one == "first of 1\nlast of 1 in 2\n"
    assert shiftwork.good("logs", "spoken", "--rank", "1", "--tail", "1").out == "last of 1 in 2\n"
    found = shiftwork.good("logs", "spoken", "--search", "last.*1 in", "--json").records
    assert [(each["rank"], each["text"]) for each in found] == [(1, "last of 1 in 2")]
    assert shiftwork.good("logs", "spoken", "--attempt", "2").out == ""
    assert shiftwork("logs", "spoken", "--search", "(").code == 2


PACKED = """
name: packed
roles:
  - {name: chief, gpus: 1, command: [sh, -c, 'echo $SHIFTWORK_ROLE $SHIFTWORK_GPUS']}
  - {name: worker, replicas: 2, gpus: 1, command: [sh, -c, 'echo $SHIFTWORK_ROLE $SHIFTWORK_NODE']}
  - {name: logs, auxiliary: true, working_directory: /, command: [sh, -c, 'echo in $PWD']}
"""


def test_roles_with_sizes_of_their_own_share_nodes(shiftwork: Shiftwork) -> None:
    file = shiftwork.home / "packed.yaml"
    file.write_text(PACKED)
    dry = shiftwork.good("submit", "--file", str(file), "--dry-run").out
    assert "chief 1 x 1 GPU, worker 2 x 1 GPU, logs 1 x 0 GPUs" in dry
    done = shiftwork("submit", "--file", str(file), "-f")
    assert done.code == 0, done.err
    lines = sorted(done.out.splitlines()[1:])
    assert [line.split()[:2] for line in lines] == [
        ["[0]", "chief"],
        ["[1]", "worker"],
        ["[2]", "worker"],
        ["[3]", "in"],
    ]
    run = shiftwork.good("--json", "show", "packed").json
    assert run["state"] == "succeeded"
    (row,) = [line for line in shiftwork.good("ls", "--all").out.splitlines() if " packed " in line]
    assert " 1x1+2x1+1x0 " in row
    # Two nodes of two slots hold four ranks of one slot, and not five.
    file.write_text("roles: [{replicas: 5, gpus: 1, command: ['true']}]")
    refused = shiftwork("submit", "--file", str(file))
    assert refused.code == 1
    assert "roles[0].replicas" in refused.err
    assert "hold 4 replicas of this size" in refused.err


RULES = """
name: chief-decides
completion: {success: ['chief[0]'], failure: ['chief[0]', 'worker[2+]']}
roles:
  - {name: chief, gpus: 1, command: [sleep, '2']}
  - {name: worker, replicas: 2, gpus: 1, command: [sh, -c, 'test $SHIFTWORK_RANK = 1']}
  - {name: ps, gpus: 0, command: [sleep, '600']}
"""


def test_a_chief_decides_alone_and_the_parameter_server_is_ended(shiftwork: Shiftwork) -> None:
    file = shiftwork.home / "rules.yaml"
    file.write_text(RULES)
    done = shiftwork("submit", "--file", str(file), "-f")
    assert done.code == 0, done.err
    task = shiftwork.task("chief-decides")
    text = "chief[0] succeeded; 1 failed rank tolerated"
    assert (task["state"], task["exit"]["text"]) == ("succeeded", text)
    file.write_text(RULES.replace("sleep, '2'", "'false'"))
    failed = shiftwork("submit", "--file", str(file), "--name", "chief-fails", "-f")
    assert failed.code == 1
    assert "chief[0] failed: rank 0 ended with code 1" in failed.err
    file.write_text(RULES.replace("'chief[0]'", "'cheif[0]'"))
    refused = shiftwork("submit", "--file", str(file))
    assert refused.code == 1
    assert "completion.success[0]" in refused.err
    assert "did you mean chief?" in refused.err


def test_events_of_a_task(shiftwork: Shiftwork) -> None:
    task = shiftwork.submit("--name", "reported", "--", "true")
    shiftwork.good("wait", task)
    events = shiftwork.good("events", task, "--json").json["items"]
    types = [event["type"] for event in events]
    for earlier, later in (("task.submitted", "run.assigned"), ("run.started", "run.exited")):
        assert types.index(earlier) < types.index(later)
    assert types[-1] in ("task.state_changed", "quota.usage")
    positions = [event["position"] for event in events]
    assert positions == sorted(set(positions))
    rest = shiftwork.good("events", task, "--from", str(positions[2]), "--json").json["items"]
    assert rest[: len(events) - 3] == events[3:]
    only = shiftwork.good("events", "--type", "run.exited", "--from", "0", "--json").json["items"]
    assert {event["type"] for event in only} == {"run.exited"}
    text = shiftwork.good("events", task).out
    assert "the program ended successfully" in text
    assert "for admin" in text


def test_goals_and_priority(shiftwork: Shiftwork) -> None:
    line = ("--name", "goals", "--gpus-per-node", "1", "--priority", "low")
    task = shiftwork.submit(*line, "--", "python", "-c", TRAINING)
    shiftwork.wait(task, "running")
    assert shiftwork.good("pause", "goals", "--json").json["revision"] == 2
    shiftwork.wait(task, "paused")
    paused = shiftwork.task(task)
    assert paused["checkpoint"]["step"] > 0
    assert "paused" in shiftwork.good("explain", task).out
    shiftwork.good("resume", "goals")
    shiftwork.wait(task, "running")
    assert shiftwork.good("priority", "goals", "very-high", "--json").json["revision"] == 4
    resumed = shiftwork.task(task)
    assert (resumed["attempt"], resumed["priority"], resumed["revision"]) == (2, "very_high", 4)
    output = shiftwork.good("events", task).out
    assert f"from step {paused['checkpoint']['step']}" in output
    shiftwork.good("stop", "goals")
    shiftwork("wait", task)
    assert shiftwork.task(task)["state"] == "stopped"
    assert shiftwork("resume", task).code == 1
    waited = shiftwork("wait", task, "--for", "running")
    assert (waited.code, waited.out) == (1, "stopped\n")


def test_a_task_from_a_file(shiftwork: Shiftwork) -> None:
    file = shiftwork.home / "task.yaml"
    file.write_text(
        "name: written\ngpus_per_node: 0\nenv: {GREETING: hello}\n"
        "command: [sh, -c, 'echo $GREETING']\n"
    )
    done = shiftwork("submit", "--file", str(file), "-f")
    assert (done.code, done.out.splitlines()[1:]) == (0, ["hello"])
    other = shiftwork.good("submit", "--file", str(file), "--name", "other").out.strip()
    assert shiftwork.task(other)["name"] == "other"
    file.write_text("name: written\nnode: 2\ncommand: ['true']\n")
    refused = shiftwork("submit", "--file", str(file))
    assert (refused.code, "node" in refused.err) == (1, True)


def test_there_is_no_wait_for_a_program_that_never_calls_should_preempt(
    shiftwork: Shiftwork,
) -> None:
    """It would have ten minutes; nothing is saved, and the events report that."""
    options = ("--gpus-per-node", "1", "--ack-deadline", "10m")
    task = shiftwork.submit("--name", "deaf", *options, "--", "sleep", "600")
    shiftwork.wait(task, "running")
    shiftwork.good("pause", task)
    shiftwork.wait(task, "paused")
    shiftwork.good("resume", task)
    shiftwork.wait(task, "running")
    text = "attempt 2 runs, restarted from the beginning (no checkpoint)"
    assert shiftwork.task(task)["reason"]["text"] == text
    shiftwork.good("stop", task)
    assert shiftwork("wait", task, "--timeout", "30").out == "stopped\n"
    output = shiftwork.good("events", task).out
    assert "ends it by force: its program never asked whether to leave" in output
    assert "asks from now on" not in output
    # It has ten minutes by its deadline, and is not waited for that long.
    assert "its program never asked whether to leave, and is ended by force at" in output
    assert "asked to leave by" not in output


def test_now_ends_a_run_that_would_be_waited_for(shiftwork: Shiftwork) -> None:
    """The program listens, and ignores what it hears."""
    loop = "import shiftwork, time\nwhile True: shiftwork.should_preempt(); time.sleep(0.1)"
    options = ("--gpus-per-node", "1", "--ack-deadline", "10m")
    task = shiftwork.submit("--name", "stubborn", *options, "--", "python", "-c", loop)
    shiftwork.wait(task, "running")
    listens = "--type", "run.listened", "--from", "0", "--json"
    until(lambda: bool(shiftwork.good("events", task, *listens).json["items"]))
    shiftwork.good("pause", task)
    shiftwork.wait(task, "preempting")
    shiftwork.good("pause", task, "--now")
    shiftwork.wait(task, "paused")
    shiftwork.good("resume", task)
    shiftwork.wait(task, "running")
    shiftwork.good("stop", "--now", task)
    assert shiftwork("wait", task, "--timeout", "30").out == "stopped\n"
    output = shiftwork.good("events", task).out
    assert "paused at once by admin" in output
    assert "never asked" not in output
    refused = shiftwork("stop", "--now", task)
    assert (refused.code, "has already been stopped" in refused.err) == (1, True)


def until(holds: Callable[[], bool]) -> None:
    """Ask again until it holds."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end, "it never held"
        time.sleep(0.2)
