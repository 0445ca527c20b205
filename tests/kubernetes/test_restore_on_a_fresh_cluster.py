"""The backup of a cluster, restored to another one: new API server, new PostgreSQL, new NATS.

Both platforms run all services on their own servers, with a launcher that commands a control plane
with simulated nodes. The steps between them are those of docs/kubernetes.md.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from benchmarks.harness import Platform
from benchmarks.kube_harness import NAMESPACE, Kube, kubernetes, platform_on
from libs.contracts.services import SERVICES
from services.allinone.backup import programs
from services.allinone.composition import WIRINGS
from services.allinone.data_folder import DataFolder
from services.allinone.embedded.credentials import (
    NATS_ADMIN,
    POSTGRES_SUPERUSER,
    ensure_credentials,
)
from services.allinone.embedded.nats import Nats
from services.allinone.embedded.postgres import Postgres, programs_folder
from tests.kit.kubernetes import cannot
from tools.cluster.programs import BuildError

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]
SECONDS_MAX = 60.0


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true result; AssertionError if there is none in time."""
    end = time.monotonic() + SECONDS_MAX
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {SECONDS_MAX:g} s")


class People:
    """An administrator's client of a platform."""

    def __init__(self, platform: Platform) -> None:
        self.http = httpx.Client(
            base_url=platform.url,
            headers={"authorization": f"Bearer {platform.token}"},
            trust_env=False,
            timeout=15,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def call(self, method: str, path: str, **body: Any) -> Any:
        answer = self.http.request(method, path, json=body or None)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json() if answer.content else None

    def submit(self, name: str, nodes: int) -> str:
        body = {"name": name, "gpus_per_node": 8, "command": ["train"], "nodes": nodes}
        return str(self.call("POST", "/v1/tasks", **body)["id"])

    def task(self, task_id: str) -> Any:
        return self.call("GET", f"/v1/tasks/{task_id}")

    def until_state(self, task_id: str, state: str) -> Any:
        def there() -> Any:
            found = self.task(task_id)
            return found if found["state"] == state else None

        return until(there, f"task {task_id} {state}")


def run_secret(cluster: Kube, run: str) -> tuple[str, dict[str, Any]]:
    """What a pod of the run finds: its token and its context."""
    secret = cluster.plane.api.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{run}")
    data = {key: base64.b64decode(text) for key, text in secret["data"].items()}
    return data["run-token"].decode(), json.loads(data["context-0"])


def save(url: str, token: str, step: int) -> int:
    """A program's report of a checkpoint; the status."""
    headers = {"authorization": f"Bearer {token}"}
    body = {"step": step, "uri": f"file:///checkpoints/{step}"}
    answer = httpx.post(
        f"{url}/v1/run/checkpoints", json=body, headers=headers, trust_env=False, timeout=15
    )
    return answer.status_code


def dump(platform: Platform, file: Path) -> None:
    """``pg_dump`` of a platform that runs."""
    folder = DataFolder(platform.data)
    postgres = Postgres(platform.data, folder.credentials)
    postgres.attach()
    passwords = file.with_suffix(".pgpass")
    passwords.write_text(f"*:*:*:{POSTGRES_SUPERUSER}:{postgres.admin_password}\n")
    passwords.chmod(0o600)
    program = programs_folder() / "bin" / "pg_dump"
    url = postgres.url(POSTGRES_SUPERUSER)
    subprocess.run(
        [program, f"--dbname={url}", "--no-password", "--format=custom", f"--file={file}"],
        env={"PATH": "/usr/bin:/bin", "PGPASSFILE": str(passwords)},
        check=True,
    )


async def fill(data: Path, dumped: bytes) -> str:
    """A new PostgreSQL and a new NATS, the dump, and ``provision restored``; its output."""
    credentials = ensure_credentials(data)
    postgres = Postgres(data, credentials)
    await postgres.start()
    try:
        await postgres.prepare()
        programs.restore(postgres, [dumped])
        users = {wiring.name: wiring.permissions for wiring in WIRINGS}
        nats = Nats(data, credentials, users)
        await nats.start()
        try:
            return await asyncio.to_thread(provision, data, postgres, nats)
        finally:
            await nats.stop()
    finally:
        await postgres.stop()
        postgres.remove_temporary()


def provision(data: Path, postgres: Postgres, nats: Nats) -> str:
    passwords = data.parent / "passwords"
    passwords.mkdir()
    credentials = DataFolder(data).credentials
    for name in SERVICES:
        (passwords / name).write_text(credentials.postgres_password(name))
    (passwords / "admin").write_text(postgres.admin_password)
    (passwords / "nats").write_text(credentials.nats_password(NATS_ADMIN))
    variables = {
        "DATABASE_URL": postgres.admin_url,
        "DATABASE_PASSWORD_FILE": passwords / "admin",
        "DATABASE_PASSWORDS": passwords,
        "NATS_URL": nats.url,
        "NATS_PASSWORD_FILE": passwords / "nats",
        "WAIT_SECONDS": 20,
    }
    environment = {f"SHIFTWORK_PROVISION_{name}": str(value) for name, value in variables.items()}
    done = subprocess.run(
        [sys.executable, "-m", "services.allinone.provision", "restored"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_backup_of_one_cluster_continues_on_another(tmp_path: Path) -> None:
    file = tmp_path / "shiftwork.dump"
    try:
        with kubernetes(2) as cluster, platform_on(cluster) as old, ExitStack() as stack:
            old.start()
            people = stack.enter_context(People(old))
            people.call("POST", "/v1/teams", name="vision")
            people.call("POST", "/v1/users", name="ann", team="vision")
            people.call("PUT", "/v1/quotas", user="ann", unit="gpus", limit=12)
            until(lambda: len(people.call("GET", "/v1/nodes")["items"]) == 2, "two nodes")
            runs, waits = people.submit("runs", 2), people.submit("waits", 1)
            people.until_state(runs, "running")
            people.until_state(waits, "queued")
            old_token, _ = run_secret(cluster, f"{runs}-1")
            assert save(old.url, old_token, 7) == 201
            until(lambda: (people.task(runs)["checkpoint"] or {}).get("step") == 7, "the step")
            dump(old, file)
            # After the backup: it is lost.
            lost = people.submit("lost", 1)
        with kubernetes(3) as cluster, platform_on(cluster) as new, ExitStack() as stack:
            report = asyncio.run(fill(new.data, file.read_bytes()))
            assert "events will be published again" in report
            new.start()
            people = stack.enter_context(People(new))
            # Its run of before is nowhere: it resumes as the next attempt, from its checkpoint.
            found = until(
                lambda: (
                    (found := people.task(runs))["state"] == "running"
                    and found["attempt"] == 2
                    and found
                ),
                "the next attempt",
            )
            token, context = run_secret(cluster, f"{runs}-2")
            assert context["resume_from"]["step"] == 7
            assert found["checkpoint"]["step"] == 7
            people.until_state(waits, "running")
            # People, quotas and the history of before are there, what came after is not.
            assert people.call("GET", "/v1/users/ann")["team"] == "vision"
            limits = [row["limit"] for row in people.call("GET", "/v1/quotas")["items"]]
            assert limits == [12]
            assert people.http.get(f"/v1/tasks/{lost}").status_code == 404
            exits = [run["exit"]["kind"] for run in attempts(people, runs) if run["exit"]]
            assert exits == ["lost"]
            # A pod of the lost cluster that still lives is nobody here.
            assert save(new.url, old_token, 9) == 401
            assert save(new.url, token, 8) == 201
            until(lambda: people.task(runs)["checkpoint"]["step"] == 8, "the new checkpoint")
            for name in SERVICES:
                assert people.call("GET", f"/v1/dead-letters?service={name}")["items"] == []
    except BuildError as problem:
        cannot(problem)


def attempts(people: People, task_id: str) -> list[Any]:
    return people.call("GET", f"/v1/tasks/{task_id}/runs")["items"]
