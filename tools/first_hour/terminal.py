"""A terminal: one bash, in which blocks run one after another and what they set stays."""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self


class StepError(Exception):
    """A block that failed: its status (None: it did not end in time) and all that it printed."""

    def __init__(self, status: int | None, printed: str) -> None:
        super().__init__(status, printed)
        self.status = status
        self.printed = printed


class Terminal:
    """Runs blocks of shell. A block ends at its first command that fails, and so does the bash."""

    def __init__(self, folder: Path, environ: Mapping[str, str], scratch: Path) -> None:
        self._scratch = scratch
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail"],  # noqa: S607 - the user's own bash
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, with all that still runs in it."""
        self._kill()

    def run(self, text: str, *, seconds: float) -> str:
        """What the block printed, errors included. Raises StepError."""
        script, output = self._scratch / "block.sh", self._scratch / "printed"
        script.write_text(text)
        assert self._bash.stdin is not None, "it is a pipe"
        assert self._bash.stdout is not None, "it is a pipe"
        line = f". {shlex.quote(str(script))} </dev/null >{shlex.quote(str(output))} 2>&1; echo\n"
        output.write_text("")
        try:
            self._bash.stdin.write(line)
            self._bash.stdin.flush()
        except BrokenPipeError:
            raise StepError(self._bash.wait(), "the shell has ended") from None
        ready, _, _ = select.select([self._bash.stdout], [], [], max(0.0, seconds))
        if not ready:
            self._kill()
            raise StepError(None, _read(output))
        if not self._bash.stdout.readline():
            raise StepError(self._bash.wait(), _read(output))
        return _read(output)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()
        for pipe in (self._bash.stdin, self._bash.stdout):
            assert pipe is not None, "it is a pipe"
            pipe.close()


def _read(output: Path) -> str:
    return output.read_text("utf-8", "replace")
