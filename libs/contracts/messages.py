"""GENERATED from proto/ by `make gen`. Do not edit."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import pydantic

from libs.contracts.base import (
    Base64,
    Int64,
    Message,
    NameText,
    NodeIdText,
    TaskIdText,
    Time,
)


class PolicySource(StrEnum):
    """PolicySource says where a group's policy comes from."""

    UNSPECIFIED = "POLICY_SOURCE_UNSPECIFIED"
    DEFAULT = "POLICY_SOURCE_DEFAULT"
    FILE = "POLICY_SOURCE_FILE"
    COMMAND = "POLICY_SOURCE_COMMAND"


class Priority(StrEnum):
    """Priority is a task's level. The weights (0 to 50) are policy; these numbers are only
    names."""

    UNSPECIFIED = "PRIORITY_UNSPECIFIED"
    AUTO = "PRIORITY_AUTO"
    IDLE = "PRIORITY_IDLE"
    LOW = "PRIORITY_LOW"
    BELOW_NORMAL = "PRIORITY_BELOW_NORMAL"
    NORMAL = "PRIORITY_NORMAL"
    ABOVE_NORMAL = "PRIORITY_ABOVE_NORMAL"
    HIGH = "PRIORITY_HIGH"
    VERY_HIGH = "PRIORITY_VERY_HIGH"
    EXTREME_HIGH = "PRIORITY_EXTREME_HIGH"


class Goal(StrEnum):
    """Goal is what the owner wants of the task."""

    UNSPECIFIED = "GOAL_UNSPECIFIED"
    RUN = "GOAL_RUN"
    PAUSE = "GOAL_PAUSE"
    STOP = "GOAL_STOP"


class TaskState(StrEnum):
    """TaskState is where a task stands; the scheduler alone moves it, by one table."""

    UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
    QUEUED = "TASK_STATE_QUEUED"
    STARTING = "TASK_STATE_STARTING"
    RUNNING = "TASK_STATE_RUNNING"
    PREEMPTING = "TASK_STATE_PREEMPTING"
    KILLING = "TASK_STATE_KILLING"
    PAUSED = "TASK_STATE_PAUSED"
    SUCCEEDED = "TASK_STATE_SUCCEEDED"
    FAILED = "TASK_STATE_FAILED"
    STOPPED = "TASK_STATE_STOPPED"
    REJECTED = "TASK_STATE_REJECTED"


class PreemptMode(StrEnum):
    """PreemptMode is how a run is asked to hand its nodes over."""

    UNSPECIFIED = "PREEMPT_MODE_UNSPECIFIED"
    SDK = "PREEMPT_MODE_SDK"
    SIGNAL = "PREEMPT_MODE_SIGNAL"
    KILL = "PREEMPT_MODE_KILL"


class Contract(StrEnum):
    """Contract is what the platform gives each rank so that the ranks find each other:
    variables and files as a framework expects them."""

    UNSPECIFIED = "CONTRACT_UNSPECIFIED"
    TORCH = "CONTRACT_TORCH"
    TF_CONFIG = "CONTRACT_TF_CONFIG"
    RANK = "CONTRACT_RANK"
    COORDINATOR = "CONTRACT_COORDINATOR"
    MPI = "CONTRACT_MPI"
    NONE = "CONTRACT_NONE"


class RunMode(StrEnum):
    """RunMode is whether a task's program runs, other programs in its place, or nothing."""

    UNSPECIFIED = "RUN_MODE_UNSPECIFIED"
    NORMAL = "RUN_MODE_NORMAL"
    DEBUG = "RUN_MODE_DEBUG"
    PAUSE = "RUN_MODE_PAUSE"


class ReasonCode(StrEnum):
    """ReasonCode is why a task stands where it stands; the sentence is rendered at the edge."""

    UNSPECIFIED = "REASON_CODE_UNSPECIFIED"
    WAITS_FOR_CAPACITY = "REASON_CODE_WAITS_FOR_CAPACITY"
    WAITS_FOR_QUOTA = "REASON_CODE_WAITS_FOR_QUOTA"
    WAITS_BEHIND_OTHERS = "REASON_CODE_WAITS_BEHIND_OTHERS"
    WAITS_FOR_VICTIMS = "REASON_CODE_WAITS_FOR_VICTIMS"
    WAITS_FOR_RETRY = "REASON_CODE_WAITS_FOR_RETRY"
    WAITS_FOR_INVENTORY = "REASON_CODE_WAITS_FOR_INVENTORY"
    CLUSTER_TOO_SMALL_NOW = "REASON_CODE_CLUSTER_TOO_SMALL_NOW"
    PLACED = "REASON_CODE_PLACED"
    STARTED = "REASON_CODE_STARTED"
    PREEMPTED_BY = "REASON_CODE_PREEMPTED_BY"
    ACK_EXPIRED = "REASON_CODE_ACK_EXPIRED"
    START_EXPIRED = "REASON_CODE_START_EXPIRED"
    GOAL_PAUSE = "REASON_CODE_GOAL_PAUSE"
    GOAL_STOP = "REASON_CODE_GOAL_STOP"
    GOAL_RUN = "REASON_CODE_GOAL_RUN"
    MAX_RUN_TIME = "REASON_CODE_MAX_RUN_TIME"
    SUCCEEDED = "REASON_CODE_SUCCEEDED"
    FAILED = "REASON_CODE_FAILED"
    RETRIES_USED_UP = "REASON_CODE_RETRIES_USED_UP"
    START_ATTEMPTS_USED_UP = "REASON_CODE_START_ATTEMPTS_USED_UP"
    RUN_LOST = "REASON_CODE_RUN_LOST"
    RUN_KILLED = "REASON_CODE_RUN_KILLED"
    RUN_PREEMPTED = "REASON_CODE_RUN_PREEMPTED"
    NEVER_FITS = "REASON_CODE_NEVER_FITS"
    QUEUED = "REASON_CODE_QUEUED"
    NODE_DRAINED = "REASON_CODE_NODE_DRAINED"
    WAITS_FOR_VIRTUAL_CLUSTER = "REASON_CODE_WAITS_FOR_VIRTUAL_CLUSTER"
    RECLAIMED_BY = "REASON_CODE_RECLAIMED_BY"
    TURN_OF = "REASON_CODE_TURN_OF"
    SLICE_OVER = "REASON_CODE_SLICE_OVER"
    LEVEL_SANK = "REASON_CODE_LEVEL_SANK"
    QUOTA_NEVER_FITS = "REASON_CODE_QUOTA_NEVER_FITS"
    GRANTED = "REASON_CODE_GRANTED"
    WAITS_FOR_SHARE = "REASON_CODE_WAITS_FOR_SHARE"
    PLAN_REFUSED = "REASON_CODE_PLAN_REFUSED"
    MOVED_FOR = "REASON_CODE_MOVED_FOR"
    LEVEL_CHANGED = "REASON_CODE_LEVEL_CHANGED"
    EVENT_TOO_LARGE = "REASON_CODE_EVENT_TOO_LARGE"
    ROW_SET_APART = "REASON_CODE_ROW_SET_APART"
    NEVER_ASKED = "REASON_CODE_NEVER_ASKED"
    RESTART_NOT_ALLOWED = "REASON_CODE_RESTART_NOT_ALLOWED"
    YIELDED = "REASON_CODE_YIELDED"
    DEBUG_ENDED = "REASON_CODE_DEBUG_ENDED"
    MODE_CHANGED = "REASON_CODE_MODE_CHANGED"


class StartCondition(StrEnum):
    """StartCondition is what has to be true of a role before another one starts."""

    UNSPECIFIED = "START_CONDITION_UNSPECIFIED"
    RUNNING = "START_CONDITION_RUNNING"
    READY = "START_CONDITION_READY"


