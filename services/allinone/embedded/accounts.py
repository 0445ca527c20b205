"""Which user a server runs as, and what that user can reach. Called by ``postgres``.

PostgreSQL refuses to run as root. Run by root, it gets an unprivileged account, which often cannot
walk to the data folder or to the programs (both may be below a 0700 home). No rights of any folder
are changed for that: the server gets its folders as open descriptors, and the programs, if it
cannot reach them, as a copy in a place that it can.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from services.launcher.task_users import user_advice

# The first of these that exists; tasks must run as somebody else, or they could reach the data.
SERVICE_USERS = ("shiftwork", "postgres", "daemon", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """An unprivileged user that root runs a server as."""

    uid: int
    gid: int
    name: str


def service_account(data: Path, wanted: str | None) -> Account | None:
    """The account for the server of ``data``; None: our own, which is not root.

    Data that exists stays with its owner. LookupError names a user that does not exist, also where
    the data has an owner already.
    """
    if os.geteuid() != 0:
        return None
    new = _unprivileged((wanted,)) if wanted else None
    if data.exists():
        uid = data.stat().st_uid
        if uid != 0:
            return Account(uid, data.stat().st_gid, name_of(uid))
    return new or _unprivileged(SERVICE_USERS)


def _unprivileged(names: Sequence[str]) -> Account:
    """The first of these users that exists and is not root."""
    problems: list[str] = []
    for name in names:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            problems.append(f"{name} does not exist")
            continue
        if entry.pw_uid != 0:
            return Account(entry.pw_uid, entry.pw_gid, name)
        problems.append(f"{name} is root, and PostgreSQL does not run as root")
    fix = user_advice(names[0]) if len(names) == 1 else "name one with --service-user"
    raise LookupError(
        f"no unprivileged user to run PostgreSQL and NATS as: {', '.join(problems)}; {fix}"
    )


def name_of(uid: int) -> str:
    """A user's name; the number of one without an account."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def run_once(
    command: Sequence[str | Path],
    account: Account | None,
    descriptors: Sequence[int] = (),
    seconds_max: float = 20.0,
) -> None:
    """Run a program of ours to its end. OSError with its last words if it fails."""
    try:
        done = subprocess.run(  # noqa: S603 - programs of our own wheels and /bin/sh, no user text
            [str(part) for part in command],
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds_max,
            pass_fds=descriptors,
            start_new_session=True,
            umask=0o077,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"{command[0]} did not end within {seconds_max:g} s") from None
    if done.returncode != 0:
        words = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise OSError(f"{command[0]} ended with status {done.returncode}: {words[-2000:]}")


def can_run(account: Account | None, command: Sequence[str | Path]) -> bool:
    """Run the command to find out: rights, access lists and mount options all matter."""
    try:
        run_once(command, account)
    except OSError:
        return False
    return True


def can_enter(account: Account | None, folder: Path) -> bool:
    """True if that user can walk to the folder by its path."""
    return can_run(account, ["/bin/sh", "-c", 'cd -- "$1"', "sh", folder])


@dataclass(frozen=True, slots=True)
class Passed:
    """Folders as a server is given them."""

    paths: Sequence[str]
    descriptors: Sequence[int]


@contextmanager
def passed(folders: Sequence[Path], account: Account | None) -> Generator[Passed]:
    """Folders for a server of another user: as open descriptors, which need no walking to.

    For our own user they are ordinary paths. A server's children inherit the descriptors.
    """
    if account is None:
        yield Passed([str(folder) for folder in folders], ())
        return
    if not Path("/proc/self/fd").exists():
        raise OSError("under root this needs Linux with /proc: start as an ordinary user instead")
    descriptors = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY) for folder in folders]
    try:
        yield Passed([f"/proc/self/fd/{number}" for number in descriptors], descriptors)
    finally:
        for number in descriptors:
            os.close(number)
