from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from services.allinone.embedded.credentials import (
    NATS_ADMIN,
    POSTGRES_SUPERUSER,
    SERVICES,
    ensure_credentials,
    write_private,
)


def everything(data: Path) -> dict[str, str]:
    return {
        str(path.relative_to(data)): path.read_text() for path in data.rglob("*") if path.is_file()
    }


def test_made_once_and_never_changed(tmp_path: Path) -> None:
    first = everything(ensure_credentials(tmp_path / "sw").data)
    assert everything(ensure_credentials(tmp_path / "sw").data) == first
    # One per service and server, both administrators, the key and the admin's token: all differ.
    assert len(first) == len(set(first.values())) == 2 * len(SERVICES) + 4
    assert all(len(secret.strip()) >= 43 for secret in first.values())


def test_only_the_missing_ones_are_made(tmp_path: Path) -> None:
    credentials = ensure_credentials(tmp_path)
    kept = credentials.nats_password("quota")
    credentials.nats_password_file("submit").unlink()
    again = ensure_credentials(tmp_path, (*SERVICES, "studio"))
    assert again.nats_password("quota") == kept
    assert again.nats_password("submit")
    assert again.postgres_password("studio")


def test_files_and_folders_are_the_owners_alone(tmp_path: Path) -> None:
    data = tmp_path / "sw"
    credentials = ensure_credentials(data)
    for folder in (data, data / "secrets"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for path in everything(data):
        assert stat.S_IMODE((data / path).stat().st_mode) == 0o600
        assert path == "admin-token" or "token" not in path
    assert credentials.admin_token_file.read_text().count("\n") == 1


def test_a_file_that_was_opened_to_others_is_closed_again(tmp_path: Path) -> None:
    credentials = ensure_credentials(tmp_path)
    credentials.run_key_file.chmod(0o644)
    key = credentials.run_key_file.read_text()
    ensure_credentials(tmp_path)
    assert stat.S_IMODE(credentials.run_key_file.stat().st_mode) == 0o600
    assert credentials.run_key_file.read_text() == key


def test_a_folder_that_was_there_keeps_its_rights(tmp_path: Path) -> None:
    data = tmp_path / "sw"
    data.mkdir()
    data.chmod(0o755)
    ensure_credentials(data)
    assert stat.S_IMODE(data.stat().st_mode) == 0o755


def test_somebody_elses_secret_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_credentials(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match=r"run-key belongs to user .*--data"):
        ensure_credentials(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    write_private(path, "old")

    def fails(_: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="disk is full"):
        write_private(path, "new")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("secret", "old")]


def test_names_of_the_administrators_are_no_service() -> None:
    assert not {NATS_ADMIN, POSTGRES_SUPERUSER} & set(SERVICES)