class RestartWhen(StrEnum):
    """RestartWhen is which ends of a rank lead to a restart."""

    UNSPECIFIED = "RESTART_WHEN_UNSPECIFIED"
    NEVER = "RESTART_WHEN_NEVER"
    ON_FAILURE = "RESTART_WHEN_ON_FAILURE"
    ALWAYS = "RESTART_WHEN_ALWAYS"
    EXIT_CODE = "RESTART_WHEN_EXIT_CODE"


class RestartScope(StrEnum):
    """RestartScope is what is restarted."""

    UNSPECIFIED = "RESTART_SCOPE_UNSPECIFIED"
    GANG = "RESTART_SCOPE_GANG"
    RANK = "RESTART_SCOPE_RANK"


class ExitKind(StrEnum):
    """ExitKind classifies the end of a run; the table is the launcher's domain/exits.py."""

    UNSPECIFIED = "EXIT_KIND_UNSPECIFIED"
    OK = "EXIT_KIND_OK"
    PREEMPTED = "EXIT_KIND_PREEMPTED"
    KILLED = "EXIT_KIND_KILLED"
    LOST = "EXIT_KIND_LOST"
    FAILED = "EXIT_KIND_FAILED"


class FaultClass(StrEnum):
    """FaultClass is who is likely to be at fault for a failure, and so whether it is worth to
    try again; the table is the launcher's domain/fault_classes.py."""

    UNSPECIFIED = "FAULT_CLASS_UNSPECIFIED"
    USER = "FAULT_CLASS_USER"
    TRANSIENT = "FAULT_CLASS_TRANSIENT"
    PLATFORM = "FAULT_CLASS_PLATFORM"
    UNKNOWN = "FAULT_CLASS_UNKNOWN"


class Fault(StrEnum):
    """Fault is what a runtime finds wrong with a rank or a launch, beside a code or signal; the
    launcher's domain/rank_faults.py has their signs and texts."""

    UNSPECIFIED = "FAULT_UNSPECIFIED"
    INVALID_POD = "FAULT_INVALID_POD"
    AGAINST_POLICY = "FAULT_AGAINST_POLICY"
    NOT_ADMITTED = "FAULT_NOT_ADMITTED"
    OVER_QUOTA = "FAULT_OVER_QUOTA"
    NAME_TAKEN = "FAULT_NAME_TAKEN"
    BEING_MADE = "FAULT_BEING_MADE"
    UNSCHEDULABLE = "FAULT_UNSCHEDULABLE"
    INVALID_IMAGE = "FAULT_INVALID_IMAGE"
    IMAGE_PULL = "FAULT_IMAGE_PULL"
    BAD_REFERENCE = "FAULT_BAD_REFERENCE"
    NOT_CREATED = "FAULT_NOT_CREATED"
    OUT_OF_MEMORY = "FAULT_OUT_OF_MEMORY"
    CANNOT_RUN = "FAULT_CANNOT_RUN"
    INIT_FAILED = "FAULT_INIT_FAILED"
    OVER_STORAGE = "FAULT_OVER_STORAGE"
    OVER_TIME = "FAULT_OVER_TIME"
    EVICTED = "FAULT_EVICTED"
    DISPLACED = "FAULT_DISPLACED"
    NODE_DOWN = "FAULT_NODE_DOWN"
    NODE_REFUSED = "FAULT_NODE_REFUSED"
    NODE_LOST = "FAULT_NODE_LOST"
    DELETED = "FAULT_DELETED"
    NO_COMMAND = "FAULT_NO_COMMAND"


class Unit(StrEnum):
    """Unit is what a limit counts."""

    UNSPECIFIED = "UNIT_UNSPECIFIED"
    GPUS = "UNIT_GPUS"
    NODES = "UNIT_NODES"
    GPUS_OR_NODES = "UNIT_GPUS_OR_NODES"


class AbnormalAction(StrEnum):
    """AbnormalAction is what may follow when a rule finds a task abnormal."""

    UNSPECIFIED = "ABNORMAL_ACTION_UNSPECIFIED"
    NOTIFY = "ABNORMAL_ACTION_NOTIFY"
    TAG = "ABNORMAL_ACTION_TAG"
    LOWER_PRIORITY = "ABNORMAL_ACTION_LOWER_PRIORITY"
    PREEMPT = "ABNORMAL_ACTION_PREEMPT"
    STOP = "ABNORMAL_ACTION_STOP"
    CORDON = "ABNORMAL_ACTION_CORDON"


class AbnormalOutcome(StrEnum):
    """AbnormalOutcome is how an action went."""

    UNSPECIFIED = "ABNORMAL_OUTCOME_UNSPECIFIED"
    WAITING = "ABNORMAL_OUTCOME_WAITING"
    DONE = "ABNORMAL_OUTCOME_DONE"
    REFUSED = "ABNORMAL_OUTCOME_REFUSED"
    DRY_RUN = "ABNORMAL_OUTCOME_DRY_RUN"
    WITHDRAWN = "ABNORMAL_OUTCOME_WITHDRAWN"


class RefusalCode(StrEnum):
    """RefusalCode is the kind of refusal; the gateway maps it to an HTTP status."""

    UNSPECIFIED = "REFUSAL_CODE_UNSPECIFIED"
    INVALID = "REFUSAL_CODE_INVALID"
    NOT_FOUND = "REFUSAL_CODE_NOT_FOUND"
    CONFLICT = "REFUSAL_CODE_CONFLICT"
    FORBIDDEN = "REFUSAL_CODE_FORBIDDEN"
    SUPERSEDED = "REFUSAL_CODE_SUPERSEDED"
    UNAVAILABLE = "REFUSAL_CODE_UNAVAILABLE"
    FAILED = "REFUSAL_CODE_FAILED"


class LetterDirection(StrEnum):
    """LetterDirection says whether an event could not be handled or could not be published."""

    UNSPECIFIED = "LETTER_DIRECTION_UNSPECIFIED"
    RECEIVED = "LETTER_DIRECTION_RECEIVED"
    SENT = "LETTER_DIRECTION_SENT"


class Occasion(StrEnum):
    """Occasion is what a notification is about."""

    UNSPECIFIED = "OCCASION_UNSPECIFIED"
    STARTED = "OCCASION_STARTED"
    PREEMPTED = "OCCASION_PREEMPTED"
    FAILED = "OCCASION_FAILED"
    FINISHED = "OCCASION_FINISHED"
    WAITING = "OCCASION_WAITING"
    QUOTA_REACHED = "OCCASION_QUOTA_REACHED"
    ABNORMAL = "OCCASION_ABNORMAL"


class NotifiedTasks(StrEnum):
    """NotifiedTasks is whose tasks a notification is about."""

    UNSPECIFIED = "NOTIFIED_TASKS_UNSPECIFIED"
    OWN = "NOTIFIED_TASKS_OWN"
    TEAM = "NOTIFIED_TASKS_TEAM"
    ALL = "NOTIFIED_TASKS_ALL"


class NotificationChannel(StrEnum):
    """NotificationChannel is how messages about tasks are sent."""

    UNSPECIFIED = "NOTIFICATION_CHANNEL_UNSPECIFIED"
    WEBHOOK = "NOTIFICATION_CHANNEL_WEBHOOK"
    MAIL = "NOTIFICATION_CHANNEL_MAIL"


class ExecStream(StrEnum):
    """ExecStream says which stream the data of a frame belongs to."""

    UNSPECIFIED = "EXEC_STREAM_UNSPECIFIED"
    STDIN = "EXEC_STREAM_STDIN"
    STDOUT = "EXEC_STREAM_STDOUT"
    STDERR = "EXEC_STREAM_STDERR"


class LogTimestamp(Message):
    """LogTimestamp says when bytes of an output were written: those from the offset on, up to
    the next one's offset."""

    offset: Int64 = 0
    at: Time


class LogChunk(Message):
    """LogChunk is a piece of one rank's output, whole lines where possible."""

    task_id: TaskIdText
    attempt: int = 0
    rank: int = 0
    role: str = ""
    offset: Int64 = 0
    data: Base64 = b""
    collected_at: Time
    line: Base64 = b""
    timestamps: tuple[LogTimestamp, ...] = ()


