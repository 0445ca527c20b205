"""``shiftwork logs TASK --export DIR``: a task's kept output as plain files, with a manifest.

The files are ``DIR/TASK/ATTEMPT/RANK.log``: the bytes as the ranks wrote them. The manifest is
written before the first of them and names those that are this export's; a file that it does not
name is never written to. An export that was interrupted, or of a task that went on writing, is
continued where each file ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Callable, Mapping, Sequence

from shiftwork.cli import follow, render
from shiftwork.cli.client import RANGE_BYTES, Api
from shiftwork.cli.failures import Failure, usage

FORMAT = 1
MANIFEST, MANIFEST_BYTES_MAX = "manifest.json", 64 << 20
_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_HASHED_AT_ONCE = 1 << 20
Show = Callable[[str], None]


@dataclass
class Exported:
    """One output and its file."""

    attempt: int
    rank: int
    role: str
    # Relative to the manifest's folder.
    file: str
    size: int = 0
    sha256: str = ""
    # The rank has ended, and the file has everything that is kept of it.
    complete: bool = False


def check(*, is_partly: bool) -> None:
    """Raise Failure if the command line wants less than whole outputs."""
    if is_partly:
        raise usage(
            "--export writes the whole output of each rank",
            where="--export",
            fix="leave out -f, -t, --since, --tail and --search",
        )


def export(
    api: Api, task_id: str, logs: Sequence[Mapping[str, Any]], folder: Path, show: Show
) -> Path:
    """Write these outputs below a folder; returns the task's folder in it. Raises Failure, with
    what to do, and leaves what it has written to be continued."""
    if not _SAFE.fullmatch(task_id):
        raise Failure(f"the server names the task {task_id!r}, which is no name for a folder")
    target = folder / task_id
    try:
        _check_folder(target)
        return _export(api, task_id, logs, target, show)
    except OSError as problem:
        raise Failure(
            f"the output cannot be written: {problem.strerror or problem}",
            where=str(problem.filename or target),
            fix="name a folder with enough space that you can write to; the same command goes on",
        ) from problem


def _export(
    api: Api, task_id: str, logs: Sequence[Mapping[str, Any]], target: Path, show: Show
) -> Path:
    known = _read_manifest(target, task_id)
    outputs: list[Exported] = []
    for log in logs:
        attempt, rank = int(log["attempt"]), int(log["rank"])
        file = f"{attempt}/{rank}.log"
        mine = known.get(file)
        if mine is None:
            mine = Exported(attempt, rank, str(log.get("role") or ""), file)
            if os.path.lexists(target / file):
                raise Failure(
                    f"{target / file} exists, and is not of an export of this task",
                    where="--export",
                    fix="name another folder, or move that file",
                )
        outputs.append(mine)
    others = [each for each in known.values() if each.file not in {mine.file for mine in outputs}]
    # Before the first file: another command then knows whose they are.
    _write_manifest(target, task_id, [*outputs, *others])
    total = sum(int(log["size"]) for log in logs)
    done = 0
    for number, mine in enumerate(outputs):
        before = done

        def show_bytes(size: int, number: int = number, before: int = before) -> None:
            show(_bar(before + size, total, number, len(outputs)))

        _copy(api, task_id, mine, target / mine.file, show_bytes)
        done += mine.size
    _write_manifest(target, task_id, sorted([*outputs, *others], key=lambda e: (e.attempt, e.rank)))
    return target


def _bar(done: int, total: int, number: int, count: int) -> str:
    part = min(1.0, done / total) if total else 1.0
    width = 24
    bar = "#" * int(part * width)
    return (
        f"[{bar.ljust(width, '.')}] {part:4.0%}  {done / 1e6:,.1f} of {total / 1e6:,.1f} MB"
        f"  {number + 1} of {count} files"
    )


def _copy(api: Api, task_id: str, mine: Exported, path: Path, show: Callable[[int], None]) -> None:
    """Append what the file lacks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.parent.is_symlink():
        raise Failure(f"{path.parent} is a link", where="--export", fix="name another folder")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "r+b") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise Failure(f"{path} is not a plain file of its own", where="--export")
        digest = _digest(file)
        size = file.tell()
        if mine.sha256 and size == mine.size and digest.hexdigest() != mine.sha256:
            raise _changed(path)
        if mine.complete and size == mine.size:
            return
        query: dict[str, Any] = {"attempt": mine.attempt, "rank": mine.rank}
        while True:
            part = api.read_range(
                follow.logs_path(task_id), {**query, "offset": size, "limit_bytes": RANGE_BYTES}
            )
            if part.size < size:
                raise _changed(path)
            if not part.data:
                break
            file.write(part.data)
            digest.update(part.data)
            size += len(part.data)
            show(size)
            if size >= part.size:
                break
        file.flush()
        os.fsync(file.fileno())
    mine.size, mine.sha256, mine.complete = size, digest.hexdigest(), part.complete


def _changed(path: Path) -> Failure:
    return Failure(
        f"another program has changed {path}",
        where="--export",
        fix="remove the file, or name another folder",
    )


def _digest(file: IO[bytes]) -> Any:  # noqa: ANN401 - hashlib has no public type for it
    digest = hashlib.sha256()
    while True:
        data = file.read(_HASHED_AT_ONCE)
        if not data:
            return digest
        digest.update(data)


def _check_folder(target: Path) -> None:
    """Raise Failure if the task's folder cannot be ours."""
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise usage(f"{target} is not a folder", where="--export", fix="name another folder")
    target.mkdir(parents=True, exist_ok=True, mode=0o700)


def _read_manifest(target: Path, task_id: str) -> dict[str, Exported]:
    """The files of an earlier export by their names; none if there was none."""
    path = target / MANIFEST
    if not os.path.lexists(path):
        return {}
    foreign = Failure(
        f"{path} is not the manifest of an export of task {task_id}",
        where="--export",
        fix="name another folder",
    )
    try:
        if path.is_symlink() or path.stat().st_size > MANIFEST_BYTES_MAX:
            raise foreign
        document = json.loads(path.read_text("utf-8"))
        if (document["format"], document["task"]) != (FORMAT, task_id):
            raise foreign
        found = [
            Exported(
                int(each["attempt"]),
                int(each["rank"]),
                str(each["role"]),
                f"{int(each['attempt'])}/{int(each['rank'])}.log",
                int(each["size"]),
                str(each["sha256"]),
                bool(each["complete"]),
            )
            for each in document["outputs"]
        ]
    except (ValueError, LookupError, TypeError):
        raise foreign from None
    return {each.file: each for each in found}


def _write_manifest(target: Path, task_id: str, outputs: Sequence[Exported]) -> None:
    document = {"format": FORMAT, "task": task_id, "outputs": [vars(each) for each in outputs]}
    new = target / f".{MANIFEST}.new"
    if new.is_symlink():
        raise Failure(f"{new} is in the way", where="--export", fix="remove it")
    new.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    new.replace(target / MANIFEST)


def report(target: Path, logs: Sequence[Mapping[str, Any]]) -> None:
    """Say what was written."""
    if render.wants_json():
        render.document({"folder": str(target), "files": len(logs)})
    else:
        render.line(f"{render.counted(len(logs), 'file')} in {target}")
