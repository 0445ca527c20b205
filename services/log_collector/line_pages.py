"""Pages of lines over the ranks and attempts of a task: all lines, or those that match a pattern.

A page is read in *windows*: pieces of outputs that are next in the order of the page. The first
windows are small, and later ones grow while they take little time, so that a page is never much
later than its time and each page gets some way. Output is read in blocks and searched in a thread,
which does not hold the interpreter's lock meanwhile: copying goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from libs.contracts import messages as m
from libs.store.port import Store, Tx
from services.log_collector import lines, store
from services.log_collector.archives.port import Archive, ArchiveError
from services.log_collector.domain import EPOCH, NEWLINE, Answers, OutputKey
from services.log_collector.lines import (
    LINE_BYTES_MAX,
    LINE_OVERHEAD_BYTES,
    CursorError,
    Line,
    Pattern,
    PatternError,
    Piece,
    Position,
    Room,
)
from services.log_collector.state import State
from services.log_collector.store import OutputRow, RunRow
from services.log_collector.write_times import Output, Times, WriteTimes

# Output is read and searched in blocks of so much.
BLOCK_BYTES = 262_144
# Windows: the first one, and the largest, of all outputs together.
WINDOW_BYTES_MIN, WINDOW_BYTES_MAX = 262_144, 16_777_216
# The least piece of one output in a window.
PIECE_BYTES_MIN = 4096
# A window grows while the one before took less than this part of the page's time. A window that
# takes several times the page's time is given up, unless it is the first one.
GROW_SHARE, GIVE_UP_TIMES = 0.1, 2.0
# How far back the beginning of a line is looked for at first.
LOOK_BACK_BYTES = 4096
# Lines around a line: so many bytes before it, and after it.
CONTEXT_BYTES_MAX = 16_384
# Time stamps that are read at once for the lines that were found.
STAMPS_AT_ONCE = 512
_MICROSECOND = timedelta(microseconds=1)


class _TooLateError(Exception):
    """The page's time is over in the middle of a window."""


