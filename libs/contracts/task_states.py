"""Which states of a task are final, and in which it holds nodes. Every other list is derived."""

from __future__ import annotations

from libs.contracts.messages import TaskState

TERMINAL = frozenset({TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED, TaskState.REJECTED})
# A run of the task may have processes: its GPUs are taken until its exit is observed.
HOLDING = frozenset(
    {TaskState.STARTING, TaskState.RUNNING, TaskState.PREEMPTING, TaskState.KILLING}
)


def words(states: frozenset[TaskState]) -> tuple[str, ...]:
    """The states as people write them, in the order of the enum."""
    return tuple(state.name.lower() for state in TaskState if state in states)


TERMINAL_WORDS = words(TERMINAL)
HOLDING_WORDS = words(HOLDING)
LIVE_WORDS = words(frozenset(TaskState) - TERMINAL - {TaskState.UNSPECIFIED})
