"""The platform itself by the real program: up, down, up again, and what became of a task."""

from __future__ import annotations

import json
import os
import stat
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.e2e.conftest import TRAINING, Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(180)]


def test_down_lets_tasks_save_and_up_resumes_them(own: Shiftwork) -> None:
    token_file = own.home / "metrics-token"
    token_file.write_text("secret\n")
    own.environ["SHIFTWORK_GATEWAY_HTTP_METRICS_TOKEN_FILE"] = str(token_file)
    before = own.bring_up()
    metrics = Request(f"{own.good('context', 'show', '--json').json['url']}/metrics")
    with pytest.raises(HTTPError, match="401"):
        urlopen(metrics)
    metrics.add_header("Authorization", "Bearer secret")
    assert b"shiftwork_nodes" in urlopen(metrics).read()
    assert "Shiftwork is ready at http://127.0.0.1:" in before.out
    data = ("--data", str(own.data))
    # On a live folder: nothing to do, and the same address.
    assert own.good("up", *data).out == before.out
    doctor = own.good("doctor", *data, "--json").json["findings"]
    assert [finding for finding in doctor if finding["level"] == "bad"] == []
    contexts = own.home / ".config" / "shiftwork" / "contexts.json"
    for private in (contexts, own.data / "admin-token"):
        assert stat.S_IMODE(private.stat().st_mode) == 0o600
    token = (own.data / "admin-token").read_text().strip()
    assert token not in contexts.read_text()

    line = ("--name", "digits", "--gpus-per-node", "1", "--", "python", "-c", TRAINING)
    task = own.submit(*line)
    own.wait(task, "running")
    own.good("down", *data)
    assert own("ls").code == 3
    # Ending what has ended is no mistake.
    assert own.good("down", *data, "--json").json == {
        "data": str(own.data),
        "url": None,
        "stopped": False,
    }

    own.bring_up()
    own.wait(task, "running")
    resumed = own.task(task)
    assert resumed["attempt"] == 2
    assert resumed["checkpoint"]["attempt"] == 1
    nodes = own.good("nodes", "--json").json["items"]
    assert all(node["schedulable"] and not node["draining"] for node in nodes)
    assert f"from step {resumed['checkpoint']['step']}" in own.good("events", task).out
    assert json.loads(contexts.read_text())["current"] == "local"
    events = [json.loads(line)["event"] for line in (own.data / "up.log").read_text().splitlines()]
    assert {before.out.splitlines()[0], "asking 1 running task to save and leave"} <= set(events)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run tasks as another user")
def test_tasks_of_another_user_reach_their_own_folder_and_no_secret(own: Shiftwork) -> None:
    own.home.chmod(0o711)
    own.bring_up(tasks="--task-user nobody")
    secrets = (own.data / "admin-token", own.data / "secrets" / "run-key", own.data / "up.log")
    lines = [
        "set -e",
        "id -un",
        "touch here",
        'test -r "$SHIFTWORK_CONTEXT"',
        *(f"if cat {path}; then exit 9; fi" for path in secrets),
        *(f"if ls {own.data / name}; then exit 8; fi" for name in ("output", "secrets", "")),
    ]
    file = own.home / "task.json"
    command = ["sh", "-c", "\n".join(lines)]
    file.write_text(json.dumps({"command": command, "working_directory": ""}))
    done = own("submit", "--file", str(file), "-f")
    assert (done.code, done.out.splitlines()[1]) == (0, "nobody"), done


@pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses the user of tasks")
def test_root_must_choose_the_user_of_tasks_before_anything_is_started(own: Shiftwork) -> None:
    for more in ((), ("--detach",)):
        done = own("up", "--data", str(own.data), *more)
        assert done.code == 2
        assert "needs to know which user tasks run as" in done.err
        assert "--task-users 300000-309999" in done.err
    assert not own.data.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run tasks as other users")
def test_each_owner_is_a_user_of_their_own_also_after_a_restart(own: Shiftwork) -> None:
    own.home.chmod(0o711)
    own.bring_up(tasks="--task-users 390000-390009")
    own.good("user", "add", "ann")
    token = own.good("token", "create", "--user", "ann", "--name", "t").out.strip()
    file = own.home / "task.json"

    def play(script: str, *options: str) -> list[str]:
        file.write_text(json.dumps({"command": ["sh", "-c", script], "working_directory": ""}))
        task = own.good(*options, "submit", "--file", str(file)).out.strip()
        own.wait(task, "succeeded,failed")
        # Through the log-collector, which reads what other users' tasks printed.
        return own.good("logs", task).out.split()

    closed = own.home / "closed"
    closed.mkdir(mode=0o700)
    line = ("--workdir", str(closed), "--", "/bin/true")
    refused = own("submit", *line)
    assert (refused.code, "(390000-390009) here, without" in refused.err) == (1, True), refused
    assert own("submit", "--force", "-f", *line).code == 126

    first, folder = play("id -u; pwd; echo saved > checkpoint")
    other = play(f"id -u; cat {folder}/checkpoint || echo refused", "--token", token)
    assert {first, other[0]} == {"390000", "390001"}
    assert other[-1] == "refused"
    own.take_down()

    own.bring_up(tasks="")
    assert play(f"id -u; cat {folder}/checkpoint") == [first, "saved"]
    assert play("id -u", "--token", token) == [other[0]]
