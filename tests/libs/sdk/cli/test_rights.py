"""A path that the user of tasks cannot read is refused at the submission, not by code 126."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from shiftwork.cli import rights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.libs.sdk.cli.conftest import Shiftwork
    from tests.libs.sdk.cli.server import CliServer

RANGE = "300000-309999"
OWN = pwd.getpwuid(os.geteuid()).pw_name


def a_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def opened() -> Iterator[Path]:
    """A folder that everybody can enter; pytest's own are closed."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    with tempfile.TemporaryDirectory(prefix="sw-rights-") as folder:
        Path(folder).chmod(0o755)
        if rights.closed_part(Path(folder), rights.ANYBODY):
            pytest.skip(f"{folder} lies in a closed folder")
        yield Path(folder)


def test_the_way_to_a_file_is_walked_through_every_link(opened: Path) -> None:
    python = a_program(opened / "root/pyenv/bin/python3.11")
    venv = opened / "venv/bin"
    venv.mkdir(parents=True)
    (venv / "python3").symlink_to(python)
    (venv / "python").symlink_to("python3")
    assert rights.closed_part(venv / "python", rights.ANYBODY) == ""
    (opened / "root").chmod(0o700)
    assert rights.closed_part(venv / "python", rights.ANYBODY) == str(opened / "root")
    (opened / "root").chmod(0o711)
    python.chmod(0o750)
    assert rights.closed_part(venv / "python", rights.ANYBODY) == str(python)
    assert rights.closed_part(venv / "python", rights.user_of("root")) == ""
    os.chown(python, 0, 390_000)
    member = rights.User(1234, frozenset((390_000,)), "ann")
    assert rights.closed_part(venv / "python", member) == ""
    os.chown(python, 1234, 0)
    assert rights.closed_part(venv / "python", rights.user_of("1234")) == ""


def test_a_path_with_unknown_rights_counts_as_open(
    opened: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rights.closed_part(opened / "nothing", rights.ANYBODY) == ""
    loop = opened / "loop"
    loop.symlink_to(loop)
    assert rights.closed_part(loop, rights.ANYBODY) == ""
    program = a_program(opened / "listed" / "python")
    (opened / "listed").chmod(0o700)
    monkeypatch.setattr(os, "getxattr", lambda *_: b"a list")
    assert rights.closed_part(program, rights.ANYBODY) == ""


@pytest.fixture
def venv(opened: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An activated environment whose Python lies in a closed home."""
    a_program(opened / "root/pyenv/bin/python3.11")
    (opened / "root").chmod(0o700)
    folder = opened / "venv"
    a_program(folder / "bin/torchrun")
    (folder / "pyvenv.cfg").touch()
    (folder / "bin/python").symlink_to(opened / "root/pyenv/bin/python3.11")
    monkeypatch.setenv("VIRTUAL_ENV", str(folder))
    monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
    work = opened / "work"
    work.mkdir(mode=0o755)
    monkeypatch.chdir(work)
    return folder


@pytest.mark.parametrize("command", ["python", "torchrun", "{venv}/bin/torchrun"])
def test_an_environment_that_is_closed_to_the_tasks_user_is_refused(
    shiftwork: Shiftwork, server: CliServer, venv: Path, command: str
) -> None:
    server.tasks_run_as = RANGE
    line = ("--", command.format(venv=venv), "train.py")
    done = shiftwork("submit", *line)
    home = venv.parent / "root"
    assert done.code == 1
    assert f"tasks run as users of their own ({RANGE}) here, without access to {home}" in done.err
    assert f"chmod o+x {home}" in done.err
    assert "where: CMD" in done.err
    assert not [one for one in server.seen if one.method == "POST"]
    assert shiftwork("submit", "--dry-run", *line).code == 1
    assert shiftwork("submit", "--force", *line).code == 0


@pytest.mark.parametrize("runs_as", [None, OWN, "root"])
@pytest.mark.usefixtures("venv")
def test_nothing_is_refused_if_the_tasks_user_has_the_rights(
    shiftwork: Shiftwork, server: CliServer, runs_as: str | None
) -> None:
    server.tasks_run_as = runs_as
    assert shiftwork("submit", "--", "python", "train.py").code == 0


def test_a_program_that_needs_no_environment_is_taken_from_the_next_folder(
    shiftwork: Shiftwork, server: CliServer, opened: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tasks_run_as = RANGE
    a_program(opened / "mine/sh")
    (opened / "mine").chmod(0o700)
    (opened / "work").mkdir(mode=0o755)
    monkeypatch.chdir(opened / "work")
    monkeypatch.setenv("PATH", f"{opened}/mine:/usr/bin:/bin")
    assert shiftwork("submit", "--", "sh", "-c", "true").code == 0
    a_program(opened / "mine/only-here")
    done = shiftwork("submit", "--", "only-here")
    assert (done.code, f"without access to {opened}/mine" in done.err) == (1, True)


def test_a_working_directory_that_is_closed_to_the_tasks_user_is_refused(
    shiftwork: Shiftwork, server: CliServer, opened: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tasks_run_as = "nobody"
    (opened / "work").mkdir(mode=0o700)
    monkeypatch.chdir(opened / "work")
    done = shiftwork("submit", "--", "/bin/true")
    assert done.code == 1
    assert f"tasks run as nobody here, without access to {opened}/work" in done.err
    monkeypatch.chdir("/")
    assert shiftwork("submit", "--", "/bin/true").code == 0
    done = shiftwork("submit", "--workdir", str(opened / "work"), "--", "/bin/true")
    assert (done.code, "where: --workdir" in done.err) == (1, True)


def test_the_server_is_not_asked_for_the_user_if_everything_is_open(
    shiftwork: Shiftwork, server: CliServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.tasks_run_as = RANGE
    monkeypatch.chdir("/")
    assert shiftwork("submit", "--", "/bin/true").code == 0
    assert not [one for one in server.seen if one.path.startswith("/v1/whoami")]
