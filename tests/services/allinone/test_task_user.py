"""The user that tasks run as when root starts the platform: what ``up`` refuses in advance."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from shiftwork.cli.failures import Failure

from services.allinone import doctor, platform_process
from services.allinone.checks import check_start
from services.allinone.data_folder import DataFolder, Options, with_task_user
from services.allinone.embedded.accounts import service_account
from services.allinone.task_user import check_service_user, check_task_user

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root chooses the user of tasks")


@needs_root
def test_root_must_choose_before_anything_is_written(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path / "data")
    with pytest.raises(Failure) as refused:
        platform_process.keep_here(data_folder, Options())
    assert refused.value.what == "run by root, `up` needs to know which user tasks run as"
    for option in ("--task-users 300000-309999", "--task-user NAME", "--tasks-as-root"):
        assert option in refused.value.fix
    assert not data_folder.data.exists()


@needs_root
@pytest.mark.parametrize("folder", ["postgres/data", "nats"])
def test_the_user_of_a_server_is_refused(tmp_path: Path, folder: str) -> None:
    data_folder = DataFolder(tmp_path / "data")
    # On a new folder: the one that the servers will get.
    account = service_account(data_folder.data / "postgres" / "data", None)
    assert account is not None
    with pytest.raises(Failure, match=f"runs as {account.name}, so tasks of that user could reach"):
        check_task_user(data_folder, Options(task_user=account.name))
    with pytest.raises(Failure, match="PostgreSQL runs as nobody"):
        check_task_user(data_folder, Options(task_user="nobody", service_user="nobody"))
    # Data that exists stays with its owner, whatever its name.
    games = pwd.getpwnam("games")
    check_task_user(data_folder, Options(task_user="games"))
    (data_folder.data / folder).mkdir(parents=True)
    os.chown(data_folder.data / folder, games.pw_uid, games.pw_gid)
    with pytest.raises(Failure, match="runs as games"):
        check_task_user(data_folder, Options(task_user="games"))
    os.chown(data_folder.data / folder, 390_005, 390_005)
    with pytest.raises(Failure, match="runs as 390005"):
        check_task_user(data_folder, Options(task_users="390000-390009"))


@needs_root
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("name", ["postgers", "root"])
def test_a_service_user_that_is_none_is_refused_also_on_an_old_folder(
    tmp_path: Path, name: str, exists: bool
) -> None:
    data_folder = DataFolder(tmp_path / "data")
    if exists:
        (data_folder.data / "postgres" / "data").mkdir(parents=True)
        os.chown(data_folder.data / "postgres" / "data", 1, 1)
        data_folder.keep_options(Options(port=0))
    problem = "is root, and PostgreSQL does not run as root" if name == "root" else "does not exist"
    with pytest.raises(Failure, match=f"{name} {problem}") as refused:
        check_start(
            data_folder, Options(port=0, tasks_as_root=True, service_user=name), lambda _: None
        )
    assert (refused.value.where, refused.value.code) == ("--service-user", 2)
    assert "name a user of this machine" in refused.value.fix


@needs_root
@pytest.mark.parametrize(("folder", "server"), [("postgres/data", "PostgreSQL"), ("nats", "NATS")])
def test_a_service_user_that_would_have_no_effect_is_refused(
    tmp_path: Path, folder: str, server: str
) -> None:
    data_folder = DataFolder(tmp_path / "data")
    games = pwd.getpwnam("games")
    (data_folder.data / folder).mkdir(parents=True)
    os.chown(data_folder.data / folder, games.pw_uid, games.pw_gid)
    check_service_user(data_folder, Options(service_user="games"))
    with pytest.raises(Failure, match=f"{server} runs as games, who owns its data") as refused:
        check_service_user(data_folder, Options(service_user="nobody"))
    assert "--service-user games" in refused.value.fix
    assert f"chown -R nobody: {data_folder.data / folder}" in refused.value.fix


def test_an_ordinary_user_can_choose_no_service_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    with pytest.raises(Failure, match="only root can run PostgreSQL") as refused:
        check_service_user(DataFolder(tmp_path), Options(service_user="nobody"))
    assert refused.value.fix == "leave --service-user out"


@needs_root
def test_what_is_safe_or_explicit_is_accepted(tmp_path: Path) -> None:
    data_folder = DataFolder(tmp_path / "data")
    for options in (
        Options(task_users="390000-390009"),
        Options(task_user="games"),
        Options(tasks_as_root=True),
    ):
        check_task_user(data_folder, options)


def test_an_ordinary_user_chooses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    data_folder = DataFolder(tmp_path / "data")
    check_task_user(data_folder, Options())
    check_task_user(data_folder, Options(tasks_as_root=True))
    with pytest.raises(Failure, match="only root can run tasks as other users"):
        check_task_user(data_folder, Options(task_user="nobody"))


def test_a_new_choice_replaces_the_former_one() -> None:
    kept = Options(port=7, task_user="nobody")
    assert with_task_user(kept, None, None, False) == kept
    assert with_task_user(kept, None, "300000-300009", False) == Options(
        port=7, task_users="300000-300009"
    )
    assert with_task_user(kept, None, None, True) == Options(port=7, tasks_as_root=True)


@needs_root
def test_doctor_reports_the_user_that_tasks_run_as(tmp_path: Path) -> None:
    def found(options: Options) -> list[tuple[str, str]]:
        data_folder.keep_options(options)
        return [(finding.level, finding.what) for finding in users()][1:2]

    def users() -> list[doctor.Finding]:
        """What ``doctor`` lists of the shared check."""
        return [each for each in doctor.before_start(data_folder) if " run" in each.what]

    data_folder = DataFolder(tmp_path / "data")
    assert [each.level for each in users()] == ["ok", "warn"]
    data_folder.data.mkdir()
    assert found(Options()) == [("bad", "run by root, `up` needs to know which user tasks run as")]
    assert found(Options(tasks_as_root=True))[0][0] == "warn"
    assert found(Options(task_user="games")) == [("ok", "tasks run as games")]
    many = found(Options(task_users="390000-390009"))
    assert many == [("ok", "tasks run each owner's as a user of their own")]


def test_doctor_prints_the_fix_on_a_line_of_its_own() -> None:
    assert doctor.Finding("bad", "it is", "mend it").lines() == [
        "bad   it is",
        "      fix: mend it",
    ]
    assert doctor.Finding("ok", "it is").lines() == ["ok    it is"]
