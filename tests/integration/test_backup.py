"""``shiftwork backup`` and ``restore`` with a whole platform: what was there is there again."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.allinone.backup.backup_file import BackupWriter, Manifest, read_manifest, read_parts
from tests.chaos import invariants
from tests.integration.test_up import Home
from tests.kit.platform import scratch

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(180)]
TOKEN_CHARACTERS_MIN = 40


@pytest.fixture
def home() -> Iterator[Home]:
    with scratch() as folder:
        made = Home(folder / "home")
        made.folder.mkdir(mode=0o700)
        made.records.mkdir()
        try:
            yield made
        finally:
            for data in (made.data, restored_to(made)):
                made.run("down", "--now", "--data", str(data), check=False)


def restored_to(home: Home) -> Path:
    return home.folder / "restored"


def backup_of(home: Home) -> Path:
    return home.folder / "one.backup"


def read(home: Home, *words: str) -> Any:
    return json.loads(home.run("--json", *words).stdout)


def bad(findings: Any) -> list[Any]:
    return [finding for finding in findings["findings"] if finding["level"] == "bad"]


def leftovers(home: Home) -> list[str]:
    """What is neither there on purpose nor a person's."""
    names = sorted(path.name for path in home.folder.iterdir())
    return [name for name in names if name.startswith(".") and "one" in name or "restor" in name]


@contextlib.contextmanager
def submitting(home: Home) -> Iterator[list[str]]:
    """Submit tasks one after the other; at the end, the ids of those that were accepted."""
    ids: list[str] = []
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            done = home.run("submit", "--gpus-per-node", "2", "--", "true", check=False)
            ids.extend([done.stdout.strip()] if done.returncode == 0 else [])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield ids
    finally:
        ended.set()
        thread.join()


def test_a_platform_that_runs_is_restored_as_it_was(home: Home) -> None:
    home.up()
    home.run("team", "add", "vision")
    home.run("user", "add", "ann", "--team", "vision")
    token = home.run("token", "create", "--user", "ann", "--name", "laptop").stdout.strip()
    home.run("quota", "set", "--user", "ann", "--gpus", "1")
    finished = home.submit("finished", "--steps", "5")
    home.until(finished, "succeeded")
    output = home.run("logs", finished).stdout
    assert output.count("chaos") == 5
    runs = home.submit("runs", "--steps", "100000", "--save-every", "5")
    home.until_line(lambda life: life.span.task_id == runs and len(life.acked_steps) >= 2)
    queued = home.run("submit", "--gpus-per-node", "2", "--name", "queued", "--", "true").stdout
    queued = queued.strip()
    told = read(home, "events", finished)
    with submitting(home) as during:
        time.sleep(1)
        made = read(home, "backup", str(backup_of(home)))
        assert made["running"]
        time.sleep(0.5)
    assert stat.S_IMODE(backup_of(home).stat().st_mode) == 0o600
    assert leftovers(home) == []
    checkpoint = home.task(runs)["checkpoint"]["step"]
    before = read(home, "ls", "--all", "--limit", "500")["items"]
    home.run("backup", "--verify", str(backup_of(home)))
    # As if the machine were gone.
    home.down("--now")
    shutil.rmtree(home.data)

    home.run("restore", str(backup_of(home)), "--data", str(restored_to(home)))
    assert leftovers(home) == ["restored"]
    home.run("up", "--data", str(restored_to(home)), "--detach")

    found = home.until(finished, "succeeded")
    assert found["attempt"] == 1
    assert home.run("logs", finished).stdout == output
    again = read(home, "events", finished)
    assert again == told
    assert [user["name"] for user in read(home, "user", "ls")["items"]] == ["admin", "ann"]
    assert [each["user"] for each in read(home, "quota", "ls")["items"]] == ["ann"]
    assert len(token) >= TOKEN_CHARACTERS_MIN
    assert json.loads(home.run("--token", token, "--json", "whoami").stdout)["user"] == "ann"

    resumed = home.until(runs, "running")
    assert resumed["attempt"] == 2
    home.until_line(lambda life: life.span.task_id == runs and life.span.attempt == 2)
    first, second = (life for life in home.lives() if life.span.task_id == runs)
    assert second.resumed_step in first.acked_steps
    assert second.resumed_step <= checkpoint
    home.run("stop", "--now", runs)
    home.until(queued, "succeeded")

    # Submitted before the backup: known, and run once. Later: lost, and not half there.
    after = {task["id"]: task for task in read(home, "ls", "--all", "--limit", "500")["items"]}
    assert set(after) <= {task["id"] for task in before}
    kept = [task_id for task_id in during if task_id in after]
    assert kept == during[: len(kept)] != []
    for task_id in kept:
        assert home.until(task_id, "succeeded")["attempt"] == 1
    new = home.submit("after", "--steps", "1")
    assert new not in {task["id"] for task in before}
    home.until(new, "succeeded")
    assert bad(read(home, "doctor", "--data", str(restored_to(home)))) == []
    assert read(home, "dead-letters", "ls")["items"] == []


