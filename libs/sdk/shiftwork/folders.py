"""The folders of checkpoints that the adapters write: a new one for each save, complete or not.

A folder's name has its task, attempt and step. Its manifest is written last and durably: a folder
without one, or whose files do not agree with it, is not resumed from. Standard library only.
Internal: programs use the adapters.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from shiftwork import durable, training
from shiftwork.context import Checkpoint

MANIFEST = "manifest.json"
OFF_PLATFORM = "local"
"""In place of a task's id."""

_NAME = re.compile(r"(.+)-attempt-(\d+)-step-(\d+)(?:-(\d+))?")


def path_of(folder: Path, step: int, again: int) -> Path:
    """The folder in which this attempt saves a step; ``again`` is 1 for the first time."""
    task = training.task() or OFF_PLATFORM
    name = f"{task}-attempt-{training.attempt():04d}-step-{step:012d}"
    return folder / (name if again == 1 else f"{name}-{again}")


def new(folder: Path, step: int) -> tuple[Path, int]:
    """Make a folder that nothing has been written to, durably; also its ``again``.

    One process of the task calls it and shares the result: what is acknowledged is never
    overwritten, not even when the same step is saved twice. Raises TypeError or ValueError for a
    step that is none, before anything is made.
    """
    step, again = training.step_number(step), 1
    while True:
        path = path_of(folder, step, again)
        try:
            durable.make_folder(path)
        except FileExistsError:
            again += 1
        else:
            return path, again


def seal(path: Path, step: int, **more: Any) -> str:  # noqa: ANN401 - JSON
    """Write the manifest, when every rank's files are durable; returns its digest."""
    sizes = {
        file.relative_to(path).as_posix(): _size(file)
        for file in sorted(path.rglob("*"))
        if file.is_file() and file != path / MANIFEST and file.suffix != durable.HALF
    }
    task, attempt = training.task(), training.attempt()
    manifest = {"task": task, "attempt": attempt, "step": step, "files": sizes, **more}
    text = json.dumps(manifest, indent=1, sort_keys=True).encode()
    return durable.write(path / MANIFEST, lambda stream: stream.write(text))


def unseal(path: Path) -> None:
    """Make a folder incomplete, durably, before its files are changed or removed."""
    with suppress(FileNotFoundError):
        (path / MANIFEST).unlink()
        durable.sync_folder(path)


def manifest(path: Path) -> dict[str, Any]:
    """What ``seal`` wrote, if the folder is complete.

    Raises:
        ValueError: a file is missing or of another size, or there is no manifest.
    """
    found = unchecked_manifest(path)
    for name, size in found["files"].items():
        held = _size(path / name) if (path / name).is_file() else None
        if held != size:
            what = "is missing" if held is None else f"has {held} bytes"
            raise ValueError(f"{path} is not what was saved: {name} {what}, not {size} bytes")
    return found


def unchecked_manifest(path: Path) -> dict[str, Any]:
    """What ``seal`` wrote, whatever the files are by now. Raises ValueError if there is none."""
    try:
        found: Any = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        found["files"].items()
    except FileNotFoundError:
        raise ValueError(f"{path} is not complete: it has no {MANIFEST}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path / MANIFEST} cannot be read ({error!r})") from None
    return cast("dict[str, Any]", found)


def stored(saved: Checkpoint, place: str = "the folder of its checkpoints") -> Path:
    """The folder of the checkpoint that the platform names, once it is known to be that one.

    Raises:
        FileNotFoundError: it is not there.
        ValueError: it is not complete, or another task, attempt or step wrote it.
    """
    path = Path(saved.uri)
    if not path.is_dir():
        raise FileNotFoundError(
            f"the checkpoint of step {saved.step} is not at {path}: "
            f"every node of the task must find {place}"
        )
    found = manifest(path)
    # A task that goes on with another one begins with the other's checkpoint.
    for name, wanted in (("task", saved.task or training.task()), ("step", saved.step)):
        if found.get(name) != wanted:
            raise ValueError(
                f"{path} is not the checkpoint of this task: it is of {name} "
                f"{found.get(name)}, not {wanted}; give each task a folder of its own"
            )
    durable.check(path / MANIFEST, saved.digest)
    return path


def prune(newest: Path, keep: int) -> None:
    """Remove what this task and this attempt or an earlier one saved beside ``newest``.

    The last ``keep - 1`` complete ones stay. Call it when ``newest`` is acknowledged. Folders of
    other tasks stay, and those of later attempts, which may be in the middle of being written.
    """
    own = _Name.of(newest)
    if own is None:
        return
    names = {path: _Name.of(path) for path in newest.parent.iterdir() if path != newest}
    older = sorted(
        (name, path)
        for path, name in names.items()
        if name is not None and name.task == own.task and name.attempt <= own.attempt
    )
    complete = [path for _, path in older if (path / MANIFEST).exists()]
    kept = set(complete[max(0, len(complete) - (keep - 1)) :])
    for _, path in older:
        if path not in kept:
            with suppress(OSError):
                unseal(path)  # half of a folder must not count
            shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, order=True)
class _Name:
    task: str
    attempt: int
    step: int
    again: int

    @staticmethod
    def of(path: Path) -> _Name | None:
        found = _NAME.fullmatch(path.name)
        if found is None:
            return None
        task, attempt, step, again = found.groups()
        return _Name(task, int(attempt), int(step), int(again or 1))


def _size(path: Path) -> int:
    """Return the current size: opening a file on a network file system queries the server."""
    with path.open("rb") as stream:
        return os.fstat(stream.fileno()).st_size
