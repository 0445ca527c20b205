"""Rows and messages as the JSON that people and programs see. Called by the routes."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import cache, partial
from typing import Any

from libs.contracts.base import Message
from libs.contracts.fields import SHOWN
from libs.contracts.grants import grant_text, is_site, permitted
from libs.contracts.messages import (
    Checkpoint,
    ClassRetries,
    DecisionRecord,
    Endpoint,
    ExitKind,
    Goal,
    HeldQuota,
    LifeState,
    LifeStateSaved,
    LogInfo,
    Placement,
    PreemptionPolicy,
    Priority,
    Quota,
    QuotaAllowance,
    RankExit,
    Reason,
    RetryPolicy,
    RunActivityChanged,
    RunDelayed,
    RunExit,
    RunMode,
    TaskSpec,
    Unit,
)
from libs.contracts.reasons import render
from services.gateway.conversion import to_json
from services.gateway.json_values import (
    EXACT_INTEGER_MAX,
    enum_name,
    enum_name_or_empty,
    json_numbers,
    rfc3339,
)
from services.gateway.reports import progress_order
from services.gateway.rows import (
    AuditRow,
    EventRow,
    ExternalIdentityRow,
    MetricsRow,
    NodeRow,
    PasswordRow,
    ProgressRow,
    QuotaRow,
    RunRow,
    TaskRow,
    TeamRow,
    TokenRow,
    TokenUseRow,
    UserRow,
)

Json = dict[str, Any]
SIGNALLED = 128
_WORDS = {each.value: enum_name(each) for kind in (Unit, Priority) for each in kind}


def reason(message: Reason | None) -> Json | None:
    """``{code, text, …}``: the numbers and names stand beside the sentence made of them."""
    if message is None:
        return None
    # Enums travel by their full names; only HTTP has the short lower-case ones.
    names = {key: _WORDS.get(value, value) for key, value in message.names.items()}
    figures = {
        key: int(n) if n.is_integer() and abs(n) < EXACT_INTEGER_MAX else n
        for key, n in message.numbers.items()
    }
    return {**names, **figures, "code": enum_name(message.code), "text": render(message)}


def checkpoint(saved: Checkpoint | None) -> Json | None:
    """A saved checkpoint."""
    if saved is None:
        return None
    return {
        "no": saved.no,
        "attempt": saved.attempt,
        "step": saved.step,
        "uri": saved.uri,
        "digest": saved.digest,
        "saved_at": rfc3339(saved.saved_at),
        "task": saved.task_id or None,
    }


def life_state(saved: LifeStateSaved | None) -> Json | None:
    """How large a life state is, and when it was saved."""
    if saved is None:
        return None
    return {
        "version": saved.version,
        "bytes": saved.size,
        "attempt": saved.attempt,
        "saved_at": rfc3339(saved.saved_at),
    }


def life_state_content(state: LifeState | None) -> Json:
    """A life state with its content; version 0 and no content if there is none."""
    if state is None:
        return {"version": 0, "bytes": 0, "attempt": 0, "saved_at": None} | {
            "media_type": "",
            "data": None,
        }
    return {
        "version": state.version,
        "bytes": len(state.data),
        "attempt": state.attempt,
        "saved_at": rfc3339(state.saved_at),
        "media_type": state.media_type,
        "data": b64encode(state.data).decode(),
    }


def exit_code(ended: RunExit) -> int | None:
    """One exit code for the gang: 0 if it succeeded, else that of the rank that failed first, in
    the form of a shell (128 + signal); None if no rank's code is known.
    """
    if ended.kind is ExitKind.OK:
        return 0
    codes = [
        rank.code if rank.code is not None else SIGNALLED + (rank.signal or 0)
        for rank in sorted(ended.ranks, key=lambda each: each.rank != ended.failed_rank)
        if rank.code is not None or rank.signal is not None
    ]
    return next((code for code in codes if code), None)


def rank_exit(ended: RankExit) -> Json:
    """How one rank ended."""
    return {
        "rank": ended.rank,
        "code": ended.code,
        "signal": ended.signal,
        "fault": enum_name_or_empty(ended.fault),
    }


def run_exit(ended: RunExit | None) -> Json | None:
    """How a run ended."""
    if ended is None:
        return None
    return {
        "kind": enum_name(ended.kind),
        "code": exit_code(ended),
        "text": ended.detail,
        "attempt": ended.attempt,
        "exited_at": rfc3339(ended.exited_at),
        "ranks": [rank_exit(rank) for rank in ended.ranks],
        "failed_rank": ended.failed_rank,
        "fault_class": enum_name_or_empty(ended.fault_class),
        "fault": enum_name_or_empty(ended.fault),
        "final": ended.final,
        "yielded": ended.yielded,
        "debug": ended.debug,
    }


def task(row: TaskRow, *, secrets: bool, report: ProgressRow | None = None) -> Json:
    """A task. Its environment is shown only with ``secrets`` (to its owner and to admins)."""
    return {
        # Columns come last: a task's priority changes, and its name is known without its spec.
        **to_json(row.spec or _NO_SPEC, secrets=secrets),
        "id": row.task_id,
        "name": row.name,
        "owner": row.owner,
        "team": row.team,
        "group": row.group,
        "priority": row.priority,
        "labels": row.labels,
        "goal": row.goal,
        "run_mode": run_mode(row),
        "debug": row.debug,
        "state": row.state,
        "reason": reason(row.reason),
        "attempt": row.attempt,
        "submitted_at": rfc3339(row.submitted_at),
        "started_at": rfc3339(row.started_at),
        "finished_at": rfc3339(row.finished_at),
        "checkpoint": checkpoint(row.checkpoint),
        "life_state": life_state(row.life_state),
        "chain": row.chain or row.task_id,
        "continues": row.spec.continues.task_id if row.spec and row.spec.continues else None,
        "progress": progress(report),
        "exit": run_exit(row.exit),
        "held_gpus": row.held_gpus,
        "held_nodes": row.held_nodes,
        "attempts_without_progress": row.attempts_without_progress,
        "abnormal": sorted(rule for rule, version in row.abnormal.items() if version > 0),
        "retries_used": retries_used(row),
        "endpoints": [endpoint(each) for each in row.endpoints],
        "warnings": [each.model_dump() for each in row.warnings],
        "revision": row.revision,
        "observed_revision": row.observed_revision,
    }


def run_mode(row: TaskRow) -> str:
    """The mode that its owner wants now. A pause comes before debug mode."""
    if row.goal == enum_name(Goal.PAUSE):
        return enum_name(RunMode.PAUSE)
    return enum_name(RunMode.DEBUG if row.debug else RunMode.NORMAL)


def retries_used(row: TaskRow) -> Json:
    """How many retries are used of each limit, by the names that the limits have in ``retry``."""
    by_class = row.class_retries or ClassRetries()
    return {"max_retries": row.retries_used, **to_json(by_class, secrets=False)}


# What a task shows while what it was submitted with is not known.
_NO_SPEC = TaskSpec(retry=RetryPolicy(), preemption=PreemptionPolicy())


def placement(placed: Placement) -> Json:
    """Where one rank is."""
    return {
        "rank": placed.rank,
        "role": placed.role,
        "role_index": placed.role_index,
        "node": placed.node_id,
        "gpus": list(placed.gpus),
    }


def endpoint(found: Endpoint) -> Json:
    """Where one declared port of one rank is reached."""
    return {
        "rank": found.rank,
        "role": found.role,
        "name": found.name,
        "address": found.address,
        "port": found.port,
    }


def delay(message: RunDelayed | None) -> Json | None:
    """Why a run that was launched has ranks without a process; None if it has none."""
    if message is None or not message.ranks:
        return None
    return {"detail": message.detail, "ranks": message.ranks, "noted_at": rfc3339(message.noted_at)}


def activity(found: RunActivityChanged | None) -> Json | None:
    """How much of what a run holds it uses, as measured."""
    if found is None:
        return None
    return {
        "measured_until": rfc3339(found.measured_until),
        "gpus": found.gpus,
        "idle_gpus": found.idle_gpus,
        "idle_since": rfc3339(found.idle_since),
        "quiet_since": rfc3339(found.quiet_since),
        "measured_gpu_seconds": found.measured_gpu_seconds,
        "idle_gpu_seconds": found.idle_gpu_seconds,
    }


def run(row: RunRow) -> Json:
    """One attempt."""
    return {
        "id": f"{row.task_id}.{row.attempt}",
        "task": row.task_id,
        "attempt": row.attempt,
        "live": row.live,
        "debug": row.debug,
        "ended_ranks": [
            {
                **rank_exit(each.exit),
                "role": each.role,
                "noted_at": rfc3339(each.noted_at),
            }
            for each in row.ended_ranks
        ],
        "assigned_at": rfc3339(row.assigned_at),
        "start_deadline_at": rfc3339(row.start_deadline_at),
        "delayed": delay(row.delayed),
        "started_at": rfc3339(row.started_at),
        "listening_at": rfc3339(row.listening_at),
        "resume_from": checkpoint(row.resume_from),
        "preemption": None
        if row.preempt_requested_at is None
        else {
            "requested_at": rfc3339(row.preempt_requested_at),
            "deadline_at": rfc3339(row.preempt_deadline_at),
            "reason": reason(row.preempt_reason),
        },
        "kill": None
        if row.kill_requested_at is None
        else {
            "requested_at": rfc3339(row.kill_requested_at),
            "reason": reason(row.kill_reason),
        },
        "yielded": None
        if row.yielded is None
        else {
            "requested_at": rfc3339(row.yielded.requested_at),
            "reason": row.yielded.reason,
        },
        "checkpoint": checkpoint(row.checkpoint),
        "exit": run_exit(row.exit),
        "finished_at": None if row.exit is None else rfc3339(row.exit.exited_at),
        "error_lines": [
            {
                "rank": each.rank,
                "role": each.role,
                "kind": each.kind,
                "offset": each.offset,
                "lines": list(each.lines),
            }
            for each in row.error_lines
        ],
        "placements": [placement(placed) for placed in row.placements],
        "activity": activity(row.activity),
        "endpoints": [endpoint(each) for each in row.endpoints],
    }


def decision(record: DecisionRecord) -> Json:
    """One decision of the scheduler about one task."""
    return {
        "no": record.no,
        "decided_at": rfc3339(record.decided_at),
        "task": record.task_id,
        "attempt": record.attempt,
        "kind": record.kind,
        "reason": reason(record.reason),
    }


def log_info(info: LogInfo) -> Json:
    """One rank's kept output."""
    return {
        "attempt": info.attempt,
        "rank": info.rank,
        "role": info.role,
        "size": info.size,
        "complete": info.complete,
        "node": info.placement.node_id if info.placement else None,
    }


