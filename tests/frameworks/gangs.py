"""An example as a gang of processes, on servers that stand for the platform."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.libs.sdk.conftest import task_environment
from tests.libs.sdk.run_server import RunServer

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-frameworks" / "bin"
SECONDS_MAX = 500
# Only where all of a gang's programs agree on it are bits the same.
PLAIN = {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "HOME": "/tmp"}


class Gang:
    """Each rank has a server of its own, so that a test says which of them hears of what."""

    def __init__(self, ranks: int, script: str | Path, options: Sequence[object]) -> None:
        self.servers = [RunServer() for _ in range(ranks)]
        self._command = [str(BIN / "python"), str(script), *map(str, options)]
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, attempt: int, saved: dict[str, Any] | None, *options: object) -> None:
        with socket.socket() as door:
            door.bind(("127.0.0.1", 0))
            port = str(door.getsockname()[1])
        for server in self.servers:
            server.preempt, server.revision = False, 0
            server.polls.clear()
        self._processes = [
            subprocess.Popen(
                [*self._command, *map(str, options)],
                env={
                    "PATH": os.environ["PATH"],
                    **PLAIN,
                    **task_environment(server),
                    "SHIFTWORK_ATTEMPT": str(attempt),
                    "SHIFTWORK_RESUME_FROM": json.dumps(saved) if saved else "",
                    "SHIFTWORK_RANK": str(rank),
                    "SHIFTWORK_WORLD_SIZE": str(len(self.servers)),
                    "RANK": str(rank),
                    "WORLD_SIZE": str(len(self.servers)),
                    "LOCAL_RANK": str(rank),
                    "LOCAL_WORLD_SIZE": str(len(self.servers)),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": port,
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank, server in enumerate(self.servers)
        ]

    def wait_for_step(self, step: float) -> None:
        reported = self.servers[0].samples
        self.servers[0].wait_for(
            lambda: any(sample["values"].get("step", -1) >= step for sample in list(reported)),
            SECONDS_MAX,
        )

    def end(self) -> tuple[list[int], list[str]]:
        """Exit codes and outputs, by rank."""
        outputs = [each.communicate(timeout=SECONDS_MAX)[0] for each in self._processes]
        return [each.returncode for each in self._processes], outputs

    def close(self) -> None:
        for each in self._processes:
            each.kill()
            each.communicate()
        for server in self.servers:
            server.stop()


@contextlib.contextmanager
def gang(ranks: int, script: str | Path, *options: object) -> Iterator[Gang]:
    made = Gang(ranks, script, options)
    try:
        yield made
    finally:
        made.close()


def weights(output: str) -> str:
    """The digest of the weights that a program printed at its end."""
    found = re.search(r"weights sha256 ([0-9a-f]{64})", output)
    assert found, output
    return found[1]
