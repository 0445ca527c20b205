"""The user that tasks run as on this machine: the launcher's own, one for all, or one per owner.

``main.py`` validates the choice at the start, ``runtimes/process.py`` requests a user at each
launch, and ``up`` validates the same choice before it starts anything.
"""

from __future__ import annotations

import fcntl
import grp
import json
import os
import pwd
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from libs.contracts.wording import meant

# Below are the system's own users; above, numbers that some programs take for "none".
UID_MIN, UID_MAX = 1000, 4_000_000_000
EXAMPLE = "300000-309999"
RANGE = re.compile(r"(\d{1,10})-(\d{1,10})")


@dataclass(frozen=True, slots=True)
class Choice:
    """The operator's settings; at most one of the three is set."""

    user: str = ""
    users: str = ""
    as_root: bool = False


@dataclass(frozen=True, slots=True)
class TaskUser:
    """The user of a rank's processes. A task can override its variables."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    home: str = ""
    name: str = ""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of this user."""
        return _variables(self.home, self.name)


class TaskUsers(Protocol):
    """Maps owners to the users that run their tasks."""

    @property
    def uids(self) -> range:
        """Every user number that a task may get."""
        ...

    def known(self, owner: str) -> TaskUser | None:
        """The user of an owner if it is in memory, else None."""
        ...

    def of(self, owner: str) -> TaskUser:
        """The user of an owner. May write to the disk; raises ``OSError`` or ``ValueError``."""
        ...


@dataclass(frozen=True, slots=True)
class OneUser:
    """All tasks run as this user."""

    user: TaskUser

    @property
    def uids(self) -> range:
        """See ``TaskUsers``."""
        return range(self.user.uid, self.user.uid + 1)

    def known(self, owner: str) -> TaskUser | None:
        """See ``TaskUsers``."""
        del owner
        return self.user

    def of(self, owner: str) -> TaskUser:
        """See ``TaskUsers``."""
        del owner
        return self.user


