"""The short folders of an embedded PostgreSQL: for its socket, and for programs it cannot reach.

A socket's path has a limit of 107 bytes, and a data folder may lie deep. Whatever does not fit
below the data folder goes to one private temporary folder, whose path is recorded so that restarts
use the same one.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from services.allinone.embedded.accounts import Account, can_enter, can_run
from services.allinone.embedded.credentials import write_private

SOCKET_PATH_BYTES_MAX = 107
SOCKET_NAME = ".s.PGSQL.5432"
_PLAIN = re.compile(r"[A-Za-z0-9/._~@-]+")
_SHARED_PLACES = (Path("/tmp"), Path("/var/tmp"), Path("/run"))  # noqa: S108 - mkdtemp makes a private one


def socket_fits(folder: Path) -> bool:
    """True if a client can name the socket in this folder, also in an address of the database,
    where for example a comma or a percent sign has another meaning."""
    short = len(os.fsencode(folder / SOCKET_NAME)) <= SOCKET_PATH_BYTES_MAX
    return short and _PLAIN.fullmatch(str(folder)) is not None


def owned_folder(folder: Path, account: Account | None) -> Path:
    """A 0700 folder of the server's user; created, or as it was made before."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return folder
    if account:
        os.chown(folder, account.uid, account.gid)
    return folder


def give_folder(folder: Path, account: Account) -> None:
    """Make a server's user the owner of a folder and of all that is in it."""
    for path in (folder, *folder.rglob("*")):
        if path.lstat().st_uid != account.uid:
            os.lchown(path, account.uid, account.gid)


class TemporaryFolder:
    """One private folder outside the data folder, made when it is first needed."""

    def __init__(self, record: Path, account: Account | None) -> None:
        self._record = record
        self._account = account

    def path(self) -> Path:
        """The recorded folder if it still is what we made, else a new one.

        Its owner is us; the server's user may walk through it and no more.
        """
        if self._record.exists():
            recorded = Path(self._record.read_text().strip())
            if self._is_ours(recorded):
                return recorded
        made = self._make()
        write_private(self._record, f"{made}\n")
        return made

    def remove(self) -> None:
        """Remove the recorded folder and the record of it."""
        if self._record.exists():
            recorded = Path(self._record.read_text().strip())
            if recorded.exists() and recorded.lstat().st_uid == os.geteuid():
                shutil.rmtree(recorded)
            self._record.unlink()

    def _mode(self) -> int:
        return 0o711 if self._account else 0o700

    def _is_ours(self, folder: Path) -> bool:
        try:
            status = folder.lstat()
        except FileNotFoundError:
            try:
                # Cleared away, as when a machine starts: the same name again, if nobody took it.
                folder.mkdir(mode=0o700)
            except OSError:
                return False
            folder.chmod(self._mode())
            return True
        is_plain_folder = status.st_mode & 0o170777 == 0o040000 | self._mode()
        return is_plain_folder and status.st_uid == os.geteuid()

    def _make(self) -> Path:
        for folder in dict.fromkeys((Path(tempfile.gettempdir()), *_SHARED_PLACES)):
            if not os.access(folder, os.W_OK) or (
                self._account and not can_enter(self._account, folder)
            ):
                continue
            made = Path(tempfile.mkdtemp(prefix="shiftwork-", dir=folder))
            if socket_fits(made / "socket"):
                made.chmod(self._mode())
                return made
            made.rmdir()
        raise FileNotFoundError(
            "no temporary folder that PostgreSQL's user can reach: tried "
            f"{tempfile.gettempdir()}, {', '.join(map(str, _SHARED_PLACES))}; set TMPDIR"
        )


def reachable_programs(
    programs: Path, account: Account | None, temporary: TemporaryFolder, *, probe: str
) -> Path:
    """The folder of the programs, or a copy of it where the account can run them.

    ``probe`` is the program, relative to the folder, that is tried with ``--version``.
    """
    if not (programs / probe).exists():
        raise LookupError(f"{programs / probe} does not exist: make setup")
    if account is None or can_run(account, [programs / probe, "--version"]):
        return programs
    # The wheel's own libraries lie beside its package and are found from the programs by a
    # relative path: the copy has the same shape.
    package = programs.parent
    libraries = package.with_name(f"{package.name}.libs")
    folder = temporary.path() / "programs"
    copy = folder / package.name / programs.name
    if not can_run(account, [copy / probe, "--version"]):
        shutil.rmtree(folder, ignore_errors=True)
        # ``include`` is for compilers; nothing here needs it.
        shutil.copytree(programs, copy, symlinks=True, ignore=shutil.ignore_patterns("include"))
        if libraries.is_dir():
            shutil.copytree(libraries, folder / libraries.name, symlinks=True)
        for path in (folder, *folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    if not can_run(account, [copy / probe, "--version"]):
        raise PermissionError(
            f"user {account.name} can run PostgreSQL neither in {programs} nor in {copy}: "
            "install Shiftwork where that user can read it, or name another with --service-user"
        )
    return copy


def reachable_program(program: Path, account: Account | None, temporary: TemporaryFolder) -> Path:
    """A program that stands alone, or a copy of it where the account can run it."""
    if account is None or can_run(account, [program, "--version"]):
        return program
    copy = temporary.path() / "programs" / program.name
    if not can_run(account, [copy, "--version"]):
        copy.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        shutil.copyfile(program, copy)
        copy.parent.chmod(0o755)
        copy.chmod(0o755)
    if not can_run(account, [copy, "--version"]):
        raise PermissionError(
            f"user {account.name} can run NATS neither as {program} nor as {copy}: install "
            "Shiftwork where that user can read it, or name another with --service-user"
        )
    return copy
