from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.log_collector.domain import (
    Entry,
    Pace,
    fold,
    is_text,
    keep,
    limit_line,
    newest,
    next_scan_seconds,
    pieces,
    start_of_last_lines,
    start_of_range,
    start_since,
)
from tests.kit.clock import at

# Lines, half lines and bytes that are no text at all.
outputs = st.lists(st.sampled_from([b"\n", b"a", b"line\n", b"\xff\xfe", b"\r", b"long " * 9])).map(
    b"".join
)


@pytest.mark.parametrize(
    ("line", "data", "kept", "held"),
    [
        (b"", b"whole\nhalf", b"whole\nhalf", b""),
        (b"", b"dos\r\n", b"dos\r\n", b""),
        (b"", b"dos\r", b"", b"dos\r"),
        (b"dos\r", b"\n", b"dos\r\n", b""),
        (b"", b"\r 1%\r 2%", b"", b"\r 2%"),
        (b"\r 2%", b"\r", b"", b"\r 2%\r"),
        (b"\r 2%\r", b"\n", b"\r 2%\r\n", b""),
        (b"\r 2%", b"\r 3%\nnext\n", b"\r 3%\nnext\n", b""),
        (b"\r 2%", b" and more\n", b"\r 2% and more\n", b""),
        (b"1\r", b"2\r3\r", b"", b"\r3\r"),
        (b"\r9", b"x" * 65_535, b"\r9" + b"x" * 65_535, b""),
    ],
)
def test_only_the_last_state_of_a_line_is_kept(
    line: bytes, data: bytes, kept: bytes, held: bytes
) -> None:
    found = fold(line, data)
    assert (found.data, found.line) == (kept, held)
    assert found.source + found.line == line + data


@given(st.lists(outputs))
def test_folding_in_pieces_shows_what_folding_at_once_shows(parts: list[bytes]) -> None:
    kept, held, skipped = b"", b"", 0
    for data in parts:
        found = fold(held, data)
        kept, held, skipped = kept + found.data, found.line, skipped + found.skipped
    whole = b"".join(parts)
    assert len(kept) + len(held) + skipped == len(whole)

    def shown(text: bytes) -> list[bytes]:
        return [line.rstrip(b"\r").split(b"\r")[-1] for line in text.split(b"\n")]

    assert shown(kept + held) == shown(whole)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_a_text_that_is_cut_anywhere_is_a_text(text: str) -> None:
    data = text.encode()
    assert all(is_text(data[:at]) and is_text(data[at:]) for at in range(len(data) + 1))


@pytest.mark.parametrize("data", [b"\0", b"a\xff\r", b"\xe9t\xe9\n", b"\x80\x80\x80\x80a"])
def test_invalid_utf8_is_binary(data: bytes) -> None:
    assert not is_text(data)


@given(st.integers(0, 1 << 40), outputs, st.integers(1, 40))
def test_pieces_are_the_whole_in_order(offset: int, data: bytes, bytes_max: int) -> None:
    cut = list(pieces(offset, data, bytes_max))
    assert b"".join(piece for _, piece in cut) == data
    at_byte = offset
    for start, piece in cut:
        assert start == at_byte
        assert 0 < len(piece) <= bytes_max
        at_byte += len(piece)
    for (_, piece), (start, _) in itertools.pairwise(cut):
        window = data[start - offset - len(piece) :][:bytes_max]
        assert piece.endswith(b"\n") or b"\n" not in window


@given(outputs, st.integers(1, 40))
def test_live_readers_get_the_end_of_a_burst(data: bytes, bytes_max: int) -> None:
    start, published = newest(100, data, bytes_max)
    assert published == data[-bytes_max:]
    assert start + len(published) == 100 + len(data)


@given(st.lists(outputs), st.integers(1, 60))
def test_an_output_is_kept_up_to_its_limit(parts: list[bytes], bytes_max: int) -> None:
    kept, full = b"", False
    for data in parts:
        if not full:
            more, full = keep(len(kept), data, bytes_max)
            kept += more
    whole = b"".join(parts)
    if len(whole) <= bytes_max:
        assert (kept, full) == (whole, False)
    else:
        assert (kept, full) == (whole[:bytes_max] + limit_line(bytes_max), True)


@given(st.integers(-200, 200), st.integers(0, 100))
def test_a_range_begins_inside_the_output(offset: int, size: int) -> None:
    start = start_of_range(offset, size)
    assert 0 <= start <= size
    expected = offset if offset >= 0 else size + offset
    if 0 <= expected <= size:
        assert start == expected


@given(outputs, st.integers(1, 10))
def test_last_lines_are_what_tail_gives(data: bytes, lines: int) -> None:
    found = start_of_last_lines(data, lines)
    whole = data.split(b"\n")
    if data.endswith(b"\n"):
        whole.pop()
    if found is None:
        assert len(whole) <= lines
    else:
        last = whole[-lines:]
        assert data[found:].removesuffix(b"\n").split(b"\n") == last
        assert len(whole) > lines


@given(
    st.lists(st.tuples(st.floats(0, 30), st.integers(1, 40)), min_size=1, max_size=30),
    st.floats(-10, 1000),
)
# Two entries of one time, which is the requested one.
@example([(0.0, 10), (0.0, 40), (0.0, 1)], 0.0)
def test_since_never_skips_and_is_as_fine_as_the_index(
    collected: list[tuple[float, int]], since_s: float
) -> None:
    entries: dict[int, Entry] = {}
    history: list[tuple[float, int]] = []  # when, first byte
    size, now, last = 0, 0.0, None
    for pause, length in collected:
        now += pause
        old = last is None or at(now) - last.first_at >= timedelta(seconds=10)
        if last is None or old or size - last.offset >= 50:
            last = Entry(size, at(now), at(now))
        last = entries[last.offset] = replace(last, last_at=at(now))
        history.append((now, size))
        size += length
    since = at(since_s)
    first = min((start for when, start in history if at(when) >= since), default=size)
    start = start_since(list(entries.values()), since, size)
    assert start <= first
    early = [when for when, begin in history if start <= begin < first]
    assert all(since - at(when) <= timedelta(seconds=10) for when in early)
    # The store gives only the entries around the requested time: the answer is the same.
    before = [entry for entry in entries.values() if entry.first_at < since]
    after = [entry for entry in entries.values() if entry.first_at >= since]
    around = before[-1:] + after[:1]
    assert start_since(around, since, size) == start


PACE = Pace()


@pytest.mark.parametrize(
    ("outputs", "more", "quiet", "seconds"),
    [
        (0, False, 0.0, None),
        (5, True, 0.0, 0.0),
        (5, False, 1.0, 0.05),
        (5, False, 2.0, 0.1),
        (5000, False, 9.0, 0.5),
        (50_000, False, 9.0, 1.0),
    ],
)
def test_the_scan_interval_depends_on_outputs_and_silence(
    outputs: int, more: bool, quiet: float, seconds: float | None
) -> None:
    assert next_scan_seconds(PACE, outputs=outputs, more=more, quiet_seconds=quiet) == seconds
