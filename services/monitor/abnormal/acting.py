"""The loop that carries out actions on abnormal tasks, by the commands that people use.

Each command is sent outside of a transaction, under the action's id and fenced by the attempt for
which it was decided. The intention is committed before, and the outcome after it, with its event. A
leader that finds an intention without an outcome sends the command again, which its owner carries
out once; if it is not to be done any more, the leader recalls it, and goes on with what was done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from libs.bus.port import Bus, BusError
from libs.contracts.base import Message
from libs.contracts.messages import (
    AbnormalAction,
    AbnormalActionSettled,
    AbnormalOutcome,
    Fence,
    Goal,
    Refusal,
    RefusalCode,
    SetGoal,
    SetGoalReply,
    SetPriority,
    SetSchedulable,
)
from libs.contracts.wording import counted
from libs.service.loop import Loop
from libs.store.port import Store, Tx
from services.monitor.abnormal import store
from services.monitor.abnormal.evaluation import compare
from services.monitor.abnormal.isolate import ACTIONS, isolated
from services.monitor.abnormal.steps import Steps
from services.monitor.abnormal.store import ActionRow, FindingRow
from services.monitor.activities import ActivityRow
from services.monitor.domain.abnormal_actions import (
    HOUR_S,
    LOWER_TO,
    ActionLimits,
    Decision,
    Pending,
    Step,
    decide,
    would,
)
from services.monitor.domain.abnormal_facts import FactsRow
from services.monitor.domain.abnormal_rules import RULES, RuleBook, Setting
from services.monitor.domain.activity import ActivityLimits

# Of one rule: those of others do not wait for them.
ACTIONS_AT_ONCE = 200
COMMAND_SECONDS = 5.0
# Of one node, to count the owners.
CORDONS_READ_MAX = 200
# The owner did not carry it out, and may do so later.
AGAIN = frozenset({RefusalCode.UNAVAILABLE})


@dataclass(frozen=True, slots=True)
class _Due:
    row: ActionRow
    decision: Decision


@dataclass(frozen=True, slots=True)
class Acting:
    """One leader's actions."""

    database: Store
    bus: Bus
    book: RuleBook
    limits: ActionLimits
    # The site only tries its rules.
    dry_run: bool
    tick_seconds: float
    activity: ActivityLimits
    steps: Steps
    # A node is cordoned once findings about tasks of so many owners name it.
    cordon_owners_min: int
    # Samples that are older do not justify an action.
    samples_fresh_seconds: float

    def loop(self) -> Loop:
        """It waits for other services, and excludes nothing meanwhile."""
        return Loop(ACTIONS, self.step, tick_seconds=self.tick_seconds, wake_on_commit=False)

    async def step(self, epoch: int) -> float | None:
        """Decide about each action that waits; carry out one after the other."""
        for row in await self._changing(epoch):
            with isolated(ACTIONS, row.id):
                due = await self._settle_or_send(row, epoch)
                if due is not None:
                    await self._carry_out(due, epoch)
        return None

    async def _changing(self, epoch: int) -> Sequence[ActionRow]:
        """Return the actions about which there is something to do; the others go on waiting."""
        changing: list[ActionRow] = []
        async with self.database.transaction(epoch=epoch) as tx:
            waiting = await store.waiting_actions(tx, RULES, ACTIONS_AT_ONCE)
            await tx.load(FindingRow, *((row.finding_id,) for row in waiting))
            await tx.load(FactsRow, *((row.task_id,) for row in waiting))
            now_s = await store.steady_now(tx)
            acted = await store.acted_since(tx, now_s - HOUR_S, self.limits.in_all + 1)
            for row in waiting:
                with isolated(ACTIONS, row.id):
                    _, decision = await self._decide(tx, row, now_s, acted)
                    if decision != Decision(Step.WAIT, row.detail):
                        changing.append(row)
        return changing

    async def _settle_or_send(self, before: ActionRow, epoch: int) -> _Due | None:
        """Read the rows again for each action: the one before has changed the counts. Returns it
        if its command is to be sent, and records that first."""
        async with self.database.transaction(epoch=epoch) as tx:
            row = await tx.get(ActionRow, before.id)
            if row is None or row.outcome is not AbnormalOutcome.WAITING:
                return None
            now_s = await store.steady_now(tx)
            acted = await store.acted_since(tx, now_s - HOUR_S, self.limits.in_all + 1)
            attempt, decision = await self._decide(tx, row, now_s, acted)
            if decision.step is Step.WAIT and decision.detail != row.detail:
                tx.put(replace(row, detail=decision.detail))
            elif decision.step is Step.WITHDRAW:
                _settle(tx, row, AbnormalOutcome.WITHDRAWN, decision.detail)
            elif decision.step is Step.TRY:
                _settle(tx, row, AbnormalOutcome.DRY_RUN, decision.detail)
            elif decision.step is Step.SEND:
                # It counts from now on, and the next leader knows of it.
                row = replace(row, attempt=attempt, acted_s=row.acted_s or now_s)
                tx.put(row)
        sends = decision.step in (Step.SEND, Step.RECALL, Step.RESUME)
        return _Due(row, decision) if sends else None

    async def _decide(
        self, tx: Tx, row: ActionRow, now_s: float, acted: Sequence[ActionRow]
    ) -> tuple[int, Decision]:
        """Return the attempt that was evaluated last, and what to do."""
        finding = await tx.get(FindingRow, row.finding_id)
        facts = await tx.get(FactsRow, row.task_id)
        settings = self.book.of(finding.group, finding.team) if finding else self.book.settings
        setting = settings.get(row.rule)
        pending = Pending(
            action=row.action,
            rule=row.rule,
            configured=setting is not None and setting.enabled and row.action in setting.actions,
            holds=finding is not None and finding.version == row.version,
            unconfirmed=await self._unconfirmed(tx, finding, facts, setting, now_s)
            or await self._lacks_owners(tx, row),
            dry_run=self.dry_run or setting is None or setting.dry_run,
            begun=row.acted_s is not None,
            paused=row.goal_revision > 0,
            attempt=row.attempt,
        )
        others = [each.rule for each in acted if each.id != row.id]
        decision = decide(pending, facts, others, self.limits)
        return finding.attempt if finding else 0, decision

    async def _unconfirmed(
        self,
        tx: Tx,
        finding: FindingRow | None,
        facts: FactsRow | None,
        setting: Setting | None,
        now_s: float,
    ) -> str:
        """Why the rule is not known to hold now, although its finding lasts; empty if it is. A
        finding ends only when the loop evaluates it, and one from samples later than that."""
        if finding is None or facts is None or setting is None:
            return ""
        if facts.attempt != finding.attempt:
            return f"attempt {facts.attempt} is not evaluated yet"
        activity = await tx.get(ActivityRow, facts.task_id, facts.attempt)
        fresh = timedelta(seconds=self.samples_fresh_seconds)
        if activity is not None and tx.now - activity.measured_until > fresh:
            activity = None
        settings = {finding.rule: setting}
        stall = self.steps.of(facts, now_s)
        if stall is None:
            # What goes on while nobody knows the step justifies no action.
            facts = replace(facts, stalled_since_s=None)
        _, found = compare(facts, activity, stall, settings, now_s=now_s, limits=self.activity)
        return "" if found else "the rule does not hold at the moment"

    async def _lacks_owners(self, tx: Tx, row: ActionRow) -> str:
        """Why a node is not cordoned yet; empty if it may be. What one user's tasks do on it may be
        their own fault."""
        if row.action is not AbnormalAction.CORDON:
            return ""
        memo = f"owners at {row.node_id}"
        owners: set[str] | None = tx.memo.get(memo)
        if owners is None:
            named = await store.cordons_of(tx, row.node_id, CORDONS_READ_MAX)
            versions = {each.finding_id: each.version for each in named}
            lasting = await store.findings_of(tx, versions)
            owners = tx.memo[memo] = {
                each.owner for each in lasting if each.version == versions[each.id]
            }
        if len(owners) >= self.cordon_owners_min:
            return ""
        return (
            f"tasks of {counted(len(owners), 'owner')} name {row.node_id};"
            f" it is cordoned once there are {self.cordon_owners_min}"
        )

    async def _carry_out(self, due: _Due, epoch: int) -> None:
        row, step = due.row, due.decision.step
        command = _COMMANDS[step](row)
        try:
            reply = await self.bus.request(command, timeout_s=COMMAND_SECONDS)
        except BusError:
            await self._note(row, "the service that carries it out does not answer", epoch)
            return
        refusal: Refusal | None = getattr(reply, "refusal", None)
        if refusal is not None and refusal.code in AGAIN:
            await self._note(row, refusal.detail, epoch)
            return
        async with self.database.transaction(epoch=epoch) as tx:
            now = await tx.get(ActionRow, row.id)
            if now is None or now.outcome is not AbnormalOutcome.WAITING:
                return
            undone = replace(now, acted_s=None)
            if step is Step.RESUME:
                kept = refusal is not None and refusal.code is RefusalCode.SUPERSEDED
                left = "its run left; " + ("another goal was set since" if kept else "it is queued")
                _settle(tx, now, AbnormalOutcome.DONE, left)
            elif refusal is not None and step is Step.RECALL:
                _settle(tx, undone, AbnormalOutcome.WITHDRAWN, due.decision.detail)
            elif refusal is not None:
                _settle(tx, undone, AbnormalOutcome.REFUSED, _reason(refusal))
            elif row.action is AbnormalAction.PREEMPT and isinstance(reply, SetGoalReply):
                if reply.changed:
                    tx.put(replace(now, goal_revision=reply.revision, detail=""))
                else:
                    _settle(tx, undone, AbnormalOutcome.WITHDRAWN, "its owner has paused it")
            else:
                _settle(tx, now, AbnormalOutcome.DONE, _did(row))

    async def _note(self, row: ActionRow, detail: str, epoch: int) -> None:
        if row.detail != detail:
            async with self.database.transaction(epoch=epoch) as tx:
                tx.put(replace(row, detail=detail))


