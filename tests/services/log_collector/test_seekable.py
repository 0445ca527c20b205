"""The file format of sealed output."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from services.log_collector.archives import seekable
from services.log_collector.archives.sealed import SealedFiles, write_sealed
from services.log_collector.archives.seekable import DamagedError, SeekTable


def sealed_bytes(data: bytes, frame_bytes: int = 1000) -> tuple[bytes, SeekTable]:
    out, source = io.BytesIO(), io.BytesIO(data)
    table = seekable.compress(source.read, out.write, frame_bytes)
    return out.getvalue(), table


def parsed(file: bytes) -> SeekTable:
    return seekable.parse(file[-seekable.table_bytes(file[-seekable.FOOTER_BYTES :]) :], len(file))


@given(st.binary(max_size=5000), st.integers(0, 5000), st.integers(0, 3000))
def test_any_range_is_in_the_frames_that_the_table_names(
    data: bytes, offset: int, count: int
) -> None:
    file, written = sealed_bytes(data)
    table = parsed(file)
    assert table == written == seekable.walk(lambda at, size: file[at : at + size])
    assert table.size == len(data)
    frames = table.frames(offset, count)
    plain = b"".join(
        seekable.decode(frame, file[frame.at : frame.at + frame.stored]) or b"?" for frame in frames
    )
    start = offset - frames[0].offset if frames else 0
    assert plain[start : start + count] == data[offset : offset + count]
    # Not one frame more than the range needs.
    assert all(each.offset < offset + count for each in frames)
    assert all(each.offset + each.size > offset for each in frames) or offset >= len(data)


def test_stock_zstd_reads_the_file(tmp_path: Path) -> None:
    data = b"".join(b"%d a line\n" % number for number in range(100_000))
    path = tmp_path / "0.log.zst"
    source = io.BytesIO(data)
    size = write_sealed(path, source.read, lambda: None, 0o600)
    assert size == path.stat().st_size < len(data) / 4
    reader = zstandard.ZstdDecompressor().stream_reader(path.open("rb"), read_across_frames=True)
    with reader:
        assert reader.read() == data
    program = shutil.which("zstd")
    if program is not None:
        subprocess.run([program, "-d", "-q", path, "-o", tmp_path / "0.log"], check=True)
        assert (tmp_path / "0.log").read_bytes() == data


def test_a_damaged_byte_harms_its_frame_only(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3 * seekable.FRAME_BYTES // 2) * 2
    path = tmp_path / "0.log.zst"
    write_sealed(path, io.BytesIO(data).read, lambda: None, 0o600)
    sound = path.read_bytes()
    table = parsed(sound)
    frame = table.frames(seekable.FRAME_BYTES, 1)[0]
    rng = random.Random(2)
    for _ in range(30):
        at = rng.randrange(frame.at, frame.at + frame.stored)
        damaged = bytearray(sound)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        found = SealedFiles().read(path, 0, len(data))
        assert found is not None
        assert len(found) == len(data)
        begin, end = frame.offset, frame.offset + frame.size
        assert found[:begin] == data[:begin]
        assert found[end:] == data[end:]
        if found[begin:end] != data[begin:end]:  # the bit may mean nothing
            assert found[begin:end] == seekable.filler(frame.size)
            assert b"bytes of the output are damaged here" in found[begin:end]


def test_a_damaged_table_costs_nothing_but_time(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3 * seekable.FRAME_BYTES)
    path = tmp_path / "0.log.zst"
    write_sealed(path, io.BytesIO(data).read, lambda: None, 0o600)
    sound = path.read_bytes()
    length = seekable.table_bytes(sound[-seekable.FOOTER_BYTES :])
    for at in range(len(sound) - length, len(sound)):
        damaged = bytearray(sound)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        assert SealedFiles().read(path, 0, len(data)) == data
    path.write_bytes(sound[:-length])
    assert SealedFiles().read(path, 5, 10) == data[5:15]


@pytest.mark.parametrize("count", [0, 1, 5, 60, 1000])
def test_a_filler_has_the_size_of_what_it_replaces(count: int) -> None:
    assert len(seekable.filler(count)) == count
    assert seekable.filler(count).endswith(b"\n" if count else b"")


def test_what_is_no_such_file_is_refused() -> None:
    for file in (b"", b"short", bytes(100)):
        with pytest.raises(DamagedError):
            parsed(file)
    file, _ = sealed_bytes(b"x" * 5000)
    with pytest.raises(DamagedError):
        seekable.parse(file[-seekable.table_bytes(file[-seekable.FOOTER_BYTES :]) :], len(file) + 1)
