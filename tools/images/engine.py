"""One interface to `build`, `size` and `save` of podman, buildah and docker."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

PROGRAMS = ("podman", "buildah", "docker")
# Every file gets the time that is given (podman has an option for it). Straight into the daemon's
# images it cannot, so by way of an archive.
DOCKER = ("buildx", "build", "--output=type=docker,rewrite-timestamp=true,dest={archive}")
# Open files, and processes, of a step of a build.
LIMIT = 1024


class EngineError(Exception):
    """No engine, or it failed; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Build:
    """One build, in words that every engine knows."""

    dockerfile: Path
    context: Path
    reference: str
    epoch: int
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    secrets: Mapping[str, Path] = field(default_factory=dict[str, Path])
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Engine:
    """A program that builds images."""

    program: str

    def command(self, build: Build, archive: Path) -> list[str]:
        """The command line of a build; docker's result goes into ``archive``."""
        verb = DOCKER if self.program == "docker" else ("build",)
        arguments = {"SOURCE_DATE_EPOCH": str(build.epoch), **build.arguments}
        return [
            self.program,
            *(part.format(archive=archive) for part in verb),
            f"--file={build.dockerfile}",
            f"--tag={build.reference}",
            # The network of the machine: a proxy on its loopback is reached, too.
            "--network=host",
            *([] if self.program == "docker" else _of_podman(build)),
            *(["--no-cache"] if build.fresh else []),
            *(f"--build-arg={name}={value}" for name, value in arguments.items()),
            *(f"--secret=id={name},src={path}" for name, path in build.secrets.items()),
            str(build.context),
        ]

    def build(self, build: Build, log: Path) -> float:
        """Build, its words into ``log``; seconds taken. EngineError with the last of them."""
        begun = time.monotonic()
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(build.epoch)}
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as words, tempfile.TemporaryDirectory(prefix="shiftwork-") as folder:
            archive = Path(folder) / "image.tar"
            done = subprocess.run(  # noqa: S603 - our own words
                self.command(build, archive),
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                env=environment,
                check=False,
            )
            if done.returncode != 0:
                last = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
                raise EngineError(f"{build.reference} was not built; the end of {log}:\n{last}")
            if archive.exists():
                self._run("load", "--quiet", f"--input={archive}")
        return time.monotonic() - begun

    def exists(self, reference: str) -> bool:
        """True if the image is here."""
        return bool(self._inspected(reference))

    def size(self, reference: str) -> int:
        """Bytes of an image's file systems, unpacked, the base's included."""
        if self.program == "buildah":
            listed = self._run("images", "--json", "--filter", f"reference={reference}")
            sizes = {name: each["size"] for each in json.loads(listed) for name in each["names"]}
            return _bytes_of(str(sizes[reference]))
        return int(self._inspected(reference)[0]["Size"])

    def layers(self, reference: str) -> list[str]:
        """Digests of an image's layers, unpacked."""
        found = self._inspected(reference)[0]
        if self.program == "buildah":
            return list(found["OCIv1"]["rootfs"]["diff_ids"])
        return list(found["RootFS"]["Layers"])

    def save(self, reference: str, archive: Path) -> None:
        """Write an image as an OCI archive, which ``ctr images import`` takes."""
        archive.unlink(missing_ok=True)
        if self.program == "podman":
            self._run("save", "--quiet", "--format=oci-archive", f"--output={archive}", reference)
        elif self.program == "buildah":
            self._run("push", "--quiet", reference, f"oci-archive:{archive}:{reference}")
        else:
            self._run("save", f"--output={archive}", reference)

    def _inspected(self, reference: str) -> list[dict[str, Any]]:
        kind = ["--type=image"] if self.program == "buildah" else []
        verb = ["inspect"] if self.program == "buildah" else ["image", "inspect"]
        done = _said([self.program, *verb, *kind, reference])
        if done.returncode != 0:
            return []
        found: Any = json.loads(done.stdout)
        return cast("list[dict[str, Any]]", found if isinstance(found, list) else [found])

    def _run(self, *arguments: str) -> str:
        done = _said([self.program, *arguments])
        if done.returncode != 0:
            raise EngineError(f"{self.program} {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


def _said(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own words


def _of_podman(build: Build) -> list[str]:
    # By default podman sets higher limits than a root without CAP_SYS_RESOURCE may have.
    limits = [f"--ulimit={name}={LIMIT}:{LIMIT}" for name in ("nofile", "nproc")]
    return [f"--timestamp={build.epoch}", "--layers", *limits]


def _bytes_of(text: str) -> int:
    """``123 MB`` as bytes."""
    number, _, unit = text.partition(" ")
    return int(float(number) * {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}[unit.upper()])


def find(wanted: str | None) -> Engine:
    """The engine that is asked for, or the first that is here."""
    for program in (wanted,) if wanted else PROGRAMS:
        if program in PROGRAMS and shutil.which(program):
            return Engine(program)
    raise EngineError(
        f"{wanted} is not here, or is none of {', '.join(PROGRAMS)}"
        if wanted
        else "building images needs podman, buildah or docker. On Debian and Ubuntu: "
        "apt-get install podman"
    )