def _command(row: ActionRow) -> Message:
    """The command of an action, as a person would send it."""
    asked_by, fence = f"rule:{row.rule}", Fence(attempt=row.attempt, request=row.id)
    if row.action is AbnormalAction.LOWER_PRIORITY:
        return SetPriority(task_id=row.task_id, priority=LOWER_TO, asked_by=asked_by, fence=fence)
    if row.action is AbnormalAction.CORDON:
        return SetSchedulable(node_id=row.node_id, schedulable=False, asked_by=asked_by)
    goal = Goal.STOP if row.action is AbnormalAction.STOP else Goal.PAUSE
    return SetGoal(task_id=row.task_id, goal=goal, asked_by=asked_by, fence=fence)


def _resume(row: ActionRow) -> SetGoal:
    """The second half of a preemption; nothing, if somebody has set another goal meanwhile."""
    fence = Fence(request=f"{row.id}.resume", goal_revision=row.goal_revision)
    return SetGoal(task_id=row.task_id, goal=Goal.RUN, asked_by=f"rule:{row.rule}", fence=fence)


def _recall(row: ActionRow) -> Message:
    """Asks whether the command of an action was carried out. It names no goal and no priority: a
    submit of an older version knows of no recall, and refuses it."""
    asked_by, fence = f"rule:{row.rule}", Fence(request=row.id, recall=True)
    if row.action is AbnormalAction.LOWER_PRIORITY:
        return SetPriority(task_id=row.task_id, asked_by=asked_by, fence=fence)
    return SetGoal(task_id=row.task_id, asked_by=asked_by, fence=fence)


_COMMANDS = {Step.SEND: _command, Step.RECALL: _recall, Step.RESUME: _resume}


def _settle(tx: Tx, row: ActionRow, outcome: AbnormalOutcome, detail: str) -> None:
    """Record how an action went, with the event that the audit trail is made from."""
    tx.put(replace(row, outcome=outcome, detail=detail))
    tx.emit(
        AbnormalActionSettled(
            task_id=row.task_id,
            attempt=row.attempt,
            rule=row.rule,
            version=row.version,
            action=row.action,
            node_id=row.node_id,
            outcome=outcome,
            detail=detail,
            settled_at=tx.now,
        )
    )


def _did(row: ActionRow) -> str:
    if row.action is AbnormalAction.CORDON:
        return f"{row.node_id} takes no new runs"
    return {
        AbnormalAction.LOWER_PRIORITY: "its priority is low now",
        AbnormalAction.STOP: "it was asked to stop",
    }.get(row.action, would(row.action))


def _reason(refusal: Refusal) -> str:
    errors: Sequence[str] = [f"{each.field}: {each.message}; {each.fix}" for each in refusal.errors]
    return refusal.detail or "; ".join(errors) or refusal.code.name.lower()
