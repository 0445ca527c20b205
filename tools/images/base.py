"""The base image of a machine without a registry of images: Debian with Python, by debootstrap.

Made once and kept as an archive below the user's cache folder; ``docker/base.Dockerfile`` turns it
into an image. Like the public slim images it has no documentation and no compiled left-overs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tools.images.engine import EngineError
from tools.images.machine import SUITE, mirrors

PACKAGES = ("python3", "python3-venv", "ca-certificates")
# What the image is called; the archive carries the same version of its contents.
NAME, VERSION = "base", 1
# Left out now and by every later apt-get: what nobody reads in a container.
UNREAD = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/lintian",
)
DPKG_RULES = "".join(f"path-exclude /{folder}/*\n" for folder in UNREAD) + (
    "path-include /usr/share/doc/*/copyright\n"
)
APT_RULES = """APT::Install-Recommends "false";
Acquire::Languages "none";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""
# This machine's own files, and files that a build or a start writes again.
EMPTIED = ("var/cache/apt", "var/lib/apt/lists", "var/log", "var/cache/debconf", "tmp", "run")
REMOVED = (
    "etc/apt/sources.list",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/machine-id",
    "etc/passwd-",
    "etc/group-",
    "etc/shadow-",
    "etc/gshadow-",
    "var/cache/ldconfig/aux-cache",
    "var/lib/dbus/machine-id",
)
COMPILE = (
    'python3 -c \'import compileall, py_compile; compileall.compile_dir("/usr/lib/python3.11", '
    "quiet=1, force=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)'"
)


def archive() -> Path:
    """Where the base's file system is kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "shiftwork" / "images" / f"{NAME}-{SUITE}-{VERSION}.tar"


def make(epoch: int) -> Path:
    """The archive, made now if it is not here (about a minute). Needs root and debootstrap."""
    kept = archive()
    if kept.is_file():
        return kept
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        raise EngineError(
            "making a base needs root and debootstrap (on Debian and Ubuntu: apt-get install "
            "debootstrap). Where images can be pulled, name one: BASE=python:3.11-slim-bookworm"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix="base-") as name:
        root, half = Path(name) / "root", Path(name) / "base.tar"
        _run(
            "debootstrap",
            "--variant=minbase",
            f"--include={','.join(PACKAGES)}",
            SUITE,
            str(root),
            *_mirror(),
        )
        _tidy(root)
        _run(
            "tar",
            "--create",
            "--sort=name",
            f"--mtime=@{epoch}",
            "--numeric-owner",
            "--pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime",
            f"--directory={root}",
            f"--file={half}",
            ".",
        )
        half.replace(kept)
    return kept


def _mirror() -> list[str]:
    """The machine's own mirror of the release; none: debootstrap's."""
    return [address for address, suite in mirrors() if suite == SUITE][:1]


def _tidy(root: Path) -> None:
    (root / "etc/dpkg/dpkg.cfg.d/unread").write_text(DPKG_RULES)
    (root / "etc/apt/apt.conf.d/small").write_text(APT_RULES)
    for folder in UNREAD:
        for path in list((root / folder).rglob("*")):
            if path.name != "copyright" and (path.is_symlink() or path.is_file()):
                path.unlink()
    for folder in EMPTIED:
        for path in list((root / folder).iterdir()):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    for name in REMOVED:
        (root / name).unlink(missing_ok=True)
    _run("find", str(root / "usr/share"), "-depth", "-type", "d", "-empty", "-delete")
    # Compiled so that neither a time nor a read-only file system makes them stale.
    _run("find", str(root / "usr"), "-name", "*.pyc", "-delete")
    _run("chroot", str(root), "sh", "-c", f"PYTHONHASHSEED=0 {COMPILE}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    if done.returncode != 0:
        output = (done.stderr or done.stdout).strip()[-2000:]
        raise EngineError(f"{' '.join(command)} ended with status {done.returncode}: {output}")