class PolicyRecord(Message):
    """PolicyRecord is how one node group is shared."""

    group: str = ""
    policy: str = ""
    document: str = ""
    version: Int64 = 0
    source: PolicySource = PolicySource.UNSPECIFIED
    changed_by: str = ""
    changed_at: Time | None = None


class PolicyChanged(Message):
    """PolicyChanged: how a group is shared was set, changed, or is left to the defaults again."""

    group: str = ""
    policy: PolicyRecord
    version: Int64 = 0
    changed_at: Time


class Reason(Message):
    """Reason is a code with the numbers and names that make its sentence true."""

    code: ReasonCode = ReasonCode.UNSPECIFIED
    numbers: Mapping[str, float] = pydantic.Field(default_factory=dict)
    names: Mapping[str, str] = pydantic.Field(default_factory=dict)


class StartsAfter(Message):
    """StartsAfter names a role that has to be there before the ranks of this one start."""

    role: str = ""
    condition: StartCondition = StartCondition.UNSPECIFIED


class ReadyProbe(Message):
    """ReadyProbe is how the platform learns that a rank is ready: by its port, or by its
    program, which calls shiftwork.ready()."""

    port: str = ""
    path: str = ""
    period_seconds: float = 0.0
    within_seconds: float = 0.0


class Port(Message):
    """Port is one at which each replica of a role serves others."""

    name: str = ""
    port: int | None = None


class RestartRule(Message):
    """RestartRule decides what a failure of one of a role's replicas leads to. It does not
    concern what the platform or the cluster did to the replica, such as a lost node: the task
    then starts again."""

    when: RestartWhen = RestartWhen.UNSPECIFIED
    exit_codes: tuple[str, ...] = ()
    scope: RestartScope = RestartScope.UNSPECIFIED
    max_restarts: int | None = None


class DebugProgram(Message):
    """DebugProgram is what the ranks of a role run in debug mode instead of their program."""

    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class Override(Message):
    """Override takes the place of a part of a role."""

    command: tuple[str, ...] = ()
    env: Mapping[str, str] = pydantic.Field(default_factory=dict)


class EnvSource(Message):
    """EnvSource is a variable whose value is kept elsewhere, in exactly one of a Secret, a
    ConfigMap and the pod."""

    name: str = ""
    secret: str = ""
    config_map: str = ""
    field: str = ""
    key: str = ""
    optional: bool = False


class PodRequest(Message):
    """PodRequest is what a task asks of its pods; a runtime without pods ignores it."""

    image: str = ""
    image_pull_policy: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    storage: tuple[str, ...] = ()
    resources: Mapping[str, str] = pydantic.Field(default_factory=dict)
    shm_bytes: Int64 | None = None
    capabilities: tuple[str, ...] = ()
    env_from: tuple[EnvSource, ...] = ()
    template: str = ""


class Role(Message):
    """Role is one kind of replica in a gang. What it leaves out is as the task says."""

    name: str = ""
    replicas: int = 0
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = pydantic.Field(default_factory=dict)
    image: str = ""
    gpus: int | None = None
    cpus: float | None = None
    memory_bytes: Int64 | None = None
    spread: bool | None = None
    auxiliary: bool = False
    working_directory: str = ""
    ports: tuple[Port, ...] = ()
    restart: RestartRule | None = None
    starts_after: tuple[StartsAfter, ...] = ()
    ready: ReadyProbe | None = None
    debug: DebugProgram | None = None
    resume: Override | None = None
    args: tuple[str, ...] = ()
    pod: PodRequest | None = None
    cpus_request: float | None = None
    memory_request_bytes: Int64 | None = None


class RetryPolicy(Message):
    """RetryPolicy bounds how often a failed run is tried again. Failures of a class with a
    limit of its own have a counter of their own; all others count together."""

    max_retries: int = 0
    user: int | None = None
    transient: int | None = None
    platform: int | None = None
    unknown: int | None = None


class ClassRetries(Message):
    """ClassRetries counts the retries of a task after failures of classes with a limit of their
    own."""

    user: int = 0
    transient: int = 0
    platform: int = 0
    unknown: int = 0


class Completion(Message):
    """Completion decides an attempt by the ends of its ranks. A rule is one condition or
    several joined by "and": ROLE[INDEX], ROLE[any], ROLE[all], ROLE[N+] (at least N of them),
    ROLE[ended]."""

    success: tuple[str, ...] = ()
    failure: tuple[str, ...] = ()


class PreemptionPolicy(Message):
    """PreemptionPolicy is how and how patiently a run is asked to hand over."""

    mode: PreemptMode = PreemptMode.UNSPECIFIED
    signal: str = ""
    ack_deadline_seconds: float = 0.0


class Checkpoint(Message):
    """Checkpoint is a durable save of a task's state, acknowledged by the platform."""

    no: Int64 = 0
    attempt: int = 0
    step: Int64 = 0
    uri: str = ""
    digest: str = ""
    saved_at: Time
    task_id: str = ""


class Continuation(Message):
    """Continuation is where a task begins that goes on with an ended one."""

    task_id: TaskIdText
    chain: TaskIdText
    checkpoint: Checkpoint | None = None
    state_of: str = ""


class TaskSpec(Message):
    """TaskSpec is what a person submits, complete after submit has filled in the defaults."""

    name: str = ""
    group: str = ""
    priority: Priority = Priority.UNSPECIFIED
    roles: tuple[Role, ...] = ()
    gpus_per_node: int | None = None
    env: Mapping[str, str] = pydantic.Field(default_factory=dict)
    working_directory: str = ""
    labels: Mapping[str, str] = pydantic.Field(default_factory=dict)
    retry: RetryPolicy
    preemption: PreemptionPolicy
    max_run_seconds: float | None = None
    fence_after_seconds: float | None = None
    cpus: float | None = None
    memory_bytes: Int64 | None = None
    nodes: int = 0
    node_selector: Mapping[str, str] = pydantic.Field(default_factory=dict)
    tolerations: tuple[str, ...] = ()
    pod: PodRequest | None = None
    wait_for_nodes: bool = False
    contract: Contract = Contract.UNSPECIFIED
    completion: Completion | None = None
    run_mode: RunMode = RunMode.UNSPECIFIED
    cpus_request: float | None = None
    memory_request_bytes: Int64 | None = None
    continues: Continuation | None = None
    secret_env: tuple[str, ...] = ()


class TaskWarning(Message):
    """TaskWarning is about a field of a task that is accepted and has no effect, or will
    probably surprise."""

    code: str = ""
    field: str = ""
    value: str = ""
    message: str = ""


class RankExit(Message):
    """RankExit is how one rank's main process ended: a code or a signal, neither if unknown."""

    rank: int = 0
    code: int | None = None
    signal: int | None = None
    fault: Fault = Fault.UNSPECIFIED


class RunExit(Message):
    """RunExit is how a run ended."""

    attempt: int = 0
    kind: ExitKind = ExitKind.UNSPECIFIED
    ranks: tuple[RankExit, ...] = ()
    exited_at: Time
    detail: str = ""
    failed_rank: int | None = None
    fault_class: FaultClass = FaultClass.UNSPECIFIED
    fault: Fault = Fault.UNSPECIFIED
    final: bool = False
    yielded: bool = False
    debug: bool = False
    start_failed: bool = False


class Quota(Message):
    """Quota is a cap or a grant: how much a user or team may hold at once. An empty field means
    every one. All caps that match a task apply, and the smallest wins. Of the grants exactly
    one decides, the most specific: by user, then team, then each user; then by group; then by
    priority. It counts what one user holds in one group. The grant without any name is the
    site's default; without it everything that no other grant decides is permitted."""

    group: str = ""
    user: str = ""
    team: str = ""
    priority: Priority = Priority.UNSPECIFIED
    unit: Unit = Unit.UNSPECIFIED
    limit: Int64 = 0
    grant: bool = False
    unlimited: bool = False
    expires_at: Time | None = None
    level_max: Priority = Priority.UNSPECIFIED


