"""Keycloak's distribution for ``make test-keycloak``: fetched once by Maven, checked, built.

Maven's own settings name where it fetches from; this file pins what it fetches. ``KEYCLOAK_ZIP``
names the archive on a machine without Maven. Everything lies in the folder of caches.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

VERSION = "26.7.3"
SHA256 = "27a6535553c3cdcd083872ba40629efafb3475e3b758e0c6f691395561dd0f1f"
ARTIFACT = f"org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
JAVA_MIN = 17
ZIP_VARIABLE = "KEYCLOAK_ZIP"
# Build options are compiled in: a start with the same ones takes half the time.
BUILD_OPTIONS = ("--db=dev-mem", "--health-enabled=false")
# Little memory, and a compiler for programs that live for a minute.
JAVA_OPTS = "-Xms64m -Xmx400m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
FETCH_SECONDS_MAX, BUILD_SECONDS_MAX = 900, 300


class KeycloakError(RuntimeError):
    """There can be no Keycloak here; the message has the remedy."""


def distribution() -> Path:
    """The folder of a Keycloak that is ready for ``start --optimized``; made if it is not there.

    Raises KeycloakError without Java or Maven, and for an archive that is not the pinned one.
    """
    require_java()
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "shiftwork" / "keycloak" / f"{VERSION}-{SHA256[:12]}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _make(folder)
    return folder


def require_java() -> None:
    """KeycloakError unless there is a Java that is new enough."""
    java = shutil.which("java")
    fix = f"install Java {JAVA_MIN} or newer; on Debian and Ubuntu: apt-get install default-jre"
    if java is None:
        raise KeycloakError(f"Keycloak needs Java, and there is no java on PATH; {fix}")
    done = subprocess.run(  # noqa: S603 - found on PATH
        [java, "-version"], capture_output=True, text=True, check=False
    )
    found = re.search(r'version "(\d+)', done.stderr)
    if found is None or int(found[1]) < JAVA_MIN:
        shown = (done.stderr.splitlines() or ["nothing"])[0]
        raise KeycloakError(f"Keycloak needs Java {JAVA_MIN}, {java} is {shown}; {fix}")


def environment(**more: str) -> dict[str, str]:
    """What Keycloak's own script reads."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    return {**kept, "JAVA_OPTS": JAVA_OPTS, **more}


def _make(folder: Path) -> None:
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}.new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        archive = _archive(unfinished)
        with zipfile.ZipFile(archive) as files:
            files.extractall(unfinished)
        (found,) = unfinished.glob("keycloak-*/")
        script = found / "bin" / "kc.sh"
        script.chmod(0o755)
        _run([str(script), "build", *BUILD_OPTIONS], BUILD_SECONDS_MAX, environment())
        found.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _archive(folder: Path) -> Path:
    """The archive, checked."""
    given = os.environ.get(ZIP_VARIABLE)
    if given:
        archive = Path(given)
        if not archive.is_file():
            raise KeycloakError(f"{ZIP_VARIABLE} is {given!r}, where no file is")
    else:
        mvn = shutil.which("mvn")
        if mvn is None:
            raise KeycloakError(
                "Keycloak's distribution comes by Maven, and there is no mvn on PATH; install it"
                " (on Debian and Ubuntu: apt-get install maven), or name the file of"
                f" {ARTIFACT} in {ZIP_VARIABLE}"
            )
        print(f"fetching Keycloak {VERSION} by Maven (once, 170 MB)", file=sys.stderr, flush=True)
        options = ("-B", "-q", "-ntp", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={folder}")
        _run([mvn, COPY, *options], FETCH_SECONDS_MAX, dict(os.environ))
        archive = folder / f"keycloak-quarkus-dist-{VERSION}.zip"
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise KeycloakError(
            f"{archive} has the sha256 {digest}, not {SHA256}: it is not Keycloak {VERSION}; remove"
            " it, also from Maven's local repository, and check where Maven's settings fetch from"
        )
    return archive


def _run(command: list[str], seconds_max: float, environ: dict[str, str]) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - our own arguments
            command,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise KeycloakError(f"{command[0]} took longer than {seconds_max:g} s") from late
    if done.returncode != 0:
        output = done.stderr.strip() or done.stdout.strip()
        raise KeycloakError(f"{' '.join(command[:2])} failed:\n{output[-4_000:]}")


if __name__ == "__main__":
    try:
        print(distribution())
    except KeycloakError as problem:
        sys.exit(str(problem))