class OwnerUsers:
    """Each owner's tasks run as a user number of their own, which no account has.

    ``FOLDER/owners.json`` keeps the numbers, and ``FOLDER/homes/UID`` is the home of each. A number
    is never given to a second owner, also after the range has changed: files with that number are
    the first one's. A file that cannot be read is an error for the same reason.
    """

    def __init__(self, folder: Path, uids: range) -> None:
        self._folder, self.uids = folder, uids
        self._file = folder / "owners.json"
        self._known: dict[str, TaskUser] = {}

    def known(self, owner: str) -> TaskUser | None:
        """See ``TaskUsers``."""
        return self._known.get(owner)

    def of(self, owner: str) -> TaskUser:
        """See ``TaskUsers``. If the process dies before the file is replaced, the owner has no
        number yet, and nothing of it has run."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._alone():
            numbers = self._read()
            uid = numbers.get(owner)
            if uid is None:
                uid = self._free(set(numbers.values()))
                self._write({**numbers, owner: uid})
        found = TaskUser(uid, uid, (), str(self._home(uid)), owner)
        self._known[owner] = found
        return found

    def _free(self, taken: set[int]) -> int:
        for uid in self.uids:
            if uid not in taken:
                return uid
        raise ValueError(
            f"all {len(self.uids)} numbers of --task-users {self.uids[0]}-{self.uids[-1]} are"
            " taken by other owners; start the platform with a longer range"
        )

    def _home(self, uid: int) -> Path:
        homes = self._folder / "homes"
        homes.mkdir(exist_ok=True)
        homes.chmod(0o711)
        home = homes / str(uid)
        home.mkdir(mode=0o700, exist_ok=True)
        os.chown(home, uid, uid, follow_symlinks=False)
        return home

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Lock the file: several launchers on one machine must not assign at the same time."""
        path = self._folder / "owners.lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _read(self) -> dict[str, int]:
        try:
            found: Any = json.loads(self._file.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as problem:
            raise ValueError(f"{self._file} is damaged ({problem}); restore it") from None
        numbers = cast("dict[str, int]", found)
        if (
            not isinstance(found, dict)
            or not all(type(number) is int for number in numbers.values())
            or len(set(numbers.values())) != len(numbers)
        ):
            raise ValueError(f"{self._file} is damaged: it names no number for each; restore it")
        return numbers

    def _write(self, numbers: Mapping[str, int]) -> None:
        fresh = self._file.with_name("owners.json.new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(numbers, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._file)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def own_environment() -> Mapping[str, str]:
    """The variables of tasks that run as the launcher's own user."""
    try:
        own = pwd.getpwuid(os.getuid())
    except KeyError:
        # A container may run as a number that no account has.
        return {}
    return _variables(own.pw_dir, own.pw_name)


def _variables(home: str, name: str) -> Mapping[str, str]:
    return {"HOME": home, "USER": name} if home else {}


def task_users(choice: Choice, folder: Path) -> TaskUsers | None:
    """The users of tasks; None: the launcher's own user. ``folder`` stores the owners' numbers.

    Raises ``ValueError`` with the fix if the choice is missing or impossible.
    """
    if sum((bool(choice.user), bool(choice.users), choice.as_root)) > 1:
        raise ValueError("task_user, task_users and tasks_as_root exclude one another; give one")
    if os.geteuid() != 0:
        if choice.user or choice.users:
            raise ValueError(
                "only root can run tasks as other users; leave task_user and task_users out"
            )
        return None
    if choice.user:
        found = _account(choice.user)
        if found.pw_uid == 0:
            raise ValueError(
                f"task_user {choice.user!r} is root; name another user, or set tasks_as_root"
            )
        groups = tuple(os.getgrouplist(found.pw_name, found.pw_gid))
        return OneUser(TaskUser(found.pw_uid, found.pw_gid, groups, found.pw_dir, found.pw_name))
    if choice.users:
        return OwnerUsers(folder, uids_of(choice.users))
    if choice.as_root:
        return None
    raise ValueError(
        "root runs the launcher, so it must know which user tasks run as: set task_users (such as"
        f" {EXAMPLE}: each owner's tasks as a user of their own), task_user (one user for all), or"
        " tasks_as_root=true"
    )


def uids_of(text: str) -> range:
    """The user numbers of ``FIRST-LAST``. Raises ``ValueError`` if some belong to others."""
    found = RANGE.fullmatch(text)
    if found is None:
        raise ValueError(
            f"task_users {text!r} is no range of user numbers such as {EXAMPLE}; write FIRST-LAST"
        )
    first, last = int(found[1]), int(found[2])
    if not UID_MIN <= first <= last <= UID_MAX:
        raise ValueError(
            f"task_users {text} must go up and lie between {UID_MIN} and {UID_MAX}; give numbers"
            f" such as {EXAMPLE}"
        )
    uids = range(first, last + 1)
    for taken, holder in _taken():
        if taken.start < uids.stop and uids.start < taken.stop:
            raise ValueError(
                f"task_users {text} includes {holder} ({taken.start}); give numbers that belong to"
                f" nobody, for example {EXAMPLE}"
            )
    for file in ("uid_map", "gid_map"):
        if not _is_mapped(Path("/proc/self", file).read_text(), uids):
            raise ValueError(
                f"task_users {text} includes numbers that this container does not have"
                f" (/proc/self/{file}); give a range that it has"
            )
    return uids


def _account(name: str) -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        raise ValueError(
            f"task_user {name!r} is no user of this machine; {user_advice(name)}"
        ) from None


def user_advice(name: str) -> str:
    """What to do about a user that this machine does not have."""
    users = [user.pw_name for user in pwd.getpwall() if user.pw_uid != 0]
    return f"{meant(name, users)} `getent passwd` lists them".strip()


def _taken() -> Iterator[tuple[range, str]]:
    """Numbers that are taken: by users, groups, and the users of containers."""
    for user in pwd.getpwall():
        yield range(user.pw_uid, user.pw_uid + 1), f"user {user.pw_name}"
    for group in grp.getgrall():
        yield range(group.gr_gid, group.gr_gid + 1), f"group {group.gr_name}"
    for file in (Path("/etc/subuid"), Path("/etc/subgid")):
        for line in file.read_text().splitlines() if file.exists() else ():
            name, _, numbers = line.strip().partition(":")
            first, _, count = numbers.partition(":")
            if first.isdecimal() and count.isdecimal():
                holder = f"numbers that {file} gives to containers of {name}"
                yield range(int(first), int(first) + int(count)), holder


def _is_mapped(text: str, uids: range) -> bool:
    """Whether one line of a uid_map or gid_map has the whole range."""
    for line in text.splitlines():
        inside, _, count = (int(field) for field in line.split())
        if inside <= uids.start and uids.stop <= inside + count:
            return True
    return False