def node(
    row: NodeRow, by_task: Mapping[str, Sequence[int]], seen: Collection[str] | None = None
) -> Json:
    """A node with the tasks that hold its GPUs (``{task: indices}``). Of tasks that are not among
    ``seen``, if it is given, only the amounts are shown."""
    shown = [task for task in sorted(by_task) if seen is None or task in seen]
    held = {
        index: task if task in shown else None for task, gpus in by_task.items() for index in gpus
    }
    message = row.node
    free = [n for n in range(message.gpus) if n not in held and n not in message.unusable_gpus]
    return {
        "id": row.node_id,
        "group": message.group,
        "gpus": message.gpus,
        "gpu_model": message.gpu_model,
        "free_gpus": len(free),
        "unusable_gpus": list(message.unusable_gpus),
        "held": {str(index): holder for index, holder in sorted(held.items())},
        "tasks": shown,
        "hidden_tasks": len(by_task) - len(shown),
        "cpus": message.cpus,
        "memory_bytes": message.memory_bytes,
        "labels": dict(message.labels),
        "taints": list(message.taints),
        "schedulable": message.schedulable,
        "draining": message.draining,
        "quarantined": message.quarantined,
        "ready": message.ready,
        "changed_at": rfc3339(row.changed_at),
    }


def quota(row: QuotaRow) -> Json:
    """One cap or grant; null means every one, and of a limit any amount."""
    return {
        "grant": row.grant,
        "group": row.group or None,
        "user": row.user or None,
        "team": row.team or None,
        "priority": row.priority or None,
        "unit": None if row.unlimited else row.unit,
        "limit": None if row.unlimited else row.limit,
        "unlimited": row.unlimited,
        "level_max": row.level_max or None,
        "expires_at": rfc3339(row.expires_at) if row.expires_at else None,
        "version": row.version,
        "changed_by": row.changed_by,
        "changed_at": rfc3339(row.changed_at),
    }


