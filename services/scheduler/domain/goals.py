"""Goals meet states: what the owner asked for is begun here, by the table ``GOALS``.

Second step of ``decide``.
"""

from __future__ import annotations

from libs.contracts.messages import Goal, Reason, ReasonCode
from services.scheduler.domain.handover import tell_to_go
from services.scheduler.domain.model.decisions import Move
from services.scheduler.domain.model.lifecycle import GOALS, Trigger
from services.scheduler.domain.model.rows import Task
from services.scheduler.domain.model.values import reason
from services.scheduler.domain.round import Round

_CODES: dict[Goal, ReasonCode] = {
    Goal.RUN: ReasonCode.GOAL_RUN,
    Goal.PAUSE: ReasonCode.GOAL_PAUSE,
    Goal.STOP: ReasonCode.GOAL_STOP,
}


def goal_reason(goal: Goal) -> Reason:
    """The reason of a move that follows a goal."""
    return reason(_CODES[goal])


def converge(round_: Round) -> list[Task]:
    """Decide what the goals ask; returns the tasks that are back in the queue by it."""
    resumed: list[Task] = []
    for task in round_.individually(round_.index.unsettled - round_.moved):
        trigger = GOALS[task.goal, task.state]
        assert trigger is not None, "the index holds only tasks whose goal asks for something"
        why = goal_reason(task.goal)
        if task.holds:
            tell_to_go(round_, task, why)
            continue
        round_.decide(Move(task.id, trigger, why))
        if trigger is Trigger.RESUME:
            resumed.append(task)
        else:
            round_.left.add(task.group)
            round_.explanations[task.id] = why
    return resumed
