"""Response types for /v1/openapi.json and for clients generated from it.

The routes answer with what ``views.py`` makes; a test holds those documents to these types.
"""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import ConfigDict, with_config
from pydantic.config import JsonDict
from typing_extensions import TypedDict

from services.gateway.api.spec_shapes import TaskSpec


class FieldProblem(TypedDict):
    """One field that is wrong."""

    field: str
    value: str
    message: str
    fix: str


class Problem(TypedDict):
    """An error (application/problem+json)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[FieldProblem]


_MORE: JsonDict = {"additionalProperties": {"anyOf": [{"type": "string"}, {"type": "number"}]}}


@with_config(ConfigDict(extra="allow", json_schema_extra=_MORE))
class Reason(TypedDict):
    """Why something is as it is: ``text`` is the sentence for people. The numbers and names in it
    stand beside it, under names that belong to the code."""

    code: str
    text: str


class Checkpoint(TypedDict):
    """A durable checkpoint."""

    no: int
    attempt: int
    step: int
    uri: str
    digest: str
    saved_at: str
    # The earlier task of the chain that saved it; null: the task itself.
    task: str | None


class LifeStateSaved(TypedDict):
    """How large a life state is, and when it was saved."""

    version: int
    bytes: int
    # The attempt that saved it; 0: the task that this one goes on with.
    attempt: int
    saved_at: str | None


class LifeState(LifeStateSaved):
    """What a task keeps across attempts; version 0 and no data if there is nothing."""

    # application/json or application/octet-stream.
    media_type: str
    # In base64.
    data: str | None


class SavedVersion(TypedDict):
    """Which version of a life state was stored."""

    version: int


class RankExit(TypedDict):
    """How one rank ended."""

    rank: int
    code: int | None
    signal: int | None
    # What was found wrong with it beside code or signal, such as out_of_memory; empty: nothing.
    fault: str


class Exit(TypedDict):
    """How a run ended."""

    kind: str
    code: int | None
    text: str
    attempt: int
    exited_at: str
    ranks: list[RankExit]
    # The rank that failed first, where that is known.
    failed_rank: int | None
    # Its program handed the nodes over on its own.
    yielded: bool
    # Of a failed or lost run: user, transient, platform or unknown; empty for other ends.
    fault_class: str
    # What was found wrong with the rank that decided it, or with the launch; empty: nothing.
    fault: str
    # The restart rule of the failed rank's role allowed no further attempt.
    final: bool
    # It was in debug mode.
    debug: bool


class RetriesUsed(TypedDict):
    """How many retries of each limit are used; the limits are in ``retry``."""

    max_retries: int
    user: int
    transient: int
    platform: int
    unknown: int


class Progress(TypedDict):
    """The progress that a task reported last. NaN and infinities are texts."""

    attempt: int
    at: str
    values: dict[str, float | str]


class Endpoint(TypedDict):
    """Where one declared port of one rank is reached."""

    rank: int
    role: str
    name: str
    address: str
    port: int


class TaskWarning(TypedDict):
    """A field that was accepted and has no effect, or will probably surprise."""

    code: str
    field: str
    value: str
    # What happens instead.
    message: str


class Activity(TypedDict):
    """How much of what a run holds it uses, as measured until a moment. ``idle_gpus`` have been
    nearly unused for long, the first of them since ``idle_since``; ``quiet_since``: no rank uses a
    processor or a GPU. The seconds are sums over all of its GPUs since its beginning.
    """

    measured_until: str
    gpus: int
    idle_gpus: int
    idle_since: str | None
    quiet_since: str | None
    measured_gpu_seconds: float
    idle_gpu_seconds: float


class Task(TaskSpec):
    """A task. ``reason`` has ``code`` and ``text``, and the numbers and names in it."""

    id: str
    owner: str
    team: str
    goal: str
    # Debug mode is on. ``run_mode`` is pause while the owner wants it paused, whatever this is.
    debug: bool
    state: str
    reason: Reason | None
    attempt: int
    submitted_at: str
    started_at: str | None
    finished_at: str | None
    checkpoint: Checkpoint | None
    life_state: LifeStateSaved | None
    # The first task of those that go on with one another; itself, if it goes on with none.
    chain: str
    # The task that it goes on with.
    continues: str | None
    # What rank 0 reported last, in few values; null if nothing was.
    progress: Progress | None
    exit: Exit | None
    held_gpus: int
    held_nodes: int
    attempts_without_progress: int
    # The rules that find it abnormal now, as far as they tag tasks.
    abnormal: list[str]
    retries_used: RetriesUsed
    # Where the declared ports of the live run are reached.
    endpoints: list[Endpoint]
    # From its submission, or its dry run.
    warnings: list[TaskWarning]
    revision: int
    observed_revision: int
    # Where it was asked for: of all attempts that ended; null where there were too many.
    run_seconds: NotRequired[float | None]
    # Of one task: how much of what its live run holds it uses, if that was measured.
    activity: NotRequired[Activity]


class Unreadable(TypedDict):
    """A row of a list that cannot be shown, set apart from the others."""

    id: str
    problem: str


class TaskPage(TypedDict):
    """One page of tasks."""

    items: list[Task]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]


class DryRun(TypedDict):
    """A task that would be accepted. ``free_nodes``: how many nodes had enough free a few seconds
    ago; ``ahead``: how many tasks of its group waited at its level or above. Null where there are
    too many nodes, runs or waiting tasks to count.
    """

    task: Task
    free_nodes: int | None
    ahead: int | None


class Revision(TypedDict):
    """A change is stored; a task's ``observed_revision`` shows when it is applied."""

    task: str
    revision: int


