"""The control groups of the nodes' pods: made before a kubelet starts, removed in the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OURS = "shiftwork-cluster"
REMOVE_SECONDS = 10.0
INHERITED = ("cpuset.cpus", "cpuset.mems")


def version() -> int:
    """Which version of control groups this machine has."""
    return 2 if (ROOT / "cgroup.controllers").exists() else 1


def hierarchies() -> list[Path]:
    """The roots under which control groups are made."""
    if version() == 2:  # noqa: PLR2004 - the version's number
        return [ROOT]
    # A controller may be reached by several names (links) and may not be mounted by itself.
    return [
        folder
        for folder in sorted(ROOT.iterdir())
        if not folder.is_symlink() and (folder / "cgroup.procs").exists()
    ]


def make(path: str) -> None:
    """Make the group ``/a/b`` in every hierarchy, with processors and memory to give away."""
    for root in hierarchies():
        folder = root
        for part in Path(path).parts[1:]:
            if version() == 2:  # noqa: PLR2004 - the version's number
                _delegate(folder)
            folder /= part
            folder.mkdir(exist_ok=True)
            for name in INHERITED:
                file = folder / name
                if file.exists() and not file.read_text("ascii").strip():
                    file.write_text((folder.parent / name).read_text("ascii"), "ascii")


def _delegate(folder: Path) -> None:
    """Let the groups below have their own limits (version 2)."""
    there = (folder / "cgroup.controllers").read_text("ascii").split()
    for controller in there:
        (folder / "cgroup.subtree_control").write_text(f"+{controller}", "ascii")


def remove() -> list[Path]:
    """Remove our groups, deepest first; what could not be removed because processes live there."""
    left = list(_ours())
    until = time.monotonic() + REMOVE_SECONDS
    while left and time.monotonic() < until:
        for folder in left:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                break
        left = list(_ours())
        if left:
            time.sleep(0.1)
    return left


def _ours() -> Iterator[Path]:
    for root in hierarchies():
        top = root / OURS
        if top.exists():
            folders = [path for path in top.rglob("*") if path.is_dir()]
            yield from sorted(folders, key=lambda path: len(path.parts), reverse=True)
            yield top
