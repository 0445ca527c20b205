"""Where programs come from: the assets that are given, the cache, a build; and clear words."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from tools.cluster import programs, toolchain
from tools.cluster.programs import BuildError


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of one small program without requirements, and an empty cache."""
    folder = tmp_path / "modules" / "small"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module example.com/small\n\ngo 1.21\n")
    (folder / "go.sum").write_text("")
    (folder / "main.go").write_text("package main\n\nfunc main() {}\n")
    monkeypatch.setattr(programs, "MODULES", tmp_path / "modules")
    monkeypatch.setattr(programs, "PROGRAMS", {"small": programs.Program("small", ".")})
    monkeypatch.setenv(programs.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(programs.ASSETS_VARIABLE, raising=False)
    return folder


def test_every_program_has_a_module_with_sums() -> None:
    for known in programs.PROGRAMS.values():
        folder = programs.MODULES / known.module
        assert (folder / "go.mod").exists()
        assert (folder / "go.sum").stat().st_size > 0
        if not known.package.startswith("."):
            assert known.package in (folder / "go.mod").read_text("utf-8")


def test_the_version_of_kubernetes_is_the_modules() -> None:
    assert programs.kubernetes_version().startswith("v1.")
    assert programs.kubernetes_version() in programs._linker_flags("kubernetes")


def test_another_source_is_another_place(module: Path) -> None:
    before = programs.module_folder("small")
    assert programs.module_folder("small") == before
    (module / "main.go").write_text("package main\n\nfunc main() { println() }\n")
    assert programs.module_folder("small") != before


def test_given_assets_come_first(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").touch()
    monkeypatch.setenv(programs.ASSETS_VARIABLE, str(tmp_path))
    assert programs.program("small") == tmp_path / "small"


def test_what_is_built_is_not_built_again(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = programs.module_folder("small") / "bin" / "small"
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setenv("PATH", "/nowhere")
    assert programs.program("small") == path


def test_without_go_the_ways_out_are_named(
    module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = tmp_path / "go.txt"
    nothing.write_text("")
    monkeypatch.setattr(toolchain, "REQUIREMENTS", nothing)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(BuildError, match="KUBECONFIG"):
        programs.program("small")
    assert not list((tmp_path / "cache").glob("go-*"))


@pytest.mark.parametrize(
    ("release", "version"), [("go1.26.8", (1, 26)), ("go1.19.8", (1, 19)), ("devel", None)]
)
def test_the_version_of_a_go_is_read(
    tmp_path: Path, release: str, version: tuple[int, int] | None
) -> None:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho go version {release} linux/amd64\n")
    go.chmod(0o755)
    assert toolchain.version(str(go)) == version


def test_a_go_of_the_wheel_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old Go on PATH is passed over; what was installed once is not installed again."""
    old = tmp_path / "go"
    old.write_text("#!/bin/sh\necho go version go1.19.8 linux/amd64\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    digest = hashlib.sha256(toolchain.REQUIREMENTS.read_bytes()).hexdigest()[:12]
    kept = tmp_path / f"go-{digest}" / "go" / "bin" / "go"
    kept.parent.mkdir(parents=True)
    kept.touch()
    assert toolchain.find_go(tmp_path) == str(kept)


def test_an_unknown_program_is_named_with_the_known(module: Path) -> None:
    with pytest.raises(BuildError, match="unknown program 'large'; known are small"):
        programs.program("large")


@pytest.mark.skipif(shutil.which("go") is None, reason="Go is not installed")
def test_a_build_is_whole_or_not_at_all(module: Path) -> None:
    (module / "main.go").write_text("package main\n\nfunc main() { nonsense }\n")
    with pytest.raises(BuildError, match="undefined: nonsense"):
        programs.program("small")
    assert list((programs.module_folder("small") / "bin").iterdir()) == []
    (module / "main.go").write_text("package main\n\nfunc main() {}\n")
    built = programs.program("small")
    assert built.stat().st_mode & 0o111
    assert [one.name for one in built.parent.iterdir()] == ["small"]
