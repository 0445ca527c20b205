"""One platform as a user has it: ``shiftwork up`` in a home of its own, and the real program."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(sys.executable).parent / "shiftwork"
# Trains for hours unless it is asked to leave; each step a file of its own.
TRAINING = """
import time
from pathlib import Path
import shiftwork

saved = shiftwork.resume_from()
step = int(Path(saved.uri).read_text()) if saved else 0
while step < 1_000_000:
    step += 1
    time.sleep(0.02)
    if shiftwork.should_preempt():
        path = Path(f"step-{step}").resolve()
        path.write_text(str(step))
        shiftwork.checkpoint_saved(step, str(path))
        shiftwork.exit_preempted()
"""


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def records(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def problem(self) -> Any:
        return json.loads(self.err)


@dataclass(frozen=True)
class Shiftwork:
    """The program, as this user runs it."""

    home: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def data(self) -> Path:
        return self.home / "data"

    def command(self, *arguments: str) -> list[str]:
        return [str(PROGRAM), *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The running program, its output in pipes."""
        return subprocess.Popen(
            self.command(*arguments),
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), **self.environ},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, seconds: float = 40.0) -> Done:
        """Run it to its end."""
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            pytest.fail(f"{arguments} did not end in {seconds:g} s: {out} {err}")
        assert "Traceback" not in err, err
        return Done(process.returncode, out, err)

    def good(self, *arguments: str) -> Done:
        """Run it; it must succeed."""
        done = self(*arguments)
        assert done.code == 0, (arguments, done)
        return done

    def submit(self, *arguments: str) -> str:
        """A task's id."""
        return self.good("submit", *arguments).out.strip()

    def task(self, task: str) -> Any:
        return self.good("show", task, "--json").json

    def wait(self, task: str, states: str) -> None:
        self.good("wait", task, "--for", states, "--timeout", "30")

    def bring_up(self, *options: str, tasks: str = "--tasks-as-root") -> Done:
        return self.good(
            *("up", "--data", str(self.data), "--detach", *tasks.split()),
            *("--port", "0", "--nodes", "2", "--slots", "2", *options),
        )

    def take_down(self) -> Done:
        return self.good("down", "--data", str(self.data), "--now")


@pytest.fixture(scope="session")
def shared() -> Iterator[Shiftwork]:
    """A platform with 2 virtual nodes of 2 slots each, shared by the tests of this folder. Its
    users see all tasks, so that what they may change is tested."""
    # Short, because a socket's path has a limit.
    user = Shiftwork(Path(tempfile.mkdtemp(prefix="sw-e2e-")))
    try:
        user.bring_up("--visibility", "all")
        yield user
        user.take_down()
    finally:
        shutil.rmtree(user.home, ignore_errors=True)


@pytest.fixture
def shiftwork(shared: Shiftwork) -> Iterator[Shiftwork]:
    """The shared platform, with nothing running and nothing limited afterwards."""
    yield shared
    for task in shared.good("ls", "--json").json["items"]:
        shared("stop", task["id"])
        shared("wait", task["id"], "--timeout", "30")
    for node in shared.good("nodes", "--json").json["items"]:
        if not node["schedulable"]:
            shared.good("node", "uncordon", node["id"])


@pytest.fixture
def own() -> Iterator[Shiftwork]:
    """A user whose platform is not up yet, and is down afterwards."""
    user = Shiftwork(Path(tempfile.mkdtemp(prefix="sw-e2e-")))
    try:
        yield user
        user.take_down()
    finally:
        shutil.rmtree(user.home, ignore_errors=True)