class QuotaChanged(Message):
    """QuotaChanged: a cap or a grant was set, changed or removed."""

    group_token: str = ""
    quota: Quota
    removed: bool = False
    version: Int64 = 0
    changed_by: str = ""
    changed_at: Time
    expired: bool = False


class UsageRecorded(Message):
    """UsageRecorded: a run ended and its use was entered in the ledger."""

    group: str = ""
    task_id: str = ""
    attempt: int = 0
    owner: str = ""
    team: str = ""
    gpus: Int64 = 0
    nodes: Int64 = 0
    started_at: Time
    ended_at: Time
    gpu_seconds: float = 0.0
    node_seconds: float = 0.0


class Placement(Message):
    """Placement puts one rank of the gang on one node."""

    rank: int = 0
    role: str = ""
    role_index: int = 0
    node_id: NodeIdText
    gpus: tuple[int, ...] = ()


class Endpoint(Message):
    """Endpoint is where one declared port of one rank is reached while the run lives."""

    rank: int = 0
    role: str = ""
    name: str = ""
    address: str = ""
    port: int = 0


class NodeValues(Message):
    """NodeValues is what was measured of a machine. A value that could not be measured is
    absent."""

    cpu_percent: float | None = None
    load_processes: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    disk_used_bytes: float | None = None
    disk_total_bytes: float | None = None
    disk_read_bytes_per_second: float | None = None
    disk_write_bytes_per_second: float | None = None
    network_receive_bytes_per_second: float | None = None
    network_transmit_bytes_per_second: float | None = None


class GpuValues(Message):
    """GpuValues is what the driver reports of one GPU."""

    gpu_percent: float | None = None
    gpu_memory_used_bytes: float | None = None
    gpu_memory_total_bytes: float | None = None
    gpu_power_watts: float | None = None
    gpu_temperature_celsius: float | None = None
    gpu_ecc_errors: float | None = None
    gpu_xid: float | None = None


class RankValues(Message):
    """RankValues is what all processes of one rank on one node use together."""

    cpu_cores: float | None = None
    memory_bytes: float | None = None
    read_bytes_per_second: float | None = None
    write_bytes_per_second: float | None = None
    processes: float | None = None
    gpu_process_memory_bytes: float | None = None


class GpuSample(Message):
    """GpuSample is one GPU of a node."""

    index: int = 0
    uuid: str = ""
    model: str = ""
    values: GpuValues


class RankSample(Message):
    """RankSample is one rank on a node, with the GPUs of that node that it holds."""

    task_id: TaskIdText
    attempt: int = 0
    rank: int = 0
    gpus: tuple[int, ...] = ()
    values: RankValues


class NodeSampled(Message):
    """NodeSampled: everything that was measured of one node at one moment. A sample that is
    lost is a gap in the series. A node with many ranks has several messages for one moment; the
    first alone has what is not of a rank."""

    node_id: NodeIdText
    sampled_at: Time
    values: NodeValues
    gpus: tuple[GpuSample, ...] = ()
    ranks: tuple[RankSample, ...] = ()
    hostname: str = ""


class Series(Message):
    """Series is one signal at equal distances. The numbers are 32-bit floats, little endian,
    one for each step from begins_at on; a gap is not a number (NaN)."""

    signal: str = ""
    rank: int | None = None
    attempt: int = 0
    node_id: str = ""
    gpu: int | None = None
    begins_at: Time
    step_seconds: int = 0
    averages: Base64 = b""
    minima: Base64 = b""
    maxima: Base64 = b""


class NodeUtilization(Message):
    """NodeUtilization is the newest sample of a node."""

    node_id: NodeIdText
    sampled_at: Time
    values: NodeValues
    gpus: tuple[GpuSample, ...] = ()


class TaskUtilization(Message):
    """TaskUtilization sums up the newest samples of all ranks of a task. A sum is absent where
    no rank has the value."""

    task_id: TaskIdText
    attempt: int = 0
    sampled_at: Time
    ranks: int = 0
    gpus: int = 0
    cpu_cores: float | None = None
    memory_bytes: float | None = None
    gpu_percent: float | None = None
    gpu_memory_used_bytes: float | None = None


class TaskSubmitted(Message):
    """TaskSubmitted: a valid task is stored and waits for the scheduler."""

    task_id: TaskIdText
    owner: NameText
    team: str = ""
    spec: TaskSpec
    submitted_at: Time
    revision: Int64 = 0
    warnings: tuple[TaskWarning, ...] = ()


class GoalChanged(Message):
    """GoalChanged: the owner wants something else of the task."""

    task_id: TaskIdText
    goal: Goal = Goal.UNSPECIFIED
    revision: Int64 = 0
    changed_by: str = ""
    changed_at: Time
    now: bool = False


class ModeChanged(Message):
    """ModeChanged: debug mode was turned on or off. A pause is a goal."""

    task_id: TaskIdText
    mode: RunMode = RunMode.UNSPECIFIED
    revision: Int64 = 0
    changed_by: str = ""
    changed_at: Time


class PriorityChanged(Message):
    """PriorityChanged: the task's level was changed after submission."""

    task_id: TaskIdText
    priority: Priority = Priority.UNSPECIFIED
    revision: Int64 = 0
    changed_by: str = ""
    changed_at: Time


class TaskStateChanged(Message):
    """TaskStateChanged: the scheduler moved the task, or the reason for its waiting changed."""

    task_id: TaskIdText
    version: Int64 = 0
    state: TaskState = TaskState.UNSPECIFIED
    previous: TaskState = TaskState.UNSPECIFIED
    reason: Reason
    attempt: int = 0
    observed_revision: Int64 = 0
    started_at: Time | None = None
    finished_at: Time | None = None
    checkpoint: Checkpoint | None = None
    exit: RunExit | None = None
    changed_at: Time
    owner: str = ""
    team: str = ""
    group: str = ""
    held_gpus: Int64 = 0
    held_nodes: Int64 = 0
    priority: Priority = Priority.UNSPECIFIED
    attempts_without_progress: int = 0
    retries_used: int = 0
    class_retries: ClassRetries | None = None


class AbnormalTaskChanged(Message):
    """AbnormalTaskChanged: a rule found a task abnormal, or finds it so no longer."""

    task_id: TaskIdText
    attempt: int = 0
    rule: str = ""
    version: Int64 = 0
    began_at: Time
    ended_at: Time | None = None
    detail: str = ""
    suggestion: str = ""
    tagged: bool = False
    changed_at: Time


class AbnormalActionSettled(Message):
    """AbnormalActionSettled: an action on an abnormal task or its node is settled."""

    task_id: TaskIdText
    attempt: int = 0
    rule: str = ""
    version: Int64 = 0
    action: AbnormalAction = AbnormalAction.UNSPECIFIED
    node_id: str = ""
    outcome: AbnormalOutcome = AbnormalOutcome.UNSPECIFIED
    detail: str = ""
    settled_at: Time


class FieldError(Message):
    """FieldError names the field, the value and the fix."""

    field: str = ""
    value: str = ""
    message: str = ""
    fix: str = ""


class Refusal(Message):
    """Refusal is why a command was not carried out."""

    code: RefusalCode = RefusalCode.UNSPECIFIED
    detail: str = ""
    errors: tuple[FieldError, ...] = ()


class CreateTask(Message):
    """CreateTask asks for a new task; the same client key gives the same task again."""

    client_key: str = ""
    owner: str = ""
    team: str = ""
    spec: TaskSpec
    dry_run: bool = False
    default_group: str = ""
    default_priority: Priority = Priority.UNSPECIFIED


class CreateTaskReply(Message):
    """CreateTaskReply says which task it is and whether it is new."""

    refusal: Refusal | None = None
    task_id: str = ""
    created: bool = False
    revision: Int64 = 0
    submitted_at: Time | None = None
    spec: TaskSpec | None = None
    warnings: tuple[TaskWarning, ...] = ()


