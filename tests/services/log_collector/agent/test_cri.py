from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.log_collector.agent.cri import (
    HEADER_BYTES_MAX,
    STAMP_MICROS,
    Inside,
    Stamp,
    decode,
    decode_stamped,
    stamp,
)
from services.log_collector.domain import fold

AT = b"2026-01-01T00:00:00.123456789Z"
MICROS = 1_767_225_600_123_456


def entry(tag: bytes, text: bytes, stream: bytes = b"stdout", at: bytes = AT) -> bytes:
    return at + b" " + stream + b" " + tag + b" " + text + b"\n"


@pytest.mark.parametrize(
    ("raw", "text", "bad"),
    [
        (b"", b"", 0),
        (entry(b"F", b"hello"), b"hello\n", 0),
        (entry(b"F", b""), b"\n", 0),
        (entry(b"P", b"no end"), b"no end", 0),
        (entry(b"P", b""), b"", 0),
        (entry(b"P", b"one ") + entry(b"F", b"line"), b"one line\n", 0),
        (entry(b"F", b"out") + entry(b"F", b"err", b"stderr"), b"out\nerr\n", 0),
        (entry(b"P:later:tags", b"part") + entry(b"F:more", b"whole"), b"partwhole\n", 0),
        (entry(b"F", b"a stdout P b") + entry(b"F", b" 2  "), b"a stdout P b\n 2  \n", 0),
        # What is no entry is left out, as the API server leaves it out.
        (b"no entry at all\n" + entry(b"F", b"x"), b"x\n", 1),
        (AT + b" stdin F x\n" + entry(b"P", b"x"), b"x", 1),
        (AT + b" stdout F\n", b"", 1),
        (b"\n", b"", 1),
        (b"12:00 stdout F x\n", b"", 1),
    ],
)  # fmt: skip
def test_entries_decode_to_the_written_bytes(raw: bytes, text: bytes, bad: int) -> None:
    found = decode(raw, Inside.NOTHING)
    assert (found.data, found.used, found.inside, found.bad) == (
        text,
        len(raw),
        Inside.NOTHING,
        bad,
    )


def test_a_bar_that_comes_in_pieces_is_folded_as_one_line() -> None:
    """The runtime cuts a line without an end where it likes, also inside of a state."""
    pieces = [b"\r 10%|#", b"   |\r 20", b"%|##  |", b"\r 30%|### |\r"]
    raw = b"".join(entry(b"P", piece, b"stderr") for piece in pieces)
    found = decode(raw, Inside.NOTHING)
    held = fold(b"", found.data)
    assert (held.data, held.line) == (b"", b"\r 30%|### |\r")
    ended = decode(entry(b"F", b"100%|####|", b"stderr"), found.inside)
    assert fold(held.line, ended.data).data == b"\r100%|####|\n"


def test_an_entry_without_its_end_is_given_as_far_as_it_is_there() -> None:
    raw = entry(b"F", b"hello")
    header = len(raw) - len(b"hello\n")
    for cut in range(1, header):
        assert decode(raw[:cut], Inside.NOTHING).used == 0
    for cut in range(header, len(raw)):
        found = decode(raw[:cut], Inside.NOTHING)
        assert (found.data, found.used, found.inside) == (raw[header:cut], cut, Inside.WHOLE)
        assert decode(raw[cut:], found.inside).data == raw[cut:]


entries = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([b"F", b"P", b"P:x", b"F:x"]),
            st.binary(max_size=40).map(lambda text: text.replace(b"\n", b" ")),
            st.sampled_from([b"stdout", b"stderr"]),
        ).map(lambda each: entry(*each)),
        st.binary(max_size=20).map(lambda text: text + b"\n"),
        st.just(b"z" * (HEADER_BYTES_MAX + 5) + b"\n"),
        st.just(entry(b"F", b"long " * 200)),
    ),
    max_size=8,
).map(b"".join)


@given(entries, st.lists(st.integers(0, 4000), max_size=12))
def test_decoding_does_not_depend_on_where_the_bytes_are_cut(raw: bytes, cuts: list[int]) -> None:
    whole = decode(raw, Inside.NOTHING)
    assert whole.used == len(raw)
    text, at, bad, inside = b"", 0, 0, Inside.NOTHING
    for end in [*sorted(min(cut, len(raw)) for cut in cuts), len(raw)]:
        if end <= at:
            continue
        found = decode(raw[at:end], inside)
        text, at, bad, inside = text + found.data, at + found.used, bad + found.bad, found.inside
    assert (text, at, bad, inside) == (whole.data, len(raw), whole.bad, Inside.NOTHING)


