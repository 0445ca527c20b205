"""The parts of one output in the spool, in order: linked log files, and placeholders for lost ones.

A segment's file is named ``<number>_<uid>_<restart>.log`` (a second name of the kubelet's file, so
its bytes stay when the kubelet removes its own) or, for a placeholder, the same with ``.mark``.
Each number is used once, in the order of writing. Used by ``folder.py`` and ``output.py``.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from services.log_collector.agent.kubelet import stamp_of

_NAME = re.compile(r"(\d{6,})_([^_]+)_(\d+)\.(log|mark)")
# Stands for bytes that were counted and are gone, so that all others keep their offsets.
FILLER = b"[shiftwork: these bytes are no longer on the node]\n"


def filler(offset: int, length: int) -> bytes:
    """Bytes in the place of lost ones; the same for the same place, wherever it is cut."""
    begin = offset % len(FILLER)
    return (FILLER * ((begin + length) // len(FILLER) + 1))[begin : begin + length]


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Stands for a lost file: an amount of filler, then a text that explains the loss."""

    filler: int
    text: str

    @property
    def size(self) -> int:
        """Bytes of output."""
        return self.filler + len(self.text.encode())

    def read(self, at: int, bytes_max: int) -> bytes:
        """Its bytes from a place on."""
        left = max(0, min(bytes_max, self.filler - at))
        data = filler(at, left)
        if len(data) < bytes_max and at + left >= self.filler:
            begin = at + left - self.filler
            data += self.text.encode()[begin : begin + bytes_max - left]
        return data


@dataclass(slots=True)
class Segment:
    """One part of an output, in one file."""

    number: int
    path: str
    uid: str
    restart: int
    inode: int
    placeholder: Placeholder | None = None
    # It does not grow any more.
    closed: bool = False
    first_at: str = ""

    def size(self) -> int:
        """The current number of its raw bytes."""
        return self.placeholder.size if self.placeholder else os.stat(self.path).st_size  # noqa: PTH116 - hot path

    def stamp(self) -> str:
        """Its first entry's time; empty while there is none."""
        if not self.first_at and self.placeholder is None:
            self.first_at = stamp_of(self.path)
        return self.first_at


def name_of(number: int, uid: str, restart: int, kind: str) -> str:
    """A segment's file name."""
    return f"{number:06}_{uid}_{restart}.{kind}"


def segments_in(folder: Path) -> dict[int, Segment]:
    """The segments of an output, by number, in their order."""
    found: dict[int, Segment] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.fullmatch(path.name)
        if match is None:
            continue
        placeholder = _read_placeholder(path) if match[4] == "mark" else None
        number = int(match[1])
        # A crash during a replacement leaves both: the placeholder is the later one.
        if number in found and placeholder is None:
            continue
        inode = path.stat().st_ino
        found[number] = Segment(number, str(path), match[2], int(match[3]), inode, placeholder)
    return dict(sorted(found.items()))


def write_placeholder(path: Path, placeholder: Placeholder) -> None:
    """Write a placeholder atomically."""
    part = path.with_suffix(".new")
    part.write_text(json.dumps({"filler": placeholder.filler, "text": placeholder.text}))
    part.rename(path)


def _read_placeholder(path: Path) -> Placeholder:
    try:
        fields = json.loads(path.read_text())
        return Placeholder(int(fields["filler"]), str(fields["text"]))
    except (ValueError, KeyError, TypeError):
        return Placeholder(0, "[shiftwork: output is missing here]\n")