class CreateTasks(Message):
    """CreateTasks asks for several new tasks, stored together; each is accepted or refused by
    itself."""

    tasks: tuple[CreateTask, ...] = ()


class CreateTasksReply(Message):
    """CreateTasksReply answers for each task, in their order; a refusal here is one of all of
    them."""

    refusal: Refusal | None = None
    replies: tuple[CreateTaskReply, ...] = ()


class Fence(Message):
    """Fence limits a command to the state in which its requester decided it."""

    attempt: int = 0
    request: str = ""
    goal_revision: Int64 = 0
    recall: bool = False


class SetGoal(Message):
    """SetGoal asks that a task run, pause or stop."""

    task_id: str = ""
    goal: Goal = Goal.UNSPECIFIED
    asked_by: str = ""
    now: bool = False
    fence: Fence | None = None


class SetGoalReply(Message):
    """SetGoalReply carries the revision to wait for."""

    refusal: Refusal | None = None
    revision: Int64 = 0
    changed: bool = False


class SetMode(Message):
    """SetMode asks for another mode: normal, debug or pause. Normal also resumes a paused task."""

    task_id: str = ""
    mode: RunMode = RunMode.UNSPECIFIED
    asked_by: str = ""
    stay_paused: bool = False


class SetModeReply(Message):
    """SetModeReply carries the revision to wait for."""

    refusal: Refusal | None = None
    revision: Int64 = 0


class SetPriority(Message):
    """SetPriority asks for another level."""

    task_id: str = ""
    priority: Priority = Priority.UNSPECIFIED
    asked_by: str = ""
    fence: Fence | None = None


class SetPriorityReply(Message):
    """SetPriorityReply carries the revision to wait for."""

    refusal: Refusal | None = None
    revision: Int64 = 0


class AckCheckpoint(Message):
    """AckCheckpoint says that a checkpoint of the live attempt is durable."""

    task_id: str = ""
    attempt: int = 0
    step: Int64 = 0
    uri: str = ""
    digest: str = ""
    preempt_requested: bool = False


class AckCheckpointReply(Message):
    """AckCheckpointReply comes after the checkpoint is stored; SUPERSEDED if the attempt is
    over."""

    refusal: Refusal | None = None
    checkpoint: Checkpoint | None = None


class ReportReady(Message):
    """ReportReady says that a rank of the live attempt is ready for the roles that wait for it."""

    task_id: str = ""
    attempt: int = 0
    rank: int = 0
    restarts: int = 0


class ReportReadyReply(Message):
    """ReportReadyReply comes after it is stored; SUPERSEDED if the attempt or that process is
    over."""

    refusal: Refusal | None = None


class YieldRun(Message):
    """YieldRun says that a run's program hands its nodes over on its own."""

    task_id: TaskIdText
    attempt: int = 0
    reason: str = ""


class YieldRunReply(Message):
    """YieldRunReply comes after that is stored; SUPERSEDED if the attempt is over."""

    refusal: Refusal | None = None


class LifeState(Message):
    """LifeState is what a task's program keeps across attempts. Its content is never logged."""

    version: Int64 = 0
    attempt: int = 0
    media_type: str = ""
    data: Base64 = b""
    saved_at: Time


class SetLifeState(Message):
    """SetLifeState replaces a task's life state; the last one counts."""

    task_id: TaskIdText
    attempt: int = 0
    media_type: str = ""
    data: Base64 = b""


class SetLifeStateReply(Message):
    """SetLifeStateReply comes after it is stored; SUPERSEDED if the attempt is over."""

    refusal: Refusal | None = None
    version: Int64 = 0


class GetLifeState(Message):
    """GetLifeState asks for a task's life state."""

    task_id: TaskIdText


class GetLifeStateReply(Message):
    """GetLifeStateReply carries it; without a state the task has none."""

    refusal: Refusal | None = None
    state: LifeState | None = None


class PrepareContinuation(Message):
    """PrepareContinuation asks where a task begins that goes on with an ended one. What the
    launcher keeps of the ended task is kept for the full time again."""

    task_id: TaskIdText


class PrepareContinuationReply(Message):
    """PrepareContinuationReply carries the last checkpoint; NOT_FOUND if nothing of the task is
    kept."""

    refusal: Refusal | None = None
    checkpoint: Checkpoint | None = None


class SetSchedulable(Message):
    """SetSchedulable cordons or uncordons a node."""

    node_id: str = ""
    schedulable: bool = False
    asked_by: str = ""
    drain: bool = False


class SetSchedulableReply(Message):
    """SetSchedulableReply says it is stored."""

    refusal: Refusal | None = None


class SetNodeMarks(Message):
    """SetNodeMarks changes the labels and taints that operators gave a node."""

    node_id: str = ""
    labels: Mapping[str, str] = pydantic.Field(default_factory=dict)
    unlabel: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    untaint: tuple[str, ...] = ()
    asked_by: str = ""


class SetNodeMarksReply(Message):
    """SetNodeMarksReply says it is stored, and what the node has now."""

    refusal: Refusal | None = None
    labels: Mapping[str, str] = pydantic.Field(default_factory=dict)
    taints: tuple[str, ...] = ()


class SetQuota(Message):
    """SetQuota sets a cap or a grant, or removes it."""

    quota: Quota
    unlimited: bool = False
    asked_by: str = ""
    remove: bool = False


class SetQuotaReply(Message):
    """SetQuotaReply says it is stored."""

    refusal: Refusal | None = None
    version: Int64 = 0


class ExplainQuota(Message):
    """ExplainQuota asks what a user may hold in the groups of nodes, and which rows decide
    that."""

    user: str = ""
    team: str = ""
    group: str = ""


class HeldQuota(Message):
    """HeldQuota is a row that applies, and how much of it is held."""

    quota: Quota
    held: Int64 = 0


class QuotaAllowance(Message):
    """QuotaAllowance is what one user may hold in one group at one level."""

    group: str = ""
    priority: Priority = Priority.UNSPECIFIED
    decides: HeldQuota | None = None
    caps: tuple[HeldQuota, ...] = ()
    forbidden: bool = False
    gpus: Int64 = 0
    nodes: Int64 = 0


class ExplainQuotaReply(Message):
    """ExplainQuotaReply is computed from the state of this moment."""

    refusal: Refusal | None = None
    permissions: tuple[QuotaAllowance, ...] = ()
    explained_at: Time | None = None


class Explain(Message):
    """Explain asks why a task stands where it stands."""

    task_id: str = ""


class OrderPlace(Message):
    """OrderPlace is a waiting task's place in the order of its group, and what put it there.
    First come tasks that a virtual cluster's guarantee covers, then the higher level, then the
    smaller key of the group's policy."""

    level: Priority = Priority.UNSPECIFIED
    policy: str = ""
    above: int = 0
    before: int = 0
    key: float = 0.0
    submitted_at: Time | None = None
    tag_seconds: float = 0.0
    delay_seconds: float = 0.0
    load_scale: float = 0.0
    granted: bool = False
    virtual_cluster: str = ""
    guaranteed_nodes: float = 0.0
    held_nodes: float = 0.0
    covered: bool = False


class PromisedNode(Message):
    """PromisedNode is kept for a waiting task until it is observed free."""

    node_id: str = ""
    gpus: tuple[int, ...] = ()
    held_by: tuple[str, ...] = ()


class ChosenVictim(Message):
    """ChosenVictim is a run that was asked to make room."""

    task_id: str = ""
    level: Priority = Priority.UNSPECIFIED
    reason: Reason
    nodes: float = 0.0
    cost_node_seconds: float = 0.0
    deadline_at: Time | None = None
    why: str = ""


class Forecast(Message):
    """Forecast is when a waiting task will start if things go on as they are."""

    starts_at: Time | None = None
    unknown: str = ""
    assumptions: tuple[str, ...] = ()
    earliest_at: Time | None = None
    latest_at: Time | None = None


