"""Programs of several ranks, as the platform starts them, against a run server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.libs.sdk.conftest import task_environment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.libs.sdk.run_server import RunServer

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-frameworks/bin"


class Gang:
    """Attempts of one task that one server speaks to."""

    def __init__(self, server: RunServer, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.saved: dict[str, Any] | None = None
        self.number = 0

    def start(self, command: Sequence[object], **environment: str) -> subprocess.Popen[str]:
        """The next attempt, from the last checkpoint."""
        self.number += 1
        self.server.preempt, self.server.revision = False, 0
        return subprocess.Popen(
            [str(part) for part in command],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": "",
                **task_environment(self.server),
                "SHIFTWORK_ATTEMPT": str(self.number),
                "SHIFTWORK_RESUME_FROM": json.dumps(self.saved) if self.saved else "",
                **environment,
            },
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def leave(self, running: subprocess.Popen[str], after: int) -> tuple[int, str]:
        """Ask it to leave after so many reports; its end and the checkpoint."""
        already = len(self.server.samples)
        self.server.wait_for(
            lambda: len(self.server.samples) > already + after or running.poll() is not None, 240
        )
        self.server.ask_to_leave()
        code, out = end(running)
        if self.server.checkpoints:
            self.saved = {**self.server.checkpoints[-1], "attempt": self.number}
        return code, out


def end(running: subprocess.Popen[str]) -> tuple[int, str]:
    """How it ended, and all that it has written."""
    try:
        out, _ = running.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        running.kill()
        raise
    sys.stdout.write(out)
    return running.returncode, out


def torchrun(ranks: int, script: str | Path, *arguments: object) -> list[object]:
    """A command of so many ranks on this machine."""
    path = script if isinstance(script, Path) else ROOT / "examples" / script
    return [BIN / "torchrun", "--standalone", "--nproc-per-node", ranks, path, *arguments]


def final(folder: Path) -> Any:
    return json.loads((folder / "final.json").read_text())
