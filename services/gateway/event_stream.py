"""Live readers: server-sent events, WebSockets and long-polls, woken by commits of the read model.

On the process that projects, the store's observer feeds readers at each commit. Other processes
read new events when it hints at them (``hints.py``), and poll in case a hint was lost. Both feed by
position, so that a reader notices a gap and reads it from the table: no event is lost, and none
comes twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace

import orjson
import structlog

from libs.contracts.messages import FieldError
from libs.service.loop import Wake, pause
from libs.store.port import (
    DatabaseFaultError,
    Delta,
    Op,
    Store,
    StoreUnavailableError,
    UnreadableRowError,
    Where,
)
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.concurrency import ConcurrencyLimit
from services.gateway.hidden_tasks import events_for, named_in
from services.gateway.problems import GONE, TOO_MANY, ProblemError
from services.gateway.rows import EventHeadRow, EventRow, RunRow, TaskRow
from services.gateway.sight import ANY, EVERY_TASK, Conditions, Sight, key_of, meets
from services.gateway.store import EVERYTHING

# An event as it is sent: its position, and itself as JSON.
Encoded = tuple[int, bytes]
Emit = Callable[[Sequence[Encoded]], Awaitable[None]]
RETRY_SECONDS = 1.0
# Encoded pages of the event log are kept for readers of the same events, so many bytes of them.
PAGES_BYTES_MAX = 32 * 1024 * 1024
# An empty page costs something, too.
PAGE_OVERHEAD_BYTES = 1024
_log = structlog.stdlib.get_logger(__name__)


# Events that are about no task: of nodes, quotas and policies, which everybody sees.
_OF_NO_TASK: Conditions = tuple(Where(name, Op.EQ, "") for name in ("task_id", "owner", "team"))


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a reader wants, and may see; what is empty means every one."""

    task_id: str = ""
    types: frozenset[str] = frozenset()
    owner: str = ""
    team: str = ""
    group: str = ""
    sight: Sight = EVERY_TASK
    # The tasks that an event may name beside its own.
    names: Sight = EVERY_TASK

    def takes(self, row: EventRow) -> bool:
        """True if the reader wants this event."""
        return meets(row, self.where()) and any(meets(row, each) for each in self.seen())

    def where(self) -> Conditions:
        """The same as conditions of a select, those that fewest events meet first."""
        given = ("task_id", "owner", "team", "group")
        found = [Where(name, Op.EQ, getattr(self, name)) for name in given if getattr(self, name)]
        if self.types:
            found.append(Where("type", Op.IN, sorted(self.types)))
        return tuple(found)

    def seen(self) -> tuple[Conditions, ...]:
        """What the reader sees, as alternatives of which no event meets two."""
        if self.sight.is_full:
            return EVERYTHING
        return *self.sight.alternatives(), _OF_NO_TASK

    def keys(self) -> set[tuple[str, object]]:
        """Each event that the reader takes has one of these values in its columns."""
        found = key_of(self.where())
        return {found} if found != ANY else {key_of(each) for each in self.seen()}


KEYS = ("task_id", "owner", "team", "group")


