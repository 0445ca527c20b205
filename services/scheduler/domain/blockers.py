"""What stops a waiting task whatever others do: its retry time, its size, its limits, a flood.

The flood guard is an option of the ``timeshare`` discipline: while others wait, an owner who has
more than a day of the whole pool waiting may hold only a bounded part of it in the first walk of
``allocate.py``. In a second walk the nodes that are still free are open to everybody.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from libs.contracts.grants import amount, grant_text
from libs.contracts.messages import ExitKind, Priority, Reason, ReasonCode, Unit
from services.scheduler.domain.disciplines.timeshare.rule import RULE, flood_share
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.limits.quota_usage import Excess, Need, exceeds
from services.scheduler.domain.model.decisions import Reject
from services.scheduler.domain.model.group_policy import VirtualCluster
from services.scheduler.domain.model.lifecycle import QUEUED
from services.scheduler.domain.model.retry_limits import RetryCount, retry_count
from services.scheduler.domain.model.rows import Limit, Task
from services.scheduler.domain.model.values import reason
from services.scheduler.domain.queue.entry import Entry
from services.scheduler.domain.queue.walk import Outcome
from services.scheduler.domain.round import Round


def retry_later(task: Task, now: datetime) -> bool:
    """True if a task waits for the time of its retry; one that its owner resumed does not, unless
    its last runs ended soon after their starts because of such changes."""
    until = task.not_before_at
    waits = task.state is QUEUED or task.short_yields > 1
    return waits and until is not None and until > now


def is_blocked(round_: Round, pool: Pool, entry: Entry) -> bool:
    """True if the task could not start now whatever others do: it does not wait for nodes."""
    if not round_.totals.fits_now(entry.shape):
        return True
    return _limit_of(round_, pool, entry) is not None


def blocked_by(round_: Round, pool: Pool, entry: Entry) -> Outcome | None:
    """Record why the task cannot start whatever others do; None if nothing blocks it."""
    task, shape, totals = entry.task, entry.shape, round_.totals
    if retry_later(task, round_.now):
        round_.explain(task, _retry_reason(task), accepted=task.accepted)
        return Outcome.ASIDE
    if not totals.fits_known(shape):
        _too_big(round_, entry)
        return Outcome.ASIDE
    if not totals.fits_now(shape):
        round_.explain(task, round_.waits(ReasonCode.CLUSTER_TOO_SMALL_NOW, shape))
        return Outcome.ASIDE
    return _limited(round_, pool, entry)


def _limit_of(round_: Round, pool: Pool, entry: Entry) -> Excess | VirtualCluster | None:
    """The quota or the virtual cluster's maximum that the task would exceed."""
    need = round_.totals.need(entry.shape)
    excess = round_.quota_usage.excess(entry.task, entry.level, need)
    if excess is not None or not entry.cluster:
        return excess
    return round_.clusters(pool).full(entry.cluster, pool.size(entry.task))


def _limited(round_: Round, pool: Pool, entry: Entry) -> Outcome | None:
    task, limit = entry.task, _limit_of(round_, pool, entry)
    if limit is None:
        return None
    if isinstance(limit, Excess):
        # Whole nodes of a smaller kind may be within the limit.
        least = round_.totals.least_need(entry.shape)
        never = exceeds(limit.limit, 0, least.of(limit.limit.unit))
        why = quota_reason(limit, round_.totals.need(entry.shape), entry)
    else:
        size, most = pool.size(task), limit.nodes_max
        assert most is not None
        never = size > most
        code, names = ReasonCode.WAITS_FOR_VIRTUAL_CLUSTER, {"cluster": limit.name}
        why = reason(code, names=names, limit=most, need=size)
    _waits_for(round_, task, why, never=never)
    return Outcome.ASIDE if never else Outcome.LIMITED


def _waits_for(round_: Round, task: Task, why: Reason, *, never: bool) -> None:
    """Explain the wait for a limit, or reject a new task that can never fit the limit."""
    if never and not task.accepted and task.state is QUEUED:
        names = {**why.names} if "grant" in why.names else {"whose": _subject(why)}
        numbers = why.numbers
        refusal = reason(
            ReasonCode.QUOTA_NEVER_FITS, names=names, need=numbers["need"], limit=numbers["limit"]
        )
        round_.decide(Reject(task.id, refusal))
        round_.explanations[task.id] = refusal
    else:
        round_.explain(task, why)


def _subject(why: Reason) -> str:
    names = why.names
    if "cluster" in names:
        return f"virtual cluster {names['cluster']}"
    parts = [f"{kind} {names[kind]}" for kind in ("user", "team", "group") if names.get(kind)]
    return "the quota of " + (" in ".join(parts) or "each user")


