"""The two tables of a task's life, and the rule for the end of a run.

``TRANSITIONS`` and ``IGNORED`` divide every (state, trigger) pair between them; ``GOALS`` says what
the owner's goal requires in a state; ``EXIT_RULE`` turns an observed exit into a trigger. Nothing
else moves a task. ``changes.py`` and ``observations.py`` use them; ``render`` makes the page in the
docs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from libs.contracts.messages import ExitKind, Goal, ReasonCode, TaskState
from libs.contracts.task_states import HOLDING, TERMINAL


class Trigger(Enum):
    """What can happen to a task; the value is how the docs write it."""

    ASSIGN = "assign"
    REJECT = "reject"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    STARTED = "run started"
    PREEMPT = "preempt"
    KILL = "kill"
    START_EXPIRED = "start expired"
    ACK_EXPIRED = "ack expired"
    CHECKPOINT = "checkpoint saved"
    EXIT_SUCCEEDED = "exit: succeeded"
    EXIT_STOPPED = "exit: stopped"
    EXIT_FAILED = "exit: failed"
    EXIT_PAUSED = "exit: paused"
    EXIT_REQUEUED = "exit: requeued"


QUEUED, STARTING, RUNNING = TaskState.QUEUED, TaskState.STARTING, TaskState.RUNNING
PREEMPTING, KILLING, PAUSED = TaskState.PREEMPTING, TaskState.KILLING, TaskState.PAUSED
SUCCEEDED, FAILED = TaskState.SUCCEEDED, TaskState.FAILED
STOPPED, REJECTED = TaskState.STOPPED, TaskState.REJECTED

STATES: tuple[TaskState, ...] = tuple(s for s in TaskState if s is not TaskState.UNSPECIFIED)
# The run was requested to leave: its GPUs come free, but are not free yet.
LEAVING: frozenset[TaskState] = frozenset({PREEMPTING, KILLING})

TRANSITIONS: dict[tuple[TaskState, Trigger], TaskState] = {
    (QUEUED, Trigger.ASSIGN): STARTING,
    (QUEUED, Trigger.REJECT): REJECTED,
    (QUEUED, Trigger.PAUSE): PAUSED,
    (QUEUED, Trigger.STOP): STOPPED,
    (QUEUED, Trigger.CHECKPOINT): QUEUED,
    (STARTING, Trigger.STARTED): RUNNING,
    # Nothing to save yet: a request would only cost the deadline.
    (STARTING, Trigger.PREEMPT): KILLING,
    (STARTING, Trigger.KILL): KILLING,
    (STARTING, Trigger.START_EXPIRED): KILLING,
    (STARTING, Trigger.CHECKPOINT): STARTING,
    (STARTING, Trigger.EXIT_SUCCEEDED): SUCCEEDED,
    (STARTING, Trigger.EXIT_STOPPED): STOPPED,
    (STARTING, Trigger.EXIT_FAILED): FAILED,
    (STARTING, Trigger.EXIT_PAUSED): PAUSED,
    (STARTING, Trigger.EXIT_REQUEUED): QUEUED,
    (RUNNING, Trigger.PREEMPT): PREEMPTING,
    # The preemption mode `kill`: the program cannot react to a request.
    (RUNNING, Trigger.KILL): KILLING,
    (RUNNING, Trigger.CHECKPOINT): RUNNING,
    (RUNNING, Trigger.EXIT_SUCCEEDED): SUCCEEDED,
    (RUNNING, Trigger.EXIT_STOPPED): STOPPED,
    (RUNNING, Trigger.EXIT_FAILED): FAILED,
    (RUNNING, Trigger.EXIT_PAUSED): PAUSED,
    (RUNNING, Trigger.EXIT_REQUEUED): QUEUED,
    (PREEMPTING, Trigger.ACK_EXPIRED): KILLING,
    (PREEMPTING, Trigger.CHECKPOINT): PREEMPTING,
    (PREEMPTING, Trigger.EXIT_SUCCEEDED): SUCCEEDED,
    (PREEMPTING, Trigger.EXIT_STOPPED): STOPPED,
    (PREEMPTING, Trigger.EXIT_FAILED): FAILED,
    (PREEMPTING, Trigger.EXIT_PAUSED): PAUSED,
    (PREEMPTING, Trigger.EXIT_REQUEUED): QUEUED,
    (KILLING, Trigger.CHECKPOINT): KILLING,
    (KILLING, Trigger.EXIT_SUCCEEDED): SUCCEEDED,
    (KILLING, Trigger.EXIT_STOPPED): STOPPED,
    (KILLING, Trigger.EXIT_FAILED): FAILED,
    (KILLING, Trigger.EXIT_PAUSED): PAUSED,
    (KILLING, Trigger.EXIT_REQUEUED): QUEUED,
    (PAUSED, Trigger.RESUME): QUEUED,
    (PAUSED, Trigger.STOP): STOPPED,
    (PAUSED, Trigger.CHECKPOINT): PAUSED,
}

_DECIDED = (Trigger.ASSIGN, Trigger.REJECT, Trigger.PAUSE, Trigger.RESUME, Trigger.STOP)
_EXITS = tuple(trigger for trigger in Trigger if trigger.value.startswith("exit"))
_OF_A_RUN = (
    Trigger.STARTED,
    Trigger.PREEMPT,
    Trigger.KILL,
    Trigger.START_EXPIRED,
    Trigger.ACK_EXPIRED,
)

# Pairs that change nothing: the trigger is late, doubled, or from a run that is not live.
IGNORED: frozenset[tuple[TaskState, Trigger]] = frozenset(
    {(state, trigger) for state in TERMINAL for trigger in Trigger}
    | {(state, trigger) for state in (QUEUED, PAUSED) for trigger in (*_OF_A_RUN, *_EXITS)}
    | {(state, trigger) for state in HOLDING for trigger in _DECIDED}
    | {
        (QUEUED, Trigger.RESUME),
        (PAUSED, Trigger.ASSIGN),
        (PAUSED, Trigger.REJECT),
        (PAUSED, Trigger.PAUSE),
        (STARTING, Trigger.ACK_EXPIRED),
        (RUNNING, Trigger.STARTED),
        (RUNNING, Trigger.START_EXPIRED),
        (RUNNING, Trigger.ACK_EXPIRED),
        (PREEMPTING, Trigger.STARTED),
        (PREEMPTING, Trigger.PREEMPT),
        (PREEMPTING, Trigger.KILL),
        (PREEMPTING, Trigger.START_EXPIRED),
        (KILLING, Trigger.STARTED),
        (KILLING, Trigger.PREEMPT),
        (KILLING, Trigger.KILL),
        (KILLING, Trigger.START_EXPIRED),
        (KILLING, Trigger.ACK_EXPIRED),
    }
)

# What the goal requires of a task in a state; None: nothing (the exit rule reads the goal).
GOALS: dict[tuple[Goal, TaskState], Trigger | None] = {
    (Goal.RUN, QUEUED): None,
    (Goal.RUN, STARTING): None,
    (Goal.RUN, RUNNING): None,
    (Goal.RUN, PREEMPTING): None,
    (Goal.RUN, KILLING): None,
    (Goal.RUN, PAUSED): Trigger.RESUME,
    (Goal.PAUSE, QUEUED): Trigger.PAUSE,
    (Goal.PAUSE, STARTING): Trigger.KILL,
    (Goal.PAUSE, RUNNING): Trigger.PREEMPT,
    (Goal.PAUSE, PREEMPTING): None,
    (Goal.PAUSE, KILLING): None,
    (Goal.PAUSE, PAUSED): None,
    (Goal.STOP, QUEUED): Trigger.STOP,
    (Goal.STOP, STARTING): Trigger.KILL,
    (Goal.STOP, RUNNING): Trigger.PREEMPT,
    (Goal.STOP, PREEMPTING): None,
    (Goal.STOP, KILLING): None,
    (Goal.STOP, PAUSED): Trigger.STOP,
    **{(goal, state): None for goal in (Goal.RUN, Goal.PAUSE, Goal.STOP) for state in TERMINAL},
}


_DEBUG_ENDED = ReasonCode.DEBUG_ENDED


@dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run, with everything that the rule may read."""

    kind: ExitKind
    state: TaskState
    goal: Goal
    # Why the task as a whole was being ended (max run time, start attempts); None if it was not.
    end_reason: ReasonCode | None
    retries_left: bool
    # It was lost before every process of it existed, as often as is allowed.
    starts_used_up: bool = False
    # Its program handed the nodes over on its own.
    yielded: bool = False
    # A lost run counts as a retry, because the task limits that.
    limits_losses: bool = False
    # The restart rule of the failed replica's role allows no restart.
    final: bool = False
    # The run was in debug mode, and whether its owner still wants that.
    debugging: bool = False
    debug: bool = False

    @property
    def ends_debug(self) -> bool:
        """True if an attempt in debug mode is over: by itself, or after as long as it may last."""
        return self.debugging and (self._ended_by_itself or self.end_reason is _DEBUG_ENDED)

    @property
    def _ended_by_itself(self) -> bool:
        return self.kind in (ExitKind.OK, ExitKind.FAILED) and self.state not in LEAVING

    @property
    def counts_as_lost(self) -> bool:
        """True if it was lost while nobody wanted it to leave, and the task limits that."""
        return self.kind is ExitKind.LOST and self.limits_losses and self.state not in LEAVING


