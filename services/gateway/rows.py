"""The gateway's rows: its read model of the platform, and the people who may use it.

Everything about tasks, runs, nodes and quotas here is a copy made from events, rebuilt from its
owners when lost. Users, teams, tokens and the audit trail are the gateway's own.
States, goals and priorities are kept as the words that HTTP speaks (``queued``, ``very_high``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from pydantic import PlainSerializer

from libs.contracts.messages import (
    Checkpoint,
    ClassRetries,
    Endpoint,
    LifeStateSaved,
    Node,
    Placement,
    RankEnded,
    RankErrorLines,
    Reason,
    RunActivityChanged,
    RunDelayed,
    RunExit,
    RunYielded,
    TaskSpec,
    TaskWarning,
)
from services.gateway.json_values import json_number

# JSONB cannot hold NaN or infinity, and writes 1e20 as a whole number; read as floats, both come
# back as what they were.
Figure = Annotated[float, PlainSerializer(json_number, when_used="json")]
Figures = dict[str, Figure]


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task in the read model. ``submitted_at`` is None until its submission is projected."""

    task_id: str
    # Submit's facts.
    submitted_at: datetime | None = None
    owner: str = ""
    team: str = ""
    name: str = ""
    group: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    spec: TaskSpec | None = None
    priority: str = "normal"
    # Higher sorts first in the queue.
    priority_order: int = 0
    priority_revision: int = 0
    goal: str = "run"
    goal_revision: int = 0
    # Debug mode is on.
    debug: bool = False
    mode_revision: int = 0
    revision: int = 0
    # The scheduler's facts.
    state: str = "queued"
    state_version: int = 0
    reason: Reason | None = None
    attempt: int = 0
    observed_revision: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    checkpoint: Checkpoint | None = None
    exit: RunExit | None = None
    held_gpus: int = 0
    held_nodes: int = 0
    attempts_without_progress: int = 0
    changed_at: datetime | None = None
    # Those of its live run.
    endpoints: tuple[Endpoint, ...] = ()
    # From its submission.
    warnings: tuple[TaskWarning, ...] = ()
    # How many of its ``max_retries`` are used, and of the limits that its classes of failures have.
    retries_used: int = 0
    class_retries: ClassRetries | None = None
    # The first task of those that go on with one another; itself, if it goes on with none.
    chain: str = ""
    # The size and time of its life state; the launcher has the content.
    life_state: LifeStateSaved | None = None
    # By rule: the version of the last event about it. Negative: the task does not bear its name.
    abnormal: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AcceptedRow(TaskRow):
    """A task that submit has stored and whose event is not projected yet.

    Written by the process that answers the POST, removed by the projector: two tables, so that
    neither can overwrite what the other knows.
    """


@dataclass(frozen=True, slots=True)
class RunRow:
    """One attempt of a task. Each field comes from one event and is set once, but ``delayed``."""

    task_id: str
    attempt: int
    assigned_at: datetime | None = None
    placements: tuple[Placement, ...] = ()
    start_deadline_at: datetime | None = None
    resume_from: Checkpoint | None = None
    # The newest word on why it does not run yet; none once it does, or has ended.
    delayed: RunDelayed | None = None
    started_at: datetime | None = None
    # When its program first asked whether it should leave.
    listening_at: datetime | None = None
    preempt_requested_at: datetime | None = None
    preempt_deadline_at: datetime | None = None
    preempt_reason: Reason | None = None
    kill_requested_at: datetime | None = None
    kill_reason: Reason | None = None
    checkpoint: Checkpoint | None = None
    exit: RunExit | None = None
    # Placed, and no end is observed.
    live: bool = False
    # Where its declared ports are reached; none once it has ended.
    endpoints: tuple[Endpoint, ...] = ()
    # Its program handed the nodes over on its own.
    yielded: RunYielded | None = None
    # In debug mode, and the ranks that have ended since while others went on, as they ended.
    debug: bool = False
    ended_ranks: tuple[RankEnded, ...] = ()
    # The last error lines of its output, if it failed or was lost: first of the rank that failed
    # first.
    error_lines: tuple[RankErrorLines, ...] = ()
    # How much of what it holds it used, by the newest report.
    activity: RunActivityChanged | None = None


@dataclass(frozen=True, slots=True)
class UsageRow:
    """The ledger's entry of one attempt (``usage.py``). It outlives its task and run."""

    task_id: str
    attempt: int
    user: str = ""
    team: str = ""
    group: str = ""
    # The task's level when the attempt began, and the version of that state; 0: none.
    priority: str = ""
    priority_version: int = 0
    # Of its placements; no nodes: they are not known yet.
    gpus: int = 0
    nodes: int = 0
    assigned_at: datetime | None = None
    started_at: datetime | None = None
    # When its last checkpoint was acknowledged.
    saved_at: datetime | None = None
    # The first request that it ends, and its reason.
    asked_at: datetime | None = None
    asked_for: str = ""
    # How it ended, if that is known.
    ended: str = ""
    # Derived: when it began to hold its nodes, when its end was observed, and its outcome.
    held_from: datetime | None = None
    held_until: datetime | None = None
    outcome: str = ""
    # By the newest report about its activity: until when, and how many of its GPUs, in thousandths,
    # were measured and were idle on average.
    measured_until: datetime | None = None
    measured_milligpus: int = 0
    idle_milligpus: int = 0


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as the launcher reported it last."""

    node_id: str
    version: int
    group: str
    node: Node
    removed: bool
    changed_at: datetime


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """One cap or grant; an empty field means every one. A removed one stays, with its version."""

    group: str
    user: str
    team: str
    priority: str
    unit: str
    grant: bool
    limit: int
    version: int
    removed: bool
    changed_by: str
    changed_at: datetime
    # A grant without a number.
    unlimited: bool = False
    # Of the site's default: the highest level that is permitted; empty: all are.
    level_max: str = ""
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class EventRow:
    """One fact as it passed by, at its place in the gateway's own order."""

    position: int
    # Aggregate and fact: ``task.submitted``, ``run.exited``, ``node.changed``.
    type: str
    # The fact's natural key; a repetition of the fact has the same one.
    fact: str
    task_id: str
    attempt: int
    at: datetime
    data: dict[str, Any]
    # The size of all events before it, those that are not kept any more included.
    bytes_before: int = 0
    # Of the task that it is about; the group also of a node, a quota or a policy. Empty: of none,
    # or the task's submission is not projected yet.
    owner: str = ""
    team: str = ""
    group: str = ""
    # When the projector entered it; None: by a version that did not note it.
    entered_at: datetime | None = None

    @property
    def aged_from(self) -> datetime:
        """From when on its age counts. ``at`` is what its sender wrote."""
        return self.entered_at or self.at


