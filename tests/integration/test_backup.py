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
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.allinone.backup.backup_file import BackupWriter, Manifest, read_manifest, read_parts
from tests.chaos import invariants
from tests.integration.test_up import Home
from tests.kit.platform import scratch

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(400)]


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
    return [name for name in names if "restor" in name or name.endswith(".partial")]


@contextlib.contextmanager
def submitting(home: Home) -> Generator[list[str]]:
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


@dataclass
class Before:
    """What the backed-up platform had."""

    token: str
    finished: str
    runs: str
    queued: str
    # What people see, which is to be the same afterwards.
    shown: Mapping[str, Any]
    # Submitted while the backup was made.
    during: Sequence[str] = ()
    known: frozenset[str] = frozenset()
    checkpoint_step: int = 0


def shown(home: Home, finished: str) -> Mapping[str, Any]:
    return {
        "task": home.task(finished),
        "output": home.run("logs", finished, "--timestamps").stdout,
        "events": read(home, "events", finished),
        "users": read(home, "user", "ls"),
        "tokens": [each["id"] for each in read(home, "token", "ls")["items"]],
        "quotas": read(home, "quota", "ls"),
        "policy": read(home, "policy", "show"),
    }


def with_people_and_tasks(home: Home) -> Before:
    """A platform with people, a task that ended, one that saves and one that waits."""
    home.up()
    home.run("team", "add", "vision")
    home.run("user", "add", "ann", "--team", "vision")
    token = home.run("token", "create", "--user", "ann", "--name", "laptop").stdout.strip()
    home.run("quota", "set", "--user", "ann", "--gpus", "1")
    finished = home.submit("finished", "--steps", "5")
    home.until(finished, "succeeded")
    runs = home.submit("runs", "--steps", "100000", "--save-every", "5")
    home.until_line(lambda life: life.span.task_id == runs and len(life.acked_steps) >= 2)
    words = ("submit", "--gpus-per-node", "2", "--name", "queued", "--", "true")
    queued = home.run(*words).stdout.strip()
    return Before(token, finished, runs, queued, shown(home, finished))


def task_ids(home: Home) -> frozenset[str]:
    return frozenset(task["id"] for task in read(home, "ls", "--all", "--limit", "500")["items"])


def test_a_platform_that_runs_is_restored_as_it_was(home: Home) -> None:
    before = with_people_and_tasks(home)
    with submitting(home) as before.during:
        time.sleep(1)
        assert read(home, "backup", str(backup_of(home)))["running"]
        time.sleep(0.5)
    assert stat.S_IMODE(backup_of(home).stat().st_mode) == 0o600
    assert leftovers(home) == []
    home.run("backup", "--verify", str(backup_of(home)))
    before.checkpoint_step = home.task(before.runs)["checkpoint"]["step"]
    before.known = task_ids(home)
    # As if the machine were gone.
    home.down("--now")
    shutil.rmtree(home.data)

    home.run("restore", str(backup_of(home)), "--data", str(restored_to(home)))
    assert leftovers(home) == ["restored"]
    home.run("up", "--data", str(restored_to(home)), "--detach")

    assert shown(home, before.finished) == before.shown
    assert read(home, "--token", before.token, "whoami")["user"] == "ann"
    resumes_from_its_checkpoint(home, before)
    knows_what_was_submitted_before(home, before)
    assert bad(read(home, "doctor", "--data", str(restored_to(home)))) == []
    assert read(home, "dead-letters", "ls")["items"] == []


def resumes_from_its_checkpoint(home: Home, before: Before) -> None:
    assert home.until(before.runs, "running")["attempt"] == 2
    home.until_line(lambda life: life.span.task_id == before.runs and life.span.attempt == 2)
    first, second = (life for life in home.lives() if life.span.task_id == before.runs)
    assert second.resumed_step in first.acked_steps
    assert second.resumed_step <= before.checkpoint_step
    output = home.run("logs", before.runs, "--attempt", "1").stdout
    assert "chaos" in output
    assert "output is missing from here on" in output
    home.run("stop", "--now", before.runs)
    home.until(before.queued, "succeeded")


def knows_what_was_submitted_before(home: Home, before: Before) -> None:
    """Tasks that were submitted before the backup are known and run once; later ones are lost, and
    not half there."""
    known = task_ids(home)
    assert known <= before.known
    kept = [task_id for task_id in before.during if task_id in known]
    assert kept == before.during[: len(kept)] != []
    for task_id in kept:
        assert home.until(task_id, "succeeded")["attempt"] == 1
    new = home.submit("after", "--steps", "1")
    assert new not in before.known
    home.until(new, "succeeded")


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
    end_when(home, partial.exists, signal.SIGKILL, "backup", str(backup), "--data", str(home.data))
    assert not backup.exists()
    # Its PostgreSQL may still run; the next one ends it.
    home.run("backup", str(backup), "--data", str(home.data))
    assert not partial.exists()
    assert not list(invariants.living_processes(str(home.folder)))

    staging = target.with_name(f".{target.name}.restoring")
    begun = (staging / "postgres" / "data" / "postmaster.pid").exists
    assert (
        end_when(home, begun, signal.SIGTERM, "restore", str(backup), "--data", str(target)) == 130
    )
    assert not staging.exists()
    assert not list(invariants.living_processes(str(home.folder)))
    end_when(home, begun, signal.SIGKILL, "restore", str(backup), "--data", str(target))
    assert not target.exists()
    home.run("restore", str(backup), "--data", str(target))
    assert not staging.exists()
    assert not list(invariants.living_processes(str(home.folder)))
    home.run("up", "--data", str(target), "--detach")
    home.until(home.submit("after", "--steps", "1"), "succeeded")


def end_when(home: Home, condition: Callable[[], bool], number: int, *words: str) -> int:
    """Start a command, and signal it once a condition holds; its exit status."""
    environment = {"HOME": str(home.folder), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    program = str(Path(sys.executable).with_name("shiftwork"))
    with psutil.Popen([program, *words], env=environment) as process:
        ends_at = time.monotonic() + 60
        while not condition():
            assert process.poll() is None
            assert time.monotonic() < ends_at
            time.sleep(0.005)
        process.send_signal(number)
        return process.wait(60)
