"""Events that a service has set apart: kept in its own database until an operator replays them.

The relay sets apart what the bus never takes, the consumer what cannot be handled. Commands list
them and record that a replay is wanted; the leader's loop, made by ``runner.py``, carries the
replays out, each in one transaction together with the removal of the letter.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from libs.bus.port import BusError, RawMessage
from libs.contracts import messages as m
from libs.contracts.envelope import Envelope, UndecodableError
from libs.service import observe
from libs.service.settings import BaseServiceSettings
from libs.service.shape import Service
from libs.store.dead_letters import DeadLetterRow, Direction
from libs.store.port import Op, Order, StoreUnavailableError, TermOverError, Tx, Where

REASON_CHARACTERS_MAX = 2_000
PAGE_MAX = 200
# So many are replayed or dropped in one step; a full page is followed by the next.
STEP_ROWS_MAX = 50
_DIRECTIONS = {
    Direction.RECEIVED: m.LetterDirection.RECEIVED,
    Direction.SENT: m.LetterDirection.SENT,
}
_DOWN = (StoreUnavailableError, BusError, TermOverError)


async def keep(tx: Tx, direction: Direction, raw: RawMessage, reason: str) -> None:
    """Store an event that is set apart. The same event again, after a crash, is the same letter."""
    event_id = _text_of(raw.headers.get("ce-id", ""))
    key = event_id or hashlib.sha256(raw.subject.encode() + b"\n" + raw.body).hexdigest()[:32]
    letter = DeadLetterRow(
        id=f"{direction.value}-{key}",
        direction=direction,
        event_id=event_id,
        type=_text_of(raw.headers.get("ce-type", "")),
        subject=raw.subject,
        headers={name: _text_of(value) for name, value in raw.headers.items()},
        body=raw.body,
        reason=_text_of(reason),
        set_apart_at=tx.now,
    )
    before = await tx.get(DeadLetterRow, letter.id)
    tx.put(replace(letter, replays=before.replays) if before is not None else letter)


async def list_letters(tx: Tx, command: m.ListDeadLetters) -> m.ListDeadLettersReply:
    """One page of the letters, in the order of their ids."""
    limit = min(command.limit or PAGE_MAX, PAGE_MAX)
    rows = await tx.select(
        DeadLetterRow,
        Where("id", Op.GT, command.after),
        order_by=(Order("id"),),
        limit=limit + 1,
    )
    found = tuple(_shown(row) for row in rows[:limit])
    return m.ListDeadLettersReply(letters=found, more=len(rows) > limit)


async def replay_letters(tx: Tx, command: m.ReplayDeadLetters) -> m.ReplayDeadLettersReply:
    """Record that these letters (none named: all) are to be tried again; the loop does it."""
    if command.ids:
        found = [await tx.get(DeadLetterRow, each) for each in dict.fromkeys(command.ids)]
    else:
        found = list(await tx.select(DeadLetterRow, Where("replay_at", Op.IS_NULL)))
    rows = [row for row in found if row is not None]
    known = {row.id for row in rows}
    missing = [each for each in command.ids if each not in known]
    if missing:
        error = m.FieldError(
            field="ids",
            value=missing[0],
            message=f"{command.service} has no such dead letter",
            fix="list them; one that was replayed is gone",
        )
        refusal = m.Refusal(
            code=m.RefusalCode.NOT_FOUND, detail="a dead letter is not there", errors=(error,)
        )
        return m.ReplayDeadLettersReply(refusal=refusal)
    tx.put(*(replace(row, replay_at=tx.now) for row in rows))
    return m.ReplayDeadLettersReply(ids=tuple(row.id for row in rows))


COMMANDS = {m.ListDeadLetters: list_letters, m.ReplayDeadLetters: replay_letters}


@dataclass
class DeadLetters:
    """One service's letters: replays and removal of old ones, by the leader."""

    service: Service
    settings: BaseServiceSettings
    turn: asyncio.Lock
    # Handles an event in a leader's transaction, with the function's changes beside the handler's.
    receive: Callable[[int, Envelope, Callable[[Tx], None]], Awaitable[None]]

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
        log = observe.log(self.service.name)

        def done(tx: Tx) -> None:
            tx.delete(DeadLetterRow, row.id)

        try:
            envelope = Envelope.decode(row.headers, row.body)
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
                failed = replace(row, replays=row.replays + 1, replay_at=None)
                tx.put(replace(failed, reason=_text_of(text)))
        else:
            log.info("replayed", id=row.id, type=row.type)

    async def _drop(self, epoch: int) -> int:
        """Drop letters that are old, and the oldest of too many: that is a loss, and said."""
        settings = self.settings
        async with self.turn, self.service.ports.store.transaction(epoch=epoch) as tx:
            before = tx.now - timedelta(seconds=settings.dead_letters_keep_seconds)
            old = await tx.select(
                DeadLetterRow, Where("set_apart_at", Op.LT, before), limit=STEP_ROWS_MAX
            )
            too_many = await tx.select(
                DeadLetterRow,
                order_by=(Order("set_apart_at", descending=True),),
                limit=STEP_ROWS_MAX,
                offset=settings.dead_letters_max,
            )
            rows = {row.id: row for row in [*old, *too_many]}
            for row_id in rows:
                tx.delete(DeadLetterRow, row_id)
        for row in rows.values():
            observe.log(self.service.name).error(
                "dead letter dropped", id=row.id, type=row.type, reason=row.reason
            )
        return max(len(old), len(too_many))


def _shown(row: DeadLetterRow) -> m.DeadLetter:
    return m.DeadLetter(
        id=row.id,
        direction=_DIRECTIONS[row.direction],
        type=row.type,
        subject=row.subject,
        event_id=row.event_id,
        reason=row.reason,
        size=len(row.body),
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


__all__ = ["COMMANDS", "DeadLetters", "keep", "raw_of"]