class Placement(TypedDict):
    """Where one rank is."""

    rank: int
    role: str
    role_index: int
    node: str
    gpus: list[int]


class Delay(TypedDict):
    """Why a run that was launched has ranks without a process."""

    detail: str
    ranks: int
    noted_at: str


class EndedRank(RankExit):
    """A rank that has ended while others of its run went on."""

    role: str
    noted_at: str


class PreemptionRequest(TypedDict):
    """A run is requested to save and leave."""

    requested_at: str
    deadline_at: str | None
    reason: Reason | None


class KillRequest(TypedDict):
    """A run is ended without being asked to save."""

    requested_at: str
    reason: Reason | None


class Yielded(TypedDict):
    """A program handed its nodes over on its own, with its words for people."""

    requested_at: str
    reason: str


class RankErrorLines(TypedDict):
    """The last lines of one rank's output that look like an error; ``kind`` is the name of the
    pattern that the last one matched."""

    rank: int
    role: str
    kind: str
    offset: int
    lines: list[str]


class Run(TypedDict):
    """One attempt."""

    id: str
    task: str
    attempt: int
    live: bool
    # In debug mode, and how its ranks ended while others went on.
    debug: bool
    ended_ranks: list[EndedRank]
    assigned_at: str | None
    start_deadline_at: str | None
    delayed: Delay | None
    # Null: nothing was measured.
    activity: Activity | None
    started_at: str | None
    # When its program first asked whether it should leave.
    listening_at: str | None
    resume_from: Checkpoint | None
    preemption: PreemptionRequest | None
    kill: KillRequest | None
    # Its program handed the nodes over on its own.
    yielded: Yielded | None
    checkpoint: Checkpoint | None
    exit: Exit | None
    finished_at: str | None
    # Of a run that failed or was lost, once its output is complete; the rank that failed first
    # comes first.
    error_lines: list[RankErrorLines]
    placements: list[Placement]
    # While it lives.
    endpoints: list[Endpoint]


class RunPage(TypedDict):
    """One page of attempts."""

    items: list[Run]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]


class OrderPlace(TypedDict):
    """A waiting task's place in the order of its group, and what put it there."""

    level: str
    policy: str
    above: int
    before: int
    key: float
    submitted_at: str | None
    tag_seconds: float
    delay_seconds: float
    load_scale: float
    granted: bool
    virtual_cluster: str | None
    guaranteed_nodes: float
    held_nodes: float
    covered: bool


class PromisedNode(TypedDict):
    """A node that is promised to a waiting task, and the tasks that still hold part of it."""

    node: str
    gpus: list[int]
    held_by: list[str]


class ChosenVictim(TypedDict):
    """A run that was requested to leave, and why this one was chosen."""

    task: str
    level: str
    reason: Reason | None
    nodes: float
    cost_node_seconds: float
    deadline_at: str | None
    why: str