class _RefusedError(Exception):
    """The query cannot be answered as it is."""

    def __init__(self, refusal: m.Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


@dataclass
class Source:
    """One output of a page, and the part of it that is still to be read."""

    output: Output
    role: str
    # Everything that its rank wrote is kept.
    ended: bool
    begin: int
    end: int

    @property
    def rank_of_task(self) -> tuple[int, int]:
        """The attempt and the rank."""
        return self.output.key.attempt, self.output.key.rank

    @property
    def left(self) -> int:
        """Bytes that are still to be read."""
        return max(0, self.end - self.begin)


@dataclass(frozen=True, slots=True)
class Window:
    """Pieces of outputs, ``(source, begin, end)`` by attempt and rank, and the place at their far
    end."""

    pieces: Sequence[tuple[Source, int, int]]
    edge: Position

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(end - begin for _, begin, end in self.pieces)


@dataclass
class Page:
    """One page while it is read."""

    archive: Archive
    times: Times
    pattern: Pattern
    room: Room
    seconds: float
    bytes_max: int
    by_time: bool
    backward: bool
    edge: Position
    sources: list[Source]
    found: list[Line] = field(default_factory=list[Line])
    full: bool = False
    searched: int = 0
    unreadable: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    began_at: float = field(default_factory=time.monotonic)

    @property
    def waited(self) -> float:
        """For how many seconds it has been read."""
        return time.monotonic() - self.began_at

    def active(self) -> list[Source]:
        """The outputs that have something left, by attempt and rank."""
        return [each for each in self.sources if each.left > 0]

    async def read(self) -> None:
        """Read window after window, until the page is full, its time is over, or nothing is
        left."""
        size = WINDOW_BYTES_MIN
        while not self.full and (active := self.active()):
            began_at, searched = self.waited, self.searched
            try:
                window = await self._window(active, size)
            except ArchiveError:
                if not await self._drop_unreadable(active):
                    raise
                continue
            try:
                await self._take(window, must_end=searched == 0)
            except _TooLateError:
                break
            if self.waited >= self.seconds or self.searched >= self.bytes_max:
                break
            if self.waited - began_at < self.seconds * GROW_SHARE:
                size = min(size * 2, WINDOW_BYTES_MAX)

    async def _drop_unreadable(self, active: list[Source]) -> bool:
        """Go on without the outputs whose times cannot be read. False if it is none of them."""
        for each in active:
            try:
                await self._end_time(each)
            except ArchiveError as error:
                self.drop(each, error)
        return len(self.active()) < len(active)

    def drop(self, source: Source, error: ArchiveError) -> None:
        """Go on without an output that cannot be read now."""
        self.unreadable[source.rank_of_task] = str(error)
        source.begin = source.end

    async def limit_to(self, source: Source, query: m.ReadLogLines) -> None:
        """Leave of an output what the query wants, without a line that has not ended."""
        output = source.output
        if not source.ended and output.size:
            newline = await self._newline_before(output.key, output.size)
            source.end = output.size if newline is None else newline + 1
        if query.since is not None:
            source.begin = await self.times.first_at(output, query.since)
        if query.until is not None:
            source.end = min(source.end, await self.times.first_at(output, query.until))

    async def start_at(self, source: Source, place: Position) -> None:
        """Leave of an output what comes after a place; read backward, what comes before it."""
        at = await self._offset_of(source, place)
        if self.backward:
            source.end = min(source.end, at)
        else:
            source.begin = max(source.begin, at)

    async def _offset_of(self, source: Source, place: Position) -> int:
        mine, output = source.rank_of_task, source.output
        if not self.by_time:
            if mine == place.rank_of_task:
                return place.offset
            return output.size if mine < place.rank_of_task else 0
        before = mine < place.rank_of_task
        first = await self.times.first_stamp(output, place.at + _MICROSECOND * before)
        return max(first, place.offset) if mine == place.rank_of_task else first

    async def _window(self, active: list[Source], size: int) -> Window:
        if self.by_time:
            return await self._window_by_time(active, size)
        source = active[-1] if self.backward else active[0]
        begin, end = source.begin, source.end
        if self.backward:
            begin = max(begin, end - size)
        else:
            end = min(end, begin + size)
        return Window(
            [(source, begin, end)],
            Position(EPOCH, *source.rank_of_task, begin if self.backward else end),
        )

    async def _window_by_time(self, active: list[Source], size: int) -> Window:
        """All that was written up to a time (backward: from a time on) which is so near that the
        window is no larger than it may be."""
        share = max(PIECE_BYTES_MIN, size // len(active))
        ends = [await self._end_time(each) for each in active]
        this = max(ends) if self.backward else min(ends)
        while True:
            window = await self._window_up_to(active, await self._bound(active, share, this))
            if 0 < window.size <= size:
                return window
            if share == PIECE_BYTES_MIN:
                break
            share = max(PIECE_BYTES_MIN, share // 4)
        # Even the nearest other time is too far: a part of what was written at the same time.
        return await self._window_at(active, this, size)

    async def _end_time(self, source: Source) -> datetime:
        """The time of the next byte of an output."""
        next_byte = source.end - 1 if self.backward else source.begin
        return await self.times.of(source.output, next_byte)

    async def _bound(self, active: list[Source], share: int, this: datetime) -> datetime | None:
        """A time up to which (backward: from which on) most outputs have at most ``share`` bytes.
        None: everything that is left may be in the window."""
        found: list[datetime] = []
        for each in active:
            if self.backward:
                if each.left > share:
                    found.append(await self.times.of(each.output, each.end - share))
            elif each.left > share:
                at = await self.times.next_after(each.output, each.begin + share, this)
                found += [at] if at is not None else []
        if not found:
            return None
        return max(found) if self.backward else min(found)

    async def _window_up_to(self, active: list[Source], bound: datetime | None) -> Window:
        pieces: list[tuple[Source, int, int]] = []
        for each in active:
            begin, end = each.begin, each.end
            if bound is not None:
                at = await self.times.first_stamp(each.output, bound)
                begin, end = (max(begin, at), end) if self.backward else (begin, min(end, at))
            if begin < end:
                pieces.append((each, begin, end))
        if bound is None:
            return Window(pieces, await self._far_end(pieces))
        return Window(pieces, Position(bound, 0, 0, 0))

    async def _window_at(self, active: list[Source], at: datetime, size: int) -> Window:
        """At most so much of what was written at one time, in the order of attempts and ranks."""
        pieces: list[tuple[Source, int, int]] = []
        for each in reversed(active) if self.backward else active:
            begin, end = each.begin, each.end
            if self.backward:
                begin = max(begin, await self.times.first_stamp(each.output, at), end - size)
            else:
                later = await self.times.first_stamp(each.output, at + _MICROSECOND)
                end = min(end, later, begin + size)
            if begin < end:
                pieces.append((each, begin, end))
                size -= end - begin
            if size <= 0:
                break
        if not pieces:
            # Times of an old index may go backwards: the order of such output is that of its bytes.
            each = active[-1] if self.backward else active[0]
            begin = max(each.begin, each.end - size) if self.backward else each.begin
            pieces = [(each, begin, each.end if self.backward else min(each.end, begin + size))]
        source, begin, end = pieces[-1]
        edge = Position(at, *source.rank_of_task, begin if self.backward else end)
        return Window(pieces[::-1] if self.backward else pieces, edge)

    async def _far_end(self, pieces: Sequence[tuple[Source, int, int]]) -> Position:
        """The place at the end of these pieces: after all of their lines, or before them."""
        if self.backward:
            return Position(EPOCH, 0, 0, 0)
        last = [
            Position(await self.times.of(each.output, end - 1), *each.rank_of_task, end)
            for each, _, end in pieces
        ]
        return max(last)

    async def _take(self, window: Window, *, must_end: bool) -> None:
        """Search a window, and go on behind it."""
        new: list[Line] = []
        for source, begin, end in window.pieces:
            try:
                more = await self._lines(source, begin, end, must_end=must_end)
                new += await self._with_times(source.output, more)
            except ArchiveError as error:
                self.drop(source, error)
                continue
            if self.by_time:
                new.sort(key=self._place)
                new = self._near(new)
        fitting = self._fitting(new)
        self.found = [*fitting, *self.found] if self.backward else [*self.found, *fitting]
        size = sum(line.size for line in fitting)
        self.room = Room(self.room.lines - len(fitting), self.room.bytes - size)
        self.full = len(fitting) < len(new) or self.room.lines <= 0 or self.room.bytes <= 0
        self.edge = window.edge
        if len(fitting) < len(new):
            self.edge = self.edge_of(self.found)
        for source, begin, end in window.pieces:
            if self.backward:
                source.end = min(source.end, begin)
            else:
                source.begin = max(source.begin, end)

    def _place(self, line: Line) -> Position:
        return line.begins(by_time=self.by_time)

    def edge_of(self, page: Sequence[Line]) -> Position:
        """Where the next page goes on, if this one has these lines."""
        if self.backward:
            return page[0].begins(by_time=self.by_time)
        return page[-1].ends(by_time=self.by_time)

    def _fitting(self, new: list[Line]) -> list[Line]:
        """The lines that still fit into the page."""
        nearest = new[-1:] if self.backward else new[:1]
        # A page that has lines need not have one more that is too long for it.
        if self.found and nearest and nearest[0].size > self.room.bytes:
            return []
        return self.room.last(new) if self.backward else self.room.first(new)

    def _near(self, new: list[Line]) -> list[Line]:
        """The lines that still fit into the page, and at least one more if there are more."""
        room = Room(self.room.lines + 1, self.room.bytes + LINE_BYTES_MAX + LINE_OVERHEAD_BYTES)
        return room.last(new) if self.backward else room.first(new)

    async def _lines(self, source: Source, begin: int, end: int, *, must_end: bool) -> list[Line]:
        """The lines of a piece that match and begin in it, as many as the page may take."""
        key, size = source.output.key, source.output.size
        at = await self._first_line(key, begin, size)
        # The last line may go on behind the piece.
        stop = min(size, end + LINE_BYTES_MAX)
        found: list[Line] = []
        rest = b""
        while at < end:
            wanted = min(BLOCK_BYTES, stop - at - len(rest))
            data = rest + (await self.archive.read(key, at + len(rest), wanted) if wanted else b"")
            ended = at + len(data) >= stop or len(data) < len(rest) + wanted
            whole = lines.whole_lines(data, ended=ended)
            if whole:
                piece = Piece(key, at, data[:whole], end)
                found += await asyncio.to_thread(
                    lines.lines_of, self.pattern, piece, self.room, last=self.backward
                )
            self.searched += whole
            at, rest = at + whole, data[whole:]
            near = self._near(found)
            if ended or (len(near) < len(found) and not self.backward):
                break
            found = near
            if not must_end and self.waited > self.seconds * GIVE_UP_TIMES:
                raise _TooLateError
        return found

    async def _first_line(self, key: OutputKey, begin: int, size: int) -> int:
        """The first line that begins at ``begin`` or after it. In a line that is too long to find
        its beginning it is ``begin`` itself."""
        newline_before = await self._newline_before(key, begin) if begin else -1
        line = begin if newline_before is None else newline_before + 1
        if line == begin:
            return begin
        data = await self.archive.read(key, begin, min(size, line + LINE_BYTES_MAX) - begin)
        newline = data.find(NEWLINE)
        return begin + (newline + 1 if newline >= 0 else len(data))

    async def _newline_before(self, key: OutputKey, end: int) -> int | None:
        """The last newline before a byte; -1: it is in the first line of all. None: it is in a line
        that is too long to find its beginning."""
        for back in (LOOK_BACK_BYTES, LINE_BYTES_MAX):
            low = max(0, end - back)
            newline = (await self.archive.read(key, low, end - low)).rfind(NEWLINE)
            if newline >= 0:
                return low + newline
            if low == 0:
                return -1
        return None

    async def _with_times(self, output: Output, found: list[Line]) -> list[Line]:
        """The same lines with the times at which they were written."""
        dated: list[Line] = []
        known = WriteTimes((), 0)
        number, covered = 0, 0
        for line in found:
            if not dated or line.offset >= covered:
                end = found[-1].offset + 1
                known = await self.times.stamps(output, line.offset, end, STAMPS_AT_ONCE)
                number, covered = 0, known.end or end
            stamps = known.timestamps
            while number + 1 < len(stamps) and stamps[number + 1].offset <= line.offset:
                number += 1
            if number < len(stamps) and stamps[number].offset <= line.offset:
                at, approximate = stamps[number].at, known.approximate
                line = replace(line, at=at, approximate=approximate)  # noqa: PLW2901 - the dated one
            dated.append(line)
        return dated

    async def around(
        self, line: Line, source: Source, before: int, after: int
    ) -> tuple[list[Line], list[Line]]:
        """So many lines of the same rank before a line and after it, of a bounded size."""
        key, output = line.key, source.output
        earlier: list[Line] = []
        later: list[Line] = []
        every = Pattern()
        room = Room(max(before, after), CONTEXT_BYTES_MAX)
        if before and line.offset:
            low = max(0, line.offset - CONTEXT_BYTES_MAX)
            begin = await self._first_line(key, low, output.size)
            data = await self.archive.read(key, begin, line.offset - begin)
            piece = Piece(key, begin, data, line.offset)
            earlier = lines.lines_of(every, piece, room, last=True)[-before:]
        if after and line.end < output.size:
            data = await self.archive.read(key, line.end, CONTEXT_BYTES_MAX)
            data = data[: output.size - line.end]
            # Of a line that goes on behind what is read, or has not ended yet, nothing is shown.
            ended = source.ended and line.end + len(data) >= output.size
            data = data[: lines.whole_lines(data, ended=ended)]
            piece = Piece(key, line.end, data, output.size)
            later = lines.lines_of(every, piece, room, last=False)[:after]
        return await self._with_times(output, earlier), await self._with_times(output, later)


@dataclass
class LinePages:
    """Answers ``ReadLogLines``, a few at a time."""

    database: Store
    archive: Archive
    times: Times
    state: State
    answers: Answers
    _slots: asyncio.Semaphore = field(init=False)
    _waiting: int = 0

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.answers.pages_max)

    async def answer(self, query: m.ReadLogLines) -> m.ReadLogLinesReply:
        """A page of lines, or why there is none."""
        if self._waiting >= self.answers.pages_max + self.answers.pages_waiting_max:
            detail = "many searches run at the moment; try again"
            refusal = m.Refusal(code=m.RefusalCode.UNAVAILABLE, detail=detail)
            return m.ReadLogLinesReply(refusal=refusal)
        self._waiting += 1
        try:
            pattern, place = self._checked(query)
            async with self._slots:
                return await self._answer(query, pattern, place)
        except ArchiveError as error:
            detail = f"the log cannot be read now: {error}"
            refusal = m.Refusal(code=m.RefusalCode.UNAVAILABLE, detail=detail)
            return m.ReadLogLinesReply(refusal=refusal)
        except _RefusedError as refused:
            return m.ReadLogLinesReply(refusal=refused.refusal)
        finally:
            self._waiting -= 1

    def _checked(self, query: m.ReadLogLines) -> tuple[Pattern, Position | None]:
        """The query's pattern and cursor. Raises _RefusedError."""
        try:
            pattern = lines.compiled(
                query.pattern,
                literal=query.literal,
                ignore_case=query.ignore_case,
                memory_bytes_max=self.answers.pattern_bytes_max,
            )
        except PatternError as error:
            raise _refused("pattern", query.pattern, error.message, error.fix) from None
        most = self.answers.context_lines_max
        for name in ("lines_before", "lines_after"):
            if not 0 <= (value := getattr(query, name)) <= most:
                raise _refused(name, value, f"is not between 0 and {most}", f"give at most {most}")
        most = self.answers.page_lines_max
        if not 0 <= query.limit <= most:
            fix = f"give at most {most}, and go on at the cursor"
            raise _refused("limit", query.limit, f"is not between 1 and {most}", fix)
        field_name = "after" if query.after else "before"
        cursor = query.after or query.before
        if len([each for each in (query.after, query.before, query.last) if each]) > 1:
            fix = "give one of after, before and last"
            raise _refused(field_name, cursor, "stands beside another direction", fix)
        try:
            place = lines.position_of(cursor, by_time=query.by_time) if cursor else None
        except CursorError:
            fix = "give begin or end of an earlier page with the same order"
            raise _refused(field_name, cursor, "is no cursor of this order", fix) from None
        return pattern, place

    async def _answer(
        self, query: m.ReadLogLines, pattern: Pattern, place: Position | None
    ) -> m.ReadLogLinesReply:
        async with self.database.transaction() as tx:
            sources = await self._sources(tx, query)
        backward = bool(query.before or query.last)
        page = Page(
            archive=self.archive,
            times=self.times,
            pattern=pattern,
            room=Room(query.limit or self.answers.page_lines_max, self.answers.reply_bytes_max),
            seconds=self.answers.page_seconds_max,
            bytes_max=self.answers.page_search_bytes_max,
            by_time=query.by_time,
            backward=backward,
            edge=place or Position(EPOCH, 0, 0, 0),
            sources=[each for each in sources if _may_have(each, query, place)],
        )
        for source in page.sources:
            try:
                await page.limit_to(source, query)
                if place is not None:
                    await page.start_at(source, place)
            except ArchiveError as error:
                page.drop(source, error)
        if backward and place is None:
            page.edge = await self._end_of_all(page)
        first = page.edge
        await page.read()
        return await self._reply(query, page, first)

    async def _end_of_all(self, page: Page) -> Position:
        """The place after the last line of all."""
        ends = [
            Position(
                await self.times.of(each.output, each.end - 1) if page.by_time else EPOCH,
                *each.rank_of_task,
                each.end,
            )
            for each in page.active()
        ]
        return max(ends, default=page.edge)

    async def _sources(self, tx: Tx, query: m.ReadLogLines) -> list[Source]:
        """The outputs that are wanted, by attempt and rank."""
        if query.attempt:
            row = await tx.get(RunRow, query.task_id, query.attempt)
            rows: Sequence[RunRow] = [row] if row else []
        else:
            rows = await store.newest_runs(tx, query.task_id, self.answers.list_runs_max)
        found: list[Source] = []
        for row in rows:
            known = await store.outputs_of(tx, row.task_id, row.attempt)
            found += [
                self._source(row, place, known.get(place.rank))
                for place in row.placements
                if query.rank in (None, place.rank) and query.role in ("", place.role)
            ]
            if len(found) >= self.answers.list_outputs_max:
                break
        found.sort(key=lambda each: each.rank_of_task)
        return found[-self.answers.list_outputs_max :]

    def _source(self, row: RunRow, place: m.Placement, known: OutputRow | None) -> Source:
        key = OutputKey(row.task_id, row.attempt, place.rank)
        size, stamps = self.state.size_of(key), self.state.timestamps_of(key)
        if size is None or stamps is None:
            size, stamps = (known.size, known.timestamps) if known else (0, 0)
        ended = bool(known and known.complete and known.size == size)
        return Source(Output(key, size, stamps), place.role, ended, 0, size)

    async def _reply(
        self, query: m.ReadLogLines, page: Page, first: Position
    ) -> m.ReadLogLinesReply:
        """The page with the lines around its lines; of these as many as the answer may hold."""
        sources = {each.rank_of_task: each for each in page.sources}
        found: list[m.FoundLine] = []
        taken: list[Line] = []
        left = self.answers.reply_bytes_max
        for line in reversed(page.found) if page.backward else page.found:
            source = sources[line.key.attempt, line.key.rank]
            try:
                earlier, later = await page.around(
                    line, source, query.lines_before, query.lines_after
                )
            except ArchiveError:
                earlier, later = [], []
            left -= sum(each.size for each in (line, *earlier, *later))
            if left < 0 and taken:
                page.edge, page.full = page.edge_of(taken), True
                break
            taken = [line, *taken] if page.backward else [*taken, line]
            found.append(
                m.FoundLine(
                    line=_message(line, source.role),
                    before=tuple(_message(each, source.role) for each in earlier),
                    after=tuple(_message(each, source.role) for each in later),
                )
            )
        if page.backward:
            found.reverse()
        by_time = page.by_time
        near = first
        if taken:
            near = (taken[-1].ends if page.backward else taken[0].begins)(by_time=by_time)
        begin, end = (page.edge, near) if page.backward else (near, page.edge)
        bytes_left = sum(each.left for each in page.sources)
        return m.ReadLogLinesReply(
            lines=tuple(found),
            begin=begin.cursor(by_time=by_time),
            end=end.cursor(by_time=by_time),
            more=page.full or bytes_left > 0,
            searched_bytes=page.searched,
            left_bytes=bytes_left,
            unreadable=tuple(
                m.UnreadableLog(attempt=attempt, rank=rank, problem=problem)
                for (attempt, rank), problem in sorted(page.unreadable.items())
            ),
        )


def _may_have(source: Source, query: m.ReadLogLines, place: Position | None) -> bool:
    """False for an output that lies before the cursor (read backward: after it) as a whole."""
    if place is None or query.by_time:
        return True
    if query.before:
        return source.rank_of_task <= place.rank_of_task
    return source.rank_of_task >= place.rank_of_task


def _message(line: Line, role: str) -> m.LogLine:
    return m.LogLine(
        attempt=line.key.attempt,
        rank=line.key.rank,
        role=role,
        offset=line.offset,
        text=line.text,
        at=None if line.at == EPOCH else line.at,
        approximate=line.approximate,
    )


def _refused(name: str, value: object, message: str, fix: str) -> _RefusedError:
    error = m.FieldError(field=name, value=str(value), message=message, fix=fix)
    detail = f"{name} {str(value)!r} {message}"
    return _RefusedError(m.Refusal(code=m.RefusalCode.INVALID, detail=detail, errors=(error,)))
