"""Independent checkers of a recorded history. They share no code with what they check.

A history is what crossed the bus (in stream order, duplicates included), what the processes truly
did (spans, from the runtime's own records), and what the platform promised to tasks and people
(acknowledged checkpoints, accepted submissions). The simulation and the chaos tests use the same
checkers; each returns sentences, none means that the property held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from libs.contracts import messages as m
from libs.contracts.envelope import Envelope


@dataclass(frozen=True)
class Span:
    """One rank's processes, as they truly were: alive from ``start`` to ``end`` (None: still)."""

    task_id: str
    attempt: int
    rank: int
    node_id: str
    gpus: tuple[int, ...]
    start: float
    end: float | None
    # How often the rank had been restarted in its place.
    restarts: int = 0


@dataclass(frozen=True)
class Ack:
    """The platform confirmed to a task that its checkpoint is stored."""

    task_id: str
    attempt: int
    no: int
    step: int


@dataclass
class History:
    """Everything recorded of one platform."""

    envelopes: list[Envelope] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    accepted: set[str] = field(default_factory=set)

    def events(self) -> Iterator[m.Message]:
        """Every event once, in the order of its first publication."""
        seen: set[str] = set()
        for envelope in self.envelopes:
            if envelope.id not in seen:
                seen.add(envelope.id)
                yield envelope.message

    def of(self, *kinds: type[m.Message]) -> list[m.Message]:
        """Every event of these types once."""
        return [event for event in self.events() if isinstance(event, kinds)]


ENDED = {
    m.TaskState.SUCCEEDED,
    m.TaskState.FAILED,
    m.TaskState.STOPPED,
    m.TaskState.REJECTED,
}
# Written down a second time on purpose: from the promise to users, not from the scheduler's table.
# One event may cover several steps, so these are the reachable successors, not single edges.
LIVE = {m.TaskState.STARTING, m.TaskState.RUNNING, m.TaskState.PREEMPTING, m.TaskState.KILLING}
# Of a run that nobody asked to leave.
STARTED = {m.TaskState.STARTING, m.TaskState.RUNNING}
WAITING = {m.TaskState.QUEUED, m.TaskState.PAUSED}
SUCCESSORS: dict[m.TaskState, set[m.TaskState]] = {
    m.TaskState.UNSPECIFIED: {m.TaskState.QUEUED, m.TaskState.PAUSED, m.TaskState.STOPPED},
    m.TaskState.QUEUED: {
        m.TaskState.QUEUED,
        m.TaskState.STARTING,
        m.TaskState.PAUSED,
        m.TaskState.STOPPED,
        m.TaskState.REJECTED,
    },
    m.TaskState.PAUSED: {m.TaskState.PAUSED, m.TaskState.QUEUED, m.TaskState.STOPPED},
    m.TaskState.STARTING: {*LIVE, *WAITING, *ENDED} - {m.TaskState.REJECTED},
    m.TaskState.RUNNING: {*LIVE, *WAITING, *ENDED} - {m.TaskState.STARTING, m.TaskState.REJECTED},
    m.TaskState.PREEMPTING: {m.TaskState.PREEMPTING, m.TaskState.KILLING, *WAITING, *ENDED}
    - {m.TaskState.REJECTED},
    m.TaskState.KILLING: {m.TaskState.KILLING, *WAITING, *ENDED} - {m.TaskState.REJECTED},
    **{state: {state} for state in ENDED},
}


def slots_never_double_booked(history: History) -> Iterator[str]:
    """No GPU of any node ever had the processes of two runs at once."""
    by_slot: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in history.spans:
        for gpu in span.gpus:
            by_slot[span.node_id, gpu].append(span)
    for (node, gpu), spans in by_slot.items():
        spans.sort(key=lambda span: span.start)
        for first, second in pairwise(spans):
            if first.end is None or first.end > second.start:
                yield (
                    f"slot {node}/{gpu} held {first.task_id}.{first.attempt} until {first.end} "
                    f"when {second.task_id}.{second.attempt} started at {second.start}"
                )


