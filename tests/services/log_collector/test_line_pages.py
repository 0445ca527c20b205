"""Pages of lines, against a plain model of what was written."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass, field

import pytest

from libs.contracts.messages import (
    FoundLine,
    ReadLog,
    ReadLogLines,
    ReadLogLinesReply,
    RefusalCode,
)
from services.log_collector import line_pages
from services.log_collector.archives.memory import MemoryArchive
from services.log_collector.archives.port import ArchiveError
from services.log_collector.domain import OutputKey, Timestamp
from services.log_collector.sources.memory import MemorySource
from tests.kit.clock import at
from tests.services.log_collector.collector_harness import (
    CollectorHarness,
    collecting,
    exited,
    key_of,
    settings_with,
    started,
    without_times,
)

Place = tuple[float, int, int, int]


@dataclass(frozen=True)
class Written:
    """A line that was written."""

    at: float
    attempt: int
    rank: int
    offset: int
    text: bytes


def asked(**changes: object) -> ReadLogLines:
    return ReadLogLines.model_validate({"task_id": "t1"} | changes)


def texts(reply: ReadLogLinesReply) -> list[str]:
    return [
        f"{each.line.attempt}.{each.line.rank} {each.line.text.decode()}" for each in reply.lines
    ]


async def all_pages(harness: CollectorHarness, **query: object) -> list[FoundLine]:
    """Every line, page after page, forward or backward."""
    backward = bool(query.get("last"))
    found: list[FoundLine] = []
    reply = await harness.ask(asked(**query))
    for _ in range(10_000):
        assert reply.refusal is None, reply.refusal
        page = list(reply.lines)
        found = page + found if backward else found + page
        if not reply.more:
            return found
        again = {**query, "last": False}
        cursor = {"before": reply.begin} if backward else {"after": reply.end}
        reply = await harness.ask(asked(**again, **cursor))
    raise AssertionError("the pages have no end")


@dataclass
class Writer:
    """A rank that writes lines of several lengths, often in pieces, and knows what it wrote."""

    key: OutputKey
    rng: random.Random
    pending: bytes = b""
    begun: float = 0.0
    offset: int = 0
    written: list[Written] = field(default_factory=list[Written])

    def some(self, source: MemorySource, now: float) -> None:
        """Write no line, or some."""
        for _ in range(self.rng.choice([0, 0, 1, 1, 2, 5])):
            word = self.rng.choice([b"loss", b"Error", b"", b"step \xc3\xbc", b"\xff\xfe"])
            text = word * self.rng.choice([1, 1, 2, 9]) + b"%d" % self.rng.randrange(100)
            ended = self.rng.random() < 0.9
            source.append(self.key, text + b"\n" * ended)
            self.begun = self.begun if self.pending else now
            self.pending += text
            if ended:
                self.end()

    def end(self) -> None:
        """The line is whole."""
        attempt, rank = self.key.attempt, self.key.rank
        self.written.append(Written(self.begun, attempt, rank, self.offset, self.pending))
        self.offset, self.pending = self.offset + len(self.pending) + 1, b""


def now_of(harness: CollectorHarness) -> float:
    return (harness.clock.current_time - at(0)).total_seconds()


async def gang_of_lines(
    harness: CollectorHarness, source: MemorySource, seed: int, *, attempts: int = 2, ranks: int = 3
) -> list[Written]:
    """What a gang wrote in some attempts, many lines of it at the same times."""
    rng = random.Random(seed)
    written: list[Written] = []
    for attempt in range(1, attempts + 1):
        await harness.handle(started(ranks, attempt))
        writers = [Writer(key_of(rank, attempt), rng) for rank in range(ranks)]
        for _ in range(40):
            for writer in writers:
                writer.some(source, now_of(harness))
            await harness.copy_and_record()
            if rng.random() < 0.7:
                harness.clock.advance(rng.choice([0.05, 0.3, 4]))
        await harness.handle(exited(ranks, attempt, now_of(harness)))
        await harness.settle()
        for writer in writers:
            if writer.pending:
                writer.end()
            written += writer.written
    return written


def in_order(written: list[Written], *, by_time: bool) -> list[Written]:
    def place(line: Written) -> Place:
        return (line.at if by_time else 0, line.attempt, line.rank, line.offset)

    return sorted(written, key=place)


def small_pieces(monkeypatch: pytest.MonkeyPatch, *, size: int = 64) -> None:
    """Outputs of some kilobytes have many windows, blocks and pieces."""
    monkeypatch.setattr(line_pages, "BLOCK_BYTES", size)
    monkeypatch.setattr(line_pages, "WINDOW_BYTES_MIN", size)
    monkeypatch.setattr(line_pages, "WINDOW_BYTES_MAX", size * 8)
    monkeypatch.setattr(line_pages, "PIECE_BYTES_MIN", size // 8)
    monkeypatch.setattr(line_pages, "LOOK_BACK_BYTES", 4)
    monkeypatch.setattr(line_pages, "STAMPS_AT_ONCE", 3)


@pytest.mark.parametrize("by_time", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("seed", range(2))
async def test_pages_have_every_line_once_in_order(
    monkeypatch: pytest.MonkeyPatch, seed: int, *, by_time: bool, last: bool
) -> None:
    small_pieces(monkeypatch)
    source = MemorySource()
    harness = await collecting(source)
    written = await gang_of_lines(harness, source, seed)
    for pattern, limit, more in [
        ("", 7, {}),
        ("", 1000, {}),
        ("Error", 3, {}),
        ("^loss[0-9a-z]*[13579]$", 2, {}),
        ("never there", 5, {}),
        ("ü", 4, {"rank": 1}),
        ("", 4, {"attempt": 2, "since": at(80), "until": at(120)}),
    ]:
        found = await all_pages(
            harness, pattern=pattern, limit=limit, by_time=by_time, last=last, **more
        )
        expected = [
            each
            for each in in_order(written, by_time=by_time)
            if re.search(pattern.encode(), each.text)
            and each.rank == more.get("rank", each.rank)
            and each.attempt == more.get("attempt", each.attempt)
            and ("since" not in more or 80 <= each.at < 120)
        ]
        assert [
            (
                (each.line.at - at(0)).total_seconds(),
                each.line.attempt,
                each.line.rank,
                each.line.offset,
                each.line.text,
            )
            for each in found
        ] == [(each.at, each.attempt, each.rank, each.offset, each.text) for each in expected]
        assert pattern == "never there" or expected


def heads(found: list[FoundLine]) -> list[str]:
    return [f"{each.line.rank} {each.line.text.decode()}" for each in found]


async def collected(*outputs: bytes, ended: bool = True, **settings: object) -> CollectorHarness:
    """A collector that has these outputs of a gang."""
    source = MemorySource()
    harness = await collecting(source, settings=settings_with(**settings))
    await harness.handle(started(len(outputs)))
    for rank, output in enumerate(outputs):
        source.append(key_of(rank), output)
    if ended:
        await harness.handle(exited(len(outputs)))
    await harness.settle()
    return harness


async def test_output_without_time_stamps_has_the_order_of_its_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small_pieces(monkeypatch)
    source = MemorySource()
    harness = await collecting(source)
    written = await gang_of_lines(harness, source, 3)
    await without_times(harness)
    for last in (False, True):
        found = await all_pages(harness, by_time=True, limit=9, last=last)
        assert sorted(
            (each.line.attempt, each.line.rank, each.line.offset) for each in found
        ) == sorted((each.attempt, each.rank, each.offset) for each in written)
        assert all(each.line.approximate for each in found)
        times = [each.line.at for each in found if each.line.at]
        assert times == sorted(times)
    found = await all_pages(harness, pattern="Error", limit=2)
    assert len(found) == sum(b"Error" in each.text for each in written)


async def test_cursors_stay_valid_while_output_grows() -> None:
    source = MemorySource()
    harness = await collecting(source)
    await harness.handle(started(2))
    source.append(key_of(0), b"a\nb\nc\nhalf a")
    source.append(key_of(1), b"x\n")
    await harness.copy_and_record()
    first = await harness.ask(asked(by_time=True, limit=2))
    assert (texts(first), first.more) == (["1.0 a", "1.0 b"], True)
    rest = await harness.ask(asked(by_time=True, after=first.end))
    # A line that has not ended is no line yet.
    assert (texts(rest), rest.more) == (["1.0 c", "1.1 x"], False)
    harness.clock.advance(5)
    source.append(key_of(0), b" line\nd\n")
    source.append(key_of(1), b"y\n")
    await harness.copy_and_record()
    again = await harness.ask(asked(by_time=True, after=first.end))
    assert texts(again) == ["1.0 c", "1.0 half a line", "1.1 x", "1.0 d", "1.1 y"]
    new = await harness.ask(asked(by_time=True, after=rest.end))
    assert texts(new) == ["1.0 d", "1.1 y"]
    back = await harness.ask(asked(by_time=True, before=new.begin, limit=2))
    assert texts(back) == ["1.0 half a line", "1.1 x"]
    assert texts(await harness.ask(asked(by_time=True, before=back.begin))) == [
        "1.0 a",
        "1.0 b",
        "1.0 c",
    ]
    # By rank a cursor of the first rank's end finds what it writes later.
    by_rank = await harness.ask(asked(rank=0))
    source.append(key_of(0), b"e\n")
    await harness.copy_and_record()
    assert texts(await harness.ask(asked(rank=0, after=by_rank.end))) == ["1.0 e"]


async def test_lines_around_a_match_are_of_its_rank() -> None:
    harness = await collected(b"1\n2\nbad\n4\n5\n6\nbad\n", b"other\nbad\nlast")
    reply = await harness.ask(asked(pattern="bad", lines_before=2, lines_after=3))
    around = [
        ([line.text for line in each.before], [line.text for line in each.after])
        for each in reply.lines
    ]
    assert around == [
        ([b"1", b"2"], [b"4", b"5", b"6"]),
        ([b"5", b"6"], []),
        ([b"other"], [b"last"]),
    ]
    assert [line.offset for line in reply.lines[0].after] == [8, 10, 12]
    assert reply.lines[0].after[0].at is not None


async def test_a_long_line_counts_as_several() -> None:
    long = b"x" * 150_000 + b"needle" + b"y" * 150_000
    harness = await collected(b"before\n" + long + b"\nafter needle\n")
    found = await all_pages(harness, limit=1)
    assert b"".join(each.line.text for each in found) == b"before" + long + b"after needle"
    assert max(len(each.line.text) for each in found) == 65_536
    assert [each.line.offset for each in await all_pages(harness, pattern="needle")] == [
        7 + 2 * 65_536,
        7 + len(long) + 1,
    ]


async def test_an_answer_stays_below_the_limit_of_the_bus() -> None:
    harness = await collected(
        b"".join(b"%06d " % number + b"x" * 900 + b"\n" for number in range(3000))
    )
    reply = await harness.ask(asked(lines_before=20, lines_after=20, limit=1000))
    assert len(reply.to_json()) < 1_000_000
    assert reply.more
    assert 5 < len(reply.lines) < 1000
    found = await all_pages(harness, limit=1000, lines_before=2)
    assert len(found) == 3000


async def test_a_search_ends_after_its_time_and_goes_on_from_there() -> None:
    lines_of_rank = b"".join(b"line %08d\n" % number for number in range(200_000))
    harness = await collected(
        lines_of_rank, lines_of_rank + b"needle\n", page_seconds_max=0.000_001
    )
    for by_time in (False, True):
        replies: list[ReadLogLinesReply] = []
        reply = await harness.ask(asked(pattern="needle", by_time=by_time))
        while True:
            replies.append(reply)
            assert len(replies) < 100, "a page gets nowhere"
            if not reply.more:
                break
            assert 0 < reply.searched_bytes < 1_000_000
            reply = await harness.ask(asked(pattern="needle", by_time=by_time, after=reply.end))
        assert len(replies) > 5
        assert [each.left_bytes for each in replies] == sorted(
            (each.left_bytes for each in replies), reverse=True
        )
        assert [len(each.lines) for each in replies] == [0] * (len(replies) - 1) + [1]


class HalfArchive(MemoryArchive):
    """One output of it cannot be read."""

    broken: OutputKey | None = None

    async def read(self, key: OutputKey, offset: int, bytes_max: int) -> bytes:
        if key == self.broken:
            raise ArchiveError("the disk does not answer")
        return await super().read(key, offset, bytes_max)

    async def timestamps(self, key: OutputKey, first: int, count: int) -> list[Timestamp]:
        if key == self.broken:
            raise ArchiveError("the disk does not answer")
        return await super().timestamps(key, first, count)


@pytest.mark.parametrize("by_time", [False, True])
async def test_an_output_that_cannot_be_read_harms_only_itself(*, by_time: bool) -> None:
    source, archive = MemorySource(), HalfArchive()
    harness = await collecting(source, archive)
    await harness.handle(started(3))
    for rank in range(3):
        source.append(key_of(rank), b"one\ntwo\n")
    await harness.settle()
    archive.broken = key_of(1)
    reply = await harness.ask(asked(pattern="two", by_time=by_time))
    assert texts(reply) == ["1.0 two", "1.2 two"]
    assert [(each.rank, each.problem) for each in reply.unreadable] == [
        (1, "the disk does not answer")
    ]
    assert not reply.more


@pytest.mark.parametrize(
    ("query", "name", "value"),
    [
        ({"pattern": "("}, "pattern", "("),
        ({"pattern": "a)(b"}, "pattern", "a)(b"),
        ({"pattern": "(?=look)"}, "pattern", "(?=look)"),
        ({"pattern": r"(a)\1"}, "pattern", r"(a)\1"),
        ({"pattern": r"\Astart"}, "pattern", r"\Astart"),
        ({"pattern": r"\p{L}{1,900}\p{L}{1,900}"}, "pattern", r"\p{L}{1,900}\p{L}{1,900}"),
        ({"pattern": "two\nlines", "literal": True}, "pattern", "two\nlines"),
        ({"after": "r0.1.0.5", "by_time": True}, "after", "r0.1.0.5"),
        ({"before": "nonsense"}, "before", "nonsense"),
        ({"before": "r0.1.0.5", "last": True}, "before", "r0.1.0.5"),
        ({"limit": 1001}, "limit", "1001"),
        ({"lines_after": 51}, "lines_after", "51"),
    ],
)
async def test_what_cannot_be_asked_is_refused(
    query: dict[str, object], name: str, value: str
) -> None:
    harness = await collected(b"one\n")
    refusal = (await harness.ask(asked(**query))).refusal
    assert refusal is not None
    assert refusal.code is RefusalCode.INVALID
    assert [(error.field, error.value) for error in refusal.errors] == [(name, value)]
    assert refusal.errors[0].fix


async def test_a_pattern_matches_within_a_line() -> None:
    harness = await collected(b"foo\nbar\n\nFOO.bar\n\\A\n")
    for query, expected in [
        ({"pattern": r"foo\s+bar"}, []),
        ({"pattern": r"^bar$"}, ["0 bar"]),
        ({"pattern": r"[^x]bar"}, ["0 FOO.bar"]),
        ({"pattern": r"^$"}, ["0 "]),
        ({"pattern": "foo", "ignore_case": True}, ["0 foo", "0 FOO.bar"]),
        ({"pattern": "O.b", "literal": True}, ["0 FOO.bar"]),
        ({"pattern": "o.b", "literal": True}, []),
        ({"pattern": r"\\A"}, ["0 \\A"]),
        ({"pattern": "bar|^foo"}, ["0 foo", "0 bar", "0 FOO.bar"]),
    ]:
        assert heads(await all_pages(harness, **query)) == expected, query


async def test_many_searches_wait_and_more_are_refused() -> None:
    harness = await collected(b"line\n" * 50_000, pages_max=1, pages_waiting_max=2)
    replies = await asyncio.gather(*(harness.ask(asked(pattern="x")) for _ in range(6)))
    refused = [each.refusal for each in replies if each.refusal]
    assert len(refused) == 3
    assert {each.code for each in refused} == {RefusalCode.UNAVAILABLE}


async def test_the_end_of_a_range_of_one_rank(
    harness: CollectorHarness, source: MemorySource
) -> None:
    await harness.handle(started())
    for number in range(10):
        source.append(key_of(), b"line %d\n" % number)
        await harness.copy_and_record()
        harness.clock.advance(1)

    async def read(**changes: object) -> tuple[int, bytes]:
        query = ReadLog.model_validate({"task_id": "t1", "attempt": 1} | changes)
        reply = await harness.ask(query)
        assert reply.size == 70
        return reply.offset, reply.data

    assert await read(before=21, tail_lines=2) == (7, b"line 1\nline 2\n")
    assert await read(before=24, tail_lines=1) == (21, b"lin")
    assert await read(offset=7, before=21) == (7, b"line 1\nline 2\n")
    assert await read(since=at(2), until=at(4)) == (14, b"line 2\nline 3\n")
    assert await read(until=at(9.5), tail_lines=1) == (63, b"line 9\n")
    assert (await read(until=at(-5)))[1] == b""
