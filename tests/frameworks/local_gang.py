"""Gangs of processes on this machine, each replica with a run server in place of the platform."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.libs.sdk.conftest import task_environment
from tests.libs.sdk.run_server import RunServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-frameworks/bin"
# Tests wait for what happens. Only what hangs reaches this limit of each test (conftest.py): the
# first import of a library alone takes a minute on a busy machine.
HANG_SECONDS = 900
# Bits are the same only where all programs of a gang agree on these.
PLAIN = {
    "OMP_NUM_THREADS": "1",
    "JAX_PLATFORMS": "cpu",
    "HF_HUB_OFFLINE": "1",
    "HOME": "/tmp",
    "PYTHONPATH": "",
}


class Ended(NamedTuple):
    """How the replicas ended, and all that they wrote, in the order of replicas."""

    codes: list[int]
    outputs: list[str]


class Gang:
    """The attempts of one task. A test chooses which replica's server asks it to leave."""

    def __init__(self, folder: Path, replicas: int = 1) -> None:
        self.folder = folder
        self.servers = [RunServer() for _ in range(replicas)]
        # What the next attempt resumes from.
        self.saved: dict[str, Any] | None = None
        self._attempt = 0
        self._running: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.kill()
            with process:  # which waits for it, and closes the pipe
                pass
        for server in self.servers:
            server.stop()

    @property
    def server(self) -> RunServer:
        """Of replica 0, which acknowledges checkpoints and reports for all."""
        return self.servers[0]

    def start(self, *command: object) -> None:
        """The next attempt, from the last checkpoint."""
        self._attempt += 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        for server in self.servers:
            server.preempt, server.revision = False, 0
        self._running = [
            subprocess.Popen(
                [str(word) for word in command],
                env=self._environment(rank, port),
                cwd=self.folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(len(self.servers))
        ]

    def _environment(self, rank: int, port: str) -> dict[str, str]:
        count = str(len(self.servers))
        replica = {"RANK": str(rank), "WORLD_SIZE": count}
        return {
            "PATH": os.environ["PATH"],
            **PLAIN,
            # As on the platform's virtual slots, also where the machine has GPUs.
            "CUDA_VISIBLE_DEVICES": "",
            **task_environment(self.servers[rank]),
            "SHIFTWORK_ATTEMPT": str(self._attempt),
            "SHIFTWORK_RESUME_FROM": json.dumps(self.saved) if self.saved else "",
            **{f"SHIFTWORK_{name}": value for name, value in replica.items()},
            # One replica starts its ranks itself, as torchrun does.
            **({**replica, "LOCAL_RANK": str(rank)} if count != "1" else {}),
            **({"LOCAL_WORLD_SIZE": count} if count != "1" else {}),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }

    def wait_for_reports(self, count: int) -> None:
        """Until rank 0 has reported so many more times, or has ended."""
        wanted = len(self.server.samples) + count
        self._wait_for(lambda: len(self.server.samples) >= wanted)

    def wait_for_step(self, step: float) -> None:
        """Until rank 0 has reported that step, or has ended."""
        reported = self.server.samples
        self._wait_for(lambda: any(each["values"].get("step", -1) >= step for each in [*reported]))

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        ended = self._running[0].poll
        self.server.wait_for(lambda: condition() or ended() is not None, HANG_SECONDS)

    def terminate(self) -> None:
        """SIGTERM to replica 0."""
        self._running[0].terminate()

    def end(self) -> Ended:
        """Wait for the end of the attempt."""
        outputs = [process.communicate()[0] for process in self._running]
        sys.stdout.writelines(outputs)
        if self.server.checkpoints:
            self.saved = {**self.server.checkpoints[-1], "attempt": self._attempt}
        return Ended([process.returncode for process in self._running], outputs)

    def run(self, *command: object) -> tuple[int, str]:
        """An attempt of the only replica that nobody interrupts: its exit code and output."""
        self.start(*command)
        ended = self.end()
        return ended.codes[0], ended.outputs[0]

    def preempt(self, *command: object, after: int) -> tuple[int, str]:
        """As ``run``, but asked to leave after so many reports."""
        self.start(*command)
        self.wait_for_reports(after)
        self.server.ask_to_leave()
        ended = self.end()
        return ended.codes[0], ended.outputs[0]


def run_alone(folder: Path, *command: object) -> str:
    """The output of a task that nobody interrupts, which must succeed."""
    with Gang(folder) as gang:
        code, output = gang.run(*command)
    assert code == 0, output
    return output


def torchrun(ranks: int, script: str | Path, *arguments: object) -> list[object]:
    """A command of so many ranks on this machine; a script by its name is an example."""
    path = script if isinstance(script, Path) else ROOT / "examples" / script
    return [BIN / "torchrun", "--standalone", "--nproc-per-node", ranks, path, *arguments]


def final(folder: Path) -> Any:
    """What an example has written at its end."""
    return json.loads((folder / "final.json").read_text())


def weights(output: str) -> str:
    """The digest of the weights that a program printed at its end."""
    found = re.search(r"weights sha256 ([0-9a-f]{64})", output)
    assert found, output
    return found[1]
