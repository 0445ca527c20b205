"""The rows of series and all queries on them. Called by ``recorder.py`` and ``queries.py``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from libs.service.clock import time_of
from libs.service.prune import PruneRule, aged
from libs.store.port import Op, Order, Tx, Where
from services.monitor.domain.blocks import (
    POINTS,
    Block,
    BlockKey,
    decoded,
    encoded,
    run_subject,
    runs_of,
)


@dataclass(frozen=True, slots=True)
class SeriesRow:
    """One block of a subject's series (``blocks.py``)."""

    subject: str
    step_seconds: int
    begins_at: datetime
    # Of a run: the node whose ranks it is about. Empty for a node.
    part: str
    # The ranks that it is about lie between these; -1 for a node.
    first_rank: int
    last_rank: int
    # A coarser block has all of its points.
    folded: bool
    expires_at: datetime
    data: bytes


def key_of(place: BlockKey) -> tuple[str, int, datetime, str]:
    """The primary key of a block's row."""
    return (place.subject, place.step_s, time_of(place.begins_s), place.part)


def row_of(block: Block, keep_s: float, *, folded: bool = False) -> SeriesRow:
    """The row of a block."""
    place, ranks = block.place, [*block.gpus]
    return SeriesRow(
        subject=place.subject,
        step_seconds=place.step_s,
        begins_at=time_of(place.begins_s),
        part=place.part,
        first_rank=min(ranks, default=-1),
        last_rank=max(ranks, default=-1),
        folded=folded,
        expires_at=time_of(place.ends_s + keep_s),
        data=encoded(block),
    )


def place_of(row: SeriesRow) -> BlockKey:
    """The block of a row."""
    return BlockKey(row.subject, row.part, row.step_seconds, int(row.begins_at.timestamp()))


def block_of(row: SeriesRow) -> Block:
    """The content of a row; an empty block if it is damaged."""
    place = place_of(row)
    try:
        return decoded(place, row.data)
    except ValueError:
        return Block(place)


async def block_at(tx: Tx, place: BlockKey) -> Block:
    """The stored block, or an empty one."""
    row = await tx.get(SeriesRow, *key_of(place))
    return Block(place) if row is None else block_of(row)


async def complete_unfolded(tx: Tx, step_s: int, ended: float, limit: int) -> Sequence[SeriesRow]:
    """Blocks of one step that began before a moment and are in no coarser block yet."""
    return await tx.select(
        SeriesRow,
        Where("step_seconds", Op.EQ, step_s),
        Where("folded", Op.EQ, value=False),
        Where("begins_at", Op.LT, time_of(ended)),
        order_by=[Order("begins_at")],
        limit=limit,
    )


async def blocks_between(
    tx: Tx,
    subjects: Sequence[Where],
    step_s: int,
    begins_s: float,
    ends_s: float,
    *,
    unfolded: bool,
    limit: int,
) -> Sequence[SeriesRow]:
    """Rows of subjects whose time overlaps this one."""
    length = POINTS * step_s
    where = [
        *subjects,
        Where("step_seconds", Op.EQ, step_s),
        Where("begins_at", Op.GT, time_of(begins_s - length)),
        Where("begins_at", Op.LT, time_of(ends_s)),
    ]
    if unfolded:
        where.append(Where("folded", Op.EQ, value=False))
    return await tx.select(SeriesRow, *where, limit=limit)


def of_subject(subject: str) -> list[Where]:
    """Condition: the rows of one subject."""
    return [Where("subject", Op.EQ, subject)]


def of_subjects(subjects: Collection[str]) -> list[Where]:
    """Condition: the rows of these subjects."""
    return [Where("subject", Op.IN, sorted(subjects))]


def of_runs(task_id: str, attempt: int, ranks: range) -> list[Where]:
    """Condition: the rows of a task's run, or of all of its runs (0), with one of these ranks."""
    subject = (
        Where("subject", Op.EQ, run_subject(task_id, attempt))
        if attempt
        else Where("subject", Op.PREFIX, runs_of(task_id))
    )
    return [
        subject,
        Where("last_rank", Op.GE, ranks.start),
        Where("first_rank", Op.LT, ranks.stop),
    ]


def prune_rule() -> PruneRule:
    """What is pruned: blocks whose time is over. How long that is, they say themselves."""
    return aged(
        "series",
        timedelta(0),
        SeriesRow,
        ["subject", "step_seconds", "begins_at", "part"],
        "expires_at",
    )
