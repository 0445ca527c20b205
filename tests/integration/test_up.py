"""The command line as people use it: ``up``, ``submit``, ``down``, in a home of its own."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos import invariants
from tests.kit.platform import TASK, scratch

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(180)]
PROGRAM = Path(sys.executable).with_name("shiftwork")


@dataclass
class Home:
    """A person's home, which nobody else can look into."""

    folder: Path
    user: str | None = None

    @property
    def data(self) -> Path:
        return self.folder / ".local" / "share" / "shiftwork"

    @property
    def records(self) -> Path:
        return self.folder / "records"

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self.folder), "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            [*self._as_user(), str(PROGRAM), *words],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{words}: {done.stderr}{done.stdout}"
        return done

    def up(self) -> dict[str, Any]:
        words = ("--nodes", "1", "--slots", "2", "--port", "0", "--tasks-as-root", "--detach")
        return json.loads(self.run("--json", "up", "--data", str(self.data), *words).stdout)

    def down(self, *words: str) -> None:
        self.run("down", "--data", str(self.data), *words)

    def submit(self, name: str, *arguments: str) -> str:
        work = ("--record", str(self.records), "--work", str(self.folder / "work"))
        words = ("--name", name, "--gpus-per-node", "1", "--", sys.executable, str(TASK))
        return self.run("submit", *words, *work, *arguments).stdout.strip()

    def task(self, task_id: str) -> Mapping[str, Any]:
        return json.loads(self.run("--json", "show", task_id).stdout)

    def until(self, task_id: str, state: str, seconds_max: float = 30.0) -> Mapping[str, Any]:
        ends_at = time.monotonic() + seconds_max
        while (found := self.task(task_id))["state"] != state:
            assert time.monotonic() < ends_at, f"{found}: not {state}"
            time.sleep(0.2)
        return found

    def lives(self) -> Sequence[invariants.Life]:
        return invariants.lives(self.records)

    def until_line(self, condition: Callable[[invariants.Life], bool]) -> None:
        ends_at = time.monotonic() + 20.0
        while not any(condition(life) for life in self.lives()):
            assert time.monotonic() < ends_at
            time.sleep(0.1)

    def _as_user(self) -> Sequence[str]:
        if self.user is None:
            return ()
        account = pwd.getpwnam(self.user)
        return (
            *("setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}"),
            "--clear-groups",
        )


@pytest.fixture
def home() -> Iterator[Home]:
    with scratch() as folder:
        yield from _home(folder, None)


def _home(folder: Path, user: str | None) -> Iterator[Home]:
    made = Home(folder / "home", user)
    made.folder.mkdir(mode=0o700)
    made.records.mkdir()
    if user is not None:
        account = pwd.getpwnam(user)
        folder.chmod(0o711)
        for path in (made.folder, made.records):
            os.chown(path, account.pw_uid, account.pw_gid)
    try:
        yield made
    finally:
        made.run("down", "--now", "--data", str(made.data), check=False)


def test_what_runs_saves_at_down_and_goes_on_at_the_next_up(home: Home) -> None:
    home.up()
    task = home.submit("saves", "--steps", "150")
    home.until_line(lambda life: life.lines >= 10)
    home.down()
    assert not list(invariants.living_processes(str(home.folder)))
    (first,) = home.lives()
    assert len(first.acked_steps) == 1

    home.up()
    found = home.until(task, "succeeded")
    assert found["attempt"] == 2
    first, second = home.lives()
    assert second.resumed_step == first.acked_steps[0]
    home.down()


def test_a_restored_database_commands_the_nodes_again(home: Home) -> None:
    home.up()
    home.until(home.submit("before", "--steps", "1"), "succeeded")
    home.down()
    backup = home.folder / "backup"
    subprocess.run(["cp", "-a", home.data / "postgres", backup], check=True)
    # Each start is a new leader, which the nodes remember and the backup does not.
    for _ in range(2):
        home.up()
        home.down()
    shutil.rmtree(home.data / "postgres")
    subprocess.run(["cp", "-a", backup, home.data / "postgres"], check=True)

    home.up()
    home.until(home.submit("after", "--steps", "1"), "succeeded")
    home.down()


def test_up_that_was_killed_finds_its_tasks_running(home: Home) -> None:
    supervisor = home.up()
    task = home.submit("goes-on", "--steps", "200")
    home.until_line(lambda life: life.lines >= 5)
    os.kill(supervisor["pid"], signal.SIGKILL)
    psutil.wait_procs(
        [psutil.Process(supervisor["pid"])] if psutil.pid_exists(supervisor["pid"]) else []
    )

    again = home.up()
    assert again["pid"] != supervisor["pid"]
    assert home.until(task, "succeeded")["attempt"] == 1
    (life,) = home.lives()
    assert life.lines == 200
    kept = home.run("logs", task).stdout
    assert list(invariants.output_is_complete(life, kept.encode())) == []
    home.down()


def test_down_ends_what_a_killed_up_has_left_and_its_tasks_save(home: Home) -> None:
    supervisor = home.up()
    task = home.submit("saves", "--steps", "400")
    home.until_line(lambda life: life.lines >= 5)
    os.kill(supervisor["pid"], signal.SIGKILL)
    psutil.wait_procs(
        [psutil.Process(supervisor["pid"])] if psutil.pid_exists(supervisor["pid"]) else []
    )

    home.down()
    assert not list(invariants.living_processes(str(home.folder)))
    (life,) = home.lives()
    assert len(life.acked_steps) == 1
    home.down()

    home.up()
    assert home.until(task, "running")["attempt"] == 2
    home.down("--now")


def test_ctrl_c_in_a_start_in_the_background_ends_it(home: Home) -> None:
    words = ("up", "--data", str(home.data), "--port", "0", "--tasks-as-root", "--detach")
    environment = {"HOME": str(home.folder), "PATH": os.environ["PATH"]}
    for lock_is_there in (False, True):
        with subprocess.Popen([PROGRAM, *words], env=environment) as starting:
            seen = home.data / ("up.lock" if lock_is_there else "up.log")
            ends_at = time.monotonic() + 30
            while not seen.exists() and time.monotonic() < ends_at:
                time.sleep(0.02)
            starting.send_signal(signal.SIGINT)
            assert starting.wait(timeout=60) == 130
        assert not list(invariants.living_processes(str(home.folder)))
        shutil.rmtree(home.data)


@pytest.mark.parametrize("user", [None, "nobody"], ids=["as-ourselves", "as-an-ordinary-user"])
def test_up_works_in_a_home_that_is_closed_to_others(user: str | None) -> None:
    if user is not None:
        if os.geteuid() != 0 or shutil.which("setpriv") is None:
            pytest.skip("only root can become an ordinary user, with setpriv")
        for used in (
            Path(__file__).parents[2],
            Path(sys.executable),
            Path(sys.executable).resolve(),
        ):
            for path in (used, *used.parents):
                if not path.stat().st_mode & 0o001:
                    pytest.skip(f"{path} is closed to an ordinary user")
    with scratch() as folder:
        for home in _home(folder, user):
            home.up()
            task = home.submit("walk", "--steps", "5")
            home.until(task, "succeeded")
            home.down()
            assert not list(invariants.living_processes(str(home.folder)))
