"""A node's log folder, written to as the kubelet and containerd do it."""

from __future__ import annotations

import gzip
import itertools
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

NAMESPACE = "shiftwork-tasks"
LINE_BYTES_MAX = 16_384


def stamps() -> itertools.count[int]:
    return itertools.count(1)


@dataclass
class Container:
    """One container's log: what containerd writes, and what the kubelet does with the files."""

    folder: Path
    clock: itertools.count[int]
    line_bytes_max: int = LINE_BYTES_MAX
    files_max: int = 5
    restart: int = 0
    # Everything that is in the entries, in their order: what any reader should get.
    output: bytearray = field(default_factory=bytearray)
    ended: bool = False
    pending: dict[str, bytes] = field(default_factory=dict[str, bytes])
    rotations: itertools.count[int] = field(default_factory=stamps)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = self._open()

    @property
    def path(self) -> Path:
        return self.folder / f"{self.restart}.log"

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)

    def _time(self) -> str:
        number = next(self.clock)
        # Go writes it so: without trailing zeros.
        fraction = f"{number % 10**9:09}".rstrip("0")
        minutes, seconds = divmod(number // 10**9, 60)
        return f"2026-01-01T00:{minutes:02}:{seconds:02}{'.' + fraction if fraction else ''}Z"

    def entry(self, tag: str, text: bytes, stream: str = "stdout", file: int | None = None) -> None:
        line = f"{self._time()} {stream} {tag} ".encode() + text + b"\n"
        os.write(self.file if file is None else file, line)
        self.output += text if tag == "P" else text + b"\n"

    def write(self, data: bytes, stream: str = "stdout") -> None:
        """What the program writes; the runtime holds back the beginning of a line."""
        *lines, rest = (self.pending.pop(stream, b"") + data).split(b"\n")
        for line in lines:
            *parts, last = self._parts(line)
            for part in parts:
                self.entry("P", part, stream)
            self.entry("F", last, stream)
        *parts, last = self._parts(rest)
        for part in parts:
            self.entry("P", part, stream)
        if last:
            self.pending[stream] = last

    def _parts(self, line: bytes) -> list[bytes]:
        size = self.line_bytes_max
        return [line[at : at + size] for at in range(0, len(line), size)] or [b""]

    def _flush(self, file: int) -> None:
        for stream, text in self.pending.items():
            self.entry("P", text, stream, file)
        self.pending.clear()

    def rotate(self) -> None:
        """What the kubelet does every ten seconds with a log that has become too long."""
        if not self.path.stat().st_size:
            return
        rotated = sorted(self.folder.glob(f"{self.restart}.log.*"))
        while len(rotated) > self.files_max - 2:
            rotated.pop(0).unlink()
        for path in rotated:
            if path.suffix != ".gz":
                part = path.with_name(path.name + ".tmp")
                part.write_bytes(gzip.compress(path.read_bytes()))
                part.rename(path.with_name(path.name + ".gz"))
                path.unlink()
        number = next(self.rotations)
        self.path.rename(f"{self.path}.20260101-{number:06}")
        before, self.file = self.file, self._open()
        # The old logger ends: what it has in hand goes to the old file.
        self._flush(before)
        os.close(before)

    def end(self) -> None:
        if not self.ended:
            self.ended = True
            self._flush(self.file)
            os.close(self.file)

    def delete(self) -> None:
        """The pod is gone, and its folder with it."""
        self.end()
        shutil.rmtree(self.folder.parent, ignore_errors=True)


class Kubelet:
    """All pods of one node."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.pods_dir = log_dir / "pods"
        self.pods_dir.mkdir(parents=True)
        self.clock = stamps()
        self.containers: dict[str, Container] = {}

    def create(
        self, pod: str, *, uid: str = "", namespace: str = NAMESPACE, container: str = "main"
    ) -> Container:
        folder = self.pods_dir / f"{namespace}_{pod}_{uid or f'uid-{pod}'}" / container
        made = Container(folder, self.clock)
        if container == "main" and namespace == NAMESPACE:
            self.containers[pod] = made
        return made

    def close(self) -> None:
        for container in self.containers.values():
            container.end()