class Readers:
    """Open readers, found by the values that their events have: an event costs as much as the
    readers of its task, owner, team and group, and those of everything, are many."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, object], set[Reader]] = {}

    def __iter__(self) -> Iterator[Reader]:
        return iter({reader for some in self._by_key.values() for reader in some})

    def add(self, reader: Reader) -> None:
        """A reader is open."""
        for key in reader.wanted.keys():  # noqa: SIM118 - no mapping
            self._by_key.setdefault(key, set()).add(reader)

    def discard(self, reader: Reader) -> None:
        """A reader is gone."""
        for key in reader.wanted.keys():  # noqa: SIM118 - no mapping
            self._by_key[key].discard(reader)
            if not self._by_key[key]:
                del self._by_key[key]

    def of(self, row: EventRow) -> set[Reader]:
        """Those that want an event."""
        keys = [ANY, *((name, getattr(row, name)) for name in KEYS)]
        found = {reader for key in keys for reader in self._by_key.get(key, ())}
        return {reader for reader in found if reader.wanted.takes(row)}


@dataclass(eq=False)
class Reader:
    """One live reader: its pending events, and whether it has to read the table."""

    user: str
    wanted: EventFilter
    pending_max: int
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    pending: deque[Encoded] = field(default_factory=deque)
    behind: bool = True
    # Everything that it wants up to here was emitted.
    after: int = 0
    waiting: bool = False

    @property
    def is_idle(self) -> bool:
        """True if everything that was fed to it was emitted, and it waits for more."""
        return self.waiting and not self.behind and not self.pending

    def give(self, position: int, document: bytes | None) -> None:
        """Queue an event. A reader whose queue is full reads the table later instead, and so does
        one that gets no document."""
        if self.is_idle:
            self.after = max(self.after, position - 1)
        if document is None or len(self.pending) >= self.pending_max:
            self.reset()
        elif not self.behind:
            self.pending.append((position, document))
        self.wake.set()

    def reset(self) -> None:
        """Drop the pending events and read them from the table instead."""
        self.pending.clear()
        self.behind = True
        self.wake.set()


class StreamLimit:
    """Bounds the number of open readers, in all and for each user. ``reserved`` further places
    are for administrators. ``what`` is their name in the refusal."""

    def __init__(
        self, total_max: int, each_max: int, reserved: int = 0, what: str = "streams"
    ) -> None:
        self._what = what
        self._total_max = total_max
        self._each_max = each_max
        self._reserved = reserved
        self._open: dict[str, int] = {}
        self._total = 0

    def try_admit(self, key: str, held: contextlib.ExitStack) -> bool:
        """Count one in for as long as ``held`` is open; False if there are too many."""
        if self._is_full(key):
            return False
        held.enter_context(self.admit(key))
        return True

    def _is_full(self, key: str, *, is_admin: bool = False) -> bool:
        most = self._total_max + (self._reserved if is_admin else 0)
        return self._total >= most or self._open.get(key, 0) >= self._each_max

    @contextlib.contextmanager
    def admit(self, key: str, *, is_admin: bool = False) -> Generator[None]:
        """Count one in for as long as the context is open; 429 if there are too many."""
        if self._is_full(key, is_admin=is_admin):
            raise ProblemError(
                TOO_MANY,
                f"{self._open.get(key, 0)} {self._what} are open for {key}, {self._total} in all;"
                f" close some (at most {self._each_max} each, {self._total_max} in all)",
                headers={"retry-after": "5"},
            )
        self._open[key] = self._open.get(key, 0) + 1
        self._total += 1
        try:
            yield
        finally:
            self._total -= 1
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]


@dataclass(frozen=True, slots=True)
class Page:
    """The events of one filter after a position, encoded once for all readers."""

    events: tuple[Encoded, ...]
    # No matching event follows up to this position. None: the page is full and more may follow.
    until: int | None
    size: int


class EventPages:
    """Cached pages of the event log. Reads are limited in all and by user; recent pages are kept.

    The log only grows, so a full page stays as it is, until an owner that was not known is entered
    (``forget``); one that is not full is good as long as the log ends where it ended then.
    """

    def __init__(self, store: Store, events_max: int, concurrency: ConcurrencyLimit) -> None:
        self._store = store
        self._events_max = events_max
        self._concurrency = concurrency
        self._kept: OrderedDict[tuple[EventFilter, int], Page] = OrderedDict()
        self._bytes = 0

    async def read(
        self, user: str, wanted: EventFilter, after: int, end: Callable[[], int | None]
    ) -> Page:
        """The page behind a position; ``end`` is the last position that was fed to readers."""
        async with self._concurrency.of(user):
            # Checked after the wait: the previous caller may have read the same page.
            found = self._kept.get((wanted, after))
            known_end = end()
            if found is not None and (
                found.until is None or (known_end is not None and found.until >= known_end)
            ):
                self._kept.move_to_end((wanted, after))
                return found
            page = await self._read(wanted, after, known_end)
        self._keep(wanted, after, page)
        return page

    async def _read(self, wanted: EventFilter, after: int, known_end: int | None) -> Page:
        where, seen = wanted.where(), wanted.seen()
        # Positions have no gaps: wherever readers of all events begin, their pages soon coincide.
        whole = not where and seen == EVERYTHING
        limit = self._events_max - after % self._events_max if whole else self._events_max
        async with self._store.transaction() as tx:
            rows = await rows_of.events(tx, *where, after=after, limit=limit, seen=seen)
            # Read last: what was pruned before this is not on the page.
            ends = await rows_of.head(tx)
            shown = await events_for(tx, rows, wanted.names)
        if after < ends.oldest - 1:
            raise gone(after, f"events before {ends.oldest} are not kept", ends.oldest)
        events = tuple((row.position, document_of(row)) for row in shown)
        size = PAGE_OVERHEAD_BYTES + sum(len(document) for _, document in events)
        return Page(events, None if len(rows) == limit else known_end or 0, size)

    def forget(self) -> None:
        """Drop every page: events have changed."""
        self._kept.clear()
        self._bytes = 0

    def _keep(self, wanted: EventFilter, after: int, page: Page) -> None:
        before = self._kept.pop((wanted, after), None)
        self._kept[(wanted, after)] = page
        self._bytes += page.size - (before.size if before else 0)
        while self._bytes > PAGES_BYTES_MAX:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.size


class LiveEvents:
    """The readers and long-polls of this process that wait for events."""

    def __init__(
        self,
        store: Store,
        *,
        pending_max: int,
        page: int,
        catching_up: ConcurrencyLimit,
        poll_seconds: float,
        poll_leading_seconds: float,
    ) -> None:
        self._store = store
        self._pending_max = pending_max
        self._page = page
        self._pages = EventPages(store, page, catching_up)
        self._poll_seconds = poll_seconds
        self._poll_leading_seconds = poll_leading_seconds
        self._readers = Readers()
        self._waiters: dict[str, set[asyncio.Event]] = {}
        # The last position fed; None before the first.
        self._last: int | None = None
        self._is_projector = False
        self._poll_now = Wake()
        self.closed = False

    @property
    def position(self) -> int | None:
        """Up to where this process has seen the event log: what is read from now on has at least
        these events in it. None: it has not looked yet."""
        return self._last

    def observe(self, delta: Delta) -> None:
        """Called by the store after each commit of this process, in order."""
        events = [row for row in delta.put if isinstance(row, EventRow)]
        if any(row.position <= self._position for row in events):
            # The owners of earlier events have become known.
            self._pages.forget()
        if events and any(isinstance(row, EventHeadRow) for row in delta.put):
            self._is_projector = True
            self._feed(sorted(events, key=lambda row: row.position))
        for row in delta.put:
            if isinstance(row, RunRow | TaskRow):
                self._wake_task(row.task_id)

    def forget_pages(self) -> None:
        """Another process says that events have changed that pages may have without their owner."""
        self._pages.forget()

    def reread_tables(self) -> None:
        """Make every reader continue from the table: the events fed to it may be incomplete."""
        for reader in self._readers:
            reader.reset()

    async def run(self) -> None:
        """Read events that other processes projected, at each hint and now and then, until
        cancelled."""
        more = False
        try:
            while True:
                try:
                    more = await self._poll()
                except StoreUnavailableError:
                    pass
                except (DatabaseFaultError, UnreadableRowError) as problem:
                    _log.warning("the event log cannot be read", problem=str(problem))
                if not more:
                    await self._poll_now.wait(
                        self._poll_leading_seconds if self._is_projector else self._poll_seconds
                    )
                more = False
        finally:
            self.close()

    def hinted(self, position: int) -> None:
        """Another process says that the event log has reached this position."""
        if self._last is not None and position > self._last:
            self._poll_now.set()

    def close(self) -> None:
        """End every stream: the process stops."""
        self.closed = True
        for reader in self._readers:
            reader.wake.set()
        for task_id in list(self._waiters):
            self._wake_task(task_id)

    @contextlib.contextmanager
    def reader(self, user: str, wanted: EventFilter) -> Generator[Reader]:
        """A reader of events, fed while the context is open. It begins with the table."""
        reader = Reader(user, wanted, self._pending_max)
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)

    @contextlib.contextmanager
    def waiter(self, task_id: str) -> Generator[asyncio.Event]:
        """An event that is set at each change of a task or its runs."""
        event = asyncio.Event()
        self._waiters.setdefault(task_id, set()).add(event)
        try:
            yield event
        finally:
            waiting = self._waiters[task_id]
            waiting.discard(event)
            if not waiting:
                del self._waiters[task_id]

    async def follow(self, reader: Reader, after: int, emit: Emit) -> None:
        """Emit every event of the reader's topic behind ``after``, in order and once, until the
        process stops or the caller cancels. Raises 410 if events were pruned before the reader
        took them.
        """
        reader.after = after
        while not self.closed:
            reader.wake.clear()
            if reader.behind:
                await self._catch_up(reader, emit)
            if reader.pending and not reader.behind:
                events = [each for each in reader.pending if each[0] > reader.after]
                reader.pending.clear()
                if events:
                    await emit(events)
                    reader.after = events[-1][0]
            if not reader.pending and not reader.behind and not self.closed:
                reader.waiting = True
                await reader.wake.wait()
                reader.waiting = False

    def position_of(self, reader: Reader) -> int | None:
        """The position behind which the reader may resume, if it is idle: it has every event up to
        there that it wants, however many others were fed meanwhile. None while events are on their
        way to it."""
        if not reader.is_idle:
            return None
        reader.after = max(reader.after, self._position)
        return reader.after

    async def _catch_up(self, reader: Reader, emit: Emit) -> None:
        """Read the table to its end; from then on the reader is fed. While the database is away,
        what was read so far stands."""
        while True:
            # Feeding begins before the read: an event committed meanwhile is read, fed, or both.
            reader.behind = False
            try:
                page = await self._pages.read(
                    reader.user, reader.wanted, reader.after, lambda: self._last
                )
            except StoreUnavailableError:
                reader.reset()
                await pause(RETRY_SECONDS)
                return
            if page.until is None:
                reader.reset()
            if page.events:
                await emit(page.events)
                reader.after = page.events[-1][0]
            if page.until is not None:
                reader.after = max(reader.after, page.until)
                return

    async def _poll(self) -> bool:
        """Read a page of what follows; True: perhaps more does."""
        before = self._last
        async with self._store.transaction() as tx:
            if before is None:
                self._restart((await rows_of.head(tx)).position)
                return False
            rows = await rows_of.events(tx, after=before, limit=self._page)
        unseen = [row for row in rows if row.position > self._position]
        if unseen:
            self._is_projector = False
            self._feed(unseen)
            for row in unseen:
                self._wake_task(row.task_id)
        return len(rows) == self._page

    @property
    def _position(self) -> int:
        return self._last or 0

    def _restart(self, position: int) -> None:
        for reader in self._readers:
            self.position_of(reader)
            reader.reset()
        self._last = max(position, self._last or 0)

    def _feed(self, rows: list[EventRow]) -> None:
        if self._last is not None:
            rows = [row for row in rows if row.position > self._last]
        if not rows:
            return
        if self._last is None or rows[0].position > self._last + 1:
            # This process missed an event, so every reader reads the table.
            self._restart(rows[-1].position)
            return
        for row in rows:
            self._last = row.position
            self._deliver(row)

    def _deliver(self, row: EventRow) -> None:
        readers = self._readers.of(row)
        document = document_of(row) if readers else b""
        names_others = bool(readers) and bool(named_in(row))
        for reader in readers:
            # Which of the other tasks a reader sees, the rows tell.
            hides = names_others and not reader.wanted.names.is_full
            reader.give(row.position, None if hides else document)

    def _wake_task(self, task_id: str) -> None:
        for event in self._waiters.get(task_id, ()):
            event.set()


def gone(begin: int, why: str, oldest: int) -> ProblemError:
    """410: the log has no such position."""
    error = FieldError(field="from", value=str(begin), message=why, fix=f"start from {oldest}")
    return ProblemError(GONE, f"{why}; start from {oldest}", [error])


def document_of(row: EventRow) -> bytes:
    """The event as JSON; made once for all readers. One that cannot be shown does not end the
    streams of all readers: it is sent without its data.
    """
    try:
        return orjson.dumps(views.event(row))
    except TypeError as problem:
        why = f"it cannot be shown ({type(problem).__name__})"
        return orjson.dumps({**views.event(replace(row, data={})), "unreadable": why})
