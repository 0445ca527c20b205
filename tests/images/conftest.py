"""Containers of the images of ``make images``: run to their end, or started and removed."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from tests.kit.container_engine import LIMIT
from tools.images.catalog import BY_NAME
from tools.images.engine import Engine, EngineError, find

TAG = os.environ.get("TAG") or "dev"
Finished = subprocess.CompletedProcess[str]


@dataclass
class Containers:
    """What one test starts; all of it is gone after the test."""

    engine: Engine
    mark: str = field(default_factory=lambda: f"shiftwork-test={secrets.token_hex(6)}")

    @property
    def program(self) -> str:
        # buildah only builds.
        return "podman" if self.engine.program == "buildah" else self.engine.program

    def call(self, *arguments: str, seconds_max: float = 120.0) -> Finished:
        return subprocess.run(
            [self.program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds_max,
        )

    def _run(self, options: tuple[str, ...]) -> list[str]:
        limits = [f"--ulimit={name}={LIMIT}:{LIMIT}" for name in ("nofile", "nproc")]
        return ["run", f"--label={self.mark}", *limits, *options]

    def run(self, *options_image_command: str, seconds_max: float = 120.0) -> Finished:
        """Run to the end: its status and words."""
        return self.call(
            "run", "--rm", *self._run(options_image_command)[1:], seconds_max=seconds_max
        )

    def start(self, *options_image_command: str) -> str:
        """Start; its id."""
        done = self.call(*self._run(("--detach", *options_image_command)))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def exec(self, container: str, *command: str) -> Finished:
        return self.call("exec", container, *command)

    def logs(self, container: str) -> str:
        done = self.call("logs", container)
        return done.stdout + done.stderr

    def wait_for(self, what: Callable[[], bool], container: str, seconds_max: float = 30.0) -> None:
        until = time.monotonic() + seconds_max
        while not what():
            assert time.monotonic() < until, self.logs(container)
            time.sleep(0.2)

    def remove_all(self) -> None:
        left = self.call("ps", "--all", "--quiet", "--filter", f"label={self.mark}").stdout.split()
        if left:
            self.call("rm", "--force", "--volumes", *left)


@pytest.fixture(scope="session")
def engine() -> Engine:
    try:
        return find(os.environ.get("ENGINE") or None)
    except EngineError as problem:
        pytest.fail(str(problem))


@pytest.fixture
def containers(engine: Engine) -> Iterator[Containers]:
    made = Containers(engine)
    yield made
    made.remove_all()


@pytest.fixture(scope="session")
def image(engine: Engine) -> Callable[[str], str]:
    """The full name of an image that must be here."""

    def named(name: str) -> str:
        reference = BY_NAME[name].reference(TAG)
        if not engine.exists(reference):
            pytest.fail(f"{reference} is not here: make images")
        return reference

    return named