# Instead of a team's name: no team can have it.
HIDDEN_TEAM = "(hidden)"


def permission(given: QuotaAllowance, *, amounts: bool = True, team: bool = True) -> Json:
    """What a user may hold in one group at one level. ``limit`` null: nothing limits it.

    ``limit`` to ``free`` are of the row that stops further runs first; ``binds`` says which kind of
    row that is, and a cap that binds comes first in ``caps``. Without ``amounts`` what is held is
    null, and the row that permits the least is taken for the first. Without ``team`` no team is
    named.
    """
    decides = given.decides
    grant = decides.quota if decides is not None else Quota(grant=True, unlimited=True)
    if grant.team and not team:
        grant = grant.model_copy(update={"team": HIDDEN_TEAM})
    granted = _granted(given, grant)
    caps = [_cap(each, team=team) for each in given.caps]
    rows = [*([] if granted is None else [granted]), *caps]
    if not amounts:
        for row in rows:
            row.update(held=0, free=row["limit"])
    caps.sort(key=_binding_order)
    # A grant that forbids the level does so whatever a cap leaves.
    first = granted if given.forbidden else min(rows, key=_binding_order, default=None)
    binds = None if first is None else "grant" if first is granted else "cap"
    if not amounts:
        for row in rows:
            row.update(held=None, free=None)
    numbers = ("limit", "unit", "held", "free")
    return {
        "group": given.group,
        "priority": enum_name(given.priority),
        "permitted": not given.forbidden,
        **{name: first and first[name] for name in numbers},
        "binds": binds,
        "gpus_held": given.gpus if amounts else None,
        "nodes_held": given.nodes if amounts else None,
        "because": grant_text(grant),
        "site": is_site(grant),
        "expires_at": rfc3339(grant.expires_at) if grant.expires_at else None,
        "granted": granted,
        "caps": caps,
    }


