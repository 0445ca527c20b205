"""A small disk (tmpfs) for a test, which can be filled and emptied while programs write to it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class SmallDisk:
    """A file system of its own at ``folder``."""

    folder: Path

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"

    def fill(self) -> None:
        """Write until no byte is left, including what programs freed since the last call."""
        size = PIECE_BYTES
        descriptor = os.open(self._filler, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            while size:
                try:
                    os.write(descriptor, bytes(size))
                except OSError as problem:
                    if problem.errno != errno.ENOSPC:
                        raise
                    size //= 2
        finally:
            os.close(descriptor)

    def empty(self) -> None:
        """Free the space again."""
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[SmallDisk]:
    """Mount a file system of ``mib`` MiB in memory at ``folder``; see ``can_mount``."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={mib}m,mode=0755"
    mount = ["mount", "-t", "tmpfs", "-o", options, "small-disk", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)
    disk = SmallDisk(folder)
    try:
        yield disk
    finally:
        disk.empty()
        # Lazily: a process that was left behind must not keep the mount.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@cache
def can_mount() -> bool:
    """False without root, and in a container that may not mount."""
    if os.geteuid() != 0:
        return False
    try:
        with tempfile.TemporaryDirectory() as folder, small_disk(Path(folder), 1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


needs_small_disk = pytest.mark.skipif(
    not can_mount(), reason="only root, outside of restricted containers, can mount a small disk"
)
