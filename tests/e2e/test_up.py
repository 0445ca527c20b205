"""The platform itself by the real program: up, down, up again, and what became of a task."""

from __future__ import annotations

import json
import os
import stat

import pytest

from tests.e2e.conftest import TRAINING, Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(180)]


def test_down_lets_tasks_save_and_up_resumes_them(own: Shiftwork) -> None:
    before = own.bring_up()
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
    own.good("down", *data)

    own.bring_up()
    own.wait(task, "running")
    resumed = own.task(task)
    assert resumed["attempt"] == 2
    assert resumed["checkpoint"]["attempt"] == 1
    nodes = own.good("nodes", "--json").json["items"]
    assert all(node["schedulable"] and not node["draining"] for node in nodes)
    assert f"from step {resumed['checkpoint']['step']}" in own.good("events", task).out
    assert json.loads(contexts.read_text())["current"] == "local"


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
