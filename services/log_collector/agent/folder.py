"""Manages one output's folder in the spool: linked log files, and those that are gone.

``adopt`` gives every log file that the kubelet shows a second name here, once, in the order of
writing. A file is known by its inode while it is linked, and by the time of its first entry after
it was dropped, compressed by the kubelet, or both. Used by ``output.py``.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import stat
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from services.log_collector.agent.kubelet import LogFile
from services.log_collector.agent.segments import (
    Placeholder,
    Segment,
    name_of,
    segments_in,
    write_placeholder,
)

GAP = "[shiftwork: output is missing here: it was rotated away while the log agent was not there]\n"
COPY_BYTES = 1_048_576
# The kubelet keeps a handful of files of a container; older stamps can be forgotten.
STAMPS_MAX = 256


@dataclass
class Record:
    """What is known of an output beside its files. In ``record.json``, replaced as a whole."""

    # The first segment that is still here, and the offset of its first byte.
    first: int = 0
    first_offset: int = 0
    # Files that were dropped: (uid, restart, time of the first entry).
    dropped: list[tuple[str, int, str]] = field(default_factory=list[tuple[str, int, str]])
    # The collector has so many bytes for good; and all that it wants.
    kept: int = 0
    done: bool = False
    # When the pod's folder was gone, in seconds of the clock; 0 while it is there.
    ended_at: float = 0.0


class AdoptionError(Exception):
    """A log file cannot be linked; the text has the reason and the fix."""


class OutputFolder:
    """The files of one output."""

    def __init__(self, path: Path, *, unpacked_bytes_max: int) -> None:
        self.path = path
        self.record = Record()
        self.segments: dict[int, Segment] = {}
        self._unpacked_bytes_max = unpacked_bytes_max
        # Places where output is missing, found by this process.
        self.gaps = 0
        # Names that are known to need nothing: an inode under the name that it has.
        self._settled: set[tuple[int, str]] = set()

    def load(self) -> None:
        """Load what an earlier process left."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            fields = json.loads((self.path / "record.json").read_text())
            self.record = Record(
                first=int(fields["first"]),
                first_offset=int(fields["first_offset"]),
                dropped=[(str(uid), int(n), str(at)) for uid, n, at in fields["dropped"]],
                kept=int(fields["kept"]),
                done=bool(fields["done"]),
                ended_at=float(fields["ended_at"]),
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            self.record = Record()
        found = segments_in(self.path)
        self.segments = {
            number: each for number, each in found.items() if number >= self.record.first
        }
        # Finish what a crash interrupted: dropping files, or replacing them by placeholders.
        for number, segment in found.items():
            if number < self.record.first or segment.placeholder is not None:
                Path(segment.path).with_suffix(".log").unlink(missing_ok=True)

    def save(self, *, sync: bool = True) -> None:
        """Write the record. ``sync``: the files that it speaks of are changed next."""
        part = self.path / "record.new"
        with part.open("w") as file:
            json.dump(vars(self.record), file)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        part.rename(self.path / "record.json")

    @property
    def next_number(self) -> int:
        """The number of the next segment."""
        return max(self.segments, default=self.record.first - 1) + 1

    def after(self, number: int) -> Segment | None:
        """The segment that follows one."""
        return self.segments.get(number + 1)

    # -- what the kubelet shows

    def adopt(self, files: Sequence[LogFile]) -> bool:
        """Link new files. Returns False if they changed meanwhile, so that the caller lists
        again."""
        inodes = {
            segment.inode for segment in self.segments.values() if segment.placeholder is None
        }
        new = [file for file in files if not self._is_known(file, inodes)]
        self._settled &= {(file.inode, file.path) for file in files}
        if not new:
            return True
        last_known = max((n for n, file in enumerate(files) if file not in new), default=-1)
        for number, file in enumerate(files):
            if file not in new:
                continue
            if number < last_known:
                # It should have come before one that is here already: it cannot be put in.
                self._settled.add((file.inode, file.path))
                continue
            if self._has_gap(files, number):
                self._put_placeholder(file, GAP)
            if not (self._unpack(file) if file.zipped else self._link(file)):
                return False
        return True

    def _is_known(self, file: LogFile, inodes: set[int]) -> bool:
        name = (file.inode, file.path)
        if name in self._settled:
            return True
        if file.inode in inodes and not file.zipped:
            return True
        at = file.stamp()
        known = bool(at) and (file.uid, file.restart, at) in self._stamps()
        if known:
            self._settled.add(name)
        return known

    def _stamps(self) -> set[tuple[str, int, str]]:
        here = {(each.uid, each.restart, each.stamp()) for each in self.segments.values()}
        return here | set(self.record.dropped)

    def _has_gap(self, files: Sequence[LogFile], number: int) -> bool:
        """Nothing known comes right before it, though more of the same was known once."""
        file = files[number]
        if any(each.chain == file.chain for each in files[:number]):
            return False
        here = {(each.uid, each.restart) for each in self.segments.values()}
        return file.chain in here | {(uid, restart) for uid, restart, _ in self.record.dropped}

    def _put_placeholder(self, file: LogFile, text: str) -> None:
        self.gaps += 1
        number = self.next_number
        path = self.path / name_of(number, file.uid, file.restart, "mark")
        placeholder = Placeholder(0, text)
        write_placeholder(path, placeholder)
        self.segments[number] = Segment(number, str(path), file.uid, file.restart, 0, placeholder)

    def _link(self, file: LogFile) -> bool:
        number = self.next_number
        part = self.path / "link.new"
        part.unlink(missing_ok=True)
        try:
            os.link(file.path, part, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise AdoptionError(
                f"{file.path} cannot be linked into {self.path}: {error.strerror}. Pods' logs and"
                " the spool must be in one file system and one mount (mount their common parent),"
                " and the agent must own the log files (run it as root)"
            ) from error
        found = part.lstat()
        if found.st_ino != file.inode or not stat.S_ISREG(found.st_mode):
            part.unlink()  # renamed between the listing and the link
            return False
        self._put(part, number, file)
        return True

    def _unpack(self, file: LogFile) -> bool:
        """Copy a file that the kubelet compressed before the agent found it."""
        number = self.next_number
        part = self.path / "unpacked.new"
        left, problem = self._unpacked_bytes_max, ""
        try:
            with gzip.open(file.path) as packed, part.open("wb") as plain:
                while left > 0 and (data := packed.read(min(COPY_BYTES, left))):
                    plain.write(data)
                    left -= len(data)
        except FileNotFoundError:
            return False
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            problem = f"it was damaged when the log agent first saw it ({error})"
        if not problem and left <= 0:
            problem = "a compressed file of it is larger than the spool"
        self._put(part, number, file)
        self.segments[number].closed = True
        self._settled.add((file.inode, file.path))
        if problem:
            self._put_placeholder(file, f"[shiftwork: output is missing here: {problem}]\n")
        return True

    def _put(self, part: Path, number: int, file: LogFile) -> None:
        path = self.path / name_of(number, file.uid, file.restart, "log")
        part.rename(path)
        inode = path.stat().st_ino
        self.segments[number] = Segment(number, str(path), file.uid, file.restart, inode)

    # -- what is no longer needed, or no longer possible

    def drop(self, until: int, offset: int) -> None:
        """Forget the segments before ``until``, which begins at ``offset``: they are kept
        elsewhere."""
        gone = [each for number, each in self.segments.items() if number < until]
        for segment in gone:
            self._remember(segment)
            del self.segments[segment.number]
        self.record.first, self.record.first_offset = until, offset
        self.save()  # first: a crash in between leaves files that the next process removes
        for segment in gone:
            Path(segment.path).unlink(missing_ok=True)

    def replace(self, segment: Segment, placeholder: Placeholder) -> Segment:
        """Replace a segment by a placeholder; its bytes are lost."""
        self._remember(segment)
        self.save()
        name = name_of(segment.number, segment.uid, segment.restart, "mark")
        write_placeholder(self.path / name, placeholder)
        Path(segment.path).unlink(missing_ok=True)
        replacement = Segment(
            segment.number, str(self.path / name), segment.uid, segment.restart, 0, placeholder
        )
        self.segments[segment.number] = replacement
        return replacement

    def _remember(self, segment: Segment) -> None:
        if at := segment.stamp():
            self.record.dropped.append((segment.uid, segment.restart, at))
            del self.record.dropped[:-STAMPS_MAX]

    def finish(self) -> None:
        """Drop the output, and ignore its files as long as the kubelet still has them."""
        self.record.done = True
        self.save()
        for segment in self.segments.values():
            Path(segment.path).unlink(missing_ok=True)
        (self.path / "checkpoints").unlink(missing_ok=True)
        self.segments = {}

    def remove(self) -> None:
        """Forget the output."""
        shutil.rmtree(self.path, ignore_errors=True)

    def sole_bytes(self) -> int:
        """Bytes on disk that are there for this output only: the kubelet has removed its name."""
        found = [
            Path(each.path).stat() for each in self.segments.values() if each.placeholder is None
        ]
        return sum(each.st_size for each in found if each.st_nlink == 1)
