from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.allinone.embedded.accounts import (
    Account,
    can_enter,
    passed,
    run_once,
    service_account,
)
from services.allinone.embedded.folders import TemporaryFolder, reachable_programs, socket_fits

NOBODY = Account(65534, 65534, "nobody")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="about running as root")


def test_the_limit_of_a_sockets_path() -> None:
    assert socket_fits(Path("/") / ("a" * 92))
    assert not socket_fits(Path("/") / ("a" * 93))
    # It is counted in bytes.
    assert not socket_fits(Path("/") / ("ä" * 47))


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Short, because a socket's path is: pytest's own folders may be too deep already.
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


def test_the_temporary_folder_is_recorded_and_found_again(tmp_path: Path, temporary: Path) -> None:
    first = TemporaryFolder(tmp_path / "record", None).path()
    assert first.parent == temporary
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    assert TemporaryFolder(tmp_path / "record", None).path() == first
    first.rmdir()
    again = TemporaryFolder(tmp_path / "record", None)
    assert again.path() == first
    again.remove()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("kind", ["link", "open to others", "file"])
def test_a_recorded_folder_that_is_not_as_we_made_it_is_not_used(
    tmp_path: Path, temporary: Path, kind: str
) -> None:
    folder = TemporaryFolder(tmp_path / "record", None)
    first = folder.path()
    first.rmdir()
    if kind == "link":
        first.symlink_to(tmp_path)
    elif kind == "file":
        first.write_text("")
    else:
        first.mkdir()
        first.chmod(0o777)
    second = folder.path()
    assert second != first
    assert second.parent == temporary


@needs_root
def test_a_place_that_the_other_user_cannot_enter_is_not_taken(
    tmp_path: Path, temporary: Path
) -> None:
    temporary.chmod(0o700)
    made = TemporaryFolder(tmp_path / "record", NOBODY)
    try:
        assert not made.path().is_relative_to(temporary)
        assert can_enter(NOBODY, made.path())
        assert stat.S_IMODE(made.path().stat().st_mode) == 0o711
    finally:
        made.remove()


# Finds what it needs as the wheel's programs do: beside its package.
TOOL = """#!/bin/sh
exec cat "$(dirname "$0")/../../../wheel.libs/words"
"""


@needs_root
def test_programs_are_copied_with_their_libraries_for_a_user_without_access_to_them(
    tmp_path: Path,
) -> None:
    closed = tmp_path / "closed"
    programs = closed / "wheel" / "install"
    (programs / "bin").mkdir(parents=True)
    (programs / "include").mkdir()
    (closed / "wheel.libs").mkdir()
    (closed / "wheel.libs" / "words").write_text("version 1")
    (programs / "bin" / "tool").write_text(TOOL)
    (programs / "bin" / "tool").chmod(0o700)
    closed.chmod(0o700)
    temporary = TemporaryFolder(tmp_path / "record", NOBODY)
    # Root itself needs no copy.
    assert reachable_programs(programs, None, temporary, probe="bin/tool") == programs
    assert not (tmp_path / "record").exists()
    try:
        copy = reachable_programs(programs, NOBODY, temporary, probe="bin/tool")
        assert copy.is_relative_to(temporary.path())
        run_once([copy / "bin" / "tool"], NOBODY)
        assert not (copy / "include").exists()
        # A partial copy, as a kill may leave it, is copied again.
        (copy.parents[1] / "wheel.libs" / "words").unlink()
        assert reachable_programs(programs, NOBODY, temporary, probe="bin/tool") == copy
        run_once([copy / "bin" / "tool"], NOBODY)
        with pytest.raises(LookupError, match="nothing"):
            reachable_programs(programs, NOBODY, temporary, probe="bin/nothing")
        (programs / "bin" / "tool").write_text("#!/bin/sh\nexit 1\n")
        (copy / "bin" / "tool").unlink()
        with pytest.raises(PermissionError, match="nobody can run"):
            reachable_programs(programs, NOBODY, temporary, probe="bin/tool")
    finally:
        temporary.remove()


@needs_root
def test_a_passed_folder_needs_no_walking_to(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    inside = closed / "inside"
    inside.mkdir(parents=True)
    closed.chmod(0o700)
    os.chown(inside, NOBODY.uid, NOBODY.gid)
    assert not can_enter(NOBODY, inside)
    with passed([inside], NOBODY) as folders:
        run_once(["/bin/sh", "-c", f"echo hi > {folders.paths[0]}/f"], NOBODY, folders.descriptors)
    assert (inside / "f").read_text() == "hi\n"
    assert (inside / "f").stat().st_uid == NOBODY.uid


def test_a_program_that_fails_is_quoted() -> None:
    with pytest.raises(OSError, match=r"status 3: it broke"):
        run_once(["/bin/sh", "-c", "echo it broke >&2; exit 3"], None)


@needs_root
def test_existing_data_stays_with_its_owner(tmp_path: Path) -> None:
    os.chown(tmp_path, NOBODY.uid, NOBODY.gid)
    account = service_account(tmp_path, "daemon")
    assert account is not None
    assert account.uid == NOBODY.uid
    fresh = service_account(tmp_path / "new", "daemon")
    assert fresh is not None
    assert fresh.name == "daemon"