def test_a_line_that_is_no_entry_and_has_no_end_does_not_stop_the_reading() -> None:
    found = decode(b"z" * HEADER_BYTES_MAX, Inside.NOTHING)
    assert (found.used, found.inside, found.bad) == (HEADER_BYTES_MAX, Inside.BAD, 1)
    after = decode(b"zzz\n" + entry(b"F", b"x"), Inside.BAD)
    assert (after.data, after.inside, after.bad) == (b"x\n", Inside.NOTHING, 0)


def test_the_stamp_is_the_first_entrys_time() -> None:
    assert stamp(entry(b"F", b"x")) == AT.decode()
    assert stamp(AT) == ""
    assert stamp(b"") == ""


def after(millis: int) -> bytes:
    return b"2026-01-01T00:%02d:%02d.%03dZ" % (millis // 60_000, millis // 1000 % 60, millis % 1000)


def micros(millis: int) -> int:
    return 1_767_225_600_000_000 + millis * 1000


def test_entries_have_their_times() -> None:
    raw = entry(b"F", b"one") + entry(b"P", b"tw", at=after(130)) + entry(b"F", b"o", at=after(200))
    found = decode_stamped(raw + entry(b"F", b"three", at=after(500))[:-3], Inside.NOTHING)
    assert found.data == b"one\ntwo\nthr"
    # The second entry is within 50 ms of the first.
    assert found.stamps == (Stamp(0, MICROS), Stamp(6, micros(200)), Stamp(8, micros(500)))
    rest = decode_stamped(b"ee\n" + entry(b"F", b"four", at=after(600)), found.inside)
    assert (rest.data, rest.stamps) == (b"ee\nfour\n", (Stamp(3, micros(600)),))


@pytest.mark.parametrize(
    "at",
    [b"2026-01-01T00:00:00.5Z", b"2026-01-01T01:00:00.500000000+01:00", b"2026-01-01T00:00:00.50Z"],
)
def test_times_are_read_as_runtimes_write_them(at: bytes) -> None:
    assert decode_stamped(entry(b"F", b"x", at=at), Inside.NOTHING).stamps == (
        Stamp(0, micros(500)),
    )


@pytest.mark.parametrize("at", [b"2026-13-01T00:00:00Z", b"2026-01-01T00:00:00", b"2026-01-01Tx"])
def test_an_invalid_time_is_omitted(at: bytes) -> None:
    found = decode_stamped(entry(b"F", b"x", at=at) + entry(b"F", b"y"), Inside.NOTHING)
    assert found.data == b"x\ny\n"
    assert found.stamps == (Stamp(2, MICROS),)


@given(entries, st.integers(0, 4000))
def test_times_change_nothing_else(raw: bytes, cut: int) -> None:
    inside = Inside.NOTHING
    for piece in (raw[:cut], raw[cut:]):
        plain, found = decode(piece, inside), decode_stamped(piece, inside)
        assert (found.data, found.used, found.inside, found.bad) == (
            plain.data,
            plain.used,
            plain.inside,
            plain.bad,
        )
        if plain.used < len(piece):
            break
        inside = plain.inside


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300)), min_size=1, max_size=60))
def test_no_line_is_50_ms_later_than_its_time(gaps: list[tuple[int, int]]) -> None:
    raw, at, lines = b"", 0, list[tuple[int, int]]()
    size = 0
    for gap, length in gaps:
        at += gap
        lines.append((size, micros(at)))
        raw += entry(b"F", b"x" * length, at=after(at))
        size += length + 1
    stamps = decode_stamped(raw, Inside.NOTHING).stamps
    assert list(stamps) == sorted(stamps)
    for offset, written in lines:
        published = [each.micros for each in stamps if each.offset <= offset][-1]
        assert 0 <= written - published < STAMP_MICROS


def test_few_times_are_read_of_much_that_is_written_at_once() -> None:
    raw = b"".join(entry(b"F", b"x" * 80) for _ in range(3000))
    found = decode_stamped(raw, Inside.NOTHING)
    assert found.stamps == (Stamp(0, MICROS),)
