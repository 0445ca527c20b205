"""Makes a backup of one data folder, while its platform runs and when it is down.

Everything is as of one moment: the dump of the database and the list of kept outputs come from one
snapshot, and an output is copied up to the size in that list. The log-collector has synced so much
before it committed the size, and never changes it afterwards; it may compress it meanwhile. What it
has moved to a bucket is not copied. ADR 0034 has what is left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO

from shiftwork.cli.charts import size_text
from shiftwork.cli.failures import Failure

from libs.contracts.services import SERVICES
from libs.contracts.wording import counted
from libs.store.connections import Address
from libs.store.port import DatabaseFaultError, StoreUnavailableError
from libs.store.snapshot import snapshot
from services.allinone.backup import programs
from services.allinone.backup.backup_file import (
    CHUNK_BYTES,
    DATABASE,
    FOLDER_PARTS,
    OUTPUT,
    BackupWriter,
    Manifest,
)
from services.allinone.backup.progress import Progress, Report, in_thread
from services.allinone.data_folder import DataFolder, FolderInUseError
from services.allinone.embedded.credentials import POSTGRES_SUPERUSER, sync_folder
from services.allinone.embedded.postgres import Postgres, PostgresOptions
from services.allinone.embedded.processes import ServerError
from services.log_collector.archives.files import SEGMENT_BYTES, FileArchive
from services.log_collector.archives.port import TIMES
from services.log_collector.domain import TIMESTAMP_BYTES, OutputKey
from services.log_collector.store import OutputRow
from services.log_collector.tables import TABLES as LOG_COLLECTOR

READY_SECONDS_MAX = 120.0
READY_POLL_SECONDS = 0.1
# What is left free on the disk of the backup.
SPARE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """A complete backup."""

    file: Path
    size: int
    outputs: int
    manifest: Manifest
    # Outputs that the platform dropped by age while they were being copied.
    dropped: int
    # Parts of the running platform that were down, and so may not have handled old events.
    down: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """A part of a kept output, which is a file, and how much of it counts."""

    key: OutputKey
    number: int
    size: int

    @property
    def path(self) -> Path:
        """Its place below the archive, as it was written."""
        return FileArchive(Path()).path(self.key, self.number)


async def create(data_folder: DataFolder, file: Path, report: Report) -> Outcome:
    """Write a backup to a file that does not exist yet; half a file never has that name.

    Raises Failure with the fix. If the process is killed, ``.NAME.partial`` stays, and the next
    backup to the same name replaces it.
    """
    check_folder(data_folder)
    with complete_or_nothing(file) as partial:
        try:
            async with _database(data_folder, report) as (postgres, running):
                outputs, dropped, manifest = await _write(
                    data_folder, postgres, partial, running, report
                )
        except (ServerError, StoreUnavailableError, DatabaseFaultError) as problem:
            raise Failure(
                f"the database cannot be read: {problem}",
                where=str(data_folder.data),
                fix=f"`{data_folder.command('doctor')}` shows what is wrong",
            ) from problem
        except programs.ProgramError as problem:
            raise Failure(
                f"the database could not be copied: {problem}",
                where=str(data_folder.data),
                fix="try again; if the platform was ending or restarting, wait for that first",
            ) from problem
        size = partial.seek(0, os.SEEK_END)
    down = _down(data_folder) if manifest.running else ()
    return Outcome(file, size, outputs, manifest, dropped, down)


def _down(data_folder: DataFolder) -> tuple[str, ...]:
    try:
        parts = json.loads(data_folder.status.read_text())
        return tuple(sorted(name for name, part in parts.items() if part["state"] != "up"))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return ()


def check_folder(data_folder: DataFolder) -> None:
    """Raise Failure if there is no platform in the folder, or we may not read it."""
    from services.allinone.checks import owner_problem  # noqa: PLC0415 - imports services

    problem = owner_problem(data_folder.data)
    if problem is not None and problem.level == "bad":
        raise problem.failure()
    if not Postgres(data_folder.data, data_folder.credentials).is_made:
        raise Failure(
            f"there is no platform in {data_folder.data}",
            where="--data",
            fix="name the data folder of a platform that `up` has started: --data DIR",
        )


@contextlib.contextmanager
def complete_or_nothing(file: Path) -> Generator[IO[bytes]]:
    """A private file that gets its name when the context ends without an error, synced; else it is
    removed. The lock in it ends with this process, however it ends."""
    _check_new(file)
    partial = file.with_name(f".{file.name}.partial")
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(partial, flags, 0o600)
    except OSError as problem:
        raise _unwritable(file, problem) from problem
    with os.fdopen(descriptor, "r+b", buffering=CHUNK_BYTES) as opened:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failure(
                f"another backup to {file} is running", where="FILE", fix="name another file"
            ) from None
        found = os.fstat(descriptor)
        if not _is_still(partial, found):
            # Another backup has ended, and given its file its name, before we had the lock.
            raise Failure(
                f"another backup to {file} has just ended", where="FILE", fix="name another file"
            )
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
            raise Failure(
                f"{partial} is in the way, and not a file of ours", where="FILE", fix="remove it"
            )
        try:
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, 0)
            yield opened
            opened.flush()
            os.fsync(descriptor)
            _check_new(file)
            partial.rename(file)
        except BaseException as problem:
            partial.unlink(missing_ok=True)
            # What is still held back of it cannot be written to a full disk.
            with contextlib.suppress(OSError):
                opened.close()
            if isinstance(problem, OSError):
                raise _failed(file, problem) from problem
            raise
    sync_folder(file.parent)


def _is_still(path: Path, opened: os.stat_result) -> bool:
    """True if the path still names the file that was opened."""
    try:
        now = path.lstat()
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (opened.st_dev, opened.st_ino)


def _check_new(file: Path) -> None:
    if os.path.lexists(file):
        raise Failure(
            f"{file} exists", where="FILE", fix="name a new file, or remove that one first"
        )


def _failed(file: Path, problem: OSError) -> Failure:
    """What the system refused: to read something, which is named then, or to write the backup."""
    if not problem.filename:
        return _unwritable(file, problem)
    return Failure(
        f"{os.fsdecode(problem.filename)} cannot be read: {problem.strerror or problem}",
        where="--data",
        fix="run it as the owner of the data folder, and check the disk",
    )


def _unwritable(file: Path, problem: OSError) -> Failure:
    return Failure(
        f"the backup cannot be written to {file}: {problem.strerror or problem}",
        where="FILE",
        fix="name a file in a folder that you can write to, with enough space",
    )


@contextlib.asynccontextmanager
async def _database(
    data_folder: DataFolder, report: Report
) -> AsyncGenerator[tuple[Postgres, bool]]:
    """The folder's PostgreSQL, and whether its platform runs; started only if that is down."""
    options = data_folder.options()
    user = None if options is None else options.service_user
    postgres = Postgres(
        data_folder.data, data_folder.credentials, PostgresOptions(service_user=user)
    )
    if await _is_ready(data_folder, report):
        postgres.attach()
        yield postgres, True
        return
    try:
        with data_folder.borrowed("a backup"):
            report("the platform is down: starting its database for the backup")
            try:
                await postgres.start()
                yield postgres, False
            finally:
                await postgres.stop()
    except FolderInUseError as problem:
        raise Failure(
            "another process has just taken the data folder",
            where=str(data_folder.data),
            fix="try again",
        ) from problem