@dataclass(frozen=True, slots=True)
class ExitLine:
    """One line of the exit rule: the first that holds counts."""

    when: str
    holds: Callable[[RunEnd], bool]
    trigger: Trigger
    # None: the code comes from the end itself (the end reason, or the kind of exit).
    code: ReasonCode | None = None
    spends_retry: bool = False


_NOT_THE_PROGRAMS_FAULT = {
    ExitKind.PREEMPTED: ReasonCode.RUN_PREEMPTED,
    ExitKind.KILLED: ReasonCode.RUN_KILLED,
    ExitKind.LOST: ReasonCode.RUN_LOST,
}

EXIT_RULE: tuple[ExitLine, ...] = (
    ExitLine(
        "the program finished successfully",
        lambda end: end.kind is ExitKind.OK and not end.debugging,
        Trigger.EXIT_SUCCEEDED,
        ReasonCode.SUCCEEDED,
    ),
    ExitLine(
        "the goal is stop",
        lambda end: end.goal is Goal.STOP,
        Trigger.EXIT_STOPPED,
        ReasonCode.GOAL_STOP,
    ),
    ExitLine(
        "the task was being ended (max run time, start attempts used up)",
        lambda end: end.end_reason not in (None, _DEBUG_ENDED),
        Trigger.EXIT_FAILED,
    ),
    ExitLine(
        "failed, and the restart rule of the replica's role allows no restart (whatever retries are"
        " left; it failed before it was asked to go)",
        lambda end: end.kind is ExitKind.FAILED and end.final and not end.debugging,
        Trigger.EXIT_FAILED,
        ReasonCode.RESTART_NOT_ALLOWED,
    ),
    ExitLine(
        "the goal is pause",
        lambda end: end.goal is Goal.PAUSE,
        Trigger.EXIT_PAUSED,
        ReasonCode.GOAL_PAUSE,
    ),
    ExitLine(
        "in debug mode, which is still wanted, and it ended by itself, whatever the codes, or"
        " lasted as long as it may (the next start waits for its owner)",
        lambda end: end.ends_debug and end.debug,
        Trigger.EXIT_PAUSED,
        ReasonCode.DEBUG_ENDED,
    ),
    ExitLine(
        "in debug mode, and it ended in any other way with an exit code",
        lambda end: end.debugging and end.kind in (ExitKind.OK, ExitKind.FAILED),
        Trigger.EXIT_REQUEUED,
        ReasonCode.RUN_KILLED,
    ),
    ExitLine(
        "lost before it had started, start attempts used up",
        lambda end: end.kind is ExitKind.LOST and end.starts_used_up,
        Trigger.EXIT_FAILED,
        ReasonCode.START_ATTEMPTS_USED_UP,
    ),
    ExitLine(
        "handed its nodes over on its own, before it was asked to go (the next start waits)",
        lambda end: end.yielded and end.state not in LEAVING,
        Trigger.EXIT_REQUEUED,
        ReasonCode.YIELDED,
    ),
    ExitLine(
        "lost, and the task limits that with `retry.platform`: retries are left (one is used)",
        lambda end: end.counts_as_lost and end.retries_left,
        Trigger.EXIT_REQUEUED,
        ReasonCode.RUN_LOST,
        spends_retry=True,
    ),
    ExitLine(
        "lost, and the task limits that with `retry.platform`: no retries are left",
        lambda end: end.counts_as_lost,
        Trigger.EXIT_FAILED,
        ReasonCode.RETRIES_USED_UP,
    ),
    ExitLine(
        "preempted, killed or lost (lost before it had started: the next start waits)",
        lambda end: end.kind in _NOT_THE_PROGRAMS_FAULT,
        Trigger.EXIT_REQUEUED,
    ),
    ExitLine(
        "failed while it was asked or forced to go (the retry budget is not touched)",
        lambda end: end.state in LEAVING,
        Trigger.EXIT_REQUEUED,
        ReasonCode.FAILED,
    ),
    ExitLine(
        "failed, retries of its class are left (one is used; the next start waits)",
        lambda end: end.retries_left,
        Trigger.EXIT_REQUEUED,
        ReasonCode.FAILED,
        spends_retry=True,
    ),
    ExitLine(
        "failed, no retries of its class are left",
        lambda end: True,  # noqa: ARG005  # the last line catches what is left
        Trigger.EXIT_FAILED,
    ),
)


