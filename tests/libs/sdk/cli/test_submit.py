from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.libs.sdk.cli.conftest import PATH
from tests.libs.sdk.cli.server import TOKEN, CliServer, a_task, an_exit, problem

if TYPE_CHECKING:
    from tests.libs.sdk.cli.conftest import Shiftwork

pytestmark = pytest.mark.server

MAIN = "from shiftwork.cli.main import main; main()"


def environment(home: Path, server: CliServer) -> dict[str, str]:
    return {
        **os.environ,
        "HOME": str(home),
        "SHIFTWORK_URL": server.url,
        "SHIFTWORK_TOKEN": TOKEN,
    }


def body(server: CliServer) -> dict[str, Any]:
    return server.asked("POST", "/v1/tasks").body


def test_the_id_alone_is_printed(
    shiftwork: Shiftwork, server: CliServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "train.py").touch()
    monkeypatch.chdir(home)
    done = shiftwork("submit", "--", "python", "train.py", "--json", "-f")
    assert (done.code, done.out, done.err) == (0, "taaaaa\n", "")
    assert body(server) == {
        "command": ["python", "train.py", "--json", "-f"],
        "working_directory": str(Path.cwd()),
        "env": {"PATH": PATH},
    }


def test_json_prints_the_task(shiftwork: Shiftwork) -> None:
    assert shiftwork("submit", "--json", "--", "true").json["state"] == "queued"


def test_every_option_reaches_the_server(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    options = (
        "--name demo --nodes 2 --gpus-per-node 0 --priority HIGH --group dev --env A=1 "
        "--env B=x=y --label team=nlp --ack-deadline 90 --preempt signal:TERM "
        "--fence-after 15m --max-run-time 4h --retries 2 --key mine "
        "--node-selector disk=nvme --node-selector gen=h100 --tolerate flaky --tolerate for=vision "
        "--contract tf-config"
    )
    options += f" --workdir {tmp_path}"
    assert shiftwork("submit", *options.split(), "--", "true").code == 0
    assert body(server) == {
        "name": "demo",
        "nodes": 2,
        "gpus_per_node": 0,
        "priority": "high",
        "group": "dev",
        "env": {"PATH": PATH, "A": "1", "B": "x=y"},
        "working_directory": str(tmp_path),
        "labels": {"team": "nlp"},
        "node_selector": {"disk": "nvme", "gen": "h100"},
        "tolerations": ["flaky", "for=vision"],
        "preemption": {"mode": "signal", "signal": "TERM", "ack_deadline_seconds": 90.0},
        "fence_after_seconds": 900.0,
        "max_run_seconds": 14400.0,
        "retry": {"max_retries": 2},
        "contract": "tf_config",
        "command": ["true"],
    }
    assert server.asked("POST", "/v1/tasks").headers["idempotency-key"] == "mine"


def test_a_retried_submission_is_one_task(shiftwork: Shiftwork, server: CliServer) -> None:
    server.first["POST", "/v1/tasks"] = [(503, {}), (503, {})]
    assert shiftwork("submit", "--", "true").code == 0
    keys = {one.headers["idempotency-key"] for one in server.seen if one.method == "POST"}
    assert len(keys) == 1
    assert len(keys.pop()) >= 16
    assert len(server.tasks) == 1
    shiftwork("submit", "--", "true")
    assert len(server.tasks) == 2


def test_a_refusal_names_field_value_and_fix(shiftwork: Shiftwork, server: CliServer) -> None:
    refusal = problem(
        422,
        "invalid",
        "nodes: more than there are",
        {"field": "nodes", "value": "99", "message": "more than there are", "fix": "give 2"},
    )
    server.first["POST", "/v1/tasks"] = [refusal, refusal]
    done = shiftwork("submit", "--nodes", "99", "--", "true")
    assert (done.code, done.out) == (1, "")
    assert "error: --nodes 99: more than there are" in done.err
    assert "fix:   --nodes: give 2" in done.err
    done = shiftwork("submit", "--nodes", "99", "--json", "--", "true")
    (error,) = refusal[1]["errors"]
    assert json.loads(done.err) == {
        **refusal[1],
        "detail": "--nodes 99: more than there are",
        "where": "--nodes",
        "errors": [{**error, "option": "--nodes"}],
    }


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["python", "train.py"], "must follow --"),
        ([], "no command"),
        (["--env", "NAME", "--", "x"], "not KEY=VALUE"),
        (["--priority", "urgent", "--", "x"], "not a priority"),
        (["--contract", "tfconfig", "--", "x"], "did you mean tf_config?"),
        (["--max-run-time", "4 weeks", "--", "x"], "not a duration"),
        (["--preempt", "ask", "--", "x"], "no way to preempt"),
        (["--nodes", "0", "--", "x"], "nodes"),
        (["--file", "/nonexistent", "--"], "cannot be read"),
    ],
)
def test_wrong_usage(shiftwork: Shiftwork, arguments: list[str], error: str) -> None:
    done = shiftwork("submit", *arguments)
    assert done.code == 2
    assert error in done.err