class Forecast(TypedDict):
    """When a waiting task is forecast to start, or why there is no forecast."""

    starts_at: str | None
    # The range of the forecast, where the assumptions do not make it certain.
    earliest_at: str | None
    latest_at: str | None
    unknown: str | None
    assumptions: list[str]


class Holder(TypedDict):
    """A run that holds what a waiting task waits for."""

    task: str
    nodes: float
    # Its owner's limit, or the deadline by which it has to leave; null: unknown.
    ends_at: str | None
    # After it others of its level may take its nodes.
    slice_ends_at: str | None
    leaving: bool


class CalledTask(TypedDict):
    """What people call a task."""

    name: str
    owner: str
    state: str


class Explanation(TypedDict):
    """Why a task stands where it stands."""

    task: str
    state: str
    reason: Reason | None
    position: int
    queue_length: int
    victims: list[str]
    remedies: list[str]
    explained_at: str | None
    order: OrderPlace | None
    promised: list[PromisedNode]
    chosen: list[ChosenVictim]
    forecast: Forecast | None
    beneficiary: str | None
    # Runs that hold what it waits for: the first by their ends, and how many there are.
    holders: list[Holder]
    holders_count: int
    # The other tasks that the answer is about, by id.
    tasks: dict[str, CalledTask]
    # While it is starting: what the launcher waits for.
    delayed: Delay | None


class Event(TypedDict):
    """A fact, with its place in the log. ``owner``, ``team`` and ``group`` are those of the task
    that it is about; events of nodes, quotas and policies have a group alone."""

    position: int
    type: str
    task: str | None
    attempt: int | None
    at: str
    owner: str | None
    team: str | None
    group: str | None
    # In the description it has one type for each type of event: ``event_schemas.py``.
    data: dict[str, Any]


class EventPage(TypedDict):
    """One page of events. ``position``: what to give as ``from`` to go on later."""

    items: list[Event]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]
    position: int


class RunState(TypedDict):
    """What the platform wants of a run."""

    attempt: int
    revision: int
    preempt: bool
    deadline_at: str | None
    superseded: bool
    # Only where the request was answered without waiting, because too many of the task wait.
    ask_again_seconds: NotRequired[float]


class DeadLetter(TypedDict):
    """An event that a service has set apart."""

    id: str
    service: str
    direction: str
    type: str
    subject: str
    event_id: str
    reason: str
    bytes: int
    set_apart_at: str
    replays: int
    replaying: bool


class DeadLetterPage(TypedDict):
    """One page of dead letters."""

    items: list[DeadLetter]
    next_cursor: str | None


class Letters(TypedDict):
    """Which dead letters of a service were meant, and are tried again or gone."""

    service: str
    ids: list[str]


class BatchItem(TypedDict):
    """What came of one task of a batch: the task, or the problem."""

    status: int
    task: NotRequired[Task]
    problem: NotRequired[Problem]


class Batch(TypedDict):
    """The tasks of a batch in its order."""

    items: list[BatchItem]
    next_cursor: None


class Decision(TypedDict):
    """One decision of the scheduler about one task."""

    no: int
    decided_at: str
    task: str
    attempt: int
    kind: str
    reason: Reason | None


class DecisionPage(TypedDict):
    """One page of decisions, oldest first."""

    items: list[Decision]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]


# Infinite and undefined numbers are the texts "Infinity", "-Infinity" and "NaN".
Values = dict[str, float | str]


class Ready(TypedDict):
    """A rank's report of readiness is stored."""

    ready: bool


class AcceptedSamples(TypedDict):
    """How many samples were accepted."""

    accepted: int


class KeptOutput(TypedDict):
    """The kept output of one rank."""

    attempt: int
    rank: int
    role: str
    size: int
    complete: bool
    node: str | None


class KeptOutputs(TypedDict):
    """All outputs of a task that are kept."""

    logs: list[KeptOutput]


class OutputRange(TypedDict):
    """A range of one rank's output, with ``timestamps=1``: ``text``, or ``data_base64`` for bytes
    that are no text. ``timestamps`` are pairs of an offset and a time."""

    attempt: int
    rank: int
    offset: int
    size: int
    complete: bool
    text: NotRequired[str]
    data_base64: NotRequired[str]
    timestamps: list[tuple[int, str]]
    approximate: NotRequired[bool]
