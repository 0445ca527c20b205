"""The machine's own tools and switches: run one, ask one, remember what a switch was before."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
COMMAND_SECONDS = 300
SWITCHES = Path("/proc/sys")


class SystemFailure(RuntimeError):  # noqa: N818 - it is the machine's, not a bug of ours
    """A tool of the machine refused."""


def find(tool: str) -> str | None:
    """The path of a tool of the machine."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}")


def run(*command: str | Path, check: bool = True, standard_input: str | None = None) -> str:
    """Run a tool of the machine; returns its output.

    Raises:
        SystemFailure: It is not there, or it failed (with ``check``).
    """
    tool, *arguments = (os.fspath(part) for part in command)
    path = find(tool)
    if path is None:
        raise SystemFailure(f"{tool} is not installed")
    done = subprocess.run(  # noqa: S603 - our own arguments
        [path, *arguments],
        input=standard_input,
        stdin=subprocess.DEVNULL if standard_input is None else None,
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS,
        env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}", "LC_ALL": "C"},
    )
    if check and done.returncode != 0:
        output = (done.stderr or done.stdout).strip()
        raise SystemFailure(f"{' '.join((tool, *arguments))}: {output[-2_000:]}")
    return done.stdout


def succeeds(*command: str | Path) -> bool:
    """Whether the tool exits with 0."""
    try:
        run(*command)
    except SystemFailure:
        return False
    return True


class Switches:
    """Settings of the kernel that we (or the kubelet) change, and put back in the end."""

    def __init__(self, memory: Path) -> None:
        self._memory = memory

    def remember(self, names: Mapping[str, str | None]) -> None:
        """Write down what they are now (once), and set those that have a value here."""
        before: dict[str, str] = {}
        if self._memory.exists():
            before = json.loads(self._memory.read_text("utf-8"))
        for name, value in names.items():
            path = _switch(name)
            if not path.exists():
                continue
            before.setdefault(name, path.read_text("ascii").strip())
            if value is not None:
                path.write_text(value, "ascii")
        self._memory.write_text(json.dumps(before, indent=2), "utf-8")

    def restore(self) -> None:
        """Put back what was written down."""
        if not self._memory.exists():
            return
        for name, value in json.loads(self._memory.read_text("utf-8")).items():
            path = _switch(name)
            if path.read_text("ascii").strip() != value:
                path.write_text(value, "ascii")
        self._memory.unlink()


def switch(name: str) -> int:
    """The number that this setting of the kernel is now; 0 where there is none."""
    path = _switch(name)
    return int(path.read_text("ascii")) if path.exists() else 0


def _switch(name: str) -> Path:
    return SWITCHES / name.replace(".", "/")
