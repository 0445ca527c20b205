"""The users of tasks: refused choices, and the numbers of owners."""

from __future__ import annotations

import json
import os
import pwd
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.launcher import task_users as subject
from services.launcher.task_users import (
    Choice,
    OneUser,
    OwnerUsers,
    TaskUser,
    task_users,
    uids_of,
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to other users")
UIDS = range(390_000, 390_004)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that root runs the process."""
    monkeypatch.setattr(subject.os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("choice", "match"),
    [
        (Choice(), "user tasks run as: set task_users .*300000-309999.*task_user.*tasks_as_root"),
        (Choice(user="nobody", as_root=True), "exclude one another"),
        (Choice(user="nobody", users="300000-300009"), "exclude one another"),
        (Choice(user="no-such-user"), "'no-such-user' is no user of this machine"),
        (Choice(user="root"), "is root; name another user, or set tasks_as_root"),
        (Choice(users="nobody"), "'nobody' is no range of user numbers such as 300000-309999"),
        (Choice(users="300009-300000"), "must go up"),
        (Choice(users="0-10"), "lie between 1000"),
        (Choice(users="300000-4294967295"), "and 4000000000"),
    ],
)
def test_an_impossible_choice_is_refused_with_the_fix(
    choice: Choice, match: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=match):
        task_users(choice, tmp_path)


@pytest.mark.usefixtures("root")
def test_a_range_with_numbers_of_other_users_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    someone = next(user for user in pwd.getpwall() if user.pw_uid > 1000)
    with pytest.raises(ValueError, match=rf"includes user {someone.pw_name} \({someone.pw_uid}\)"):
        uids_of(f"{someone.pw_uid - 5}-{someone.pw_uid + 5}")
    monkeypatch.setattr(subject, "_taken", lambda: iter([(range(500_000, 565_536), "ann's")]))
    with pytest.raises(ValueError, match="belong to nobody"):
        uids_of("565535-565540")
    assert uids_of("565536-565540") == range(565_536, 565_541)
    del tmp_path


def test_a_range_that_a_container_does_not_have_is_refused() -> None:
    assert subject._is_mapped("0 0 4294967295\n", range(300_000, 300_010))
    rootless = "0 1000 1\n1 100000 65536\n"
    assert subject._is_mapped(rootless, range(20_000, 30_000))
    assert not subject._is_mapped(rootless, range(300_000, 300_010))


def test_an_ordinary_user_needs_no_choice_and_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject.os, "geteuid", lambda: 1000)
    assert task_users(Choice(), tmp_path) is None
    # Scripts for many machines set it so.
    assert task_users(Choice(as_root=True), tmp_path) is None
    with pytest.raises(ValueError, match="only root can run tasks as other users"):
        task_users(Choice(users="300000-300009"), tmp_path)


@pytest.mark.usefixtures("root")
def test_each_choice_gives_its_users(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    one = task_users(Choice(user="nobody"), tmp_path)
    assert isinstance(one, OneUser)
    assert (one.user.uid, one.user.gid) == (nobody.pw_uid, nobody.pw_gid)
    assert one.known("ann") == one.of("ben") == one.user
    assert one.user.environment == {"HOME": nobody.pw_dir, "USER": "nobody"}
    many = task_users(Choice(users="390000-390003"), tmp_path)
    assert many is not None
    assert many.uids == UIDS
    assert task_users(Choice(as_root=True), tmp_path) is None


@needs_root
def test_an_owner_keeps_its_number_after_restarts_and_other_ranges(tmp_path: Path) -> None:
    first = OwnerUsers(tmp_path, UIDS)
    assert first.known("ann") is None
    ann, ben = first.of("ann"), first.of("ben")
    assert (ann.uid, ben.uid) == (390_000, 390_001)
    assert first.known("ann") == ann
    assert ann == TaskUser(390_000, 390_000, (), f"{tmp_path}/homes/390000", "ann")
    assert ann.environment == {"HOME": f"{tmp_path}/homes/390000", "USER": "ann"}
    home = Path(ann.home).stat()
    assert (home.st_uid, home.st_gid, stat.S_IMODE(home.st_mode)) == (390_000, 390_000, 0o700)
    assert stat.S_IMODE((tmp_path / "owners.json").stat().st_mode) == 0o600

    again = OwnerUsers(tmp_path, UIDS)
    assert [again.of(name).uid for name in ("ben", "cleo", "ann")] == [390_001, 390_002, 390_000]
    other = OwnerUsers(tmp_path, range(395_000, 395_002))
    assert [other.of(name).uid for name in ("ben", "dora")] == [390_001, 395_000]


@needs_root
def test_concurrent_launchers_give_no_number_twice(tmp_path: Path) -> None:
    uids = range(390_000, 390_040)
    owners = [f"owner-{number}" for number in range(20)]

    def assign(_: int) -> dict[str, int]:
        mine = OwnerUsers(tmp_path, uids)
        return {owner: mine.of(owner).uid for owner in owners}

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(assign, range(4))
    assert len(set(first.values())) == len(owners)
    assert all(other == first for other in others)


@needs_root
def test_no_number_is_given_when_none_is_left_or_the_file_is_damaged(tmp_path: Path) -> None:
    users = OwnerUsers(tmp_path, range(390_000, 390_001))
    users.of("ann")
    with pytest.raises(ValueError, match="all 1 numbers of --task-users 390000-390000 are taken"):
        users.of("ben")
    (tmp_path / "owners.json").write_text("{")
    with pytest.raises(ValueError, match=r"owners\.json is damaged"):
        OwnerUsers(tmp_path, UIDS).of("ann")
    for damaged in ({"ann": 390_000, "ben": 390_000}, {"ann": "390000"}, {"ann": True}, ["ann"]):
        (tmp_path / "owners.json").write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match=r"owners\.json is damaged"):
            OwnerUsers(tmp_path, UIDS).of("ann")
