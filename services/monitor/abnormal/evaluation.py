"""The loop that compares the facts of tasks with the rules: begins and ends findings, and decides
what follows. ``acting.py`` carries that out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from libs.contracts.messages import (
    AbnormalAction,
    AbnormalOutcome,
    AbnormalTaskChanged,
    Occasion,
)
from libs.service.loop import Loop
from libs.store.port import Store, Tx
from services.monitor.abnormal import store
from services.monitor.abnormal.isolate import EVALUATION, WHOLE_STEP, isolated
from services.monitor.abnormal.steps import Steps
from services.monitor.abnormal.store import ActionRow, FindingRow, finding_id
from services.monitor.activities import ActivityRow
from services.monitor.domain.abnormal_facts import FactsRow
from services.monitor.domain.abnormal_rules import (
    HARMLESS,
    Found,
    RuleBook,
    Seen,
    Setting,
    Usage,
    evaluate,
    with_usage,
)
from services.monitor.domain.activity import ActivityLimits
from services.monitor.domain.stalls import Stall, with_stall
from services.monitor.domain.steady_clock import CLOCK, SteadyClockRow, advanced
from services.monitor.messages.message_outbox import MessageOutbox, TaskOccasion
from services.monitor.store import TaskRow

TASKS_AT_ONCE = 200
# A task whose state no event has brought for so long does not exist.
UNKNOWN_KEPT = timedelta(days=1)


@dataclass
class Evaluation:
    """One leader's evaluation: a page of tasks with each step."""

    database: Store
    message_outbox: MessageOutbox
    book: RuleBook
    limits: ActivityLimits
    tick_seconds: float
    steps: Steps
    # The last task of the page before.
    after: str = field(default="")

    def loop(self) -> Loop:
        """No event of a task comes between the reads of a step and its commit."""
        return Loop(
            EVALUATION,
            self.step,
            tick_seconds=self.tick_seconds,
            exclusive=True,
            wake_on_commit=False,
        )

    async def step(self, epoch: int) -> float | None:
        """Evaluate the next page of tasks; at once the next one while there is one."""
        if not self.after:
            # The clock goes on whatever becomes of the tasks.
            async with self.database.transaction(epoch=epoch) as tx:
                tx.put(advanced(await tx.get(SteadyClockRow, CLOCK), tx.now))
        async with self.database.transaction(epoch=epoch) as tx:
            page = await store.watched(tx, self.after, TASKS_AT_ONCE)
        if not await self._evaluate_all(page, epoch):
            for row in page:
                with isolated(EVALUATION, row.task_id):
                    async with self.database.transaction(epoch=epoch) as tx:
                        await self._evaluate(tx, row, await store.steady_now(tx))
        self.after = page[-1].task_id if len(page) == TASKS_AT_ONCE else ""
        return 0.0 if self.after else None

    async def _evaluate_all(self, page: Sequence[FactsRow], epoch: int) -> bool:
        """Evaluate these tasks in one transaction; False: one of them cannot be evaluated, and
        nothing is stored."""
        try:
            async with self.database.transaction(epoch=epoch) as tx:
                now_s = await store.steady_now(tx)
                await tx.load(ActivityRow, *((row.task_id, row.attempt) for row in page))
                await tx.load(TaskRow, *((row.task_id,) for row in page))
                for row in page:
                    await self._evaluate(tx, row, now_s)
        except WHOLE_STEP:
            raise
        except Exception:  # noqa: BLE001 - which task it is shows one at a time
            return False
        return True

    async def _evaluate(self, tx: Tx, row: FactsRow, now_s: float) -> None:
        task = await tx.get(TaskRow, row.task_id)
        if task is None:
            unknown = row.noted_at is None or tx.now - row.noted_at > UNKNOWN_KEPT
            if unknown:
                tx.put(replace(row, watched=False, closed_at=tx.now))
            return
        activity = await tx.get(ActivityRow, row.task_id, row.attempt)
        settings = self.book.of(task.group, task.team)
        stall = self.steps.of(row, now_s)
        facts, found = compare(row, activity, stall, settings, now_s=now_s, limits=self.limits)
        still = [
            name
            for name in row.open
            if await self._remains(tx, facts, name, settings.get(name), now_s, holds=name in found)
        ]
        new = [name for name in found if name not in row.open]
        for name in new:
            await self._begin(tx, task, facts, settings[name], found[name])
        is_open = tuple(sorted({*still, *new}))
        watched = bool(is_open) or not facts.ended
        closed_at = None if watched else tx.now
        after = replace(facts, open=is_open, watched=watched, closed_at=closed_at)
        if after != row:
            tx.put(after)

    async def _remains(
        self,
        tx: Tx,
        facts: FactsRow,
        name: str,
        setting: Setting | None,
        now_s: float,
        *,
        holds: bool,
    ) -> bool:
        """Whether an open finding stays open; ends it if it does not. There is no setting of a rule
        that another version has."""
        row = await tx.get(FindingRow, finding_id(facts.task_id, name))
        if row is None:
            return False
        if holds:
            # It is of the attempt in which it was last seen: actions are fenced by that one.
            confirmed = replace(row, attempt=facts.attempt, clearing_since_s=None)
            if confirmed != row:
                tx.put(confirmed)
            return True
        over = facts.ended or facts.attempt != row.attempt
        if setting is not None and setting.enabled and setting.rule.sampled and not over:
            since_s = now_s if row.clearing_since_s is None else row.clearing_since_s
            # An idle time counts again after so long: a gap in the samples is over by then.
            lasts_s = max(self.limits.idle_seconds, self.limits.quiet_seconds)
            if now_s - since_s < lasts_s + 2 * self.tick_seconds:
                if row.clearing_since_s is None:
                    tx.put(replace(row, clearing_since_s=since_s))
                return True
        ended = replace(row, version=row.version + 1, ended_at=tx.now, clearing_since_s=None)
        tx.put(ended)
        tx.emit(changed(ended))
        return False

    async def _begin(
        self, tx: Tx, task: TaskRow, facts: FactsRow, setting: Setting, found: Found
    ) -> None:
        name = setting.rule.name
        before = await tx.get(FindingRow, finding_id(task.task_id, name))
        row = FindingRow(
            id=finding_id(task.task_id, name),
            task_id=task.task_id,
            rule=name,
            owner=task.owner,
            team=task.team,
            group=task.group,
            name=task.name,
            attempt=facts.attempt,
            version=before.version + 1 if before else 1,
            began_at=tx.now,
            detail=found.detail,
            suggestion=found.suggestion,
            tagged=AbnormalAction.TAG in setting.actions,
        )
        tx.put(row, *_actions(row, setting, found))
        tx.emit(changed(row))
        if AbnormalAction.NOTIFY in setting.actions:
            details = {"rule": name, "detail": found.detail, "suggestion": found.suggestion}
            task_occasion = TaskOccasion(
                task=task,
                occasion=Occasion.ABNORMAL,
                at=tx.now,
                number=f"{name}-{row.version}",
                details=details,
            )
            await self.message_outbox.put(tx, task_occasion)


