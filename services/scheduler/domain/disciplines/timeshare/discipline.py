"""``timeshare``: one key per task, from its attained and expected running time and its size.

key = submission + tag + scale x delay. This module reads the rows, the others in ``timeshare/`` do
the mathematics. The key is computed at arrival, at each return to the queue and at the end of each
slice, and does not change in between.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from services.scheduler.domain.disciplines.interface import Discipline, PoolView
from services.scheduler.domain.disciplines.timeshare.features import Features
from services.scheduler.domain.disciplines.timeshare.rule import (
    delay,
    hold_seconds,
    margin_seconds,
    slice_seconds,
    tag,
)
from services.scheduler.domain.model.lifecycle import PAUSED
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import OrderKey

# A submission that claims to be older than this when it is first seen counts as this old.
OLDEST_SECONDS = 7 * 86_400.0


def features_of(pool: PoolView, task: Task, kin: int | None = None) -> Features:
    """What the predictor may know of a task."""
    size = pool.size(task)
    limit = task.expected_seconds if pool.policy.timeshare.use_limits else None
    kin = task.marks.kin if kin is None else kin
    return Features(task.owner, size, size / max(pool.units, size, 1e-9), limit, kin)


class TimeShare(Discipline):
    """The discipline of groups without a policy of their own."""

    __slots__ = ()
    name: str = "timeshare"
    pays: bool = True

    def waiting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """Its place by its running time so far; the tag is computed once."""
        old = task.marks
        if old.policy == self.name:
            base, set_back, user_finish = _base(old, task), old.tag, old.user_finish
            kin = old.kin
        else:
            base = max(task.submitted_at.timestamp(), now.timestamp() - OLDEST_SECONDS)
            set_back, user_finish = _tag(pool, task, now.timestamp(), finish)
            kin = pool.history.kin(task.owner, pool.size(task))
        # A pause is neither waiting nor running: the task is as old as it was when it was paused.
        base += paused_seconds(task, now)
        return OrderKey(
            policy=self.name,
            key=base + set_back,
            scaled=_delay(pool, task, task.run_seconds, kin),
            kin=kin,
            base=base,
            tag=set_back,
            user_finish=user_finish,
            counted_seconds=max(old.counted_seconds, task.run_seconds),
        )

    def starting(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """Its slice begins; a big gang is held, because assembling it cost much."""
        del finish
        order_key, tempo = task.marks, pool.tempo
        restart = pool.move_seconds(task)
        length = slice_seconds(tempo.numbers, task.run_seconds)
        if order_key.granted:
            length = tempo.rule.grant_seconds + (restart if task.attempt else 0.0)
        held = hold_seconds(
            tempo.rule,
            tempo.numbers,
            share=pool.size(task) / max(pool.units, 1e-9),
            age_seconds=max(0.0, now.timestamp() - _base(order_key, task)),
            attained_seconds=task.run_seconds,
            restart_seconds=restart,
        )
        return replace(
            order_key,
            waiting=False,
            rekey_at=now + timedelta(seconds=length),
            held_until=now + timedelta(seconds=held) if held else None,
        )

    def slice_over(self, pool: PoolView, task: Task, now: datetime, finish: float) -> OrderKey:
        """A new place by its running time so far."""
        del finish
        attained = pool.attained(task, now)
        order_key = task.marks
        base = _base(order_key, task)
        return replace(
            order_key,
            policy=self.name,
            waiting=False,
            key=base + order_key.tag,
            scaled=_delay(pool, task, attained, order_key.kin),
            granted=False,
            counted_seconds=max(order_key.counted_seconds, attained),
            rekey_at=now + timedelta(seconds=slice_seconds(pool.tempo.numbers, attained)),
        )

    def reach(
        self, pool: PoolView, task: Task, order_key: OrderKey, key: float, ratio: float
    ) -> float:
        """Only runs that come clearly later: the more of its nodes it takes, the later."""
        del key
        scale = pool.ledger.scale
        return (
            order_key.base
            + order_key.tag
            + margin_seconds(
                pool.tempo.rule,
                delay_seconds=scale * order_key.scaled,
                scale=scale,
                restart_seconds=pool.move_seconds(task),
                ratio=ratio,
            )
        )


def paused_seconds(task: Task, now: datetime) -> float:
    """How long a task that is being resumed was paused; 0 for any other."""
    if task.state is not PAUSED or task.unserved_since is None:
        return 0.0
    return max(0.0, (now - task.unserved_since).total_seconds())


def _base(order_key: OrderKey, task: Task) -> float:
    return order_key.base or task.submitted_at.timestamp()


def _delay(pool: PoolView, task: Task, attained: float, kin: int) -> float:
    features = features_of(pool, task, kin)
    index = pool.history.index(features, attained)
    return delay(pool.tempo.rule, features.share, attained, index)


def _tag(pool: PoolView, task: Task, now: float, finish: float) -> tuple[float, float]:
    """How far the owner's earlier tasks set this one back, and where the next one begins."""
    size = pool.size(task)
    return tag(
        pool.tempo.rule,
        now,
        finish,
        # Where no node is known yet, it is as large as all of them.
        share=size / max(pool.units, size, 1e-9),
        mean_seconds=pool.history.mean_seconds,
        users=len(pool.owners),
        weight=pool.policy.shares.of(task.owner, task.team),
    )


TIMESHARE = TimeShare()
