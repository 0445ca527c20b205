"""The zstd seekable format: independent frames, and a table of their sizes at the end.

Every frame is a plain zstd frame with a checksum, and the table is a skippable frame, so
``zstd -d`` reads such a file as it is. A reader decompresses only the frames of the range that it
wants. A damaged frame is replaced by ``filler``: its bytes are lost, and all other offsets stay.

Pure but for ``compress``, which reads and writes through functions. Used by the archives.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

import zstandard

# Plain bytes of a frame: what a reader decompresses at least.
FRAME_BYTES = 262_144
# A table that names larger ones is not ours.
FRAME_BYTES_MAX = 4 * FRAME_BYTES
# The fastest level that repeated text gains most of its size from.
LEVEL = 1
_SKIPPABLE = struct.Struct("<II")
_SKIPPABLE_MAGIC = 0x184D2A5E
_ENTRY = struct.Struct("<II")
_FOOTER = struct.Struct("<IBI")
_FOOTER_MAGIC = 0x8F92EAB1
# A footer that announces entries with checksums of their own, as other writers make them.
_WITH_CHECKSUMS = 0x80
FOOTER_BYTES = _FOOTER.size


class DamagedError(Exception):
    """This is no such file, or its table is damaged."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The place of one frame in the file, and of its plain bytes."""

    at: int
    stored: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class SeekTable:
    """Where each frame begins: in the file, and in the plain bytes. The last number is the end."""

    ats: tuple[int, ...]
    offsets: tuple[int, ...]

    def contains(self, other: SeekTable) -> bool:
        """Whether the frames of another table are the first ones of this."""
        count = len(other.ats)
        return self.ats[:count] == other.ats and self.offsets[:count] == other.offsets

    @property
    def size(self) -> int:
        """Plain bytes of all frames."""
        return self.offsets[-1]

    def frames(self, offset: int, size: int) -> list[Frame]:
        """The frames of a range of plain bytes."""
        first = max(0, bisect_right(self.offsets, offset) - 1)
        found: list[Frame] = []
        for number in range(first, len(self.ats) - 1):
            if self.offsets[number] >= offset + size:
                break
            found.append(
                Frame(
                    self.ats[number],
                    self.ats[number + 1] - self.ats[number],
                    self.offsets[number],
                    self.offsets[number + 1] - self.offsets[number],
                )
            )
        return found


def compress(
    read: Callable[[int], bytes], write: Callable[[bytes], object], frame_bytes: int = FRAME_BYTES
) -> SeekTable:
    """Write what ``read`` gives until its end, frame by frame, and the table."""
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True, write_content_size=True)
    stored: list[int] = []
    sizes: list[int] = []
    while data := read(frame_bytes):
        frame = compressor.compress(data)
        write(frame)
        stored.append(len(frame))
        sizes.append(len(data))
    entries = b"".join(_ENTRY.pack(*pair) for pair in zip(stored, sizes, strict=True))
    table = entries + _FOOTER.pack(len(sizes), 0, _FOOTER_MAGIC)
    write(_SKIPPABLE.pack(_SKIPPABLE_MAGIC, len(table)) + table)
    return _table(stored, sizes)


def table_bytes(footer: bytes) -> int:
    """How long the table with its header is, by the last ``FOOTER_BYTES`` of a file."""
    count, flags = _footer(footer)
    return _SKIPPABLE.size + count * _entry_bytes(flags) + FOOTER_BYTES


def parse(table: bytes, file_bytes: int) -> SeekTable:
    """The table from the last ``table_bytes`` of a file. Raises ``DamagedError`` if it cannot be
    right."""
    count, flags = _footer(table[-FOOTER_BYTES:])
    entry = _entry_bytes(flags)
    if len(table) != _SKIPPABLE.size + count * entry + FOOTER_BYTES:
        raise DamagedError("the table is cut")
    if _SKIPPABLE.unpack_from(table) != (_SKIPPABLE_MAGIC, len(table) - _SKIPPABLE.size):
        raise DamagedError("the table has no header")
    pairs = [_ENTRY.unpack_from(table, _SKIPPABLE.size + n * entry) for n in range(count)]
    found = _table([stored for stored, _ in pairs], [size for _, size in pairs])
    if found.ats[-1] + len(table) != file_bytes:
        raise DamagedError("the table does not fit the file")
    if any(size > FRAME_BYTES_MAX for _, size in pairs):
        raise DamagedError("the table names a frame that is too large")
    return found


def decode(frame: Frame, data: bytes) -> bytes | None:
    """The plain bytes of a frame; None if it is damaged."""
    try:
        # Before anything is allocated: a damaged header could name any size.
        if zstandard.get_frame_parameters(data).content_size != frame.size:
            return None
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=frame.size)
    except zstandard.ZstdError:
        return None
    return plain if len(plain) == frame.size else None


def filler(size: int) -> bytes:
    """So many bytes in the place of damaged ones: a line that reports them."""
    text = b"\n[shiftwork: %d bytes of the output are damaged here]" % size
    return text.ljust(size - 1)[: size - 1] + b"\n" if size else b""


def walk(read: Callable[[int, int], bytes]) -> SeekTable:
    """The frames of a file without its table: each is decompressed to find its end. Ends before the
    first damaged one."""
    pairs = list(_walk(read))
    return _table([stored for stored, _ in pairs], [size for _, size in pairs])


def _walk(read: Callable[[int, int], bytes]) -> Iterator[tuple[int, int]]:
    at = 0
    while True:
        data = read(at, FRAME_BYTES_MAX + 4096)
        if not data.startswith(zstandard.FRAME_HEADER):
            return  # the table, the end, or damage
        try:
            if zstandard.get_frame_parameters(data).content_size > FRAME_BYTES_MAX:
                return
            decoder = zstandard.ZstdDecompressor().decompressobj()
            size = len(decoder.decompress(data))
        except zstandard.ZstdError:
            return
        if not decoder.eof:
            return
        stored = len(data) - len(decoder.unused_data)
        yield stored, size
        at += stored


def _table(stored: list[int], sizes: list[int]) -> SeekTable:
    return SeekTable(tuple(accumulate(stored, initial=0)), tuple(accumulate(sizes, initial=0)))


def _footer(data: bytes) -> tuple[int, int]:
    if len(data) != FOOTER_BYTES:
        raise DamagedError("the file is too short")
    count, flags, magic = _FOOTER.unpack(data)
    if magic != _FOOTER_MAGIC:
        raise DamagedError("the file does not end with a table")
    return count, flags


def _entry_bytes(flags: int) -> int:
    return _ENTRY.size + (4 if flags & _WITH_CHECKSUMS else 0)