def compare(
    row: FactsRow,
    activity: ActivityRow | None,
    stall: Stall | None,
    settings: Mapping[str, Setting],
    *,
    now_s: float,
    limits: ActivityLimits,
) -> tuple[FactsRow, dict[str, Found]]:
    """The facts of a task with what samples and steps show, and what each rule finds in them."""
    usage = _usage(activity)
    facts = with_usage(row, usage, now_s, (limits.idle_seconds, limits.quiet_seconds))
    facts = with_stall(facts, stall, now_s, limits.quiet_seconds)
    return facts, evaluate(Seen(facts, usage, now_s, limits.idle_percent, stall), settings)


def changed(row: FindingRow) -> AbnormalTaskChanged:
    """The event that says how a finding stands."""
    return AbnormalTaskChanged(
        task_id=row.task_id,
        attempt=row.attempt,
        rule=row.rule,
        version=row.version,
        began_at=row.began_at,
        ended_at=row.ended_at,
        detail=row.detail,
        suggestion=row.suggestion,
        tagged=row.tagged and row.ended_at is None,
        changed_at=row.ended_at or row.began_at,
    )


def _actions(row: FindingRow, setting: Setting, found: Found) -> Sequence[ActionRow]:
    """The actions that change a task or nodes."""
    rows: list[ActionRow] = []
    for action in setting.actions:
        if action in HARMLESS:
            continue
        for node_id in found.nodes if action is AbnormalAction.CORDON else ("",):
            key = f"{row.id}.{row.version}.{action.name.lower()}"
            rows.append(
                ActionRow(
                    id=f"{key}.{node_id}" if node_id else key,
                    finding_id=row.id,
                    task_id=row.task_id,
                    rule=row.rule,
                    version=row.version,
                    action=action,
                    node_id=node_id,
                    outcome=AbnormalOutcome.WAITING,
                    decided_at=row.began_at,
                    attempt=row.attempt,
                )
            )
    return rows


def _usage(row: ActivityRow | None) -> Usage:
    """What the samples show, by their own clock."""
    if row is None:
        return Usage()
    until_s = row.measured_until.timestamp()
    idle = tuple(until_s - since_s for _, _, since_s in row.idle) if row.published_idle_gpus else ()
    quiet = None
    if row.published_quiet and row.quiet:
        quiet = until_s - max(since_s for _, _, since_s in row.quiet)
    return Usage(idle, quiet)
