"""Whether another user of this machine can run a program or enter a directory.

Tasks may run as another user than the submitter. ``submit`` reports what that user cannot reach.
Only certain problems count: access lists, and folders that the submitter cannot read either, are
left to the task itself.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

try:
    import pwd
except ImportError:  # Windows, where no task runs
    pwd = None  # type: ignore[assignment]

LINKS_MAX = 40
_ACCESS_LIST = "system.posix_acl_access"


@dataclass(frozen=True)
class User:
    """The user whose rights are checked. ``name`` is for messages."""

    uid: int
    gids: frozenset[int]
    name: str

    def may_execute(self, status: os.stat_result) -> bool:
        """True if this user may run the file, or walk through the directory."""
        if self.uid == 0:
            return True
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid in self.gids:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


# An unknown user: neither owner nor member of any group.
ANYBODY = User(-1, frozenset(), "every user")


def user_of(text: str) -> User:
    """The user that the platform names: an account's name, a number, or a range of numbers that no
    account has."""
    if text.isdecimal():
        return User(int(text), frozenset(), f"user {text}")
    if pwd is None or text.replace("-", "").isdecimal():
        return User(-1, frozenset(), f"users of their own ({text})")
    try:
        found = pwd.getpwnam(text)
        return User(found.pw_uid, frozenset(os.getgrouplist(text, found.pw_gid)), text)
    except (KeyError, OSError):
        return User(-1, frozenset(), text)


def closed_part(path: Path, user: User) -> str:
    """The first folder on the way to a file, or the file, that the user cannot pass; empty if
    there is none, or if it is unknown."""
    try:
        for part in _way(path):
            if not user.may_execute(part.stat()) and not _has_access_list(part):
                return str(part)
    except OSError:
        return ""
    return ""


def _way(path: Path) -> Iterator[Path]:
    """What is walked through to reach a file, through each link, and the file."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 - keeps links
    for _ in range(LINKS_MAX):
        yield from reversed(path.parents)
        real = path.parent.resolve()
        yield from reversed(real.parents)
        yield real
        if not path.is_symlink():
            break
        path = real / os.readlink(path)
    yield path


def _has_access_list(path: Path) -> bool:
    try:
        return bool(os.getxattr(path, _ACCESS_LIST))
    except (OSError, AttributeError):
        return False
