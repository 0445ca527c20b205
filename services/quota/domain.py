"""The pure core of quota: validates limits and computes what a run used.

Called by ``handlers.py``. The scheduler decides what a limit means for a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from libs.contracts.grants import Row, is_site, set_command
from libs.contracts.ids import NAME_RULE, is_name
from libs.contracts.messages import (
    FieldError,
    Placement,
    Priority,
    Quota,
    Refusal,
    RefusalCode,
    SetQuota,
    Unit,
    UsageRecorded,
)
from libs.contracts.reasons import level_name
from libs.contracts.wording import field_error

LIMIT_MAX = 1_000_000_000
EVERY_GROUP = "all"
# Of the rows that may be meant by one that is not there.
OTHERS_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Holder:
    """The owner, team and group of a task."""

    owner: str
    team: str
    group: str


@dataclass(frozen=True, slots=True)
class Use:
    """One run's use of the cluster: what it held, and from when to when."""

    task_id: str
    attempt: int
    gpus: int
    nodes: int
    started_at: datetime
    ended_at: datetime


def check(command: SetQuota, now: datetime) -> Refusal | None:
    """Validate a command; None if the row can be set, else a refusal with every error."""
    errors = [*_errors(command, now)]
    if not errors:
        return None
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    detail = f"{errors[0].field}: {errors[0].message}{more}"
    return Refusal(code=RefusalCode.INVALID, detail=detail, errors=tuple(errors))


def removes(command: SetQuota) -> bool:
    """True if the command removes a row."""
    return command.remove or command.unlimited


def no_row(command: SetQuota, others: Sequence[Row]) -> Refusal:
    """The refusal to remove a row that is not there. ``others``: rows of the same user and team,
    one of which may be meant."""
    quota = command.quota
    kind, level = "grant" if quota.grant else "cap", ""
    if quota.priority is not Priority.UNSPECIFIED:
        level = f" at {level_name(quota.priority)}"
    subject = quota.user or (f"team {quota.team}" if quota.team else "each user")
    where = f"group {quota.group}" if quota.group else "every group"
    message = f"there is no {kind} of {subject} in {where}{level or ' for every priority'}"
    if is_site(quota) and quota.grant:
        message = "the site has no default"
    commands = [f"`{set_command(each)} --remove`" for each in others[:OTHERS_SHOWN_MAX]]
    fix = "GET /v1/quotas lists all rows"
    if commands:
        more = f"; {fix}" if len(others) > OTHERS_SHOWN_MAX else ""
        fix = f"those that are there are removed with {', '.join(commands)}{more}"
    error = field_error("remove" if command.remove else "unlimited", True, message, fix)
    return Refusal(code=RefusalCode.NOT_FOUND, detail=message, errors=(error,))


def group_token(quota: Quota) -> str:
    """The group as it stands in the event's subject."""
    return quota.group or EVERY_GROUP


def held(placements: Sequence[Placement]) -> tuple[int, int]:
    """GPUs and nodes of a placed gang."""
    nodes = {placement.node_id for placement in placements}
    return sum(len(placement.gpus) for placement in placements), len(nodes)


def usage(use: Use, holder: Holder) -> UsageRecorded:
    """Return the ledger's entry. A clock that went back makes it empty, never negative."""
    ended_at = max(use.started_at, use.ended_at)
    seconds = (ended_at - use.started_at).total_seconds()
    return UsageRecorded(
        group=holder.group,
        task_id=use.task_id,
        attempt=use.attempt,
        owner=holder.owner,
        team=holder.team,
        gpus=use.gpus,
        nodes=use.nodes,
        started_at=use.started_at,
        ended_at=ended_at,
        gpu_seconds=seconds * use.gpus,
        node_seconds=seconds * use.nodes,
    )


def _errors(command: SetQuota, now: datetime) -> Iterator[FieldError]:
    quota = command.quota
    for field in ("group", "user", "team"):
        value = getattr(quota, field)
        if value and not is_name(value):
            fix = f"use {NAME_RULE}; leave it out for every one"
            yield field_error(field, value, f"is not a {field}'s name", fix)
    if quota.priority is Priority.AUTO:
        fix = "choose a level, or leave it out for every level"
        yield field_error(
            "priority", "auto", "tasks at auto are counted at the level they get", fix
        )
    if quota.grant and quota.user and quota.team:
        fix = "leave one of them out"
        yield field_error("team", quota.team, "a grant is for a user or for a team's members", fix)
    if removes(command):
        return
    yield from _amount_errors(quota)
    if quota.expires_at is not None and quota.expires_at <= now:
        fix = "give a time to come, or leave it out for a row that stays"
        at = quota.expires_at.isoformat(timespec="seconds")
        yield field_error("expires_at", at, "is over already", fix)


def _amount_errors(quota: Quota) -> Iterator[FieldError]:
    if quota.level_max is not Priority.UNSPECIFIED:
        fix = "leave it out, or set the site's default: a grant without any name"
        level = level_name(quota.level_max)
        if not (quota.grant and is_site(quota)):
            yield field_error("level_max", level, "belongs to the site's default alone", fix)
        elif quota.level_max is Priority.AUTO:
            yield field_error("level_max", level, "is not a level", "choose a level")
    if quota.unlimited:
        if not quota.grant:
            fix = "remove the cap instead, or make it a grant"
            yield field_error("unlimited", True, "a cap has a number", fix)
        if quota.limit or quota.unit is not Unit.UNSPECIFIED:
            fix = "give a number and its unit, or unlimited"
            yield field_error("limit", quota.limit, "contradicts unlimited", fix)
        return
    if quota.unit is Unit.UNSPECIFIED:
        yield field_error(
            "unit", "", "is missing", "give a number of GPUs or of nodes, or unlimited"
        )
    if not 0 <= quota.limit <= LIMIT_MAX:
        fix = "choose a number in that range; 0 means none at all"
        yield field_error("limit", quota.limit, f"is not between 0 and {LIMIT_MAX}", fix)
