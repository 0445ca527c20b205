"""Restores a backup to a fresh data folder, for ``shiftwork up`` to start.

The folder is built beside its place, in ``.NAME.restoring``, and gets its name when it is complete
and synced: a restore that dies leaves no folder that ``up`` would start. ADR 0034 has the
reasoning.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from shiftwork.cli.charts import size_text
from shiftwork.cli.failures import Failure

from libs.bus.topology import Limits
from libs.contracts.services import SERVICES
from libs.service.version import VERSION
from libs.store.connections import Address
from libs.store.port import DatabaseFaultError, StoreUnavailableError
from libs.store.snapshot import publish_again
from services.allinone import checks
from services.allinone.backup import programs
from services.allinone.backup.backup_file import (
    BYTES_MAX,
    CHECKSUMS,
    DATABASE,
    FOLDER_PARTS,
    MANIFEST,
    OUTPUT,
    DamagedError,
    Manifest,
    NewerBackupError,
    NotABackupError,
    Part,
    newer_schemas,
    read_parts,
    verify,
)
from services.allinone.backup.progress import Progress, Report, in_thread
from services.allinone.data_folder import DataFolder, FolderInUseError, Options, options_of
from services.allinone.embedded.accounts import service_account
from services.allinone.embedded.credentials import (
    POSTGRES_SUPERUSER,
    ensure_credentials,
    sync_folder,
    write_private,
)
from services.allinone.embedded.postgres import DATABASE as DATABASE_NAME
from services.allinone.embedded.postgres import Postgres, PostgresOptions
from services.allinone.embedded.processes import ServerError

# Older events would have left the stream, too: the inboxes recognise events of this age.
EVENTS_KEPT = timedelta(seconds=Limits().event_age_s)
# PostgreSQL's custom format.
DUMP_BEGINS = b"PGDMP"
# Anything that can be sent in a header.
TOKEN = re.compile(r"[!-~]{1,1000}")
# User numbers of Linux; the last one means none.
UIDS = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Restored:
    """A folder that ``up`` can start."""

    data: Path
    manifest: Manifest
    outputs: int
    # Events that will be published again.
    events: int


async def check_backup(file: Path, report: Report) -> Manifest:
    """Read a whole backup and check everything that can be checked without a database: checksums,
    version, and what the files of the folder say; nothing is written. Raises Failure."""
    with _refusals(file):
        manifest = await in_thread(report, lambda progress: _verify(file, progress, report))
        await asyncio.to_thread(_folder_files, file)
    if newer := newer_schemas(manifest.revisions, _known_revisions()):
        schemas = ", ".join(f"{name} {manifest.revisions[name]}" for name in newer)
        raise _newer(file, f"version {manifest.version} made it, with newer schemas ({schemas})")
    return manifest


@contextlib.contextmanager
def _refusals(file: Path) -> Generator[None]:
    """Raise Failure for a file that is no backup, or not a whole one."""
    try:
        yield
    except NotABackupError as problem:
        raise Failure(
            f"{file} is not a backup of this platform: {problem}",
            where="FILE",
            fix="name a file that `shiftwork backup FILE` has written",
        ) from None
    except NewerBackupError as problem:
        raise _newer(file, str(problem)) from None
    except DamagedError as problem:
        raise Failure(
            f"{file} is damaged: {problem}",
            where="FILE",
            fix="copy it again from where it was kept, or use another backup",
        ) from None
    except OSError as problem:
        raise Failure(
            f"{file} cannot be read: {problem.strerror or problem}",
            where="FILE",
            fix="name a file that `shiftwork backup FILE` has written",
        ) from None


def _newer(file: Path, why: str) -> Failure:
    return Failure(
        f"{file} is of a newer version: {why}",
        where="FILE",
        fix=f"restore it with that version or a newer one; this is {VERSION}",
    )


def _verify(file: Path, progress: Progress, report: Report) -> Manifest:
    report(f"checking {file} ({size_text(file.stat().st_size)})")
    before = 0

    def count(read: int) -> None:
        nonlocal before
        progress.add(read - before)
        before = read

    return verify(file, count)


def _known_revisions() -> dict[str, str]:
    from libs.store.migrate import newest  # noqa: PLC0415 - slow to import
    from services.allinone.composition import WIRINGS  # noqa: PLC0415 - slow to import

    return {wiring.name: newest(wiring.migrations) for wiring in WIRINGS}


async def restore(file: Path, data_folder: DataFolder, report: Report) -> Restored:
    """Make a data folder of a backup. Raises Failure, and leaves nothing then."""
    data = data_folder.data
    check_target(data_folder)
    manifest = await check_backup(file, report)
    async with _staging(data) as staging:
        # The file may have been replaced since it was checked.
        with _refusals(file):
            outputs, events = await _fill(staging, file, manifest, report)
        report("writing it to the disk")
        os.sync()
        # Nobody may have used the folder meanwhile: an empty one is replaced, no other.
        try:
            staging.data.rename(data)
        except OSError as problem:
            raise Failure(
                f"{data} cannot be replaced: {problem.strerror or problem}",
                where="--data",
                fix="name a new or empty folder: --data DIR",
            ) from problem
        sync_folder(data.parent)
    return Restored(data, manifest, outputs, events)


def check_target(data_folder: DataFolder) -> None:
    """Raise Failure unless the folder is new or empty and can hold a platform."""
    data = data_folder.data
    for finding in checks.folder(data_folder, Options()):
        if finding.level == "bad":
            raise finding.failure()
    if os.path.ismount(data):
        raise Failure(
            f"{data} is where a file system is mounted, and a restore replaces its folder",
            where="--data",
            fix=f"name a new folder in it: --data {data / 'shiftwork'}",
        )
    if data.is_symlink():
        raise Failure(
            f"{data} is a symbolic link, and a restore replaces its folder",
            where="--data",
            fix=f"name the folder itself: --data {data.resolve()}",
        )
    found = sorted(os.listdir(data)) if data.exists() else []  # noqa: PTH208 - names only
    if found:
        names = ", ".join(found[:3]) + (", …" if len(found) > 3 else "")  # noqa: PLR2004 - as above
        raise Failure(
            f"the folder {data} is not empty ({names})",
            where="--data",
            fix="name a new or empty folder: --data DIR",
        )


@contextlib.asynccontextmanager
async def _staging(data: Path) -> AsyncGenerator[DataFolder]:
    """A new data folder beside its place, locked, which is removed unless the context renames it.
    What a restore that was killed has left there is ended and removed first."""
    folder = DataFolder(data.parent / f".{data.name}.restoring")
    try:
        folder.take()
    except FolderInUseError as problem:
        raise Failure(
            f"another restore to {data} is running", where="--data", fix="wait for its end"
        ) from problem
    except OSError as problem:
        raise Failure(
            f"{folder.data} cannot be written: {problem.strerror or problem}",
            where="--data",
            fix="name a folder in a folder that you can write to: --data DIR",
        ) from problem
    try:
        await _end_leftovers(folder)
        yield folder
    finally:
        # Not there any more once it has its name.
        shutil.rmtree(folder.data, ignore_errors=True)
        folder.release()


async def _end_leftovers(folder: DataFolder) -> None:
    postgres = Postgres(folder.data, folder.credentials)
    if postgres.is_made:
        # A start ends the server that was left over.
        with contextlib.suppress(ServerError, OSError):
            await postgres.start()
            await postgres.stop()
        postgres.remove_temporary()
    for path in folder.data.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != "up.lock":
            path.unlink()


async def _fill(
    staging: DataFolder, file: Path, manifest: Manifest, report: Report
) -> tuple[int, int]:
    """Write everything to the folder; returns how many outputs it has, and how many events will be
    published again."""
    folder_files = _folder_files(file)
    try:
        for name, text in folder_files.items():
            target = staging.data / name
            if target.parent != staging.data:
                # Of the launcher, which makes it with these rights.
                target.parent.mkdir(exist_ok=True)
            write_private(target, text)
    except OSError as problem:
        raise _unwritable(staging, problem) from problem
    # Everything but the administrator's token is new: the passwords of the servers, and the key of
    # the runs' tokens, so that no process of a run before has a valid one.
    credentials = ensure_credentials(staging.data)
    options = staging.options() or Options()
    postgres = Postgres(
        staging.data, credentials, PostgresOptions(service_user=_service_user(options))
    )
    try:
        report("starting a new database")
        await postgres.start()
        try:
            await postgres.prepare()
            outputs = await in_thread(
                report, lambda progress: _unpack(staging, postgres, file, progress, report)
            )
            url = postgres.url(POSTGRES_SUPERUSER, DATABASE_NAME)
            events = await publish_again(
                Address(url=url, password=postgres.admin_password),
                SERVICES,
                manifest.created_at - EVENTS_KEPT,
            )
        finally:
            await postgres.stop()
            postgres.remove_temporary()
    except (
        ServerError,
        StoreUnavailableError,
        DatabaseFaultError,
        programs.ProgramError,
    ) as problem:
        raise Failure(
            f"the database could not be restored: {problem}",
            where=str(file),
            fix="nothing was left behind; see the reason above",
        ) from problem
    except OSError as problem:
        raise _unwritable(staging, problem) from problem
    return outputs, events


def _unwritable(staging: DataFolder, problem: OSError) -> Failure:
    return Failure(
        f"the folder could not be written: {problem.strerror or problem}",
        where=str(problem.filename or staging.data),
        fix="free some space, or name a folder on another disk: --data DIR",
    )


def _service_user(options: Options) -> str | None:
    """The user of the servers, unless this machine does not have it: `up` reports that, and asks
    for another."""
    try:
        service_account(Path("/nonexistent"), options.service_user)
    except LookupError:
        return None
    return options.service_user


def _folder_files(file: Path) -> dict[str, str]:
    """The files of the data folder by their path in it. Raises DamagedError if one of them cannot
    be used, and Failure for options that only another version understands."""
    found: dict[str, str] = {}
    for part in read_parts(file):
        if part.name == DATABASE:
            if next(part.chunks(), b"")[: len(DUMP_BEGINS)] != DUMP_BEGINS:
                raise DamagedError(f"{DATABASE} is not a dump of PostgreSQL")
        elif part.name in FOLDER_PARTS:
            found[FOLDER_PARTS[part.name]] = _text_of(part)
        elif part.name != MANIFEST:
            # They are before the outputs.
            break
    try:
        options_of(json.loads(found.get("options.json", "{}")))
    except (ValueError, TypeError, RecursionError) as problem:
        raise Failure(
            f"folder/options.json in {file} cannot be read: {problem!s:.200}",
            where="FILE",
            fix="restore it with the version that made it",
        ) from None
    return found


def _text_of(part: Part) -> str:
    """The text of a file of the data folder, which the platform can read."""
    if part.size > BYTES_MAX[part.name]:
        raise DamagedError(f"{part.name} has {part.size} bytes")
    try:
        text = b"".join(part.chunks()).decode()
        _CHECKS[part.name](text)
    except (ValueError, TypeError, AttributeError, RecursionError) as problem:
        raise DamagedError(f"{part.name} cannot be used: {problem!s:.200}") from None
    return text


def _check_token(text: str) -> None:
    if not TOKEN.fullmatch(text.strip()):
        raise ValueError("it is no token")


def _check_names(text: str) -> None:
    found: Any = json.loads(text)
    if not isinstance(found, list) or not all(
        isinstance(each, str) for each in cast("list[Any]", found)
    ):
        raise ValueError("it is no list of nodes")


def _check_owners(text: str) -> None:
    found: Any = json.loads(text)
    numbers = list(cast("dict[str, Any]", found).values()) if isinstance(found, dict) else [None]
    # With the number of root, an owner's tasks would run as root.
    if not all(type(each) is int and 0 < each < UIDS for each in numbers):
        raise ValueError("it names no user number for each owner")
    if len(set(numbers)) != len(numbers):
        raise ValueError("it gives several owners one user number")


# What is checked of each file, beside the options.
_CHECKS: Mapping[str, Callable[[str], None]] = {
    "folder/admin-token": _check_token,
    "folder/options.json": lambda _: None,
    "folder/drained.json": _check_names,
    "folder/owners.json": _check_owners,
}


def _unpack(
    staging: DataFolder, postgres: Postgres, file: Path, progress: Progress, report: Report
) -> int:
    """Fill the database and write the kept outputs; returns how many these are."""
    outputs = 0
    for part in read_parts(file):
        if part.name == DATABASE:
            report("filling the database")
            programs.restore(postgres, progress.of(part.chunks()))
        elif part.name == CHECKSUMS:
            break
        elif OUTPUT.fullmatch(part.name):
            if not outputs:
                report("writing the kept output")
            _write_output(staging.logs / part.name.removeprefix("output/"), part, progress)
            outputs += 1
    return outputs


def _write_output(path: Path, part: Part, progress: Progress) -> None:
    for folder in (path.parents[2], path.parents[1], path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        for chunk in progress.of(part.chunks()):
            file.write(chunk)
