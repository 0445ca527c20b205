"""Old output of forgotten runs is cleared away, so that a node's disk does not fill for ever.

Used by ``supervisor.py`` now and then. Runs' work folders are not touched: they may hold the only
copy of a checkpoint.
"""

from __future__ import annotations

import os

from libs.service.deletion_limit import DeletionLimit


def clear(
    runs_folder: str,
    wanted: float,
    known: frozenset[str],
    limit: DeletionLimit,
    monotonic_s: float,
) -> list[str]:
    """Remove runs in which nothing was written since ``wanted`` (seconds of the day's clock), but
    for the known ones; returns their names. ``limit`` says how far that may go now."""
    try:
        names = os.listdir(runs_folder)  # noqa: PTH208 - small imports
    except FileNotFoundError:
        names = []
    written = {name: _newest(f"{runs_folder}/{name}") for name in names if name not in known}
    before = limit.before(min(written.values(), default=None), wanted, monotonic_s)
    old = [name for name, newest in written.items() if newest < before]
    for name in old:
        remove(f"{runs_folder}/{name}")
    return old


def remove(folder: str) -> None:
    """Remove a folder with what is in it; links are removed and never followed."""
    for where, folders, files in os.walk(folder, topdown=False):
        for name in files:
            os.unlink(f"{where}/{name}")  # noqa: PTH108 - as above
        for name in folders:
            path = f"{where}/{name}"
            if os.path.islink(path):  # noqa: PTH114 - as above
                os.unlink(path)  # noqa: PTH108 - as above
            else:
                os.rmdir(path)  # noqa: PTH106 - as above
    os.rmdir(folder)  # noqa: PTH106 - as above


def _newest(folder: str) -> float:
    """When anything in a folder, itself included, was last written."""
    times = [os.lstat(folder).st_mtime]
    for where, folders, files in os.walk(folder):
        times += [os.lstat(f"{where}/{name}").st_mtime for name in (*folders, *files)]
    return max(times)
