"""What is done about an action that follows a finding: a decision from the rows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from libs.contracts.messages import AbnormalAction, Priority, TaskState
from libs.contracts.wording import counted
from services.monitor.domain.abnormal_facts import RUNS, FactsRow

HOUR_S = 3600.0
LOWER_TO = Priority.LOW
LOW_ALREADY = frozenset({Priority.LOW, Priority.IDLE})


@dataclass(frozen=True, slots=True)
class ActionLimits:
    """How many actions are carried out in an hour: of one rule, and of all."""

    per_rule: int
    in_all: int


class Step(Enum):
    """What to do now."""

    # Nothing yet.
    WAIT = "wait"
    # It is settled without being done.
    WITHDRAW = "withdraw"
    # Say what would be done.
    TRY = "try"
    # Send its command.
    SEND = "send"
    # Its command was sent, and nobody knows whether it was carried out. It is not to be done any
    # more: find out, and keep it from being done later.
    RECALL = "recall"
    # Of a preemption: the task has left; resume it.
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, and why."""

    step: Step
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Pending:
    """An action with what is known of its finding and task."""

    action: AbnormalAction
    rule: str
    # The site still has this action for the rule.
    configured: bool
    # The finding has not ended since it was decided.
    holds: bool
    # Why nothing is known yet that would justify it now; empty: the rule holds at this moment.
    unconfirmed: str
    dry_run: bool
    # Its command was sent before, and the answer is not recorded.
    begun: bool
    # A preemption has paused the task, in this attempt.
    paused: bool
    attempt: int


def decide(
    pending: Pending, facts: FactsRow | None, acted: Sequence[str], limits: ActionLimits
) -> Decision:
    """Decide about one action. ``acted``: the rules of the other actions of the last hour."""
    if pending.paused:
        return _decide_resume(pending, facts)
    if reason := _needless(pending, facts):
        return _withdrawn(pending, Step.WITHDRAW, reason)
    if pending.unconfirmed:
        return Decision(Step.WAIT, pending.unconfirmed)
    if pending.dry_run:
        return _withdrawn(pending, Step.TRY, would(pending.action))
    used_up = _used_up(pending.rule, acted, limits)
    return Decision(Step.WAIT if used_up else Step.SEND, used_up)


def _used_up(rule: str, acted: Sequence[str], limits: ActionLimits) -> str:
    """Which limit of the hour is reached; empty if none is."""
    if acted.count(rule) >= limits.per_rule:
        return f"{rule} has had its {counted(limits.per_rule, 'action')} of this hour"
    if len(acted) >= limits.in_all:
        done = counted(limits.in_all, "action")
        return f"all rules together have had their {done} of this hour"
    return ""


def _needless(pending: Pending, facts: FactsRow | None) -> str:
    """Why an action is no longer to be done; empty if it is."""
    if facts is None or facts.ended:
        return "the task has ended"
    if not pending.configured:
        return "the rules no longer have this action"
    if not pending.holds:
        return "the task was no longer abnormal"
    if pending.action is AbnormalAction.PREEMPT and facts.state is not TaskState.RUNNING:
        return "the task does not run"
    if pending.action is AbnormalAction.LOWER_PRIORITY and facts.priority in LOW_ALREADY:
        return "the task's priority is low already"
    return ""


def _withdrawn(pending: Pending, step: Step, detail: str) -> Decision:
    """Settle an action that is not to be done, unless it may have been done."""
    if not pending.begun:
        return Decision(step, detail)
    if pending.action is AbnormalAction.CORDON:
        detail += "; whether the node was cordoned before shows `shiftwork node ls`"
        return Decision(Step.WITHDRAW, detail)
    return Decision(Step.RECALL, detail)


def _decide_resume(pending: Pending, facts: FactsRow | None) -> Decision:
    """Resume the task once its run has left, however it stands then: submit compares the goal."""
    if facts is None or facts.ended:
        return Decision(Step.WITHDRAW, "the task has ended")
    left = facts.attempt > pending.attempt or facts.state not in RUNS
    return Decision(Step.RESUME if left else Step.WAIT)


_DOES = {
    AbnormalAction.LOWER_PRIORITY: "lower its priority to low",
    AbnormalAction.PREEMPT: "ask its run to save and leave, and put it back into the queue",
    AbnormalAction.STOP: "stop it",
    AbnormalAction.CORDON: "cordon the node",
}


def would(action: AbnormalAction) -> str:
    """What a dry run says of an action."""
    return f"would {_DOES[action]}"