async def _is_ready(data_folder: DataFolder, report: Report) -> bool:
    """True once the platform is ready, False if it is down. Waits for one that is starting, because
    it may be migrating its schemas, and for one that is ending."""
    ends_at, waited = monotonic() + READY_SECONDS_MAX, False
    while data_folder.is_kept():
        holder = data_folder.holder()
        if holder is not None and holder.ready:
            return True
        if monotonic() > ends_at:
            raise Failure(
                f"it has been starting or ending for {READY_SECONDS_MAX:g} s",
                where=str(data_folder.log),
                fix=f"`{data_folder.command('doctor')}` shows what it waits for",
            )
        if not waited:
            report("waiting for the platform, which is starting or ending")
            waited = True
        await asyncio.sleep(READY_POLL_SECONDS)
    return False


async def _write(
    data_folder: DataFolder, postgres: Postgres, file: IO[bytes], running: bool, report: Report
) -> tuple[int, int, Manifest]:
    """Write all parts; returns how many outputs there are, and how many were dropped meanwhile."""
    address = Address(url=postgres.url(POSTGRES_SUPERUSER), password=postgres.admin_password)
    # Of a node that is drained after the snapshot the file says so before; of one that is opened
    # again after it only now.
    drained = _content(data_folder.drained)
    with tempfile.TemporaryDirectory(prefix="shiftwork-") as private:
        listed = Path(private) / "outputs.csv"
        async with snapshot(address) as now:
            revisions = await now.revisions(SERVICES)
            shape = LOG_COLLECTOR.shape(OutputRow)
            if revisions[shape.schema]:
                fields = (*shape.key, "size", "timestamps")
                await now.list_rows(shape.schema, shape.table, fields, shape.key, listed)
            else:
                listed.touch()
            manifest = Manifest(created_at=now.taken_at, revisions=revisions, running=running)
            count, size = await asyncio.to_thread(_sum_of, kept_outputs(listed))
            _check_space(file, size)
            writer = BackupWriter(file, manifest)
            try:
                report("copying the database")
                chunks = programs.dump(postgres, now.name)
                await in_thread(report, lambda progress: writer.add(DATABASE, progress.of(chunks)))
            except BaseException:
                writer.release()
                raise
        try:
            # After the database: whatever it refers to is there by now.
            for name, content in folder_parts(data_folder, drained):
                writer.add(name, [content])
            report(f"copying the kept output: {counted(count, 'file')}, {size_text(size)}")
            dropped = await in_thread(
                report, lambda progress: _copy(writer, data_folder, listed, progress)
            )
            writer.close()
        finally:
            writer.release()
    return count, dropped, manifest


