"""Dead letters: events that a service set apart, kept in its database until an operator replays
them.

The relay sets apart events that the bus never accepts, the consumer events that cannot be handled.
Commands list them, discard them and request replays; the leader's loop, made by ``runner.py``,
replays each in one transaction together with the removal of the letter.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from libs.bus.port import REASON_CHARACTERS_MAX, BusError, RawMessage
from libs.contracts import messages as m
from libs.contracts.envelope import Envelope, UndecodableError
from libs.service import observability, prune
from libs.service.definition import Service
from libs.service.settings import BaseServiceSettings
from libs.store.dead_letters import DeadLetterBody, DeadLetterRow, Direction
from libs.store.port import Op, Order, StoreUnavailableError, TermOverError, Tx, Where

PAGE_MAX = 200
# So many are replayed or dropped in one step; a full page is followed by the next. Bodies, 8 MiB at
# most, are read one at a time, and only to be replayed.
STEP_ROWS_MAX = 50
_DIRECTIONS = {
    Direction.RECEIVED: m.LetterDirection.RECEIVED,
    Direction.SENT: m.LetterDirection.SENT,
}
_DOWN = (StoreUnavailableError, BusError, TermOverError)


async def keep(tx: Tx, direction: Direction, raw: RawMessage, reason: str) -> None:
    """Store an event that is set apart. The same event again, after a crash, is the same letter."""
    letter = DeadLetterRow(
        id=f"{direction.value}-{key_of(raw)}",
        direction=direction,
        event_id=_text_of(raw.headers.get("ce-id", "")),
        type=_text_of(raw.headers.get("ce-type", "")),
        subject=raw.subject,
        headers={name: _text_of(value) for name, value in raw.headers.items()},
        size=len(raw.body),
        reason=_text_of(reason),
        set_apart_at=tx.now,
    )
    before = await tx.get(DeadLetterRow, letter.id)
    tx.put(replace(letter, replays=before.replays) if before is not None else letter)
    tx.put(DeadLetterBody(letter.id, raw.body))


def key_of(raw: RawMessage) -> str:
    """Identify an event by its id, or by a digest of its contents if it has none."""
    event_id = _text_of(raw.headers.get("ce-id", ""))
    return event_id or hashlib.sha256(raw.subject.encode() + b"\n" + raw.body).hexdigest()[:32]


async def list_letters(tx: Tx, command: m.ListDeadLetters) -> m.ListDeadLettersReply:
    """One page of the letters, in the order of their ids."""
    rows, more = await _page(tx, command.after, min(command.limit or PAGE_MAX, PAGE_MAX))
    return m.ListDeadLettersReply(letters=tuple(_shown(row) for row in rows), more=more)


async def _page(tx: Tx, after: str, limit: int) -> tuple[list[DeadLetterRow], bool]:
    """The letters behind an id, in the order of their ids, and whether there are more."""
    rows = await tx.select(
        DeadLetterRow, Where("id", Op.GT, after), order_by=(Order("id"),), limit=limit + 1
    )
    return rows[:limit], len(rows) > limit


async def replay_letters(tx: Tx, command: m.ReplayDeadLetters) -> m.ReplayDeadLettersReply:
    """Record that these letters are to be tried again; the loop does it. None named: a page of
    all. Dying between two pages leaves the later ones as they were."""
    rows, more_after, refusal = await _chosen(tx, command)
    # A letter of a page that waits for its replay already needs no second one.
    rows = [row for row in rows if command.ids or row.replay_at is None]
    tx.put(*(replace(row, replay_at=tx.now) for row in rows))
    ids = tuple(row.id for row in rows)
    return m.ReplayDeadLettersReply(refusal=refusal, ids=ids, more_after=more_after)


async def discard_letters(tx: Tx, command: m.DiscardDeadLetters) -> m.DiscardDeadLettersReply:
    """Drop these letters with their bodies. None named: a page of all. A replay that runs meanwhile
    may still succeed; one that fails does not bring the letter back."""
    rows, more_after, refusal = await _chosen(tx, command)
    for row in rows:
        _delete(tx, row.id)
        observability.log(command.service).warning(
            "dead letter discarded", id=row.id, type=row.type, reason=row.reason
        )
    ids = tuple(row.id for row in rows)
    return m.DiscardDeadLettersReply(refusal=refusal, ids=ids, more_after=more_after)


async def _chosen(
    tx: Tx, command: m.ReplayDeadLetters | m.DiscardDeadLetters
) -> tuple[list[DeadLetterRow], str, m.Refusal | None]:
    """The letters that a command names, or one page of all; the id behind which there are more; and
    why nothing is done, if one that is named is not there."""
    if not command.ids:
        page, more = await _page(tx, command.after, PAGE_MAX)
        return page, page[-1].id if more else "", None
    wanted = tuple(dict.fromkeys(command.ids))
    await tx.load(DeadLetterRow, *((each,) for each in wanted))
    rows = [row for each in wanted if (row := await tx.get(DeadLetterRow, each)) is not None]
    missing = sorted({*wanted} - {row.id for row in rows})
    if not missing:
        return rows, "", None
    error = m.FieldError(
        field="ids",
        value=missing[0],
        message=f"{command.service} has no such dead letter",
        fix="list them; one that was replayed or discarded is gone",
    )
    detail = "a dead letter is not there"
    return [], "", m.Refusal(code=m.RefusalCode.NOT_FOUND, detail=detail, errors=(error,))


COMMANDS = {
    m.ListDeadLetters: list_letters,
    m.ReplayDeadLetters: replay_letters,
    m.DiscardDeadLetters: discard_letters,
}


@dataclass
class DeadLetters:
    """One service's letters: replays and removal of old ones, by the leader."""

    service: Service
    settings: BaseServiceSettings
    turn: asyncio.Lock
    # Handles an event in a leader's transaction, with the function's changes beside the handler's.
    receive: Callable[[int, Envelope, Callable[[Tx], None]], Awaitable[None]]

    def __post_init__(self) -> None:
        days = self.settings.prune_days_per_hour
        self._cutoff = prune.PruneCutoff(self.service.name, "dead letters", days)

    async def step(self, epoch: int) -> float | None:
        """Carry out the replays that are wanted, then drop what is old or too much."""
        async with self.service.ports.store.transaction() as tx:
            wanted = await tx.select(
                DeadLetterRow,
                Where("replay_at", Op.NOT_NULL),
                order_by=(Order("replay_at"),),
                limit=STEP_ROWS_MAX,
            )
        for row in wanted:
            await self._replay(epoch, row)
        dropped = await self._drop(epoch)
        return 0.0 if STEP_ROWS_MAX in (len(wanted), dropped) else None

    async def _replay(self, epoch: int, row: DeadLetterRow) -> None:
        """Try one letter again. Dying before the commit leaves it wanted, after it it is gone."""
        log = observability.log(self.service.name)

        def done(tx: Tx) -> None:
            _delete(tx, row.id)

        try:
            # One body at a time: many may not fit into memory.
            async with self.service.ports.store.transaction() as tx:
                kept = await tx.get(DeadLetterBody, row.id)
            if kept is None:
                raise UndecodableError("its body is not there")  # noqa: TRY301 - as every other
            envelope = Envelope.decode(row.subject, row.headers, kept.body)
            if row.direction is Direction.RECEIVED:
                await self.receive(epoch, envelope, done)
            else:
                async with self.turn, self.service.ports.store.transaction(epoch=epoch) as tx:
                    tx.emit(envelope.message)
                    done(tx)
        except _DOWN:
            raise
        except Exception as problem:  # noqa: BLE001 - it stays a letter, with what is wrong now
            text = str(problem) if isinstance(problem, UndecodableError) else _text(problem)
            log.warning("replay failed", id=row.id, reason=text)
            async with self.turn, self.service.ports.store.transaction(epoch=epoch) as tx:
                # It may have been discarded meanwhile.
                if (kept_row := await tx.get(DeadLetterRow, row.id)) is not None:
                    failed = replace(kept_row, replays=row.replays + 1, replay_at=None)
                    tx.put(replace(failed, reason=_text_of(text)))
        else:
            log.info("replayed", id=row.id, type=row.type)

    async def _drop(self, epoch: int) -> int:
        """Drop letters that are old, and the oldest received ones beyond the limit; log each loss.
        A received event is also in the stream's own dead letters, and other services have handled
        it; a sent one exists nowhere else, so the limit never drops it."""
        settings = self.settings
        async with self.turn, self.service.ports.store.transaction(epoch=epoch) as tx:
            wanted = tx.now - timedelta(seconds=settings.dead_letters_keep_seconds)
            oldest = await prune.oldest_of(tx, DeadLetterRow, "set_apart_at")
            before = self._cutoff.before(oldest, wanted)
            old = (
                await tx.select(
                    DeadLetterRow, Where("set_apart_at", Op.LT, before), limit=STEP_ROWS_MAX
                )
                if before is not None
                else []
            )
            too_many = await tx.select(
                DeadLetterRow,
                Where("direction", Op.EQ, Direction.RECEIVED),
                order_by=(Order("set_apart_at", descending=True),),
                limit=STEP_ROWS_MAX,
                offset=settings.dead_letters_max,
            )
            rows = {row.id: row for row in [*old, *too_many]}
            for row_id in rows:
                _delete(tx, row_id)
        for row in rows.values():
            observability.log(self.service.name).error(
                "dead letter dropped", id=row.id, type=row.type, reason=row.reason
            )
        return max(len(old), len(too_many))


def _delete(tx: Tx, letter_id: str) -> None:
    tx.delete(DeadLetterRow, letter_id)
    tx.delete(DeadLetterBody, letter_id)


def _shown(row: DeadLetterRow) -> m.DeadLetter:
    return m.DeadLetter(
        id=row.id,
        direction=_DIRECTIONS[row.direction],
        type=row.type,
        subject=row.subject,
        event_id=row.event_id,
        reason=row.reason,
        size=row.size,
        set_apart_at=row.set_apart_at,
        replays=row.replays,
        replaying=row.replay_at is not None,
    )


def _text(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"


def _text_of(value: str) -> str:
    """Bounded, and without what PostgreSQL's text does not take: NUL and halves of characters."""
    bounded = value.replace("\0", "")[:REASON_CHARACTERS_MAX]
    return bounded.encode("utf-8", "replace").decode()


def raw_of(envelope: Envelope) -> RawMessage:
    """An event as it would be on the bus."""
    return RawMessage(envelope.subject, envelope.headers(), envelope.body())


__all__ = ["COMMANDS", "DeadLetters", "keep", "key_of", "raw_of"]