def _too_big(round_: Round, entry: Entry) -> None:
    """The task fits no known nodes: reject it if it was never accepted and the list is complete."""
    task, shape = entry.task, entry.shape
    if task.accepted:
        round_.explain(task, round_.waits(ReasonCode.CLUSTER_TOO_SMALL_NOW, shape))
    elif task.group in round_.totals.emptied or task.spec.wait_for_nodes:
        # The shape of future nodes is unknown. Once the group has nodes the task may be rejected,
        # unless its owner wants it to wait anyway.
        why = round_.waits(ReasonCode.CLUSTER_TOO_SMALL_NOW, shape)
        round_.explain(task, why, accepted=False)
    elif round_.snapshot.inventory_listed:
        why = round_.waits(ReasonCode.NEVER_FITS, shape)
        round_.decide(Reject(task.id, why))
        round_.explanations[task.id] = why
    else:
        why = round_.waits(ReasonCode.WAITS_FOR_INVENTORY, shape)
        round_.explain(task, why, accepted=False)


def _retry_reason(task: Task) -> Reason:
    assert task.not_before_at is not None, "only called for a task that waits for its retry"
    if task.reason.code in (ReasonCode.EVENT_TOO_LARGE, ReasonCode.YIELDED):
        # It stays true until it is tried again.
        return task.reason
    at = task.not_before_at.isoformat(timespec="seconds")
    if task.start_attempts and task.exit is not None and task.exit.kind is ExitKind.LOST:
        names = {"at": at, "detail": task.exit.detail[:200]}
        return reason(ReasonCode.WAITS_FOR_RETRY, names=names, attempts=task.start_attempts)
    if task.short_yields:
        return reason(ReasonCode.WAITS_FOR_RETRY, names={"at": at}, changes=task.short_yields)
    count = retry_count(task, task.exit)
    shared = RetryCount(task.retries_used, task.spec.retry.max_retries)
    used = count or shared
    names = {"at": at, **used.names}
    return reason(ReasonCode.WAITS_FOR_RETRY, names=names, retry=used.used, retries_max=used.limit)


def quota_reason(excess: Excess, need: Need, entry: Entry) -> Reason:
    """Which limit binds, and what the task would take of it."""
    limit = excess.limit
    if limit.grant:
        return _grant_reason(limit, need, entry)
    names = {
        "group": limit.group,
        "user": limit.user,
        "team": limit.team,
        "priority": "" if limit.priority is Priority.UNSPECIFIED else limit.priority.value,
        "unit": limit.unit.value,
    }
    return reason(
        ReasonCode.WAITS_FOR_QUOTA, names=names, limit=limit.limit, need=need.of(limit.unit)
    )


def _grant_reason(limit: Limit, need: Need, entry: Entry) -> Reason:
    """The grant that decides binds."""
    much = need.of(limit.unit)
    unit = limit.unit
    if unit is Unit.GPUS_OR_NODES:
        unit = Unit.GPUS if need.gpus else Unit.NODES
    names = {
        "grant": grant_text(limit),
        "need": amount(much, unit),
        "level": entry.level.value,
        "in": entry.task.group,
    }
    return reason(ReasonCode.WAITS_FOR_QUOTA, names=names, limit=limit.limit, need=much)


class _Flood(NamedTuple):
    """An owner whose backlog is a flood: node equivalents they may hold, and hold."""

    backlog_seconds: float
    most: float
    held: float


def flood_reason(round_: Round, pool: Pool, entry: Entry) -> Reason | None:
    """Why the flood guard holds the task back; None if its owner is within the share."""
    flood = _flood(round_, pool, entry.task.owner)
    if flood is None or not flood.held or not _exceeds_share(flood, pool, entry):
        # One task of each owner may always run.
        return None
    hours = round(flood.backlog_seconds / 3600.0)
    return reason(ReasonCode.WAITS_FOR_SHARE, hours=hours, limit=round(flood.most, 1))


def flood_blocks_slice(round_: Round, pool: Pool, entry: Entry) -> bool:
    """True if the task may use free nodes but preempts nothing.

    Otherwise the one task that each owner may always run would be the next of the flood, again and
    again. A task that has gone without service for long still gets its grant.
    """
    if round_.order_key_of(entry.task).granted:
        return False
    flood = _flood(round_, pool, entry.task.owner)
    return flood is not None and _exceeds_share(flood, pool, entry)


def _exceeds_share(flood: _Flood, pool: Pool, entry: Entry) -> bool:
    return flood.held + pool.size(entry.task) > flood.most


def _flood(round_: Round, pool: Pool, owner: str) -> _Flood | None:
    if not pool.guarded or len(pool.owners) < 2 or pool.units <= 0:  # noqa: PLR2004 - somebody else
        return None
    backlog = pool.owner_units[owner] * pool.history.mean_seconds / pool.units
    share = flood_share(RULE, backlog)
    if share >= 1.0:
        return None
    held = pool.owner_held.get(owner, 0.0) + sum(
        pool.size(task) for task in round_.started.get(pool.group, ()) if task.owner == owner
    )
    return _Flood(backlog, share * pool.units, held)
