"""The rows of abnormal tasks and all queries on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from libs.contracts.messages import AbnormalAction, AbnormalOutcome
from libs.service.prune import PruneRule, aged
from libs.store.port import Op, Order, Tx, Where
from services.monitor.domain.abnormal_actions import HOUR_S
from services.monitor.domain.abnormal_facts import FactsRow
from services.monitor.domain.steady_clock import CLOCK, SteadyClockRow, elapsed


@dataclass(frozen=True, slots=True)
class FindingRow:
    """What a rule found about a task: the present finding, or the last one. Earlier ones are in the
    events."""

    # Task and rule.
    id: str
    task_id: str
    rule: str
    owner: str
    team: str
    group: str
    name: str
    attempt: int
    # Counts the changes: odd while it lasts.
    version: int
    began_at: datetime
    detail: str
    suggestion: str
    tagged: bool
    ended_at: datetime | None = None
    # Steady seconds since which the rule has not held, while the finding is not ended yet.
    clearing_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class ActionRow:
    """One action that follows a finding: the outbox of commands."""

    # Finding, version, action and node: each is decided once.
    id: str
    finding_id: str
    task_id: str
    rule: str
    # Of the finding as it began.
    version: int
    action: AbnormalAction
    node_id: str
    outcome: AbnormalOutcome
    decided_at: datetime
    # Why it waits, or how it went.
    detail: str = ""
    # Set before its command is sent: the attempt, and steady seconds. While the action waits, it is
    # not known whether the command was carried out.
    attempt: int = 0
    acted_s: float | None = None
    # A preemption pauses the task and resumes it once it has left: the revision of the pause. 0: it
    # is not paused by this action.
    goal_revision: int = 0


def finding_id(task_id: str, rule: str) -> str:
    """The id of a task's finding by a rule."""
    return f"{task_id}.{rule}"


async def steady_now(tx: Tx) -> float:
    """The steady clock's time in a transaction."""
    return elapsed(await tx.get(SteadyClockRow, CLOCK), tx.now)


async def watched(tx: Tx, after: str, limit: int) -> Sequence[FactsRow]:
    """A page of the tasks that are evaluated."""
    return await tx.select(
        FactsRow,
        Where("watched", Op.EQ, value=True),
        Where("task_id", Op.GT, after),
        order_by=[Order("task_id")],
        limit=limit,
    )


async def waiting_actions(tx: Tx, rules: Iterable[str], limit: int) -> Sequence[ActionRow]:
    """Actions that are still to be done, the first decided first: so many of each rule, and of
    those that only another version has."""
    names = tuple(rules)
    waiting = Where("outcome", Op.EQ, AbnormalOutcome.WAITING)
    conditions = [[Where("rule", Op.EQ, name)] for name in names]
    conditions.append([Where("rule", Op.NE, name) for name in names])
    found: list[ActionRow] = []
    for where in conditions:
        order = [Order("decided_at"), Order("id")]
        found += await tx.select(ActionRow, waiting, *where, order_by=order, limit=limit)
    return sorted(found, key=lambda row: (row.decided_at, row.id))


async def cordons_of(tx: Tx, node_id: str, limit: int) -> Sequence[ActionRow]:
    """The actions that are to cordon a node, or were, the newest first."""
    return await tx.select(
        ActionRow,
        Where("action", Op.EQ, AbnormalAction.CORDON),
        Where("node_id", Op.EQ, node_id),
        order_by=[Order("decided_at", descending=True)],
        limit=limit,
    )


async def acted_since(tx: Tx, since_s: float, limit: int) -> Sequence[ActionRow]:
    """Actions whose commands were sent since a time of the steady clock, and not refused."""
    return await tx.select(
        ActionRow, Where("acted_s", Op.GT, since_s), order_by=[Order("acted_s")], limit=limit
    )


async def actions_of(tx: Tx, findings: Sequence[FindingRow]) -> Sequence[ActionRow]:
    """The actions that follow these findings."""
    if not findings:
        return ()
    ids = [row.id for row in findings]
    return await tx.select(
        ActionRow, Where("finding_id", Op.IN, ids), order_by=[Order("decided_at"), Order("id")]
    )


async def findings_of(tx: Tx, ids: Iterable[str]) -> Sequence[FindingRow]:
    """These findings, without those that cannot be read."""
    wanted = list(ids)
    return await tx.select(FindingRow, Where("id", Op.IN, wanted)) if wanted else ()


async def findings(tx: Tx, *where: Where, limit: int) -> Sequence[FindingRow]:
    """Findings in the order of their ids."""
    return await tx.select(FindingRow, *where, order_by=[Order("id")], limit=limit)


async def open_findings(tx: Tx, after: str, limit: int) -> Sequence[FindingRow]:
    """Findings that last, a page."""
    where = Where("ended_at", Op.IS_NULL), Where("id", Op.GT, after)
    return await findings(tx, *where, limit=limit)


def prune_rules(tasks_keep: timedelta, findings_keep: timedelta) -> tuple[PruneRule, ...]:
    """Return what is pruned: facts of tasks that ended together with their findings, and actions
    that are settled. A finding stays while its task lives: the next one counts on from its version,
    which names actions and decides which event is newer."""
    ended = Where("closed_at", Op.NOT_NULL)
    keep = max(tasks_keep, findings_keep)
    facts = aged("facts", keep, FactsRow, ["task_id"], "closed_at", ended)

    async def drop(tx: Tx, before: datetime, limit: int) -> int:
        old = Where("closed_at", Op.LT, before)
        rows = await tx.select(FactsRow, ended, old, order_by=[Order("closed_at")], limit=limit)
        ids = [row.task_id for row in rows]
        for finding in await tx.select(FindingRow, Where("task_id", Op.IN, ids)) if ids else ():
            tx.delete(FindingRow, finding.id)
        for task_id in ids:
            tx.delete(FactsRow, task_id)
        return len(rows)

    return (
        replace(facts, drop=drop),
        aged(
            "actions",
            # The limits of an hour are counted from these rows.
            max(findings_keep, timedelta(seconds=HOUR_S)),
            ActionRow,
            ["id"],
            "decided_at",
            Where("outcome", Op.NE, AbnormalOutcome.WAITING),
        ),
    )
