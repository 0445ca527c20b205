"""The pure core of quota: which limits are accepted, and what a run used.

Called by ``handlers.py``. What a limit does to a task is the scheduler's to decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from libs.contracts.ids import is_name
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

LIMIT_MAX = 1_000_000_000
VALUE_SHOWN_MAX = 80
EVERY_GROUP = "all"


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose a task is, and where it runs."""

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


def check(command: SetQuota) -> Refusal | None:
    """None if the limit can be set, else every fault with its value and fix."""
    faults = [*_faults(command)]
    if not faults:
        return None
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    detail = f"{faults[0].field}: {faults[0].message}{more}"
    return Refusal(code=RefusalCode.INVALID, detail=detail, errors=tuple(faults))


def scope_of(quota: Quota) -> str:
    """What a limit is about: there is at most one limit for each scope, in one unit."""
    return f"{quota.group}/{quota.user}/{quota.team}/{quota.priority}"


def group_token(quota: Quota) -> str:
    """The group as it stands in the event's subject."""
    return quota.group or EVERY_GROUP


def held(placements: Sequence[Placement]) -> tuple[int, int]:
    """GPUs and nodes of a placed gang."""
    return sum(len(placement.gpus) for placement in placements), len(placements)


def usage(use: Use, holder: Holder) -> UsageRecorded:
    """The ledger's entry. A clock that went back makes it empty, never negative."""
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


def _faults(command: SetQuota) -> Iterator[FieldError]:
    quota = command.quota
    for field in ("group", "user", "team"):
        value = getattr(quota, field)
        if value and not is_name(value):
            fix = "use 1 to 63 of a-z, 0-9 and -, no - at the ends; leave it out for every one"
            yield _fault(field, value, f"is not a {field}'s name", fix)
    if quota.priority is Priority.AUTO:
        fix = "choose a level, or leave it out for every level"
        yield _fault("priority", "auto", "tasks at auto are counted at the level they get", fix)
    if command.unlimited:
        return
    if quota.unit is Unit.UNSPECIFIED:
        yield _fault("unit", "", "is missing", "give a number of GPUs or of nodes, or unlimited")
    if not 0 <= quota.limit <= LIMIT_MAX:
        fix = "choose a number in that range; 0 means none at all"
        yield _fault("limit", quota.limit, f"is not between 0 and {LIMIT_MAX}", fix)


def _fault(field: str, value: object, message: str, fix: str) -> FieldError:
    text = str(value)
    shown = text if len(text) <= VALUE_SHOWN_MAX else text[: VALUE_SHOWN_MAX - 1] + "…"
    return FieldError(field=field, value=shown, message=message, fix=fix)
