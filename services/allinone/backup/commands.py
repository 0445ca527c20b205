"""``shiftwork backup`` and ``shiftwork restore``, as ``cli`` calls them.

Kept light: what reads and writes a backup is imported only by the command that does it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import typer
from shiftwork.cli import render, session
from shiftwork.cli.failures import INTERRUPTED

from services.allinone.data_folder import DataFolder

T = TypeVar("T")


def _chosen_folder(data: Path | None) -> DataFolder:
    """The folder of the platform that is meant: of the option, else of the current context."""
    from services.allinone.chosen import chosen  # noqa: PLC0415 - small

    return chosen(data).here(
        "name its data folder: --data DIR; docs/kubernetes.md has the backup of a cluster"
    )


def make_backup(file: Path, data: Path | None) -> None:
    """Write a backup of the platform that is meant."""
    from services.allinone.backup.create import create  # noqa: PLC0415 - imports services

    file, data_folder = file.expanduser().absolute(), _chosen_folder(data)
    made = _run(create(data_folder, file, render.note))
    manifest = made.manifest
    if made.dropped:
        render.warning(f"{made.dropped} outputs were dropped by age while they were being copied")
    if made.down:
        render.warning(
            f"not running at that time: {', '.join(made.down)}; events of more than an hour before"
            f" that such a service has not handled are not in the backup (fix:"
            f" `{data_folder.command('doctor')}`, then a new backup)"
        )
    if session.current().json:
        render.document(
            {
                "file": str(made.file),
                "bytes": made.size,
                "data": str(data_folder.data),
                **_document(manifest),
            }
        )
        return
    render.note(f"the platform as of {manifest.created_at:%Y-%m-%d %H:%M:%S %Z}")
    render.note("keep it safe: whoever reads it can act as the administrator")
    render.line(str(made.file))


def verify_backup(file: Path) -> None:
    """Check a backup; nothing is written."""
    from services.allinone.backup.restore import check_backup  # noqa: PLC0415 - imports services

    file = file.expanduser().absolute()
    manifest = _run(check_backup(file, render.note))
    if session.current().json:
        render.document({"file": str(file), "bytes": file.stat().st_size, **_document(manifest)})
        return
    made = f"{manifest.created_at:%Y-%m-%d %H:%M:%S %Z} by version {manifest.version}"
    render.line(f"{file}: complete and unchanged, made {made}")


def restore_backup(file: Path, data: Path) -> None:
    """Make a data folder of a backup."""
    from services.allinone.backup.restore import restore  # noqa: PLC0415 - imports services

    data_folder = DataFolder(data)
    done = _run(restore(file.expanduser().absolute(), data_folder, render.note))
    if session.current().json:
        render.document({"data": str(done.data), **_document(done.manifest)})
        return
    up = data_folder.command("up")
    render.note(f"the platform as of {done.manifest.created_at:%Y-%m-%d %H:%M:%S %Z}")
    render.note("make sure that the backed-up platform does not run: both would run its tasks")
    render.note(f"next: {up}")
    render.line(str(done.data))


def _document(manifest: Any) -> dict[str, Any]:  # noqa: ANN401 - imported later
    return {
        "created_at": manifest.created_at.isoformat(),
        "version": manifest.version,
        "running": manifest.running,
    }


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run it. SIGTERM and the end of the terminal interrupt it like Ctrl-C: it cleans up."""

    async def main() -> T:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, task.cancel)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        render.note("interrupted: nothing was left behind")
        raise typer.Exit(INTERRUPTED) from None
