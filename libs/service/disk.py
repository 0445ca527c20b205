"""How much of a disk the platform leaves free when it writes tasks' output.

Output comes last: what a task prints must not take the space that the database, the message bus and
the supervisors' records need. Standard library only, because a node's programs import it.
"""

from __future__ import annotations

import os

RESERVE_BYTES_MAX = 256 << 20
# Of a small disk this part is left free.
RESERVE_PART = 0.02


def spare_problem(place: int | str) -> str:
    """Why output must not be written to this file system (a path, or an open file's number) now;
    empty if it may be."""
    found = os.statvfs(place)
    reserve = min(RESERVE_BYTES_MAX, int(found.f_blocks * found.f_frsize * RESERVE_PART))
    if found.f_bavail * found.f_frsize >= reserve:
        return ""
    return f"no space left on the disk beyond the {reserve >> 20} MiB that are kept free"