class Holder(Message):
    """Holder is a run that holds something that a waiting task waits for."""

    task_id: str = ""
    nodes: float = 0.0
    ends_at: Time | None = None
    slice_ends_at: Time | None = None
    leaving: bool = False


class ExplainReply(Message):
    """ExplainReply is computed from the state of this moment."""

    refusal: Refusal | None = None
    state: TaskState = TaskState.UNSPECIFIED
    reason: Reason | None = None
    position: int = 0
    queue_length: int = 0
    victims: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    explained_at: Time | None = None
    order: OrderPlace | None = None
    promised: tuple[PromisedNode, ...] = ()
    chosen: tuple[ChosenVictim, ...] = ()
    forecast: Forecast | None = None
    beneficiary: str = ""
    holders: tuple[Holder, ...] = ()
    holders_count: int = 0


class ListQueue(Message):
    """ListQueue asks for a page of the waiting tasks, in the order in which they get nodes."""

    group: str = ""
    after: str = ""
    limit: int = 0


class WaitingTask(Message):
    """WaitingTask is a place in the queue."""

    task_id: str = ""
    name: str = ""
    owner: str = ""
    team: str = ""
    group: str = ""
    position: int = 0
    priority: Priority = Priority.UNSPECIFIED
    level: Priority = Priority.UNSPECIFIED
    gpus: Int64 = 0
    nodes: Int64 = 0
    submitted_at: Time | None = None
    waiting_since: Time | None = None
    reason: Reason
    not_before_at: Time | None = None
    promised_nodes: int = 0
    promised_until: Time | None = None
    granted: bool = False


class ListQueueReply(Message):
    """ListQueueReply is read from the state of this moment."""

    refusal: Refusal | None = None
    tasks: tuple[WaitingTask, ...] = ()
    next: str = ""
    listed_at: Time | None = None


class Decisions(Message):
    """Decisions asks for the history of decisions about a task, oldest first."""

    task_id: str = ""
    after: Int64 = 0
    limit: int = 0


class DecisionRecord(Message):
    """DecisionRecord is one decision about one task."""

    no: Int64 = 0
    decided_at: Time
    task_id: str = ""
    attempt: int = 0
    kind: str = ""
    reason: Reason


class DecisionsReply(Message):
    """DecisionsReply is one page."""

    refusal: Refusal | None = None
    decisions: tuple[DecisionRecord, ...] = ()
    more: bool = False


class ReadLog(Message):
    """ReadLog asks for a range of one rank's output."""

    task_id: str = ""
    attempt: int = 0
    rank: int = 0
    offset: Int64 = 0
    max_bytes: int = 0
    since: Time | None = None
    tail_lines: int = 0
    timestamps: bool = False
    before: Int64 = 0
    until: Time | None = None


class ReadLogReply(Message):
    """ReadLogReply is a piece below the payload limit."""

    refusal: Refusal | None = None
    offset: Int64 = 0
    data: Base64 = b""
    size: Int64 = 0
    complete: bool = False
    timestamps: tuple[LogTimestamp, ...] = ()
    approximate: bool = False


class ReadLogLines(Message):
    """ReadLogLines asks for a page of the lines that the ranks of a task wrote: of all lines,
    or of those that match a pattern."""

    task_id: str = ""
    attempt: int = 0
    rank: int | None = None
    role: str = ""
    pattern: str = ""
    literal: bool = False
    ignore_case: bool = False
    lines_before: int = 0
    lines_after: int = 0
    since: Time | None = None
    until: Time | None = None
    by_time: bool = False
    after: str = ""
    before: str = ""
    last: bool = False
    limit: int = 0


class LogLine(Message):
    """LogLine is one line of one rank, without its end."""

    attempt: int = 0
    rank: int = 0
    role: str = ""
    offset: Int64 = 0
    text: Base64 = b""
    at: Time | None = None
    approximate: bool = False


class FoundLine(Message):
    """FoundLine is a line of a page, with lines around it."""

    line: LogLine
    before: tuple[LogLine, ...] = ()
    after: tuple[LogLine, ...] = ()


class UnreadableLog(Message):
    """UnreadableLog is a rank's output that a page lacks."""

    attempt: int = 0
    rank: int = 0
    problem: str = ""


class ReadLogLinesReply(Message):
    """ReadLogLinesReply is a page, in the order of the lines whatever its direction."""

    refusal: Refusal | None = None
    lines: tuple[FoundLine, ...] = ()
    begin: str = ""
    end: str = ""
    more: bool = False
    searched_bytes: Int64 = 0
    left_bytes: Int64 = 0
    unreadable: tuple[UnreadableLog, ...] = ()


class Reemit(Message):
    """Reemit asks a service to say its current facts again, for a new or wiped reader."""

    service: str = ""


class ReemitReply(Message):
    """ReemitReply counts the facts that will be published again."""

    refusal: Refusal | None = None
    events: Int64 = 0


class ListLogs(Message):
    """ListLogs asks which ranks' outputs of a task are kept."""

    task_id: str = ""


class LogInfo(Message):
    """LogInfo is one rank's output."""

    attempt: int = 0
    rank: int = 0
    role: str = ""
    size: Int64 = 0
    complete: bool = False
    placement: Placement | None = None


class ListLogsReply(Message):
    """ListLogsReply lists attempts in order, ranks in order."""

    refusal: Refusal | None = None
    logs: tuple[LogInfo, ...] = ()


class SetPolicy(Message):
    """SetPolicy says how node groups are shared from now on."""

    document: str = ""
    group: str = ""
    asked_by: str = ""
    check_only: bool = False


class SetPolicyReply(Message):
    """SetPolicyReply says it is stored."""

    refusal: Refusal | None = None
    versions: Mapping[str, Int64] = pydantic.Field(default_factory=dict)
    changed: tuple[str, ...] = ()
    warnings: tuple[FieldError, ...] = ()
    users: Mapping[str, str] = pydantic.Field(default_factory=dict)
    teams: Mapping[str, str] = pydantic.Field(default_factory=dict)
    groups: Mapping[str, str] = pydantic.Field(default_factory=dict)


class ListPolicies(Message):
    """ListPolicies asks how node groups are shared, those without a policy of their own
    included."""

    group: str = ""
    after: str = ""
    limit: int = 0


class ListPoliciesReply(Message):
    """ListPoliciesReply is one page, in the order of the groups' names."""

    refusal: Refusal | None = None
    policies: tuple[PolicyRecord, ...] = ()
    more: bool = False


class DryRunPolicy(Message):
    """DryRunPolicy asks what would be decided at this moment if node groups were shared
    otherwise."""

    document: str = ""
    group: str = ""
    limit: int = 0


class Verdict(Message):
    """Verdict is what is decided about one task in one round."""

    kind: str = ""
    reason: Reason | None = None
    beneficiary: str = ""


class PolicyEffect(Message):
    """PolicyEffect is one task about which something else would be decided."""

    task_id: str = ""
    name: str = ""
    owner: str = ""
    group: str = ""
    state: TaskState = TaskState.UNSPECIFIED
    nodes: int = 0
    now: Verdict
    then: Verdict


class PolicyRound(Message):
    """PolicyRound is what one round does to one node group."""

    starts: int = 0
    promised: int = 0
    preemptions: int = 0
    waiting: int = 0
    gpus_held: Int64 = 0
    gpus_handed_over: Int64 = 0
    gpu_seconds_at_risk: float = 0.0


class PolicyOutlook(Message):
    """PolicyOutlook compares the rounds of one group."""

    group: str = ""
    now: PolicyRound
    then: PolicyRound


class DryRunPolicyReply(Message):
    """DryRunPolicyReply compares a round under the present policies with one under the new
    ones."""

    refusal: Refusal | None = None
    effects: tuple[PolicyEffect, ...] = ()
    more: int = 0
    outlooks: tuple[PolicyOutlook, ...] = ()
    warnings: tuple[FieldError, ...] = ()
    decided_at: Time | None = None


