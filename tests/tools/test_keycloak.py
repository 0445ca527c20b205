"""What ``make test-keycloak`` says where there can be no Keycloak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.keycloak import KeycloakError, distribution


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH, and no distribution yet."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    monkeypatch.delenv("KEYCLOAK_ZIP", raising=False)
    return folder


def with_java(folder: Path, version: str = "21.0.2") -> None:
    program(folder, "java", f"echo 'openjdk version \"{version}\"' >&2")


@pytest.mark.usefixtures("programs")
def test_without_java_it_says_what_to_install() -> None:
    with pytest.raises(KeycloakError, match="install Java 17 or newer"):
        distribution()


def test_an_old_java_is_named(programs: Path) -> None:
    with_java(programs, "11.0.2")
    with pytest.raises(KeycloakError, match=r"11\.0\.2.*install Java 17"):
        distribution()


def test_without_maven_it_says_what_to_install(programs: Path) -> None:
    with_java(programs)
    with pytest.raises(KeycloakError, match=r"install it .*KEYCLOAK_ZIP"):
        distribution()


def test_what_maven_says_is_shown(programs: Path) -> None:
    with_java(programs)
    program(programs, "mvn", "echo 'no route to the repository' >&2; exit 1")
    with pytest.raises(KeycloakError, match="no route to the repository"):
        distribution()


def test_another_archive_is_refused(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_java(programs)
    archive = tmp_path / "keycloak.zip"
    monkeypatch.setenv("KEYCLOAK_ZIP", str(archive))
    with pytest.raises(KeycloakError, match="no file is"):
        distribution()
    archive.write_bytes(b"something else")
    with pytest.raises(KeycloakError, match=r"has the sha256 .* it is not Keycloak"):
        distribution()
    assert not list((tmp_path / "caches/shiftwork/keycloak").glob("*.new"))