@pytest.mark.parametrize(
    "text",
    ['{"command": ["true"], "nodes": 2}', 'command: ["true"]\nnodes: 2\n'],
    ids=["json", "yaml"],
)
def test_a_task_from_a_file(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path, text: str
) -> None:
    file = tmp_path / "task"
    file.write_text(text)
    assert shiftwork("submit", "--file", str(file)).code == 0
    assert {name: body(server)[name] for name in ("command", "nodes")} == {
        "command": ["true"],
        "nodes": 2,
    }
    assert shiftwork("submit", "--file", str(file), "--nodes", "3", "--", "false").code == 0
    assert {name: body(server)[name] for name in ("command", "nodes")} == {
        "command": ["false"],
        "nodes": 3,
    }


@pytest.mark.parametrize("line", ["submit -", "submit - -- false", "submit --file - -- false"])
def test_a_dash_is_standard_input_also_before_a_command(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    text = io.TextIOWrapper(io.BytesIO(b"command: ['true']\nnodes: 2\n"))
    monkeypatch.setattr(sys, "stdin", text)
    assert shiftwork(*line.split()).code == 0
    command = ["false"] if "false" in line else ["true"]
    assert (body(server)["command"], body(server)["nodes"]) == (command, 2)


@pytest.mark.parametrize("text", ["[1]", "a: [", "- x"])
def test_a_file_that_holds_no_task(shiftwork: Shiftwork, tmp_path: Path, text: str) -> None:
    file = tmp_path / "task"
    file.write_text(text)
    assert shiftwork("submit", "--file", str(file)).code == 2


def test_the_options_for_pods_reach_the_server(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("apiVersion: v1\nkind: Pod\nspec: {hostUsers: false}\n")
    options = (
        "--image example/train:1 --mount sets --mount scratch --shm 8Gi --resource rdma/hca=1 "
        f"--pod-template {file}"
    )
    assert shiftwork("submit", *options.split(), "--", "run").code == 0
    assert body(server)["pod"] == {
        "image": "example/train:1",
        "storage": ["sets", "scratch"],
        "shm_bytes": 8 << 30,
        "resources": {"rdma/hca": "1"},
        "template": {"spec": {"hostUsers": False}},
    }
    assert "working_directory" not in body(server)
    server.tasks["taaaaa"]["pod"] = body(server)["pod"]
    shown = shiftwork("show", "taaaaa").out
    assert "example/train:1, mounts sets, mounts scratch, rdma/hca=1" in shown


@pytest.mark.parametrize(
    ("option", "error"),
    [
        (["--shm", "much"], "'much' is not a size"),
        (["--shm", "0"], "'0' is not a size"),
        (["--resource", "rdma/hca"], "is not KEY=VALUE"),
        (["--pod-template", "none.yaml"], "the file cannot be read"),
    ],
)
def test_wrong_values_of_the_options_for_pods(
    shiftwork: Shiftwork, option: list[str], error: str
) -> None:
    done = shiftwork("submit", *option, "--", "run")
    assert done.code == 2
    assert error in done.err


def test_pods_come_from_the_tasks_file(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("command: [a]\npod: {image: example/train:1}\n")
    assert shiftwork("submit", "--file", str(file)).code == 0
    assert body(server)["pod"] == {"image": "example/train:1"}
    assert shiftwork("submit", "--file", str(file), "--image", "x").code == 0
    assert body(server)["pod"] == {"image": "x"}


def test_without_pyyaml_json_still_works(
    shiftwork: Shiftwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    file = tmp_path / "task"
    file.write_text("command: ['true']\n")
    done = shiftwork("submit", "--file", str(file))
    assert done.code == 2
    assert "install PyYAML" in done.err


def a_life(server: CliServer, code: int) -> Any:
    """A run that is preempted, resumes and ends, with output of two attempts."""

    def live(task_id: str) -> None:
        placements = [{"rank": 0, "node_id": "local-0"}]
        server.happen(task_id, "run.assigned", attempt=1, placements=placements)
        server.move(task_id, "running", attempt=1)
        server.write(1, 0, b"step 1\nstep 2\nh\xc3\xa9ll\xc3\xb6 \xff")
        server.happen(
            task_id,
            "run.preemption_requested",
            deadline_at="2026-11-21T10:01:00Z",
            reason={"code": "preempted_by", "text": "makes room for tb"},
        )
        saved = {"no": 1, "attempt": 1, "step": 2, "uri": "file:///c/2"}
        server.happen(task_id, "run.checkpoint_saved", checkpoint=saved)
        ended = {"kind": "preempted", "detail": "", "ranks": [{"rank": 0, "code": 75}]}
        server.happen(task_id, "run.exited", attempt=1, exit=ended, checkpoint=saved)
        server.happen(task_id, "run.resumed", attempt=2, resume_from=saved, placements=placements)
        time.sleep(0.05)
        server.write(2, 0, b"step 3\ndone")
        state = "failed" if code else "succeeded"
        server.move(task_id, state, attempt=2, exit=an_exit("failed" if code else "ok", code))

    return live


@pytest.mark.parametrize("code", [0, 7])
def test_following_shows_everything_and_ends_with_the_tasks_code(
    shiftwork: Shiftwork, server: CliServer, code: int
) -> None:
    server.on_submit = a_life(server, code)
    done = shiftwork("submit", "-f", "--", "true")
    assert done.code == code
    assert done.out.splitlines() == [
        "taaaaa",
        "step 1",
        "step 2",
        "h\xe9ll\xf6 \ufffd",
        "step 3",
        "done",
    ]
    lines = [re.sub(r"^\S+  ", "", line) for line in done.err.splitlines()]
    assert lines == [
        "submitted by ada",
        "attempt 1  assigned to local-0",
        "attempt 1  running",
        "attempt 1  asked to leave by 10:01:00.000: makes room for tb",
        "attempt 1  checkpoint saved: step 2, file:///c/2",
        "attempt 1  the program saved a checkpoint of step 2 and left when asked to (exit code 75)",
        "attempt 2  resumed on local-0 from step 2",
        f"attempt 2  {'failed' if code else 'succeeded'}",
    ]


def test_following_a_paused_task_names_the_command_that_starts_it(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    def end(task_id: str) -> None:
        server.move(task_id, "stopped", attempt=0)

    server.on_submit = end
    done = shiftwork("submit", "-f", "--paused", "--name", "later", "--", "true")
    assert done.err.splitlines()[0] == "paused: shiftwork resume later starts it"


def test_streams_that_are_cut_lose_and_double_nothing(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.on_submit = a_life(server, 0)
    server.cuts = 6
    done = shiftwork("submit", "-f", "--", "true")
    assert server.cuts == 0
    assert done.out.splitlines()[1:] == ["step 1", "step 2", "h\xe9ll\xf6 \ufffd", "step 3", "done"]
    assert done.err.count("checkpoint saved") == 1
    assert len(done.err.splitlines()) == 8


def test_following_waits_while_too_many_streams_are_open(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    server.on_submit = a_life(server, 7)
    full = problem(429, "too-many", "512 streams are open for ada")
    for path in ("/v1/events", "/v1/tasks/taaaaa/logs"):
        server.first["GET", path] = [full] * 2
    began = time.monotonic()
    done = shiftwork("submit", "-f", "--", "true")
    # The server asked for a second each time.
    assert time.monotonic() - began >= 2
    assert done.code == 7
    assert done.out.splitlines()[-1] == "done"
    assert "512 streams are open for ada; trying again" in done.err


def test_following_in_json_is_one_object_a_line(shiftwork: Shiftwork, server: CliServer) -> None:
    server.on_submit = a_life(server, 3)
    done = shiftwork("submit", "-f", "--json", "--", "true")
    assert done.code == 3
    records = [json.loads(line) for line in done.out.splitlines()]
    assert records[0]["id"] == "taaaaa"
    assert records[-1]["task"]["state"] == "failed"
    assert [r["text"] for r in records if "text" in r][:2] == ["step 1", "step 2"]
    assert sum("event" in r for r in records) == 8
    assert done.err == ""


def test_lines_of_several_ranks_are_prefixed_with_their_rank(
    shiftwork: Shiftwork, server: CliServer
) -> None:
    def live(task_id: str) -> None:
        server.write(1, 0, b"zero\n")
        server.write(1, 1, b"one\n")
        server.move(task_id, "succeeded", exit=an_exit("ok", 0))

    server.on_submit = live
    done = shiftwork("submit", "-f", "--nodes", "2", "--", "true")
    assert sorted(done.out.splitlines()[1:]) == ["[0] zero", "[1] one"]


def test_a_task_that_never_ran_is_1(shiftwork: Shiftwork, server: CliServer) -> None:
    server.on_submit = lambda task_id: server.move(task_id, "rejected")
    assert shiftwork("submit", "-f", "--", "true").code == 1


def test_interrupting_leaves_the_task_running(home: Path, server: CliServer) -> None:
    server.on_submit = lambda _task_id: server.write(1, 0, b"working\n")
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "submit", "-f", "--", "true"],
        env=environment(home, server),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline(), process.stdout.readline()] == ["taaaaa\n", "working\n"]
    process.send_signal(signal.SIGINT)
    _out, err = process.communicate(timeout=40)
    assert process.returncode == 130
    assert "goes on" in err
    assert "shiftwork logs taaaaa -f" in err
    assert "shiftwork stop taaaaa" in err
    assert "Traceback" not in err
    assert server.tasks["taaaaa"]["goal"] == "run"


def test_a_terminal_gets_a_progress_line_beside_the_output(home: Path, server: CliServer) -> None:
    server.on_submit = a_life(server, 0)
    terminal, inside = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "submit", "-f", "--", "true"],
        env={**environment(home, server), "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=inside,
    )
    os.close(inside)
    drawn = b""
    with contextlib.suppress(OSError):  # the terminal's other end is closed
        while piece := os.read(terminal, 65_536):
            drawn += piece
    os.close(terminal)
    out, _ = process.communicate(timeout=40)
    assert process.returncode == 0
    assert out.splitlines()[-2:] == [b"step 3", b"done"]
    assert b"asked to leave by 10:01:00.000" in drawn
    assert "train-taaaaa · running".encode() in drawn
    assert drawn.rindex(b"\x1b[?25h") > drawn.rindex(b"\x1b[?25l")  # the cursor is back


def test_options_override_the_file_and_maps_are_joined(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    file = tmp_path / "task.json"
    spec = {
        "command": ["true"],
        "env": {"A": "1", "B": "2"},
        "tolerations": ["x"],
        "preemption": {"mode": "signal", "signal": "TERM", "ack_deadline_seconds": 5},
    }
    file.write_text(json.dumps(spec))
    options = ("--env", "B=3", "--tolerate", "y", "--preempt", "kill")
    assert shiftwork("submit", "--file", str(file), *options).code == 0
    sent = body(server)
    assert sent["env"] == {"PATH": PATH, "A": "1", "B": "3"}
    assert sent["tolerations"] == ["y"]
    assert sent["preemption"] == {"mode": "kill", "ack_deadline_seconds": 5}
    file.write_text(json.dumps({"roles": [{"command": ["true"]}]}))
    clash = shiftwork("submit", "--file", str(file), "--", "false")
    assert (clash.code, str(file) in clash.err) == (2, True)


@pytest.mark.parametrize("options", [("--file", "-"), ("-",)])
def test_a_task_from_standard_input(
    server: CliServer, home: Path, options: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "submit", *options],
        env=environment(home, server),
        input=b'{"command": ["true"], "name": "piped"}',
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert body(server)["name"] == "piped"


@pytest.mark.parametrize(
    ("text", "named", "line"),
    [
        ("command: ['true']\nmax_run_seconds: .nan\n", "max_run_seconds nan", 2),
        ("roles:\n- command: ['true']\n  gpus: .nan\n", "roles[0].gpus nan", 3),
        ("command: ['true']\ncpus: -.inf\n", "cpus -inf", 2),
        ('{"command": ["true"],\n"cpus": NaN}', "cpus nan", 2),
        ('{"command": ["true"],\n"cpus": 1e999}', "cpus inf", 2),
    ],
)
def test_a_number_that_is_not_finite_is_named(
    shiftwork: Shiftwork, tmp_path: Path, text: str, named: str, line: int
) -> None:
    file = tmp_path / "task"
    file.write_text(text)
    done = shiftwork("submit", "--file", str(file))
    assert done.code == 2
    assert done.err == (
        f"error: {named}: is not a finite number\n  where: {file}, line {line}\n"
        "  fix:   give a finite number, or leave it out\n"
    )


def test_a_field_of_the_file_is_named_as_the_file_has_it(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    file = tmp_path / "task.json"
    file.write_text('{"command": ["true"], "preemption": {"ack_deadline_seconds": 0.5}}')
    field = "preemption.ack_deadline_seconds"
    error = {"field": field, "value": "0.5", "message": "is too short", "fix": "give 1"}
    refusal = problem(422, "invalid", f"{field}: is too short", error)
    server.first["POST", "/v1/tasks"] = [refusal, refusal]
    done = shiftwork("submit", "--file", str(file))
    assert done.err == (
        f"error: {field} 0.5: is too short\n  where: {file}, line 1\n  fix:   {field}: give 1\n"
    )
    done = shiftwork("submit", "--ack-deadline", "0.5", "--", "true")
    assert done.err == (
        "error: --ack-deadline 0.5: is too short\n"
        "  where: --ack-deadline\n  fix:   --ack-deadline: give 1\n"
    )


def test_the_servers_fixes_name_options(shiftwork: Shiftwork, server: CliServer) -> None:
    fix = "labels there are: disk=hdd; with wait_for_nodes it waits"
    error = {"field": "node_selector", "value": "disk=nvme", "message": "no node has", "fix": fix}
    other = {"field": "nodes", "value": "9", "message": "too many", "fix": "give 2"}
    server.first["POST", "/v1/tasks"] = [
        problem(422, "invalid", "node_selector: no node has (and 1 more)", error, other)
    ]
    done = shiftwork("submit", "--node-selector", "disk=nvme", "--", "true")
    assert "error: --node-selector disk=nvme: no node has (and 1 more)" in done.err
    assert "with --force it waits" in done.err
    assert "--nodes '9': too many; give 2" in done.err
    assert shiftwork("submit", "--force", "--", "no-such-program").code == 0
    assert body(server)["wait_for_nodes"] is True


def test_a_directory_that_is_not_there_is_refused(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    done = shiftwork("submit", "--workdir", str(tmp_path / "dat"), "--", "true")
    assert done.code == 1
    assert f"--workdir {tmp_path}/dat: there is no such directory" in done.err
    assert f"did you mean {tmp_path}/data?" in done.err
    (tmp_path / "file").touch()
    assert (
        "this is a file"
        in shiftwork("submit", "--workdir", str(tmp_path / "file"), "--", "true").err
    )
    file = tmp_path / "task.json"
    file.write_text(json.dumps({"command": ["true"], "working_directory": "/nowhere-at-all"}))
    assert "working_directory /nowhere-at-all" in shiftwork("submit", "--file", str(file)).err
    assert not server.tasks


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["pyton3", "x.py"], "did you mean"),
        (["train.py", "--lr", "1"], "write: -- python train.py --lr 1"),
        (["./nothing"], "there is no such file"),
        (["python train.py"], "write it without quotes"),
        (["./train.py", "--lr", "1"], "train.py, or write: -- python ./train.py --lr 1"),
        (["torch-run-x"], "with --venv DIR the environment in DIR is searched"),
    ],
)
def test_a_program_that_cannot_be_found_is_refused_with_advice(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path, command: list[str], error: str
) -> None:
    (tmp_path / "train.py").touch()
    done = shiftwork("submit", "--workdir", str(tmp_path), "--", *command)
    assert (done.code, done.out) == (1, "")
    assert error in done.err
    assert not server.tasks
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for good in (["./mine"], [str(program)], ["--env", f"PATH={tmp_path}", "--", "mine"]):
        line = good if "--" in good else ["--", *good]
        assert shiftwork("submit", "--workdir", str(tmp_path), *line).code == 0


@pytest.mark.parametrize(
    ("command", "warning"),
    [
        (
            ["python3", "tarin.py"],
            "tarin.py: there is no such file in {at}; did you mean {at}/train.py?",
        ),
        (["python3", "-u", "other/x.py"], "other/x.py: there is no such file in {at}"),
        (["python3", "train.py", "none.py"], ""),
        (["python3", "-m", "x", "y.py"], ""),
        (["python3", "-c", "open('a.py')"], ""),
        (["bash", "-c", "python none.py"], ""),
        (["true", "none.py"], ""),
    ],
)
def test_a_script_that_is_not_there_is_a_warning(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path, command: list[str], warning: str
) -> None:
    (tmp_path / "train.py").touch()
    done = shiftwork("submit", "--workdir", str(tmp_path), "--", *command)
    assert (done.code, done.out) == (0, "taaaaa\n")
    warnings = [line for line in done.err.splitlines() if line.startswith("warning: ")]
    assert warnings == ([f"warning: {warning.format(at=tmp_path)}"] if warning else [])
    assert server.tasks


def test_a_role_starts_in_its_own_directory(
    shiftwork: Shiftwork, server: CliServer, tmp_path: Path
) -> None:
    for name in ("common", "own"):
        (tmp_path / name).mkdir()
    (tmp_path / "own" / "serve.py").touch()
    (tmp_path / "own" / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "own" / "run.sh").chmod(0o755)
    file = tmp_path / "task.json"

    def submitted(own: str, *command: str) -> tuple[int, str]:
        chief = {"name": "chief", "command": ["true"]}
        role = {"name": "web", "command": command, "working_directory": own}
        task = {"working_directory": str(tmp_path / "common"), "roles": [chief, role]}
        file.write_text(json.dumps(task))
        done = shiftwork("submit", "--file", str(file))
        return done.code, done.err

    code, err = submitted(str(tmp_path / "none"), "true")
    assert code == 1
    assert f"roles[1].working_directory {tmp_path}/none: there is no such directory" in err
    assert f"mkdir -p {tmp_path}/none" in err
    code, err = submitted(str(tmp_path / "own" / "serve.py"), "true")
    assert (code, "this is a file" in err) == (1, True)
    assert not server.tasks
    code, err = submitted(str(tmp_path / "own"), "python3", "serve.py")
    assert (code, "warning" in err) == (0, False)
    assert submitted(str(tmp_path / "own"), "./run.sh")[0] == 0
    code, err = submitted("", "python3", "serve.py")
    assert f"warning: serve.py: there is no such file in {tmp_path}/common" in err


def test_a_directory_is_named_as_it_was_typed(shiftwork: Shiftwork, home: Path) -> None:
    done = shiftwork("submit", "--workdir", "~/none", "--", "true")
    assert "error: --workdir ~/none: there is no such directory\n" in done.err
    assert f"fix:   write it without quotes, or as {home}/none" in done.err


def test_a_dry_run_shows_all_that_was_given(shiftwork: Shiftwork, server: CliServer) -> None:
    task = a_task(
        "",
        preemption={"mode": "signal", "signal": "TERM", "ack_deadline_seconds": 90.0},
        node_selector={},
        env={"SEED": "secret", "A": "b"},
        retry={"max_retries": 3},
        max_run_seconds=14_400.0,
        fence_after_seconds=30.0,
        tolerations=["reserved"],
    )
    answer = {"task": task, "free_nodes": 1, "ahead": 0}
    server.first["POST", "/v1/tasks:dry-run"] = [(200, answer)]
    shown = dict(
        line.split("  ", 1)
        for line in shiftwork("submit", "--dry-run", "--", "true").out.splitlines()
    )
    facts = {name: value.strip() for name, value in shown.items()}
    assert facts["variables"] == "A, SEED"
    assert facts["preemption"] == "signal:TERM"
    assert facts["ack deadline"] == "90s"
    assert (facts["retries"], facts["max run time"], facts["fence after"]) == ("3", "4h", "30s")
    assert facts["tolerates"] == "reserved"


ORDERED: dict[str, Any] = {
    "roles": [
        {
            "name": "ps",
            "replicas": 1,
            "command": ["ps"],
            "ready": {
                "port": "rpc",
                "path": "/healthz",
                "period_seconds": 2.0,
                "within_seconds": 600.0,
            },
            "resume": {"command": ["ps", "--again"], "env": {"TOKEN": "secret", "A": "1"}},
            "debug": {"command": ["sshd"], "args": ["-D"]},
        },
        {
            "name": "worker",
            "replicas": 2,
            "command": ["work"],
            "starts_after": [{"role": "ps", "condition": "ready"}],
            "ready": {"port": "", "path": "", "period_seconds": 2.0, "within_seconds": 60.0},
            "resume": {"command": [], "env": {"B": "2"}},
        },
    ],
    "completion": {"success": ["worker[all]"], "failure": ["worker[2+]", "ps[any]"]},
}


@pytest.mark.parametrize("command", ["submit --dry-run -- true", "show one"])
def test_the_order_the_probes_and_the_rules_of_a_task_are_shown(
    shiftwork: Shiftwork, server: CliServer, command: str
) -> None:
    task = {**a_task("", preemption={"mode": "sdk"}, node_selector={}), **ORDERED}
    answer = {"task": task, "free_nodes": 1, "ahead": 0}
    server.first["POST", "/v1/tasks:dry-run"] = [(200, answer)]
    server.first["GET", "/v1/tasks/one"] = [(200, {**task, "id": "one"})]
    server.first["GET", "/v1/tasks/one/runs"] = [(200, {"items": []})]
    out = shiftwork(*command.split()).out
    facts = {re.split(r"  +", line)[0]: line for line in out.splitlines()}
    assert facts["starts after"].endswith("  worker: ps is ready")
    assert facts["ready"].endswith(
        "  ps: port rpc/healthz every 2 s, within 600 s; worker: when its program says so,"
        " within 60 s"
    )
    assert facts["resume"].endswith("  ps: ps --again with A, TOKEN; worker: B")
    assert facts["debug"].endswith("  ps: sshd -D")
    assert facts["completion"].endswith("  success: worker[all]; failure: worker[2+] or ps[any]")
    assert "secret" not in out


def test_a_dry_run_shows_what_would_be(shiftwork: Shiftwork, server: CliServer) -> None:
    task = a_task("", nodes=2, gpus_per_node=None, preemption={"mode": "sdk"}, node_selector={})
    answer = {"task": task, "free_nodes": 1, "ahead": 3}
    server.first["POST", "/v1/tasks:dry-run"] = [(200, answer), (200, answer)]
    done = shiftwork("submit", "--dry-run", "--nodes", "2", "--", "true")
    assert done.code == 0
    assert "1 of 2 nodes are free for it now; 3 of its group wait" in done.out
    assert done.err == "nothing is submitted\n"
    assert shiftwork("submit", "--dry-run", "--json", "--", "true").json == answer
    # A cluster that is too large to be counted.
    answer |= {"free_nodes": None, "ahead": None}
    server.first["POST", "/v1/tasks:dry-run"] = [(200, answer)]
    assert "it would be accepted" in shiftwork("submit", "--dry-run", "--", "true").out
    assert not server.tasks