def _granted(given: QuotaAllowance, grant: Quota) -> Json | None:
    """The number of the grant that decides, and what is held of it; None: any amount."""
    limit = permitted(grant, given.priority)
    if limit is None:
        return None
    held = given.decides.held if given.decides is not None else 0
    unit = None if grant.unlimited else enum_name(grant.unit)
    return {"limit": limit, "unit": unit, "held": held, "free": max(0, limit - held)}


def _cap(given: HeldQuota, *, team: bool) -> Json:
    """A cap that applies, and what is held of it."""
    quota = given.quota
    return {
        "user": quota.user or None,
        "team": (quota.team if team else quota.team and HIDDEN_TEAM) or None,
        "group": quota.group or None,
        "priority": enum_name_or_empty(quota.priority) or None,
        "limit": quota.limit,
        "unit": enum_name(quota.unit),
        "held": given.held,
        "free": max(0, quota.limit - given.held),
        "expires_at": rfc3339(quota.expires_at) if quota.expires_at else None,
    }


def _binding_order(row: Json) -> tuple[bool, bool, int]:
    """The row that stops further runs first sorts first: one of which nothing is free; else, as
    units do not compare, GPUs before nodes; else the one that leaves less, or is exceeded more."""
    return row["free"] > 0, row["unit"] == enum_name(Unit.NODES), row["limit"] - row["held"]


def event(row: EventRow) -> Json:
    """One fact with its position."""
    return {
        "position": row.position,
        "type": row.type,
        "task": row.task_id or None,
        "attempt": row.attempt or None,
        "at": rfc3339(row.at),
        "owner": row.owner or None,
        "team": row.team or None,
        "group": row.group or None,
        "data": row.data,
    }


def progress(row: ProgressRow | None) -> Json | None:
    """The progress that a task reported last."""
    if row is None:
        return None
    # JSONB has an order of its own.
    values = json_numbers(
        {name: row.latest[name] for name in sorted(row.latest, key=progress_order)}
    )
    return {"attempt": row.attempt, "at": rfc3339(row.at), "values": values}