class DeadLetter(Message):
    """DeadLetter is an event that a service has set apart, without its body, which may hold
    secrets."""

    id: str = ""
    direction: LetterDirection = LetterDirection.UNSPECIFIED
    type: str = ""
    subject: str = ""
    event_id: str = ""
    reason: str = ""
    size: Int64 = 0
    set_apart_at: Time
    replays: int = 0
    replaying: bool = False


class ListDeadLetters(Message):
    """ListDeadLetters asks a service which events it has set apart."""

    service: str = ""
    after: str = ""
    limit: int = 0


class ListDeadLettersReply(Message):
    """ListDeadLettersReply is one page, in the order of the ids."""

    refusal: Refusal | None = None
    letters: tuple[DeadLetter, ...] = ()
    more: bool = False


class ReplayDeadLetters(Message):
    """ReplayDeadLetters asks a service to try again what it has set apart."""

    service: str = ""
    ids: tuple[str, ...] = ()
    after: str = ""


class ReplayDeadLettersReply(Message):
    """ReplayDeadLettersReply says which letters will be tried again; the next list shows the
    outcome."""

    refusal: Refusal | None = None
    ids: tuple[str, ...] = ()
    more_after: str = ""


class DiscardDeadLetters(Message):
    """DiscardDeadLetters asks a service to drop what it has set apart, without trying it again."""

    service: str = ""
    ids: tuple[str, ...] = ()
    after: str = ""


class DiscardDeadLettersReply(Message):
    """DiscardDeadLettersReply says which letters are gone."""

    refusal: Refusal | None = None
    ids: tuple[str, ...] = ()
    more_after: str = ""


class OpenExec(Message):
    """OpenExec asks for a command or a terminal in a live rank. The requester listens for the
    frames of the session before it asks."""

    session: str = ""
    task_id: TaskIdText
    rank: int = 0
    role: str = ""
    command: tuple[str, ...] = ()
    terminal: bool = False
    rows: int = 0
    columns: int = 0
    term: str = ""


class OpenExecReply(Message):
    """OpenExecReply says where the command runs."""

    refusal: Refusal | None = None
    attempt: int = 0
    rank: int = 0
    node_id: str = ""


class ListSecretForms(Message):
    """ListSecretForms asks for the texts by which the secrets of a run are found in its output.
    Only log-collector asks, which masks output of pods."""

    task_id: TaskIdText
    attempt: int = 0


class ListSecretFormsReply(Message):
    """ListSecretFormsReply has them. It is refused where the run is not known any more."""

    refusal: Refusal | None = None
    forms: tuple[Base64, ...] = ()


class Notification(Message):
    """Notification says where messages about tasks go, and which. Its secret is in no message
    but the answer to the command that made it."""

    name: str = ""
    owner: str = ""
    url: str = ""
    occasions: tuple[Occasion, ...] = ()
    tasks: NotifiedTasks = NotifiedTasks.UNSPECIFIED
    team: str = ""
    changed_at: Time
    paused_at: Time | None = None
    problem: str = ""
    waiting: Int64 = 0
    undelivered: Int64 = 0
    channel: NotificationChannel = NotificationChannel.UNSPECIFIED


class SetNotification(Message):
    """SetNotification makes a notification, or replaces the one of this owner and name."""

    owner: str = ""
    name: str = ""
    url: str = ""
    occasions: tuple[Occasion, ...] = ()
    tasks: NotifiedTasks = NotifiedTasks.UNSPECIFIED
    team: str = ""
    secret: str = ""
    channel: NotificationChannel = NotificationChannel.UNSPECIFIED
    owner_added_at: Time | None = None


class SetNotificationReply(Message):
    """SetNotificationReply says it is stored."""

    refusal: Refusal | None = None
    notification: Notification | None = None
    secret: str = ""


class RemoveNotification(Message):
    """RemoveNotification removes a notification and what it has not delivered."""

    owner: str = ""
    name: str = ""


class RemoveNotificationReply(Message):
    """RemoveNotificationReply says it is gone."""

    refusal: Refusal | None = None


class ListNotifications(Message):
    """ListNotifications asks for notifications."""

    owner: str = ""


class ListNotificationsReply(Message):
    """ListNotificationsReply has them by owner and name."""

    refusal: Refusal | None = None
    notifications: tuple[Notification, ...] = ()


class ReadSteps(Message):
    """ReadSteps asks which steps the programs of tasks have reported last."""

    task_ids: tuple[str, ...] = ()


class ReportedStep(Message):
    """ReportedStep is the step that a task's rank 0 reported last."""

    task_id: str = ""
    step: float = 0.0
    attempt: int | None = None


class ReadStepsReply(Message):
    """ReadStepsReply has those of the tasks that have reported any."""

    refusal: Refusal | None = None
    steps: tuple[ReportedStep, ...] = ()


class ReadRecipients(Message):
    """ReadRecipients asks what users may be sent now. The monitor asks for every message."""

    users: tuple[str, ...] = ()


class Recipient(Message):
    """Recipient is a user as one that messages go to."""

    user: str = ""
    added_at: Time
    disabled: bool = False
    sees: NotifiedTasks = NotifiedTasks.UNSPECIFIED
    team: str = ""
    mail: str = ""


class ReadRecipientsReply(Message):
    """ReadRecipientsReply has those that are there."""

    refusal: Refusal | None = None
    recipients: tuple[Recipient, ...] = ()
    unreadable: tuple[str, ...] = ()


class Undelivered(Message):
    """Undelivered is a message that could not be delivered."""

    id: str = ""
    task_id: str = ""
    occasion: Occasion = Occasion.UNSPECIFIED
    happened_at: Time
    tries: int = 0
    problem: str = ""


class ListUndeliveredMessages(Message):
    """ListUndeliveredMessages asks for the messages of a notification that were given up."""

    owner: str = ""
    name: str = ""


class ListUndeliveredMessagesReply(Message):
    """ListUndeliveredMessagesReply has the newest first."""

    refusal: Refusal | None = None
    undelivered: tuple[Undelivered, ...] = ()


class ReplayUndeliveredMessages(Message):
    """ReplayUndeliveredMessages lets the messages of a notification that were given up be tried
    again."""

    owner: str = ""
    name: str = ""


class ReplayUndeliveredMessagesReply(Message):
    """ReplayUndeliveredMessagesReply says how many wait again."""

    refusal: Refusal | None = None
    messages: int = 0


class ReadSeries(Message):
    """ReadSeries asks for what was measured of one node, or of the ranks of one task."""

    node_id: str = ""
    task_id: str = ""
    attempt: int = 0
    first_rank: int = 0
    ranks_max: int = 0
    signals: tuple[str, ...] = ()
    begins_at: Time
    ends_at: Time
    step_seconds: int = 0


class ReadSeriesReply(Message):
    """ReadSeriesReply has the series of whole ranks, as many as fit."""

    refusal: Refusal | None = None
    series: tuple[Series, ...] = ()
    next_rank: int | None = None


class ReadUtilization(Message):
    """ReadUtilization asks for the newest samples of nodes and live tasks."""

    node_ids: tuple[str, ...] = ()
    task_ids: tuple[str, ...] = ()


class ReadUtilizationReply(Message):
    """ReadUtilizationReply leaves out those of which there is no recent sample."""

    refusal: Refusal | None = None
    nodes: tuple[NodeUtilization, ...] = ()
    tasks: tuple[TaskUtilization, ...] = ()


class AbnormalStep(Message):
    """AbnormalStep is one action on an abnormal task, and how far it is."""

    action: AbnormalAction = AbnormalAction.UNSPECIFIED
    node_id: str = ""
    outcome: AbnormalOutcome = AbnormalOutcome.UNSPECIFIED
    detail: str = ""


