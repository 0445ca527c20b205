"""The platform of ``docker/compose.yaml``, in containers: a task runs, and cannot read secrets."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.images.compose import Project, read
from tests.images.conftest import Containers
from tools.images.catalog import DOCKER

pytestmark = [pytest.mark.containers, pytest.mark.timeout(300)]

OVER = {"succeeded", "failed", "stopped", "rejected"}


class Platform:
    """The published port, as an administrator uses it."""

    def __init__(self, port: int, token: str) -> None:
        self.url, self.token = f"http://127.0.0.1:{port}", token

    def ask(self, path: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            self.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "authorization": f"Bearer {self.token}",
                "content-type": "application/json",
                "idempotency-key": secrets.token_hex(8),
            },
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def run(self, name: str, *command: str) -> str:
        """Submit and wait: the state at the end."""
        wanted = {"name": name, "command": list(command), "nodes": 1, "gpus_per_node": 1}
        task = self.ask("/v1/tasks", wanted)
        until = time.monotonic() + 60
        while True:
            found = self.ask(f"/v1/tasks/{task['id']}")
            if found["state"] in OVER or time.monotonic() > until:
                return str(found["state"])
            time.sleep(0.3)


@pytest.fixture
def project(
    containers: Containers, image: Callable[[str], str], tmp_path: Path
) -> Iterator[tuple[Project, Platform]]:
    for name in ("platform", "nats", "postgres"):
        image(name)
    folder = tmp_path / "secrets"
    subprocess.run([DOCKER / "secrets.sh", folder], check=True, stdout=subprocess.DEVNULL)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    document = read({"SHIFTWORK_SECRETS": str(folder), "SHIFTWORK_PORT": str(port)})
    made = Project(containers, document, f"shiftwork-test-{secrets.token_hex(4)}")
    try:
        made.prepare()
        yield made, Platform(port, (folder / "admin-token").read_text().strip())
    finally:
        made.remove()


def test_the_platform_of_one_host_runs_a_task(project: tuple[Project, Platform]) -> None:
    up, platform = project
    for service in ("postgres", "nats"):
        up.start(service)
        up.wait_healthy(service)
    up.start("provision")
    services = [
        name for name in up.document["services"] if name not in {"postgres", "nats", "provision"}
    ]
    for service in services:
        up.start(service)
    for service in services:
        up.wait_healthy(service)

    out = "/var/lib/shiftwork/work/gang"
    state = platform.run(
        "gang", "python", "/opt/shiftwork/examples/gang.py", "--steps=5", f"--out={out}"
    )
    launcher = up.running["launcher"]
    assert state == "succeeded", up.containers.logs(launcher)
    final = up.containers.exec(launcher, "cat", f"{out}/final.json")
    assert json.loads(final.stdout)["steps"] == 5

    # A task is nobody: what the launcher may read, it may not.
    state = platform.run(
        "curious",
        "sh",
        "-c",
        "test $(id -u) != 0 && for f in /run/secrets/*; do cat $f && exit 9; done; exit 0",
    )
    assert state == "succeeded"
    # Root of the launcher's container may; so it is there to be read.
    assert up.containers.exec(launcher, "cat", "/run/secrets/run-token-key").stdout.strip()
