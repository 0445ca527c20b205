"""A small disk for one platform, which can be filled and emptied while the platform runs."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BYTES = 768 << 20
PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class SmallDisk:
    """A file system of its own at ``folder``."""

    folder: Path

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"

    def fill(self) -> None:
        """Write until not a byte is left."""
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
        """Give the space back."""
        self._filler.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Mount a file system of ``BYTES`` in memory at ``folder``; needs root."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={BYTES},mode=0755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chaos", str(folder)], check=True)
    disk = SmallDisk(folder)
    try:
        yield disk
    finally:
        disk.empty()
        # Lazily: a process that was left behind is a complaint, and must not keep the mount.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
