"""What a user may hold in each group at each level, and which rows decide that.

Called by ``explaining.py``. It asks the same ``QuotaUsage`` as ``decide``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from libs.contracts.messages import HeldQuota, Quota, QuotaAllowance
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.limits.quota_usage import Need, held_need
from services.scheduler.domain.model.rows import Limit
from services.scheduler.domain.model.values import LEVELS


class User(NamedTuple):
    """A user in a group: whose limits count."""

    owner: str
    team: str
    group: str


def permissions(index: Index, user: str, team: str, group: str) -> tuple[QuotaAllowance, ...]:
    """For each level of one group, or of every group: what decides, what else applies, and what is
    held."""
    groups = [group] if group else groups_of(index)
    return tuple(each for name in groups for each in _in_group(index, User(user, team, name)))


def groups_of(index: Index) -> list[str]:
    """The groups that have nodes or that a row in force names."""
    of_nodes = {node.group for node in index.nodes.values() if not node.removed}
    of_rows = {row.group for row in index.limits.values() if row.group and not row.removed}
    return sorted(of_nodes | of_rows)


def _in_group(index: Index, user: User) -> Iterator[QuotaAllowance]:
    usage = index.quota_usage
    for level in LEVELS:
        grant = usage.deciding(user, level)
        limited = grant and grant.at(level)
        held = usage.held(limited, user) if limited is not None else 0
        gpus, nodes = _held(index, user, level)
        yield QuotaAllowance(
            group=user.group,
            priority=level,
            decides=None if grant is None else HeldQuota(quota=_quota(grant), held=held),
            forbidden=limited is not None and limited.forbids,
            caps=tuple(
                HeldQuota(quota=_quota(row), held=usage.held(row, user))
                for row in usage.rows(user, level)
                if not row.grant
            ),
            gpus=gpus,
            nodes=nodes,
        )


def _held(index: Index, user: User, level: object) -> Need:
    """What the user's runs hold, or are promised, in the group at a level."""
    pool = index.pools.get(user.group)
    if pool is None:
        return Need(0, 0)
    tasks = [*pool.runs_of.get(user.owner, {}).values(), *pool.leaving.values()]
    tasks += pool.promised.values()
    needs = [held_need(each) for each in tasks if (each.owner, each.level) == (user.owner, level)]
    return Need(sum(each.gpus for each in needs), sum(each.nodes for each in needs))


def _quota(row: Limit) -> Quota:
    return Quota(**{name: getattr(row, name) for name in Quota.model_fields})