@dataclass(frozen=True, slots=True)
class ExitVerdict:
    """What the exit rule says about one end of a run."""

    trigger: Trigger
    code: ReasonCode
    spends_retry: bool


def exit_rule(end: RunEnd, *, has_limit: bool) -> ExitVerdict:
    """The first line that holds for the end of a run.

    ``has_limit`` only chooses the reason of a final failure: retries are used up, or the task has
    no limit of retries.
    """
    line = next(line for line in EXIT_RULE if line.holds(end))
    out_of_retries = ReasonCode.RETRIES_USED_UP if has_limit else ReasonCode.FAILED
    code = (
        line.code
        or (line.trigger is Trigger.EXIT_FAILED and end.end_reason)
        or _NOT_THE_PROGRAMS_FAULT.get(end.kind, out_of_retries)
    )
    return ExitVerdict(trigger=line.trigger, code=code, spends_retry=line.spends_retry)


def _name(state: TaskState) -> str:
    return state.value.removeprefix("TASK_STATE_")


def _lines() -> Iterator[str]:
    yield "# A task's life"
    yield ""
    yield "Generated from `services/scheduler/domain/model/lifecycle.py`. Do not edit."
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield "    [*] --> QUEUED: submitted"
    yield "    [*] --> PAUSED: submitted paused"
    for (state, trigger), to in TRANSITIONS.items():
        if state is not to:
            yield f"    {_name(state)} --> {_name(to)}: {trigger.value.replace(': ', ' ')}"
    for state in STATES:
        if state in TERMINAL:
            yield f"    {_name(state)} --> [*]"
    yield "```"
    yield ""
    yield "## Transitions"
    yield ""
    yield "A pair that is not listed changes nothing."
    yield ""
    yield "| from | trigger | to |"
    yield "| --- | --- | --- |"
    for (state, trigger), to in TRANSITIONS.items():
        yield f"| {_name(state)} | {trigger.value} | {_name(to) if to is not state else 'same'} |"
    yield ""
    yield "## Goals"
    yield ""
    yield "What the owner's goal asks of a task in each state (empty: nothing)."
    yield ""
    yield "| state | run | pause | stop |"
    yield "| --- | --- | --- | --- |"
    for state in STATES:
        cells = (GOALS[goal, state] for goal in (Goal.RUN, Goal.PAUSE, Goal.STOP))
        yield f"| {_name(state)} | {' | '.join(cell.value if cell else '' for cell in cells)} |"
    yield ""
    yield "## The exit rule"
    yield ""
    yield "For every observed end of a run; the first line that holds, counts."
    yield ""
    yield "| no | when | to |"
    yield "| --- | --- | --- |"
    for number, line in enumerate(EXIT_RULE, 1):
        yield f"| {number} | {line.when} | {_name(TRANSITIONS[RUNNING, line.trigger])} |"


def render() -> str:
    """The tables as a Markdown page with a diagram, ending in a newline."""
    return "\n".join(_lines()) + "\n"