def one_live_attempt_per_task(history: History) -> Iterator[str]:
    """No two attempts of one task ever had processes at once, on reachable nodes or lost ones."""
    by_task: dict[str, list[Span]] = defaultdict(list)
    for span in history.spans:
        by_task[span.task_id].append(span)
    for task_id, spans in by_task.items():
        ends: dict[int, float] = {}
        starts: dict[int, float] = {}
        for span in spans:
            end = float("inf") if span.end is None else span.end
            ends[span.attempt] = max(ends.get(span.attempt, 0.0), end)
            starts[span.attempt] = min(starts.get(span.attempt, span.start), span.start)
        for attempt in sorted(starts):
            if attempt - 1 in ends and ends[attempt - 1] > starts[attempt]:
                yield (
                    f"{task_id}: attempt {attempt} started at {starts[attempt]} while attempt "
                    f"{attempt - 1} lived until {ends[attempt - 1]}"
                )


def ranks_started_once(history: History) -> Iterator[str]:
    """No rank of an attempt was ever started twice, but for the restarts in its place."""
    seen: set[tuple[str, int, int, int]] = set()
    for span in history.spans:
        key = (span.task_id, span.attempt, span.rank, span.restarts)
        if key in seen:
            yield f"rank {span.rank} of {span.task_id}.{span.attempt} was started twice"
        seen.add(key)


def runs_end_exactly_once(history: History) -> Iterator[str]:
    """Every run is announced once (assigned or resumed) and ends at most once.

    After a reemit an owner publishes the same event again; a different event is a second end.
    """
    announced: dict[tuple[str, int], object] = {}
    ended: dict[tuple[str, int], m.RunExit] = {}
    for event in history.events():
        if isinstance(event, (m.RunAssigned, m.RunResumed)):
            key, fact = (event.task_id, event.attempt), (event.placements, event.assigned_at)
            if announced.setdefault(key, fact) != fact:
                yield f"run {event.task_id}.{event.attempt} was announced twice"
            if isinstance(event, m.RunAssigned) != (event.attempt == 1):
                yield f"run {event.task_id}.{event.attempt}: {type(event).__name__} at that attempt"
        elif isinstance(event, m.RunExited):
            key = (event.task_id, event.attempt)
            if ended.setdefault(key, event.exit) != event.exit:
                yield f"run {event.task_id}.{event.attempt} ended twice"
            if key not in announced:
                yield f"run {event.task_id}.{event.attempt} ended but was never announced"


def all_runs_have_ended(history: History) -> Iterator[str]:
    """After the end of a history: every announced run has its exit."""
    announced = {(e.task_id, e.attempt) for e in history.of(m.RunAssigned, m.RunResumed)}
    ended = {(e.task_id, e.attempt) for e in history.of(m.RunExited)}
    for task_id, attempt in sorted(announced - ended):
        yield f"run {task_id}.{attempt} never ended"


def attempts_count_up(history: History) -> Iterator[str]:
    """Attempts of a task are 1, 2, 3, ... and the next is announced after the last one's exit."""
    last: dict[str, int] = {}
    ended: set[tuple[str, int]] = set()
    for event in history.events():
        if isinstance(event, m.RunExited):
            ended.add((event.task_id, event.attempt))
        if isinstance(event, (m.RunAssigned, m.RunResumed)):
            before = last.get(event.task_id, 0)
            if event.attempt == before:
                continue  # published again; ``runs_end_exactly_once`` checks that it is the same
            if event.attempt != before + 1:
                yield f"{event.task_id}: attempt {event.attempt} follows {before}"
            if before and (event.task_id, before) not in ended:
                yield f"{event.task_id}: attempt {event.attempt} announced before {before} ended"
            last[event.task_id] = event.attempt