@dataclass(frozen=True, slots=True)
class EventHeadRow:
    """The positions at which the event log ends and begins; one row, written by the projector."""

    name: str
    position: int
    oldest: int
    # The size of all events, those that are not kept any more included.
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class RebuildRow:
    """A service that published its facts again for this read model."""

    service: str
    asked_at: datetime
    events: int


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """What one rank reported: the newest values, and a history thinned to a bounded length."""

    task_id: str
    rank: int
    attempt: int
    at: datetime
    latest: Figures
    # (attempt, unix seconds, values), oldest first.
    points: list[tuple[int, float, Figures]]
    # Every so many samples one is kept as a point.
    stride: int
    count: int


@dataclass(frozen=True, slots=True)
class MetricTailRow:
    """The end of one rank's history. A report writes it alone, until it is long enough to be moved
    into the rank's ``MetricsRow``: that one has twenty kB, and would be written for each sample."""

    task_id: str
    rank: int
    # As in ``MetricsRow``, for the whole history.
    attempt: int
    at: datetime
    latest: Figures
    points: list[tuple[int, float, Figures]]
    stride: int
    count: int
    # How many points, with how many values, the rank's ``MetricsRow`` has.
    points_before: int
    values_before: int


@dataclass(frozen=True, slots=True)
class ProgressRow:
    """The progress that a task's rank 0 reported last, in few values, for lists of tasks. Written
    with its history; the task's own row is the projector's."""

    task_id: str
    attempt: int
    at: datetime
    latest: Figures


@dataclass(frozen=True, slots=True)
class UserRow:
    """A person or program that may use the platform."""

    name: str
    role: str
    team: str
    disabled: bool
    created_at: datetime
    # The user that disabled this one, and when.
    disabled_by: str = ""
    disabled_at: datetime | None = None
    # Gone for good, and disabled: only the name stays, so that nobody else gets it.
    archived: bool = False
    # Where and how tasks are submitted that do not say so; empty: as the team's.
    default_group: str = ""
    default_priority: str = ""
    # Where mail about tasks goes, set by an administrator or by the login provider; empty: nowhere.
    mail: str = ""


@dataclass(frozen=True, slots=True)
class TeamRow:
    """A set of users that quotas can name."""

    name: str
    created_at: datetime
    # As a user's, for members without defaults of their own; empty: the platform's.
    default_group: str = ""
    default_priority: str = ""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A bearer token, of which only the SHA-256 is known."""

    token_hash: str
    id: str
    user: str
    name: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    # What it is good for; none: all that its user may do.
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenUseRow:
    """When a token was last used, and from where. Written a while later, and lost if the gateway
    is killed meanwhile."""

    token_id: str
    used_at: datetime
    address: str


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A browser's login, of which only a hash of the secret is known. Its last use is in a
    ``TokenUseRow`` under its id."""

    secret_hash: str
    id: str
    user: str
    created_at: datetime
    expires_at: datetime
    address: str
    # ``oidc``, ``password`` or ``token``.
    made_by: str
    # The token that it was made with; it ends with that, and may do no more.
    token_id: str = ""
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExternalIdentityRow:
    """Which user an account of a login provider is. Names may change at the provider or be given to
    others; issuer and subject do not."""

    issuer: str
    subject: str
    user: str
    linked_at: datetime


@dataclass(frozen=True, slots=True)
class PasswordRow:
    """A user's password, as argon2 hashed it."""

    user: str
    hash: str
    changed_at: datetime
    changed_by: str


@dataclass(frozen=True, slots=True)
class LoginUseRow:
    """A login's state that was used. It cannot be used again."""

    state_hash: str
    used_at: datetime


@dataclass(frozen=True, slots=True)
class LoginCodeRow:
    """A one-time code that a logged-in user was shown, for a command line to get a token with.

    ``challenge`` is the hash of a secret that only that command line knows.
    """

    code_hash: str
    user: str
    challenge: str
    # What the token is for.
    name: str
    expires_at: datetime


# The address of what the platform did by itself.
PLATFORM = "platform"


@dataclass(frozen=True, slots=True)
class AuditRow:
    """A requested change, the user that requested it, and the outcome."""

    id: str
    at: datetime
    who: str
    action: str
    target: str
    # ``done``, or the kind of the refusal.
    outcome: str
    detail: str
    # From where: an address, ``several`` for a sum of requests, or ``PLATFORM`` (empty in entries
    # of earlier versions); and with which token (its id).
    address: str = ""
    token: str = ""
    # What was there before and is there after it, as far as the change has such.
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
