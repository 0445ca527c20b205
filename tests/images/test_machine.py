"""What builds get from the machine they run on, and how engines are called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.images import __main__ as program
from tools.images import machine
from tools.images.catalog import EPOCH
from tools.images.engine import Build, Engine, EngineError, find

DEB822 = """\
# a comment
Types: deb
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main contrib

Types: deb
URIs: http://other.example/node
Suites: nodistro
Components: main

Types: deb
Enabled: no
URIs: http://off.example/debian
Suites: bookworm
Components: main
"""
ONE_LINE = """\
deb [arch=amd64 signed-by=/usr/share/key.gpg] https://mirror.example/security bookworm-security main
deb-src http://mirror.example/debian bookworm main
# deb http://commented.example/debian bookworm main
deb http://cloud.example/apt cloud-sdk main
"""


def test_only_the_bases_own_release_is_handed_on(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(ONE_LINE)
    (tmp_path / "sources.list.d" / "debian.sources").write_text(DEB822)
    (tmp_path / "sources.list.d" / "old.list.disabled").write_text(
        "deb http://disabled.example/debian bookworm main\n"
    )
    assert machine.mirrors(tmp_path) == [
        ("https://mirror.example/security", "bookworm-security"),
        ("http://mirror.example/debian", "bookworm"),
        ("http://mirror.example/debian", "bookworm-updates"),
    ]


def test_a_machine_without_debian_names_no_mirror(tmp_path: Path) -> None:
    assert machine.mirrors(tmp_path) == []


def test_pip_gets_the_network_settings_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "PIP_FIND_LINKS",
        "PIP_INDEX_URL",
        "PIP_DEFAULT_TIMEOUT",
        *machine.CERTIFICATE_VARIABLES,
    ):
        monkeypatch.delenv(name, raising=False)
    given = tmp_path / "pip.conf"
    given.write_text(
        "[global]\nindex-url = https://user:word@index.example/simple\nfind-links = /private\n"
        "timeout = 7\nuser = true\n"
    )
    monkeypatch.setenv("PIP_RETRIES", "9")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(given))
    bundle = tmp_path / "ca.pem"
    bundle.write_text("certificates")
    monkeypatch.setenv("PIP_CERT", str(bundle))
    lines = machine.pip_settings().splitlines()
    assert lines[0] == "[global]"
    assert "index-url = https://user:word@index.example/simple" in lines
    assert "timeout = 7" in lines
    assert "retries = 9" in lines
    assert f"cert = {machine.CERTIFICATES_INSIDE}" in lines
    assert not [line for line in lines if "private" in line or line.startswith("user")]


def test_secrets_are_this_users_alone_and_gone_afterwards() -> None:
    with machine.secrets() as files:
        assert {"pip", "apt", "apt-sources"} <= set(files)
        for path in files.values():
            assert path.parent.stat().st_mode & 0o077 == 0
        kept = list(files.values())
    assert not [path for path in kept if path.exists()]


def test_a_build_has_the_same_arguments_for_every_engine(tmp_path: Path) -> None:
    build = Build(
        dockerfile=tmp_path / "x.Dockerfile",
        context=tmp_path,
        reference="localhost/shiftwork/x:dev",
        epoch=EPOCH,
        arguments={"BASE": "a-base"},
        secrets={"pip": tmp_path / "pip"},
    )
    for name in ("podman", "buildah", "docker"):
        command = Engine(name).command(build, tmp_path / "image.tar")
        assert command[0] == name
        assert command[-1] == str(tmp_path)
        assert f"--file={tmp_path}/x.Dockerfile" in command
        assert "--tag=localhost/shiftwork/x:dev" in command
        assert "--build-arg=BASE=a-base" in command
        assert f"--build-arg=SOURCE_DATE_EPOCH={EPOCH}" in command
        assert f"--secret=id=pip,src={tmp_path}/pip" in command
        # What only podman and buildah understand.
        assert (f"--timestamp={EPOCH}" in command) == (name != "docker")
        # Docker's way to give every file the time of the build.
        output = f"--output=type=docker,rewrite-timestamp=true,dest={tmp_path}/image.tar"
        assert (output in command) == (name == "docker")


def test_what_docker_puts_into_an_archive_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With a stand-in for docker: the real one is nowhere that tests run."""
    program = tmp_path / "docker"
    program.write_text(
        "#!/bin/sh\nfor word; do case $word in --output=*dest=*) echo image >${word##*dest=};; "
        f"--input=*) cp ${{word#--input=}} {tmp_path}/loaded;; esac; done\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    build = Build(tmp_path / "x", tmp_path, "localhost/x:dev", EPOCH)
    Engine("docker").build(build, tmp_path / "log")
    assert (tmp_path / "loaded").read_text() == "image\n"


def test_what_is_not_possible_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(EngineError, match="nerdctl is not here, or is none of"):
        find("nerdctl")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineError, match="apt-get install podman"):
        find(None)
    assert program.main(["sizes"]) == 1
    assert "needs podman, buildah or docker" in capsys.readouterr().err


def test_a_failed_build_shows_its_last_words(tmp_path: Path) -> None:
    shell = tmp_path / "podman"
    shell.write_text("#!/bin/sh\necho 'STEP 1: no such base'\nexit 125\n")
    shell.chmod(0o755)
    build = Build(tmp_path / "x", tmp_path, "localhost/x:dev", EPOCH)
    with pytest.raises(EngineError, match="STEP 1: no such base"):
        Engine(str(shell)).build(build, tmp_path / "log")


def test_an_unknown_image_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.images", "build", "nothing"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'nothing'" in done.stderr