def acknowledged_checkpoints_survive(history: History) -> Iterator[str]:
    """A later run resumes from the newest acknowledged checkpoint of the runs before it."""
    newest: dict[tuple[str, int], int] = {}
    for ack in history.acks:
        key = (ack.task_id, ack.attempt)
        newest[key] = max(newest.get(key, 0), ack.no)
    for event in history.of(m.RunResumed):
        promised = max(
            (
                no
                for (task, attempt), no in newest.items()
                if task == event.task_id and attempt < event.attempt
            ),
            default=0,
        )
        given = event.resume_from.no if event.resume_from else 0
        if given < promised:
            yield (
                f"{event.task_id}.{event.attempt} resumed from checkpoint {given} "
                f"although {promised} had been acknowledged"
            )


def states_follow_the_promise(history: History) -> Iterator[str]:
    """A task's published states follow the documented transitions; ended stays ended."""
    states: dict[str, tuple[int, m.TaskState]] = {}
    changes = sorted(history.of(m.TaskStateChanged), key=lambda e: (e.task_id, e.version))
    for change in changes:
        version, state = states.get(change.task_id, (0, m.TaskState.UNSPECIFIED))
        if change.version == version:
            if change.state != state:
                yield f"{change.task_id}: version {version} is {state} and also {change.state}"
            continue
        if change.version != version + 1:
            yield f"{change.task_id}: version {change.version} follows {version}"
        if change.state not in SUCCESSORS[state]:
            yield f"{change.task_id}: {state} -> {change.state} (version {change.version})"
        states[change.task_id] = (change.version, change.state)


def preemption_waits_for_the_ack(history: History) -> Iterator[str]:
    """A kill of a preempted run is asked only at its deadline or after, never before.

    The first request counts. One that is published again carries the time of then, and the clock
    may have been set back meanwhile.
    """
    deadlines: dict[tuple[str, int], datetime] = {}
    killed: set[tuple[str, int]] = set()
    for event in history.events():
        if isinstance(event, m.PreemptionRequested):
            deadlines[event.task_id, event.attempt] = event.deadline_at
        if isinstance(event, m.KillRequested) and (event.task_id, event.attempt) not in killed:
            killed.add((event.task_id, event.attempt))
            deadline = deadlines.get((event.task_id, event.attempt))
            expired = event.reason.code is m.ReasonCode.ACK_EXPIRED
            if expired and deadline is not None and event.requested_at < deadline:
                yield f"{event.task_id}.{event.attempt} killed before its deadline {deadline}"


def yields_are_no_failures(history: History) -> Iterator[str]:
    """The end of a run whose program handed its nodes over on its own is a preemption, whatever its
    exit codes are, and its task never fails by it."""
    yielded = {(event.task_id, event.attempt) for event in history.of(m.RunYielded)}
    failures = {m.ReasonCode.FAILED, m.ReasonCode.RETRIES_USED_UP}
    for event in history.events():
        if isinstance(event, m.RunExited) and (event.task_id, event.attempt) in yielded:
            if event.exit.kind is not m.ExitKind.PREEMPTED:
                yield f"{event.task_id}.{event.attempt} yielded, and its end is {event.exit.kind}"
        elif isinstance(event, m.TaskStateChanged) and event.state is m.TaskState.FAILED:
            ended = event.exit
            if (
                ended is not None
                and (event.task_id, ended.attempt) in yielded
                and event.reason.code in failures
            ):
                yield f"{event.task_id} failed because attempt {ended.attempt} yielded"


