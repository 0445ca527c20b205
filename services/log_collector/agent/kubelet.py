"""How the kubelet lays out container logs: ``<namespace>_<pod>_<uid>/<container>/<n>.log``.

Rotation renames ``0.log`` to ``0.log.20260101-120000`` and lets the runtime open a new ``0.log``;
the next rotation compresses the renamed one to ``….gz`` and removes the oldest. A pod's folder is
removed some time after the pod. Used by ``spool.py`` and ``output.py``.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from dataclasses import dataclass

from services.log_collector.agent import cri

_FILE = re.compile(r"(\d{1,6})\.log(?:\.(\d{8}-\d{6})(\.gz)?)?")
STAMP_BYTES = 128


@dataclass(frozen=True, slots=True)
class LogFile:
    """One log file of a container."""

    path: str
    # The pod's, and which start of the container wrote it.
    uid: str
    restart: int
    # When it was rotated, in the form of its name; empty for the file that is written to.
    rotated: str
    zipped: bool
    inode: int

    @property
    def order(self) -> tuple[int, str]:
        """Earlier output has the smaller one; what is written to now comes last."""
        return self.restart, self.rotated or "~"

    @property
    def chain(self) -> tuple[str, int]:
        """What has been rotated: one start of a container of one pod."""
        return self.uid, self.restart

    def stamp(self) -> str:
        """The first entry's time; empty if it has none or cannot be read."""
        try:
            if self.zipped:
                with gzip.open(self.path) as file:
                    return cri.stamp(file.read(STAMP_BYTES))
            return stamp_of(self.path)
        except (OSError, EOFError, zlib.error):
            return ""


def stamp_of(path: str) -> str:
    """The time of a plain log file's first entry."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return cri.stamp(os.read(number, STAMP_BYTES))
    finally:
        os.close(number)


def pod_of(folder: str, namespace: str) -> tuple[str, str] | None:
    """The pod's name and uid that a folder is named after; None if it is of other namespaces."""
    parts = folder.split("_")
    if len(parts) != 3 or parts[0] != namespace or not all(parts):  # noqa: PLR2004 - see above
        return None
    return parts[1], parts[2]


def log_files(folder: str, uid: str) -> list[LogFile]:
    """A container's log files, in the order in which they were written.

    OSError if the folder is not there.
    """
    found: dict[tuple[int, str], LogFile] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            match = _FILE.fullmatch(entry.name)
            if match is None or not entry.is_file(follow_symlinks=False):
                continue
            restart, rotated, zipped = int(match[1]), match[2] or "", bool(match[3])
            file = LogFile(entry.path, uid, restart, rotated, zipped, entry.inode())
            # While the kubelet compresses a file, both exist: the plain one is the original.
            if not zipped or file.order not in found:
                found[file.order] = file
    return [found[order] for order in sorted(found)]