def folder_parts(data_folder: DataFolder, drained: bytes | None) -> Iterator[tuple[str, bytes]]:
    """The files of the folder that a backup has, as they are now. ``drained``: what that one said
    before the snapshot, which counts if it is not there any more."""
    for name, path in FOLDER_PARTS.items():
        content = _content(data_folder.data / path)
        if path == data_folder.drained.name:
            content = content or drained
        if content is not None:
            yield name, content


def _sum_of(outputs: Iterable[Output]) -> tuple[int, int]:
    count = size = 0
    for output in outputs:
        count, size = count + 1, size + output.size
    return count, size


def kept_outputs(listed: Path) -> Iterator[Output]:
    """The parts of the kept outputs in the list that the snapshot gave: of each one its segments,
    and its time stamps."""
    with listed.open(newline="") as file:
        for task_id, attempt, rank, size, timestamps in csv.reader(file):
            key = OutputKey(task_id, int(attempt), int(rank))
            for begin in range(0, max(1, int(size)), SEGMENT_BYTES):
                yield Output(key, begin // SEGMENT_BYTES, min(SEGMENT_BYTES, int(size) - begin))
            yield Output(key, TIMES, int(timestamps or 0) * TIMESTAMP_BYTES)


def _copy(writer: BackupWriter, data_folder: DataFolder, listed: Path, progress: Progress) -> int:
    """Copy the kept outputs; returns how many were dropped by age since the snapshot, or are in a
    bucket."""
    dropped = 0
    archive = FileArchive(data_folder.logs)
    for output in kept_outputs(listed):
        if not output.size:
            continue
        name = f"output/{output.path}"
        assert OUTPUT.fullmatch(name), name
        if archive.sealed_size(output.key, output.number) == output.size:
            try:
                with archive.sealed_path(output.key, output.number).open("rb") as file:
                    writer.add(
                        f"{name}.zst", progress.of(iter(lambda: file.read(CHUNK_BYTES), b""))
                    )
            except FileNotFoundError:
                dropped += output.number == 0
        elif archive.part(output.key, output.number, 0, 1):
            # As it was at the snapshot: it may have grown, and been compressed, since then.
            writer.add(name, progress.of(first_bytes(archive, output)))
        else:
            dropped += output.number == 0
    return dropped


def first_bytes(archive: FileArchive, output: Output) -> Iterator[bytes]:
    """The bytes of a part that count."""
    done = 0
    while done < output.size:
        count = min(CHUNK_BYTES, output.size - done)
        chunk = archive.part(output.key, output.number, done, count)
        if not chunk:
            left = output.size - done
            raise Failure(
                f"the kept output {output.path} is {counted(left, 'byte')} shorter than recorded",
                where=str(archive.path(output.key, output.number)),
                fix="check the disk; without that output: remove the file, and try again",
            )
        done += len(chunk)
        yield chunk


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return None


def _check_space(file: IO[bytes], size: int) -> None:
    free = shutil.disk_usage(file.fileno()).free
    if free < size + SPARE_BYTES:
        raise Failure(
            f"the kept output alone needs {size_text(size)}, and {size_text(free)} are free",
            where="FILE",
            fix="name a file on a larger disk",
        )