class AbnormalTask(Message):
    """AbnormalTask is what a rule found about a task."""

    task_id: str = ""
    name: str = ""
    owner: str = ""
    team: str = ""
    group: str = ""
    attempt: int = 0
    rule: str = ""
    began_at: Time
    ended_at: Time | None = None
    detail: str = ""
    suggestion: str = ""
    actions: tuple[AbnormalStep, ...] = ()


class ListAbnormalTasks(Message):
    """ListAbnormalTasks asks which tasks rules have found."""

    task_id: str = ""
    owner: str = ""
    team: str = ""
    group: str = ""
    rule: str = ""
    seen_by: str = ""
    seen_team: str = ""
    ended: bool = False
    after: str = ""
    limit: int = 0


class ListAbnormalTasksReply(Message):
    """ListAbnormalTasksReply has them in the order of tasks' ids."""

    refusal: Refusal | None = None
    tasks: tuple[AbnormalTask, ...] = ()
    next: str = ""


class AbnormalRule(Message):
    """AbnormalRule is a rule as the site has set it."""

    name: str = ""
    detail: str = ""
    threshold: float = 0.0
    unit: str = ""
    enabled: bool = False
    actions: tuple[AbnormalAction, ...] = ()
    dry_run: bool = False
    groups: tuple[str, ...] = ()
    teams: tuple[str, ...] = ()


class ListAbnormalRules(Message):
    """ListAbnormalRules asks which rules there are."""



class ListAbnormalRulesReply(Message):
    """ListAbnormalRulesReply has them by name."""

    refusal: Refusal | None = None
    rules: tuple[AbnormalRule, ...] = ()


class ExecEnd(Message):
    """ExecEnd is how the command of a session ended."""

    code: int | None = None
    problem: str = ""


class ExecFrame(Message):
    """ExecFrame is one piece of a session, in either direction."""

    number: Int64 = 0
    stream: ExecStream = ExecStream.UNSPECIFIED
    data: Base64 = b""
    granted: int = 0
    eof: bool = False
    rows: int = 0
    columns: int = 0
    over: bool = False
    end: ExecEnd | None = None


class ExecInput(Message):
    """ExecInput is a frame from the gateway: what the user types, and what the user's terminal
    does."""

    session: str = ""
    frame: ExecFrame


class ExecOutput(Message):
    """ExecOutput is a frame from the launcher: what the command writes, and how it ends."""

    session: str = ""
    frame: ExecFrame


class GatewayHint(Message):
    """GatewayHint says that a process of the gateway has committed what the others read or
    remember. One that is lost costs a poll."""

    position: Int64 = 0
    people: bool = False
    rewritten: bool = False


class Node(Message):
    """Node is one machine (or a virtual part of one) that runs ranks."""

    id: NodeIdText
    group: str = ""
    gpus: int = 0
    cpus: float = 0.0
    memory_bytes: Int64 = 0
    labels: Mapping[str, str] = pydantic.Field(default_factory=dict)
    schedulable: bool = False
    ready: bool = False
    gpu_model: str = ""
    unusable_gpus: tuple[int, ...] = ()
    draining: bool = False
    taints: tuple[str, ...] = ()
    quarantined: bool = False


class NodeChanged(Message):
    """NodeChanged: the node appeared, changed, went or came back."""

    node_id: NodeIdText
    version: Int64 = 0
    node: Node
    removed: bool = False
    changed_at: Time


class InventoryListed(Message):
    """InventoryListed: one full list of the nodes was received, and each node was reported."""

    runtime: str = ""
    node_ids: tuple[NodeIdText, ...] = ()
    listed_at: Time
    version: Int64 = 0


class RunAssigned(Message):
    """RunAssigned: the first attempt of a task has its nodes."""

    task_id: TaskIdText
    attempt: int = 0
    owner: NameText
    spec: TaskSpec
    placements: tuple[Placement, ...] = ()
    start_deadline_at: Time
    resume_from: Checkpoint | None = None
    assigned_at: Time
    team: str = ""


class RunResumed(Message):
    """RunResumed: a later attempt of a task has its nodes and the checkpoint to start from."""

    task_id: TaskIdText
    attempt: int = 0
    owner: NameText
    spec: TaskSpec
    placements: tuple[Placement, ...] = ()
    start_deadline_at: Time
    resume_from: Checkpoint | None = None
    assigned_at: Time
    team: str = ""


class PreemptionRequested(Message):
    """PreemptionRequested: the run is asked to save a checkpoint and hand its nodes over."""

    task_id: TaskIdText
    attempt: int = 0
    reason: Reason
    requested_at: Time
    deadline_at: Time
    silent_deadline_at: Time | None = None


class KillRequested(Message):
    """KillRequested: the run is to be ended now, by force."""

    task_id: TaskIdText
    attempt: int = 0
    reason: Reason
    requested_at: Time
    now: bool = False


class RunStarted(Message):
    """RunStarted: the process of every rank exists that waits for no other role. Where roles
    start in order, the others follow while the run runs."""

    task_id: TaskIdText
    attempt: int = 0
    started_at: Time
    placements: tuple[Placement, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    owner: str = ""


class RunDelayed(Message):
    """RunDelayed: the run was launched, but not every process exists yet; says why. Without a
    detail: nothing delays it any more."""

    task_id: TaskIdText
    attempt: int = 0
    ranks: int = 0
    detail: str = ""
    noted_at: Time
    running: bool = False
    node_ids: tuple[str, ...] = ()


class RankRestarted(Message):
    """RankRestarted: one rank of the run ended and is started again on its node; the others go
    on."""

    task_id: TaskIdText
    attempt: int = 0
    rank: int = 0
    role: str = ""
    restarts: int = 0
    restarts_max: int = 0
    detail: str = ""
    noted_at: Time
    node_id: str = ""


class RankEnded(Message):
    """RankEnded: one rank of a run in debug mode has ended; the others go on."""

    task_id: TaskIdText
    attempt: int = 0
    exit: RankExit
    role: str = ""
    noted_at: Time


class RunListened(Message):
    """RunListened: the run's program asked for the first time whether it should leave."""

    task_id: TaskIdText
    attempt: int = 0
    asked_at: Time


class CheckpointSaved(Message):
    """CheckpointSaved: a checkpoint of the run is durable and recorded."""

    task_id: TaskIdText
    attempt: int = 0
    checkpoint: Checkpoint


class RunYielded(Message):
    """RunYielded: the run's program hands its nodes over on its own. Its ranks are asked to
    leave."""

    task_id: TaskIdText
    attempt: int = 0
    reason: str = ""
    requested_at: Time


class LifeStateSaved(Message):
    """LifeStateSaved: the task has another life state. Its content is only with the launcher."""

    task_id: TaskIdText
    attempt: int = 0
    version: Int64 = 0
    size: Int64 = 0
    saved_at: Time


class RankErrorLines(Message):
    """RankErrorLines are the last error lines of one rank's output."""

    rank: int = 0
    role: str = ""
    kind: str = ""
    offset: Int64 = 0
    lines: tuple[str, ...] = ()


class ErrorLinesFound(Message):
    """ErrorLinesFound: a run that failed or was lost wrote lines that look like the cause."""

    task_id: TaskIdText
    attempt: int = 0
    ranks: tuple[RankErrorLines, ...] = ()
    found_at: Time


class RunExited(Message):
    """RunExited: no process of the run is left; published once per run."""

    task_id: TaskIdText
    attempt: int = 0
    exit: RunExit
    checkpoint: Checkpoint | None = None
    placements: tuple[Placement, ...] = ()
    owner: str = ""


class RunActivityChanged(Message):
    """RunActivityChanged: how much of what the run holds it uses, as measured. Said when a GPU
    or the whole run begins or ends to be idle, now and then for the sums, and once after its
    end."""

    task_id: TaskIdText
    attempt: int = 0
    measured_from: Time
    measured_until: Time
    measured_gpu_seconds: float = 0.0
    idle_gpu_seconds: float = 0.0
    gpus: int = 0
    idle_gpus: int = 0
    idle_since: Time | None = None
    quiet_since: Time | None = None