def test_a_platform_that_is_down_is_restored_with_what_it_would_resume(home: Home) -> None:
    home.up()
    task = home.submit("saves", "--steps", "150")
    home.until_line(lambda life: life.lines >= 10)
    home.down()
    (first,) = home.lives()
    made = read(home, "backup", str(backup_of(home)), "--data", str(home.data))
    assert not made["running"]
    assert not list(invariants.living_processes(str(home.folder)))

    # A fresh folder that is there and empty is as good as none.
    restored_to(home).mkdir(mode=0o700)
    home.run("restore", str(backup_of(home)), "--data", str(restored_to(home)))
    assert not list(invariants.living_processes(str(home.folder)))
    home.run("up", "--data", str(restored_to(home)), "--detach")
    assert home.until(task, "succeeded")["attempt"] == 2
    second = home.lives()[-1]
    assert second.resumed_step == first.acked_steps[0]


def test_what_cannot_be_restored_is_refused_and_leaves_nothing(home: Home) -> None:
    home.up()
    home.until(home.submit("once", "--steps", "1"), "succeeded")
    backup, target = backup_of(home), str(restored_to(home))
    home.run("backup", str(backup))

    again = home.run("backup", str(backup), check=False)
    assert again.returncode == 1
    assert f"{backup} exists" in again.stderr

    def refused(file: Path, *expected: str, data: str = target) -> None:
        done = home.run("restore", str(file), "--data", data, check=False)
        assert done.returncode == 1
        for text in (*expected, "fix:"):
            assert text in done.stderr
        assert leftovers(home) == []

    damaged = home.folder / "damaged"
    shutil.copyfile(backup, damaged)
    with tarfile.open(damaged) as archive:
        middle = archive.getmember("database.dump").offset_data + 1000
    with damaged.open("r+b") as file:
        file.seek(middle)
        byte = file.read(1)
        file.seek(middle)
        file.write(bytes([byte[0] ^ 1]))
    refused(damaged, "damaged", "database.dump was changed")
    cut = home.folder / "cut"
    shutil.copyfile(backup, cut)
    os.truncate(cut, backup.stat().st_size // 2)
    refused(cut, "damaged")
    other = home.folder / "other"
    other.write_text("no backup")
    refused(other, "not a backup")
    newer = home.folder / "newer"
    manifest = read_manifest(backup)
    revisions = {**manifest.revisions, "submit": "9999"}
    with newer.open("w+b") as file:
        writer = BackupWriter(file, Manifest(manifest.created_at, revisions, running=True))
        for part in read_parts(backup):
            if part.name not in {"manifest.json", "sha256sums"}:
                writer.add(part.name, part.chunks())
        writer.close()
    refused(newer, "newer version", "submit 9999")
    refused(backup, "not empty", data=str(home.data))
    # The platform that was named by mistake goes on.
    home.until(home.submit("goes-on", "--steps", "1"), "succeeded")


def test_a_killed_backup_and_a_killed_restore_are_repeated(home: Home) -> None:
    home.up()
    home.until(home.submit("once", "--steps", "1"), "succeeded")
    backup, target = backup_of(home), restored_to(home)
    home.down()

    partial = backup.with_name(f".{backup.name}.partial")
    kill_when(home, partial.exists, "backup", str(backup), "--data", str(home.data))
    assert not backup.exists()
    # Its PostgreSQL may still run; the next one ends it.
    home.run("backup", str(backup), "--data", str(home.data))
    assert not partial.exists()
    assert not list(invariants.living_processes(str(home.folder)))

    staging = target.with_name(f".{target.name}.restoring")
    begun = (staging / "postgres" / "data" / "postmaster.pid").exists
    kill_when(home, begun, "restore", str(backup), "--data", str(target))
    assert not target.exists()
    home.run("restore", str(backup), "--data", str(target))
    assert not staging.exists()
    assert not list(invariants.living_processes(str(home.folder)))
    home.run("up", "--data", str(target), "--detach")
    home.until(home.submit("after", "--steps", "1"), "succeeded")


def kill_when(home: Home, condition: Any, *words: str) -> None:
    """Start a command, and kill it once a condition holds."""
    environment = {"HOME": str(home.folder), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    program = str(Path(sys.executable).with_name("shiftwork"))
    with psutil.Popen([program, *words], env=environment) as process:
        ends_at = time.monotonic() + 60
        while not condition():
            assert process.poll() is None
            assert time.monotonic() < ends_at
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
