"""Writes the output of ended runs as plain files into a folder, which other machines may share.

``<plain_dir>/<task>/<attempt>/<rank>.log`` appears when the run is collected: the whole attempt at
once, because its folder is filled under another name and renamed. Files and folder belong to the
owner's user number where that is known, and nobody else reads them. They are the owner's from then
on: nothing of the platform reads, changes or removes them.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field

from libs.service.disk import spare_problem
from libs.service.loop import Loop, Wake
from libs.service.observability import log
from libs.store.port import Store
from services.log_collector import store
from services.log_collector.archives.port import Archive, ArchiveError
from services.log_collector.archives.seekable import filler
from services.log_collector.domain import OutputKey
from services.log_collector.state import SERVICE
from services.log_collector.store import OutputRow, RunRow

COPY_BYTES = 1_048_576
TICK_SECONDS = 60.0


class PlainOptions(BaseModel):
    """The folder of plain files, and how users are known there."""

    # A folder, perhaps of a shared file system, in which the output of ended runs appears as plain
    # files. Only the platform may write to the folder itself.
    plain_dir: Path | None = None
    # Users of the platform are accounts of this machine with the same names.
    plain_accounts: bool = False
    # A JSON object of user numbers by users; the launcher's owners.json is one.
    plain_uids_file: Path | None = None
    # A folder that refuses is tried again after so long.
    plain_retry_seconds: float = Field(default=60.0, gt=0, le=3600)


@dataclass
class PlainWriter:
    """The writing of one leader."""

    database: Store
    archive: Archive
    options: PlainOptions
    folder: Path

    async def step(self, epoch: int) -> float | None:
        """Write the files of one run; returns in how many seconds the next one is due."""
        async with self.database.transaction() as tx:
            rows = await store.runs_to_write(tx, 1)
        if not rows:
            return None
        row = rows[0]
        try:
            await self._write(row)
        except (ArchiveError, OSError, ValueError) as problem:
            log(SERVICE).warning(
                "plain files cannot be written now",
                task=row.task_id,
                attempt=row.attempt,
                problem=str(problem),
            )
            return self.options.plain_retry_seconds
        async with self.database.transaction(epoch=epoch) as tx:
            await store.mark_written(tx, row)
        return 0.0

    async def _write(self, row: RunRow) -> None:
        target = self.folder / row.task_id / str(row.attempt)
        if await asyncio.to_thread(os.path.lexists, target):
            return  # by a process that died before it could note that
        async with self.database.transaction() as tx:
            outputs = await store.outputs_of(tx, row.task_id, row.attempt)
        uid = await asyncio.to_thread(self._uid, row.owner)
        # A former leader may still be at it: each has a folder of its own.
        new = self.folder / f".{row.task_id}.{row.attempt}.{os.getpid()}.new"
        try:
            await asyncio.to_thread(_fresh, new)
            for rank, output in outputs.items():
                await self._copy(row, rank, output, new / f"{rank}.log", uid)
            await asyncio.to_thread(_appear, new, target, uid)
        finally:
            await asyncio.to_thread(shutil.rmtree, new, ignore_errors=True)

    async def _copy(
        self, row: RunRow, rank: int, output: OutputRow, path: Path, uid: int | None
    ) -> None:
        key = OutputKey(row.task_id, row.attempt, rank)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        number = await asyncio.to_thread(os.open, path, flags, 0o600)
        try:
            at = 0
            while at < output.size:
                count = min(COPY_BYTES, output.size - at)
                data = await self.archive.read(key, at, count) or filler(count)
                await asyncio.to_thread(_write_all, number, data)
                at += len(data)
            await asyncio.to_thread(os.fsync, number)
            if uid is not None:
                os.fchown(number, uid, -1)
        finally:
            os.close(number)

    def _uid(self, owner: str) -> int | None:
        """The user number of an owner, where it is known and not the administrator's."""
        uid = None
        if self.options.plain_uids_file is not None:
            uid = json.loads(self.options.plain_uids_file.read_text("utf-8")).get(owner)
        if uid is None and self.options.plain_accounts and owner:
            try:
                uid = pwd.getpwnam(owner).pw_uid
            except KeyError:
                uid = None
        return int(uid) if uid else None


def plain_loop(writer: PlainWriter, wake: Wake) -> Loop:
    """Writes plain files; woken when a run is collected."""
    return Loop(
        name="plain", step=writer.step, tick_seconds=TICK_SECONDS, wake=wake, wake_on_commit=False
    )


def _fresh(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    if problem := spare_problem(str(folder)):
        raise ArchiveError(problem)


def _write_all(number: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(number, left) :]


def _appear(new: Path, target: Path, uid: int | None) -> None:
    """Give the filled folder its name. The task's own folder stays ours, so that nobody else can
    put anything in the place of an attempt."""
    if not target.parent.is_dir():
        target.parent.mkdir(mode=0o711)
        target.parent.chmod(0o711)
    if uid is not None:
        os.chown(new, uid, -1)
    _synced(new)
    new.rename(target)
    _synced(target.parent)
    _synced(target.parent.parent)


def _synced(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