def debug_mode_decides_nothing(history: History) -> Iterator[str]:
    """A run in debug mode is never asked to save, and how it ended ends no task."""
    assigned = history.of(m.RunAssigned, m.RunResumed)
    in_debug = {
        (event.task_id, event.attempt)
        for event in assigned
        if event.spec.run_mode is m.RunMode.DEBUG
    }
    judged = {
        m.ReasonCode.SUCCEEDED,
        m.ReasonCode.FAILED,
        m.ReasonCode.RETRIES_USED_UP,
        m.ReasonCode.RESTART_NOT_ALLOWED,
        m.ReasonCode.MAX_RUN_TIME,
    }
    for event in history.events():
        if isinstance(event, m.PreemptionRequested):
            if (event.task_id, event.attempt) in in_debug:
                yield f"{event.task_id}.{event.attempt}, in debug mode, is asked to save"
        elif isinstance(event, m.RunExited):
            if event.exit.debug is not ((event.task_id, event.attempt) in in_debug):
                yield f"{event.task_id}.{event.attempt} ended as debug={event.exit.debug}"
        elif (
            isinstance(event, m.TaskStateChanged)
            and event.exit is not None
            and (event.task_id, event.exit.attempt) in in_debug
            and event.state in (m.TaskState.SUCCEEDED, m.TaskState.FAILED)
            and event.reason.code in judged
        ):
            yield f"{event.task_id} is {event.state} by attempt {event.exit.attempt} in debug mode"


def success_follows_the_rules(history: History) -> Iterator[str]:
    """A run succeeded only if its ranks that exited with 0 meet a rule of its task: by default all
    of them. Written a second time on purpose."""
    specs = {event.task_id: event.spec for event in history.of(m.TaskSubmitted)}
    for event in history.of(m.RunExited):
        spec = specs.get(event.task_id)
        if event.exit.kind is not m.ExitKind.OK or spec is None or event.exit.debug:
            continue
        good = {rank.rank for rank in event.exit.ranks if rank.code == 0}
        ranks = {
            name: {each.rank: each.role_index for each in event.placements if each.role == name}
            for name in (role.name for role in spec.roles)
        }
        rules = spec.completion.success if spec.completion else ()
        deciding = [role.name for role in spec.roles if not role.auxiliary]
        rules = rules or (" and ".join(f"{name}[all]" for name in deciding),)
        # A rank that left because it was asked proves nothing.
        over = {rank.rank for rank in event.exit.ranks if rank.code not in (None, 75)}
        if not any(_is_met(rule, ranks, good, over) for rule in rules):
            yield f"{event.task_id}.{event.exit.attempt} succeeded with ranks {sorted(good)}"


def _is_met(rule: str, ranks: dict[str, dict[int, int]], good: set[int], over: set[int]) -> bool:
    for condition in rule.split(" and "):
        name, _, which = condition.strip(" ]").partition("[")
        own = ranks[name]
        if which == "all":
            met = set(own) <= good
        elif which == "ended":
            met = set(own) <= over
        elif which == "any":
            met = bool(set(own) & good)
        else:
            met = any(index == int(which) and rank in good for rank, index in own.items())
        if not met:
            return False
    return True


# Written a second time on purpose, by exit codes as programs and shells use them.
CLASSES = {
    **dict.fromkeys((130, 131, 137, 143), "transient"),
    **dict.fromkeys((126, 127, 132, 135, 136, 141), "user"),
}


def retries_follow_the_limits(history: History) -> Iterator[str]:
    """A run's exit has the class of its code; no class of failures is retried more often than its
    limit allows, and no task has failed for want of retries while some were left."""
    specs = {event.task_id: event.spec for event in history.of(m.TaskSubmitted)}
    exits = {(event.task_id, event.attempt): event.exit for event in history.of(m.RunExited)}
    used: dict[tuple[str, str], set[int]] = defaultdict(set)
    for event in history.of(m.TaskStateChanged):
        spec, ended = specs.get(event.task_id), exits.get((event.task_id, event.attempt))
        if spec is None or ended is None or event.previous not in STARTED:
            continue
        if ended.kind not in (m.ExitKind.FAILED, m.ExitKind.LOST) or ended.debug:
            continue
        text, name = f"{event.task_id}.{event.attempt}", _class_of(ended)
        if name != ended.fault_class.name.lower():
            yield f"{text} has the class {ended.fault_class.name}, not {name}"
        limit, counter = getattr(spec.retry, name), name
        if limit is None:
            limit, counter = spec.retry.max_retries, ""
            if ended.kind is m.ExitKind.LOST:
                continue
        if event.state is m.TaskState.QUEUED:
            used[event.task_id, counter].add(event.attempt)
        count = len(used[event.task_id, counter])
        if count > limit:
            yield f"{text} is retry {count} of {limit} ({counter or 'shared'})"
        if event.reason.code is m.ReasonCode.RETRIES_USED_UP and count < limit:
            yield f"{text} has no retry left after {count} of {limit} ({counter or 'shared'})"