def metrics(row: MetricsRow) -> Json:
    """What one rank reported."""
    return {
        "rank": row.rank,
        "attempt": row.attempt,
        "at": rfc3339(row.at),
        "latest": json_numbers(row.latest),
        "points": [
            {"attempt": a, "at_seconds": t, "values": json_numbers(v)} for a, t, v in row.points
        ],
    }


def user(row: UserRow) -> Json:
    """A user."""
    return {
        "name": row.name,
        "role": "user" if row.role == "member" else row.role,
        "team": row.team or None,
        "disabled": row.disabled,
        "archived": row.archived,
        "default_group": row.default_group or None,
        "default_priority": row.default_priority or None,
        "mail": row.mail or None,
        "created_at": rfc3339(row.created_at),
    }


def user_detail(
    row: UserRow, accounts: Sequence[ExternalIdentityRow], password: PasswordRow | None
) -> Json:
    """A user, and what people log in as this user with."""
    return {
        **user(row),
        "accounts": [
            {"issuer": each.issuer, "account": each.subject, "linked_at": rfc3339(each.linked_at)}
            for each in sorted(accounts, key=lambda each: each.linked_at)
        ],
        "password": password
        and {"changed_at": rfc3339(password.changed_at), "changed_by": password.changed_by},
    }


def team(row: TeamRow) -> Json:
    """A team."""
    return {
        "name": row.name,
        "default_group": row.default_group or None,
        "default_priority": row.default_priority or None,
        "created_at": rfc3339(row.created_at),
    }


def token(row: TokenRow, use: TokenUseRow | None = None) -> Json:
    """A token without its secret, and its last use."""
    return {
        "id": row.id,
        "user": row.user,
        "name": row.name,
        "created_by": row.created_by,
        "created_at": rfc3339(row.created_at),
        "expires_at": rfc3339(row.expires_at),
        "revoked_at": rfc3339(row.revoked_at),
        "scopes": list(row.scopes),
        "last_used_at": rfc3339(use.used_at) if use else None,
        "last_used_from": (use.address or None) if use else None,
    }


def audit(row: AuditRow) -> Json:
    """One entry of the audit trail."""
    return {
        "id": row.id,
        "at": rfc3339(row.at),
        "who": row.who,
        "action": row.action,
        "target": row.target,
        "outcome": row.outcome,
        "detail": row.detail,
        "address": row.address or None,
        "token": row.token or None,
        "before": row.before,
        "after": row.after,
    }


# Variables and pod templates may hold secrets.
_HIDDEN = frozenset(
    name for fields in SHOWN.values() for name, shown in fields.items() if shown.secret
)
_AS_THEY_ARE = frozenset({str, int, float, bool, type(None)})


def plain(value: object) -> Any:  # noqa: ANN401 - any JSON
    """A message as HTTP shows it: short words, numbers as numbers, and no secrets."""
    kind = type(value)
    return value if kind in _AS_THEY_ARE else _way_of(kind)(value)


@cache
def _way_of(kind: type[Any]) -> Callable[[Any], Any]:
    """How values of one type are shown; found out once, because every event has dozens of them."""
    if issubclass(kind, Message) and kind is not Reason:
        return partial(_message, shown_fields(kind))
    for base, way in _WAYS.items():
        if issubclass(kind, base):
            return way
    return lambda value: value


def shown_fields(kind: type[Message]) -> tuple[str, ...]:
    """The fields of a message that HTTP shows, where they are not empty."""
    return tuple(name for name in kind.model_fields if name not in _HIDDEN)


def _message(names: Sequence[str], value: Message) -> Json:
    fields = vars(value)
    return {name: plain(part) for name in names if (part := fields[name]) is not None}


def _map(value: Mapping[object, object]) -> Json:
    return {str(key): plain(part) for key, part in value.items()}


def _list(value: Iterable[object]) -> list[Any]:
    return [plain(part) for part in value]


_WAYS: Mapping[type, Callable[[Any], Any]] = {
    Reason: reason,
    Enum: enum_name,
    datetime: rfc3339,
    Mapping: _map,
    tuple: _list,
    list: _list,
}