def restarts_follow_the_rules(history: History) -> Iterator[str]:
    """A rank that failed by itself ends its task for good exactly if its role's rule says so."""
    specs = {event.task_id: event.spec for event in history.of(m.TaskSubmitted)}
    exits = {(event.task_id, event.attempt): event for event in history.of(m.RunExited)}
    for event in history.of(m.TaskStateChanged):
        spec, exited = specs.get(event.task_id), exits.get((event.task_id, event.attempt))
        if spec is None or exited is None or event.previous not in STARTED:
            continue
        by_rule = event.reason.code is m.ReasonCode.RESTART_NOT_ALLOWED
        allowed = _may_restart(spec, exited)
        text = f"{event.task_id}.{event.attempt}"
        if by_rule and allowed:
            yield f"{text} ended for good although its rule allows a restart"
        if event.state is m.TaskState.QUEUED and not allowed:
            yield f"{text} is tried again although its rule allows no restart"


def _may_restart(spec: m.TaskSpec, exited: m.RunExited) -> bool:
    ended = exited.exit
    codes = {rank.rank: rank.code for rank in ended.ranks}
    roles = {place.rank: place.role for place in exited.placements}
    rules = {role.name: role.restart for role in spec.roles}
    if ended.kind is not m.ExitKind.FAILED or ended.failed_rank is None:
        return True
    rule = rules.get(roles.get(ended.failed_rank, ""))
    if rule is None or rule.when is m.RestartWhen.ON_FAILURE:
        return True
    # The programs of the simulation give single codes.
    return str(codes.get(ended.failed_rank)) in rule.exit_codes


def _class_of(ended: m.RunExit) -> str:
    if ended.kind is m.ExitKind.LOST:
        return "platform"
    if ended.fault is not m.Fault.UNSPECIFIED:
        # Launches that are refused by the task's own fault.
        return "user"
    codes = {rank.rank: rank.code or 128 + (rank.signal or 0) for rank in ended.ranks}
    return CLASSES.get(
        codes.get(ended.failed_rank if ended.failed_rank is not None else -1, 0), "unknown"
    )


def no_task_is_lost(history: History) -> Iterator[str]:
    """After the end of a history: every accepted task was published and has ended."""
    ended = {e.task_id for e in history.of(m.TaskStateChanged) if e.state in ENDED}
    submitted = {e.task_id for e in history.of(m.TaskSubmitted)}
    for task_id in sorted(history.accepted):
        if task_id not in submitted:
            yield f"{task_id} was accepted but never published"
        elif task_id not in ended:
            yield f"{task_id} never ended"


Checker = Callable[[History], Iterable[str]]
SAFETY: tuple[Checker, ...] = (
    slots_never_double_booked,
    one_live_attempt_per_task,
    ranks_started_once,
    runs_end_exactly_once,
    attempts_count_up,
    acknowledged_checkpoints_survive,
    states_follow_the_promise,
    preemption_waits_for_the_ack,
    yields_are_no_failures,
    debug_mode_decides_nothing,
    success_follows_the_rules,
    retries_follow_the_limits,
    restarts_follow_the_rules,
)
LIVENESS: tuple[Checker, ...] = (no_task_is_lost, all_runs_have_ended)


def verdict(history: History, checks: Iterable[Checker]) -> list[str]:
    """Every complaint of every checker, with its name."""
    return [f"{check.__name__}: {text}" for check in checks for text in check(history)]
