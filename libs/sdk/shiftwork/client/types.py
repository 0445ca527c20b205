"""What the API takes and answers, as types. Generated from the OpenAPI document: change the routes, then `make gen`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, TypedDict, Union

if TYPE_CHECKING:
    from typing_extensions import NotRequired


AuditedPolicies = Dict[str, Optional[str]]


Outcome = Literal[
    "succeeded",
    "failed",
    "lost",
    "preempted",
    "yielded",
    "paused",
    "stopped",
    "mode_changed",
    "timed_out",
    "debug",
    "starting",
    "running",
    "unknown",
]


PodTemplate = Dict[str, Any]


class AbnormalAction(TypedDict):
    """An action that follows a finding, and how far it is."""

    action: str
    node: Optional[str]
    outcome: str
    detail: str


class AbnormalActionSettledData(TypedDict):
    """AbnormalActionSettled: an action on an abnormal task or its node is settled."""

    task_id: str
    attempt: int
    rule: str
    version: int
    action: Literal["unspecified", "notify", "tag", "lower_priority", "preempt", "stop", "cordon"]
    node_id: str
    outcome: Literal["unspecified", "waiting", "done", "refused", "dry_run", "withdrawn"]
    detail: str
    settled_at: str


class AbnormalActionSettledEvent(TypedDict):
    """task.abnormal_action_settled: an action on an abnormal task or its node is settled."""

    position: int
    type: Literal["task.abnormal_action_settled"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: AbnormalActionSettledData


class AbnormalPage(TypedDict):
    """In the order of the tasks' submission."""

    items: List[AbnormalTask]
    next_cursor: Optional[str]


class AbnormalRule(TypedDict):
    """A rule as the site has set it."""

    name: str
    detail: str
    threshold: float
    unit: str
    enabled: bool
    actions: List[str]
    dry_run: bool
    groups: List[str]
    teams: List[str]


class AbnormalRules(TypedDict):
    """All rules, by name."""

    items: List[AbnormalRule]


class AbnormalTask(TypedDict):
    """What a rule found about a task."""

    task_id: str
    name: str
    owner: str
    team: str
    group: str
    attempt: int
    rule: str
    began_at: str
    ended_at: Optional[str]
    detail: str
    suggestion: str
    actions: List[AbnormalAction]


class AbnormalTaskChangedData(TypedDict):
    """AbnormalTaskChanged: a rule found a task abnormal, or finds it so no longer."""

    task_id: str
    attempt: int
    rule: str
    version: int
    began_at: str
    ended_at: NotRequired[str]
    detail: str
    suggestion: str
    tagged: bool
    changed_at: str


class AbnormalTaskChangedEvent(TypedDict):
    """task.abnormal_changed: a rule found a task abnormal, or finds it so no longer."""

    position: int
    type: Literal["task.abnormal_changed"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: AbnormalTaskChangedData


class AcceptedSamples(TypedDict):
    """How many samples were accepted."""

    accepted: int


class Activity(TypedDict):
    """How much of what a run holds it uses, as measured until a moment. ``idle_gpus`` have been
    nearly unused for long, the first of them since ``idle_since``; ``quiet_since``: no rank uses a
    processor or a GPU. The seconds are sums over all of its GPUs since its beginning."""

    measured_until: str
    gpus: int
    idle_gpus: int
    idle_since: Optional[str]
    quiet_since: Optional[str]
    measured_gpu_seconds: float
    idle_gpu_seconds: float


class AuditEntry(TypedDict):
    """A change, or the refusal of one. ``before`` and ``after`` are there as far as the change has
    such; their type belongs to the action."""

    id: str
    at: str
    who: str
    action: str
    target: str
    outcome: str
    detail: str
    address: Optional[str]
    token: Optional[str]
    before: Optional[
        Union[
            Scheduling,
            LabelsAndTaints,
            AuditedPolicies,
            Quota,
            QuotaAmount,
            AuditedGoal,
            AuditedMode,
            AuditedPriority,
            Team,
            Token,
            User,
            LeftOut,
        ]
    ]
    after: Optional[
        Union[
            Scheduling,
            LabelsAndTaints,
            AuditedPolicies,
            Quota,
            QuotaAmount,
            AuditedGoal,
            AuditedMode,
            AuditedPriority,
            Team,
            Token,
            User,
            LeftOut,
        ]
    ]


class AuditPage(TypedDict):
    """One page of the audit trail."""

    items: List[AuditEntry]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]


class AuditedGoal(TypedDict):
    """A task's goal."""

    goal: str


class AuditedMode(TypedDict):
    """A task's run mode."""

    mode: str


class AuditedPriority(TypedDict):
    """A task's priority."""

    priority: str


class Batch(TypedDict):
    """The tasks of a batch in its order."""

    items: List[BatchItem]
    next_cursor: None


class BatchBody(TypedDict):
    """Several new tasks; each is accepted or refused by itself."""

    tasks: List[BatchTaskBody]


class BatchItem(TypedDict):
    """What came of one task of a batch: the task, or the problem."""

    status: int
    task: NotRequired[Task]
    problem: NotRequired[Problem]


class BatchTaskBody(TypedDict):
    """A task of a batch, with its own idempotency key."""

    name: NotRequired[str]
    group: NotRequired[str]
    priority: NotRequired[
        Optional[
            Literal[
                "auto",
                "idle",
                "low",
                "below_normal",
                "normal",
                "above_normal",
                "high",
                "very_high",
                "extreme_high",
            ]
        ]
    ]
    roles: NotRequired[List[RoleBody]]
    gpus_per_node: NotRequired[Optional[int]]
    env: NotRequired[Dict[str, str]]
    working_directory: NotRequired[str]
    labels: NotRequired[Dict[str, str]]
    retry: NotRequired[RetryBody]
    preemption: NotRequired[PreemptionBody]
    max_run_seconds: NotRequired[Optional[float]]
    fence_after_seconds: NotRequired[Optional[float]]
    cpus: NotRequired[Optional[float]]
    memory_bytes: NotRequired[Optional[int]]
    nodes: NotRequired[int]
    node_selector: NotRequired[Dict[str, str]]
    tolerations: NotRequired[List[str]]
    pod: NotRequired[Optional[PodBody]]
    wait_for_nodes: NotRequired[bool]
    contract: NotRequired[
        Optional[Literal["torch", "tf_config", "rank", "coordinator", "mpi", "none"]]
    ]
    completion: NotRequired[Optional[CompletionBody]]
    run_mode: NotRequired[Optional[Literal["normal", "debug", "pause"]]]
    cpus_request: NotRequired[Optional[float]]
    memory_request_bytes: NotRequired[Optional[int]]
    secret_env: NotRequired[List[str]]
    command: NotRequired[List[str]]
    idempotency_key: NotRequired[str]


class CalledTask(TypedDict):
    """What people call a task."""

    name: str
    owner: str
    state: str


class Cap(TypedDict):
    """A cap that applies to a user; null means every one."""

    user: Optional[str]
    team: Optional[str]
    group: Optional[str]
    priority: Optional[str]
    limit: int
    unit: str
    held: Optional[int]
    free: Optional[int]
    expires_at: Optional[str]


class Checkpoint(TypedDict):
    """A durable checkpoint."""

    no: int
    attempt: int
    step: int
    uri: str
    digest: str
    saved_at: str
    task: Optional[str]


class CheckpointBody(TypedDict):
    """A checkpoint that is durable."""

    step: int
    uri: str
    digest: NotRequired[str]


class CheckpointSavedData(TypedDict):
    """CheckpointSaved: a checkpoint of the run is durable and recorded."""

    task_id: str
    attempt: int
    checkpoint: EventCheckpoint


class CheckpointSavedEvent(TypedDict):
    """run.checkpoint_saved: a checkpoint of the run is durable and recorded."""

    position: int
    type: Literal["run.checkpoint_saved"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: CheckpointSavedData


class ChosenVictim(TypedDict):
    """A run that was requested to leave, and why this one was chosen."""

    task: str
    level: str
    reason: Optional[Reason]
    nodes: float
    cost_node_seconds: float
    deadline_at: Optional[str]
    why: str


class Completion(TypedDict):
    """Completion decides an attempt by the ends of its ranks. A rule is one condition or several joined by "and": ROLE[INDEX], ROLE[any], ROLE[all], ROLE[N+] (at least N of them), ROLE[ended]."""

    success: List[str]
    failure: List[str]


class CompletionBody(TypedDict):
    """Completion decides an attempt by the ends of its ranks. A rule is one condition or several joined by "and": ROLE[INDEX], ROLE[any], ROLE[all], ROLE[N+] (at least N of them), ROLE[ended]."""

    success: NotRequired[List[str]]
    failure: NotRequired[List[str]]


class CurrentSession(TypedDict):
    """The user who is logged in. ``csrf`` is for the header x-shiftwork-csrf of requests that
    change something; null for a bearer token, which needs none."""

    user: str
    role: Literal["viewer", "user", "operator", "admin"]
    team: Optional[str]
    csrf: Optional[str]
    expires_at: Optional[str]


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

    items: List[DeadLetter]
    next_cursor: Optional[str]


class DebugProgram(TypedDict):
    """DebugProgram is what the ranks of a role run in debug mode instead of their program."""

    command: List[str]
    args: List[str]


class DebugProgramBody(TypedDict):
    """DebugProgram is what the ranks of a role run in debug mode instead of their program."""

    command: NotRequired[List[str]]
    args: NotRequired[List[str]]


class Decision(TypedDict):
    """One decision of the scheduler about one task."""

    no: int
    decided_at: str
    task: str
    attempt: int
    kind: str
    reason: Optional[Reason]


class DecisionPage(TypedDict):
    """One page of decisions, oldest first."""

    items: List[Decision]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]


class Delay(TypedDict):
    """Why a run that was launched has ranks without a process."""

    detail: str
    ranks: int
    noted_at: str


class DryRun(TypedDict):
    """A task that would be accepted. ``free_nodes``: how many nodes had enough free a few seconds
    ago; ``ahead``: how many tasks of its group waited at its level or above. Null where there are
    too many nodes, runs or waiting tasks to count."""

    task: Task
    free_nodes: Optional[int]
    ahead: Optional[int]


class EndedRank(TypedDict):
    """A rank that has ended while others of its run went on."""

    rank: int
    code: Optional[int]
    signal: Optional[int]
    fault: str
    role: str
    noted_at: str


class Endpoint(TypedDict):
    """Where one declared port of one rank is reached."""

    rank: int
    role: str
    name: str
    address: str
    port: int


class EnvSource(TypedDict):
    """EnvSource is a variable whose value is kept elsewhere, in exactly one of a Secret, a ConfigMap and the pod."""

    name: str
    secret: str
    config_map: str
    field: str
    key: str
    optional: bool


class EnvSourceBody(TypedDict):
    """EnvSource is a variable whose value is kept elsewhere, in exactly one of a Secret, a ConfigMap and the pod."""

    name: str
    secret: NotRequired[str]
    config_map: NotRequired[str]
    field: NotRequired[str]
    key: NotRequired[str]
    optional: NotRequired[bool]


class ErrorLinesFoundData(TypedDict):
    """ErrorLinesFound: a run that failed or was lost wrote lines that look like the cause."""

    task_id: str
    attempt: int
    ranks: List[EventRankErrorLines]
    found_at: str


class ErrorLinesFoundEvent(TypedDict):
    """run.error_lines_found: a run that failed or was lost wrote lines that look like the cause."""

    position: int
    type: Literal["run.error_lines_found"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: ErrorLinesFoundData


class EventCheckpoint(TypedDict):
    """Checkpoint is a durable save of a task's state, acknowledged by the platform."""

    no: int
    attempt: int
    step: int
    uri: str
    digest: str
    saved_at: str
    task_id: str


class EventClassRetries(TypedDict):
    """ClassRetries counts the retries of a task after failures of classes with a limit of their own."""

    user: int
    transient: int
    platform: int
    unknown: int


class EventCompletion(TypedDict):
    """Completion decides an attempt by the ends of its ranks. A rule is one condition or several joined by "and": ROLE[INDEX], ROLE[any], ROLE[all], ROLE[N+] (at least N of them), ROLE[ended]."""

    success: List[str]
    failure: List[str]


class EventContinuation(TypedDict):
    """Continuation is where a task begins that goes on with an ended one."""

    task_id: str
    chain: str
    checkpoint: NotRequired[EventCheckpoint]
    state_of: str


class EventDebugProgram(TypedDict):
    """DebugProgram is what the ranks of a role run in debug mode instead of their program."""

    command: List[str]
    args: List[str]


class EventEndpoint(TypedDict):
    """Endpoint is where one declared port of one rank is reached while the run lives."""

    rank: int
    role: str
    name: str
    address: str
    port: int


class EventEnvSource(TypedDict):
    """EnvSource is a variable whose value is kept elsewhere, in exactly one of a Secret, a ConfigMap and the pod."""

    name: str
    secret: str
    config_map: str
    field: str
    key: str
    optional: bool


class EventNode(TypedDict):
    """Node is one machine (or a virtual part of one) that runs ranks."""

    id: str
    group: str
    gpus: int
    cpus: float
    memory_bytes: int
    labels: Dict[str, str]
    schedulable: bool
    ready: bool
    gpu_model: str
    unusable_gpus: List[int]
    draining: bool
    taints: List[str]
    quarantined: bool


class EventOverride(TypedDict):
    """Override takes the place of a part of a role."""

    command: List[str]


class EventPage(TypedDict):
    """One page of events. ``position``: what to give as ``from`` to go on later."""

    items: List[Event]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]
    position: int


class EventPlacement(TypedDict):
    """Placement puts one rank of the gang on one node."""

    rank: int
    role: str
    role_index: int
    node_id: str
    gpus: List[int]


class EventPodRequest(TypedDict):
    """PodRequest is what a task asks of its pods; a runtime without pods ignores it."""

    image: str
    image_pull_policy: str
    image_pull_secrets: List[str]
    storage: List[str]
    resources: Dict[str, str]
    shm_bytes: NotRequired[int]
    capabilities: List[str]
    env_from: List[EventEnvSource]


class EventPolicyRecord(TypedDict):
    """PolicyRecord is how one node group is shared."""

    group: str
    policy: str
    document: str
    version: int
    source: Literal["unspecified", "default", "file", "command"]
    changed_by: str
    changed_at: NotRequired[str]


class EventPort(TypedDict):
    """Port is one at which each replica of a role serves others."""

    name: str
    port: NotRequired[int]


class EventPreemptionPolicy(TypedDict):
    """PreemptionPolicy is how and how patiently a run is asked to hand over."""

    mode: Literal["unspecified", "sdk", "signal", "kill"]
    signal: str
    ack_deadline_seconds: float


class EventQuota(TypedDict):
    """Quota is a cap or a grant: how much a user or team may hold at once. An empty field means every one. All caps that match a task apply, and the smallest wins. Of the grants exactly one decides, the most specific: by user, then team, then each user; then by group; then by priority. It counts what one user holds in one group. The grant without any name is the site's default; without it everything that no other grant decides is permitted."""

    group: str
    user: str
    team: str
    priority: Literal[
        "unspecified",
        "auto",
        "idle",
        "low",
        "below_normal",
        "normal",
        "above_normal",
        "high",
        "very_high",
        "extreme_high",
    ]
    unit: Literal["unspecified", "gpus", "nodes", "gpus_or_nodes"]
    limit: int
    grant: bool
    unlimited: bool
    expires_at: NotRequired[str]
    level_max: Literal[
        "unspecified",
        "auto",
        "idle",
        "low",
        "below_normal",
        "normal",
        "above_normal",
        "high",
        "very_high",
        "extreme_high",
    ]


class EventRankErrorLines(TypedDict):
    """RankErrorLines are the last error lines of one rank's output."""

    rank: int
    role: str
    kind: str
    offset: int
    lines: List[str]


class EventRankExit(TypedDict):
    """RankExit is how one rank's main process ended: a code or a signal, neither if unknown."""

    rank: int
    code: NotRequired[int]
    signal: NotRequired[int]
    fault: Literal[
        "unspecified",
        "invalid_pod",
        "against_policy",
        "not_admitted",
        "over_quota",
        "name_taken",
        "being_made",
        "unschedulable",
        "invalid_image",
        "image_pull",
        "bad_reference",
        "not_created",
        "out_of_memory",
        "cannot_run",
        "init_failed",
        "over_storage",
        "over_time",
        "evicted",
        "displaced",
        "node_down",
        "node_refused",
        "node_lost",
        "deleted",
        "no_command",
    ]


class EventReadyProbe(TypedDict):
    """ReadyProbe is how the platform learns that a rank is ready: by its port, or by its program, which calls shiftwork.ready()."""

    port: str
    path: str
    period_seconds: float
    within_seconds: float


class EventRestartRule(TypedDict):
    """RestartRule decides what a failure of one of a role's replicas leads to. It does not concern what the platform or the cluster did to the replica, such as a lost node: the task then starts again."""

    when: Literal["unspecified", "never", "on_failure", "always", "exit_code"]
    exit_codes: List[str]
    scope: Literal["unspecified", "gang", "rank"]
    max_restarts: NotRequired[int]


class EventRetryPolicy(TypedDict):
    """RetryPolicy bounds how often a failed run is tried again. Failures of a class with a limit of its own have a counter of their own; all others count together."""

    max_retries: int
    user: NotRequired[int]
    transient: NotRequired[int]
    platform: NotRequired[int]
    unknown: NotRequired[int]


class EventRole(TypedDict):
    """Role is one kind of replica in a gang. What it leaves out is as the task says."""

    name: str
    replicas: int
    command: List[str]
    image: str
    gpus: NotRequired[int]
    cpus: NotRequired[float]
    memory_bytes: NotRequired[int]
    spread: NotRequired[bool]
    auxiliary: bool
    working_directory: str
    ports: List[EventPort]
    restart: NotRequired[EventRestartRule]
    starts_after: List[EventStartsAfter]
    ready: NotRequired[EventReadyProbe]
    debug: NotRequired[EventDebugProgram]
    resume: NotRequired[EventOverride]
    args: List[str]
    pod: NotRequired[EventPodRequest]
    cpus_request: NotRequired[float]
    memory_request_bytes: NotRequired[int]


class EventRunExit(TypedDict):
    """RunExit is how a run ended."""

    attempt: int
    kind: Literal["unspecified", "ok", "preempted", "killed", "lost", "failed"]
    ranks: List[EventRankExit]
    exited_at: str
    detail: str
    failed_rank: NotRequired[int]
    fault_class: Literal["unspecified", "user", "transient", "platform", "unknown"]
    fault: Literal[
        "unspecified",
        "invalid_pod",
        "against_policy",
        "not_admitted",
        "over_quota",
        "name_taken",
        "being_made",
        "unschedulable",
        "invalid_image",
        "image_pull",
        "bad_reference",
        "not_created",
        "out_of_memory",
        "cannot_run",
        "init_failed",
        "over_storage",
        "over_time",
        "evicted",
        "displaced",
        "node_down",
        "node_refused",
        "node_lost",
        "deleted",
        "no_command",
    ]
    final: bool
    yielded: bool
    debug: bool
    start_failed: bool


class EventStartsAfter(TypedDict):
    """StartsAfter names a role that has to be there before the ranks of this one start."""

    role: str
    condition: Literal["unspecified", "running", "ready"]


class EventTaskSpec(TypedDict):
    """TaskSpec is what a person submits, complete after submit has filled in the defaults."""

    name: str
    group: str
    priority: Literal[
        "unspecified",
        "auto",
        "idle",
        "low",
        "below_normal",
        "normal",
        "above_normal",
        "high",
        "very_high",
        "extreme_high",
    ]
    roles: List[EventRole]
    gpus_per_node: NotRequired[int]
    working_directory: str
    labels: Dict[str, str]
    retry: EventRetryPolicy
    preemption: EventPreemptionPolicy
    max_run_seconds: NotRequired[float]
    fence_after_seconds: NotRequired[float]
    cpus: NotRequired[float]
    memory_bytes: NotRequired[int]
    nodes: int
    node_selector: Dict[str, str]
    tolerations: List[str]
    pod: NotRequired[EventPodRequest]
    wait_for_nodes: bool
    contract: Literal["unspecified", "torch", "tf_config", "rank", "coordinator", "mpi", "none"]
    completion: NotRequired[EventCompletion]
    run_mode: Literal["unspecified", "normal", "debug", "pause"]
    cpus_request: NotRequired[float]
    memory_request_bytes: NotRequired[int]
    continues: NotRequired[EventContinuation]
    secret_env: List[str]


class EventTaskWarning(TypedDict):
    """TaskWarning is about a field of a task that is accepted and has no effect, or will probably surprise."""

    code: str
    field: str
    value: str
    message: str


class Exit(TypedDict):
    """How a run ended."""

    kind: str
    code: Optional[int]
    text: str
    attempt: int
    exited_at: str
    ranks: List[RankExit]
    failed_rank: Optional[int]
    yielded: bool
    fault_class: str
    fault: str
    final: bool
    debug: bool


class Explanation(TypedDict):
    """Why a task stands where it stands."""

    task: str
    state: str
    reason: Optional[Reason]
    position: int
    queue_length: int
    victims: List[str]
    remedies: List[str]
    explained_at: Optional[str]
    order: Optional[OrderPlace]
    promised: List[PromisedNode]
    chosen: List[ChosenVictim]
    forecast: Optional[Forecast]
    beneficiary: Optional[str]
    holders: List[Holder]
    holders_count: int
    tasks: Dict[str, CalledTask]
    delayed: Optional[Delay]


class FieldProblem(TypedDict):
    """One field that is wrong."""

    field: str
    value: str
    message: str
    fix: str


class Forecast(TypedDict):
    """When a waiting task is forecast to start, or why there is no forecast."""

    starts_at: Optional[str]
    earliest_at: Optional[str]
    latest_at: Optional[str]
    unknown: Optional[str]
    assumptions: List[str]


class FoundOutputLine(TypedDict):
    """A line, with the lines of the same rank before and after it, if these were requested."""

    attempt: int
    rank: int
    role: str
    offset: int
    at: Optional[str]
    approximate: NotRequired[bool]
    text: NotRequired[str]
    data_base64: NotRequired[str]
    lines_before: NotRequired[List[OutputLine]]
    lines_after: NotRequired[List[OutputLine]]


class GoalBody(TypedDict):
    """What the task should do."""

    goal: Literal["run", "pause", "stop"]
    now: NotRequired[bool]


class GoalChangedData(TypedDict):
    """GoalChanged: the owner wants something else of the task."""

    task_id: str
    goal: Literal["unspecified", "run", "pause", "stop"]
    revision: int
    changed_by: str
    changed_at: str
    now: bool


class GoalChangedEvent(TypedDict):
    """task.goal_changed: the owner wants something else of the task."""

    position: int
    type: Literal["task.goal_changed"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: GoalChangedData


class GpuUtilization(TypedDict):
    """The newest sample of one GPU. Null: not measured."""

    index: int
    uuid: str
    model: str
    gpu_percent: Optional[float]
    gpu_memory_used_bytes: Optional[float]
    gpu_memory_total_bytes: Optional[float]
    gpu_power_watts: Optional[float]
    gpu_temperature_celsius: Optional[float]


class Granted(TypedDict):
    """The number of the grant that decides, and what is held of it. ``unit`` null: the level is not
    permitted, by a default without a number."""

    limit: int
    unit: Optional[str]
    held: Optional[int]
    free: Optional[int]


class Group(TypedDict):
    """A group of nodes. ``used_nodes`` hold runs; ``free_nodes`` accept runs and hold none;
    ``waiting``: how many tasks wait, null where there are too many to count."""

    name: str
    nodes: int
    ready_nodes: int
    used_nodes: int
    free_nodes: int
    gpus: int
    used_gpus: int
    free_gpus: int
    waiting: Optional[int]


class GroupPage(TypedDict):
    """All groups."""

    items: List[Group]
    next_cursor: None


class Holder(TypedDict):
    """A run that holds what a waiting task waits for."""

    task: str
    nodes: float
    ends_at: Optional[str]
    slice_ends_at: Optional[str]
    leaving: bool


class HoldingTask(TypedDict):
    """A task that holds nodes, and how long it may take to leave them. ``id`` is null for a task
    that the caller may not see."""

    id: Optional[str]
    ack_deadline_seconds: Optional[float]


class KeptOutput(TypedDict):
    """The kept output of one rank."""

    attempt: int
    rank: int
    role: str
    size: int
    complete: bool
    node: Optional[str]


class KeptOutputs(TypedDict):
    """All outputs of a task that are kept."""

    logs: List[KeptOutput]


class KillRequest(TypedDict):
    """A run is ended without being asked to save."""

    requested_at: str
    reason: Optional[Reason]


class KillRequestedData(TypedDict):
    """KillRequested: the run is to be ended now, by force."""

    task_id: str
    attempt: int
    reason: Reason
    requested_at: str
    now: bool


class KillRequestedEvent(TypedDict):
    """run.kill_requested: the run is to be ended now, by force."""

    position: int
    type: Literal["run.kill_requested"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: KillRequestedData


class LabelsAndTaints(TypedDict):
    """Labels and taints."""

    labels: Dict[str, str]
    taints: List[str]


class LabelsBody(TypedDict):
    """What to change of a node's labels; the others stay."""

    set: NotRequired[Dict[str, str]]
    remove: NotRequired[List[str]]


class LeftOut(TypedDict):
    """Instead of a state that is too large for the audit trail: its size."""

    left_out: str


class Letters(TypedDict):
    """Which dead letters of a service were meant, and are tried again or gone."""

    service: str
    ids: List[str]


class LettersBody(TypedDict):
    """Which dead letters of a service are meant; without ids all of them."""

    service: Literal[
        "submit", "scheduler", "launcher", "log_collector", "quota", "monitor", "gateway"
    ]
    ids: NotRequired[Optional[List[str]]]


class LifeState(TypedDict):
    """What a task keeps across attempts; version 0 and no data if there is nothing."""

    version: int
    bytes: int
    attempt: int
    saved_at: Optional[str]
    media_type: str
    data: Optional[str]


class LifeStateBody(TypedDict):
    """What the task keeps across attempts."""

    data: str
    media_type: NotRequired[Literal["application/json", "application/octet-stream"]]


class LifeStateSaved(TypedDict):
    """How large a life state is, and when it was saved."""

    version: int
    bytes: int
    attempt: int
    saved_at: Optional[str]


class LifeStateSavedData(TypedDict):
    """LifeStateSaved: the task has another life state. Its content is only with the launcher."""

    task_id: str
    attempt: int
    version: int
    size: int
    saved_at: str


class LifeStateSavedEvent(TypedDict):
    """run.life_state_saved: the task has another life state. Its content is only with the launcher."""

    position: int
    type: Literal["run.life_state_saved"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: LifeStateSavedData


class LinkedAccount(TypedDict):
    """An account of a login provider with which the user logs in."""

    issuer: str
    account: str
    linked_at: str


class LoginCodeBody(TypedDict):
    """What `shiftwork login` gets its token with."""

    code: str
    verifier: str


class LoginToken(TypedDict):
    """A token that a login has made, with its secret."""

    token: str
    id: str
    user: str
    expires_at: str


class LoginWays(TypedDict):
    """How people can log in here. With neither: with a bearer token alone."""

    oidc: Optional[OidcLogin]
    password: bool


class MetricPoint(TypedDict):
    """What a rank reported at one time, in seconds since 1970."""

    attempt: int
    at_seconds: float
    values: Dict[str, Union[float, str]]


class MetricsBody(TypedDict):
    """What one rank reports, oldest first."""

    rank: NotRequired[int]
    samples: List[SampleBody]


class MetricsPage(TypedDict):
    """One page of ranks. ``series_problem``: why sampled series are missing."""

    items: List[RankMetrics]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]
    series_problem: NotRequired[str]


class ModeBody(TypedDict):
    """Another mode."""

    mode: Literal["normal", "debug", "pause"]
    stay_paused: NotRequired[bool]


class ModeChangedData(TypedDict):
    """ModeChanged: debug mode was turned on or off. A pause is a goal."""

    task_id: str
    mode: Literal["unspecified", "normal", "debug", "pause"]
    revision: int
    changed_by: str
    changed_at: str


class ModeChangedEvent(TypedDict):
    """task.mode_changed: debug mode was turned on or off. A pause is a goal."""

    position: int
    type: Literal["task.mode_changed"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: ModeChangedData


class NewToken(TypedDict):
    """A new token, with its secret."""

    id: str
    user: str
    name: str
    created_by: str
    created_at: str
    expires_at: Optional[str]
    revoked_at: Optional[str]
    scopes: List[str]
    last_used_at: Optional[str]
    last_used_from: Optional[str]
    token: str


class Node(TypedDict):
    """A node and the tasks that hold it. ``held``: the task that holds a GPU, null for one that the
    caller may not see; ``hidden_tasks``: how many such tasks hold anything of the node."""

    id: str
    group: str
    gpus: int
    gpu_model: str
    free_gpus: int
    unusable_gpus: List[int]
    held: Dict[str, Optional[str]]
    tasks: List[str]
    hidden_tasks: int
    cpus: float
    memory_bytes: int
    labels: Dict[str, str]
    taints: List[str]
    schedulable: bool
    draining: bool
    quarantined: bool
    ready: bool
    changed_at: str


class NodeChangedData(TypedDict):
    """NodeChanged: the node appeared, changed, went or came back."""

    node_id: str
    version: int
    node: EventNode
    removed: bool
    changed_at: str


class NodeChangedEvent(TypedDict):
    """node.changed: the node appeared, changed, went or came back."""

    position: int
    type: Literal["node.changed"]
    task: Optional[str]
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: NodeChangedData


class NodeLabelsAndTaints(TypedDict):
    """A node's labels and taints after a change."""

    labels: Dict[str, str]
    taints: List[str]
    id: str


class NodeMetrics(TypedDict):
    """What was sampled of one node."""

    node: str
    series: List[SignalSeries]


class NodePage(TypedDict):
    """One page of nodes."""

    items: List[Node]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]


class NodeUtilization(TypedDict):
    """The newest sample of one node. Null: not measured."""

    node: str
    sampled_at: str
    cpu_percent: Optional[float]
    memory_used_bytes: Optional[float]
    memory_total_bytes: Optional[float]
    gpus: List[GpuUtilization]


class Notification(TypedDict):
    """Where messages about tasks go, and which."""

    name: str
    user: str
    channel: str
    url: Optional[str]
    occasions: List[str]
    tasks: str
    changed_at: str
    paused_at: Optional[str]
    problem: Optional[str]
    waiting: int
    undelivered: int


class NotificationBody(TypedDict):
    """Where messages about tasks go."""

    channel: NotRequired[Literal["webhook", "mail"]]
    url: NotRequired[Optional[str]]
    occasions: List[
        Literal[
            "started", "preempted", "failed", "finished", "waiting", "quota_reached", "abnormal"
        ]
    ]
    tasks: NotRequired[Literal["own", "team", "all"]]
    secret: NotRequired[Optional[str]]
    user: NotRequired[Optional[str]]


class NotificationList(TypedDict):
    """All of them; a site has few."""

    items: List[Notification]


class NotificationReplay(TypedDict):
    """How many messages wait again."""

    messages: int


class NotificationSet(TypedDict):
    """The notification as it is stored."""

    name: str
    user: str
    channel: str
    url: Optional[str]
    occasions: List[str]
    tasks: str
    changed_at: str
    paused_at: Optional[str]
    problem: Optional[str]
    waiting: int
    undelivered: int
    secret: Optional[str]


class Occupancy(TypedDict):
    """What a drain has to know."""

    nodes: List[OccupiedNode]
    tasks: List[HoldingTask]


class OccupiedNode(TypedDict):
    """A node, and whether it takes new runs."""

    id: str
    schedulable: bool


class OidcLogin(TypedDict):
    """The button for a login at the provider, and where it leads."""

    label: str
    url: str


class OrderPlace(TypedDict):
    """A waiting task's place in the order of its group, and what put it there."""

    level: str
    policy: str
    above: int
    before: int
    key: float
    submitted_at: Optional[str]
    tag_seconds: float
    delay_seconds: float
    load_scale: float
    granted: bool
    virtual_cluster: Optional[str]
    guaranteed_nodes: float
    held_nodes: float
    covered: bool


class OutputLine(TypedDict):
    """One line of one rank, without its end: ``text``, or ``data_base64`` for bytes that are no
    text. ``at`` is when its first byte was written."""

    attempt: int
    rank: int
    role: str
    offset: int
    at: Optional[str]
    approximate: NotRequired[bool]
    text: NotRequired[str]
    data_base64: NotRequired[str]


class OutputLines(TypedDict):
    """A page of lines in their order. ``begin`` and ``end`` are cursors: ``before=BEGIN`` has the
    lines before the page, ``after=END`` those after it. ``more``: the range goes on in the
    direction that was read; ``left_bytes`` of its output are not searched yet."""

    lines: List[FoundOutputLine]
    begin: str
    end: str
    more: bool
    searched_bytes: int
    left_bytes: int
    unreadable: List[UnreadableOutput]


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
    timestamps: List[List[Union[int, str]]]
    approximate: NotRequired[bool]


class Override(TypedDict):
    """Override takes the place of a part of a role."""

    env: NotRequired[Dict[str, str]]
    command: List[str]


class OverrideBody(TypedDict):
    """Override takes the place of a part of a role."""

    command: NotRequired[List[str]]
    env: NotRequired[Dict[str, str]]


class PasswordBody(TypedDict):
    """Another password."""

    password: str
    old: NotRequired[Optional[str]]


class PasswordFacts(TypedDict):
    """When a password was set, and who did it."""

    changed_at: str
    changed_by: str


class PasswordLoginBody(TypedDict):
    """A login with a password."""

    user: str
    password: str


class Placement(TypedDict):
    """Where one rank is."""

    rank: int
    role: str
    role_index: int
    node: str
    gpus: List[int]


class Pod(TypedDict):
    """PodRequest is what a task asks of its pods; a runtime without pods ignores it."""

    template: NotRequired[Optional[PodTemplate]]
    image: str
    image_pull_policy: str
    image_pull_secrets: List[str]
    storage: List[str]
    resources: Dict[str, str]
    shm_bytes: Optional[int]
    capabilities: List[str]
    env_from: List[EnvSource]


class PodBody(TypedDict):
    """PodRequest is what a task asks of its pods; a runtime without pods ignores it."""

    image: NotRequired[str]
    image_pull_policy: NotRequired[Literal["", "Always", "IfNotPresent", "Never"]]
    image_pull_secrets: NotRequired[List[str]]
    storage: NotRequired[List[str]]
    resources: NotRequired[Dict[str, str]]
    shm_bytes: NotRequired[Optional[int]]
    capabilities: NotRequired[List[str]]
    env_from: NotRequired[List[EnvSourceBody]]
    template: NotRequired[Optional[PodTemplate]]


class Policy(TypedDict):
    """How one node group is shared. ``source``: command, file or default."""

    group: str
    policy: str
    document: PolicyDocument
    version: int
    source: str
    changed_by: Optional[str]
    changed_at: Optional[str]


class PolicyChangedData(TypedDict):
    """PolicyChanged: how a group is shared was set, changed, or is left to the defaults again."""

    group: str
    policy: EventPolicyRecord
    version: int
    changed_at: str


class PolicyChangedEvent(TypedDict):
    """policy.changed: how a group is shared was set, changed, or is left to the defaults again."""

    position: int
    type: Literal["policy.changed"]
    task: Optional[str]
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: PolicyChangedData


class PolicyDemotion(TypedDict):
    """A task at ``level`` counts at ``to`` once it ran so long."""

    level: Literal[
        "idle", "low", "below_normal", "normal", "above_normal", "high", "very_high", "extreme_high"
    ]
    to: Literal[
        "idle", "low", "below_normal", "normal", "above_normal", "high", "very_high", "extreme_high"
    ]
    after: Union[float, str]


class PolicyDocument(TypedDict):
    """How one node group is shared. What a document leaves out has its default."""

    policy: NotRequired[
        Optional[Literal["timeshare", "rotation", "fifo", "backfill", "easy", "las"]]
    ]
    timeshare: NotRequired[Optional[PolicyTimeshare]]
    rotation: NotRequired[Optional[PolicyRotation]]
    demotions: NotRequired[Optional[List[PolicyDemotion]]]
    shares: NotRequired[Optional[PolicyShares]]
    virtual_clusters: NotRequired[Optional[List[PolicyVirtualCluster]]]
    protected: NotRequired[Optional[Union[float, str]]]
    topology: NotRequired[Optional[List[str]]]
    cross_zone_gangs_max: NotRequired[Optional[int]]


class PolicyDryRun(TypedDict):
    """What would be decided under other policies; ``more`` effects are not named."""

    effects: List[PolicyEffect]
    more: int
    outlooks: List[PolicyOutlook]
    warnings: List[FieldProblem]
    decided_at: Optional[str]


class PolicyEffect(TypedDict):
    """A task about which something else would be decided; null: it is left as it is."""

    task: str
    name: str
    owner: str
    group: str
    state: str
    nodes: int
    now: Optional[Verdict]
    then: Optional[Verdict]


class PolicyFile(TypedDict):
    """The policies of node groups. A group that is null loses its own."""

    groups: Dict[str, Optional[PolicyDocument]]


class PolicyOutlook(TypedDict):
    """One group's rounds, compared."""

    group: str
    now: PolicyRound
    then: PolicyRound


class PolicyPage(TypedDict):
    """One page of policies."""

    items: List[Policy]
    next_cursor: Optional[str]


class PolicyRotation(TypedDict):
    """The numbers of the ``rotation`` discipline; seconds."""

    first_slice: NotRequired[Optional[Union[float, str]]]
    slice: NotRequired[Optional[Union[float, str]]]
    half_life: NotRequired[Optional[Union[float, str]]]


class PolicyRound(TypedDict):
    """What one round does to a group."""

    starts: int
    promised: int
    preemptions: int
    waiting: int
    gpus_held: int
    gpus_handed_over: int
    gpu_seconds_at_risk: float


class PolicySet(TypedDict):
    """Policies are stored: the version of each group, and which of them were not so before."""

    versions: Dict[str, int]
    changed: List[str]
    warnings: List[FieldProblem]


class PolicyShares(TypedDict):
    """Weights between users (default 1); a user of a team has the team's weight unless named."""

    users: NotRequired[Optional[Dict[str, float]]]
    teams: NotRequired[Optional[Dict[str, float]]]


PolicyTimeshare = TypedDict(
    "PolicyTimeshare",
    {
        "pass": "NotRequired[Optional[Union[float, str]]]",
        "restart": "NotRequired[Optional[Union[float, str]]]",
        "budget_share": "NotRequired[Optional[float]]",
        "grant_share": "NotRequired[Optional[float]]",
        "grant_after": "NotRequired[Optional[Union[float, str]]]",
        "slice_min": "NotRequired[Optional[Union[float, str]]]",
        "slice_share": "NotRequired[Optional[float]]",
        "hold": "NotRequired[Optional[Union[float, str]]]",
        "use_limits": "NotRequired[Optional[bool]]",
        "adapt_times": "NotRequired[Optional[bool]]",
        "flood_guard": "NotRequired[Optional[bool]]",
    },
)


class PolicyVirtualCluster(TypedDict):
    """Nodes guaranteed to teams and users. Other tasks borrow what is idle. ``nodes`` is a number of node equivalents: 0.5 is half of a node's GPUs. ``parent`` names the virtual cluster that this one is a part of: inside it, it borrows before others do."""

    name: str
    parent: NotRequired[Optional[str]]
    teams: NotRequired[Optional[List[str]]]
    users: NotRequired[Optional[List[str]]]
    nodes: NotRequired[Optional[float]]
    nodes_max: NotRequired[Optional[float]]


class Port(TypedDict):
    """Port is one at which each replica of a role serves others."""

    name: str
    port: Optional[int]


class PortBody(TypedDict):
    """Port is one at which each replica of a role serves others."""

    name: str
    port: NotRequired[Optional[int]]


class Preemption(TypedDict):
    """PreemptionPolicy is how and how patiently a run is asked to hand over."""

    mode: str
    signal: str
    ack_deadline_seconds: float


class PreemptionBody(TypedDict):
    """PreemptionPolicy is how and how patiently a run is asked to hand over."""

    mode: NotRequired[Optional[Literal["sdk", "signal", "kill"]]]
    signal: NotRequired[str]
    ack_deadline_seconds: NotRequired[float]


class PreemptionRequest(TypedDict):
    """A run is requested to save and leave."""

    requested_at: str
    deadline_at: Optional[str]
    reason: Optional[Reason]


class PreemptionRequestedData(TypedDict):
    """PreemptionRequested: the run is asked to save a checkpoint and hand its nodes over."""

    task_id: str
    attempt: int
    reason: Reason
    requested_at: str
    deadline_at: str
    silent_deadline_at: NotRequired[str]


class PreemptionRequestedEvent(TypedDict):
    """run.preemption_requested: the run is asked to save a checkpoint and hand its nodes over."""

    position: int
    type: Literal["run.preemption_requested"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: PreemptionRequestedData


class PriorityBody(TypedDict):
    """Another level."""

    priority: Literal[
        "auto",
        "idle",
        "low",
        "below_normal",
        "normal",
        "above_normal",
        "high",
        "very_high",
        "extreme_high",
    ]


class PriorityChangedData(TypedDict):
    """PriorityChanged: the task's level was changed after submission."""

    task_id: str
    priority: Literal[
        "unspecified",
        "auto",
        "idle",
        "low",
        "below_normal",
        "normal",
        "above_normal",
        "high",
        "very_high",
        "extreme_high",
    ]
    revision: int
    changed_by: str
    changed_at: str


class PriorityChangedEvent(TypedDict):
    """task.priority_changed: the task's level was changed after submission."""

    position: int
    type: Literal["task.priority_changed"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: PriorityChangedData


class Problem(TypedDict):
    """An error (application/problem+json)."""

    type: str
    title: str
    status: int
    detail: str
    errors: List[FieldProblem]


class Progress(TypedDict):
    """The progress that a task reported last. NaN and infinities are texts."""

    attempt: int
    at: str
    values: Dict[str, Union[float, str]]


class PromisedNode(TypedDict):
    """A node that is promised to a waiting task, and the tasks that still hold part of it."""

    node: str
    gpus: List[int]
    held_by: List[str]


class QueuePage(TypedDict):
    """One page of the queue, as of ``listed_at``."""

    items: List[QueuedTask]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]
    listed_at: str


class QueuedTask(TypedDict):
    """A place in the queue. ``priority`` is what the owner asked for, ``level`` what it counts as
    now; ``starvation_grant``: it was moved to the front because it went without service for long.
    Of a task that the caller may not see (``hidden``) only position, group, size and level are
    given."""

    id: Optional[str]
    name: Optional[str]
    owner: Optional[str]
    team: Optional[str]
    group: str
    position: int
    priority: str
    level: str
    gpus: int
    nodes: int
    submitted_at: Optional[str]
    waiting_since: Optional[str]
    reason: Optional[Reason]
    waits_for: Optional[WaitsFor]
    starvation_grant: Optional[bool]
    hidden: bool


class Quota(TypedDict):
    """A cap or grant; null means every one, and of a limit any amount."""

    grant: bool
    group: Optional[str]
    user: Optional[str]
    team: Optional[str]
    priority: Optional[str]
    unit: Optional[str]
    limit: Optional[int]
    unlimited: bool
    level_max: Optional[str]
    expires_at: Optional[str]
    version: int
    changed_by: str
    changed_at: str


class QuotaAllowance(TypedDict):
    """What a user may hold in one group at one level."""

    group: str
    priority: str
    permitted: bool
    limit: Optional[int]
    unit: Optional[str]
    held: Optional[int]
    free: Optional[int]
    binds: Optional[str]
    gpus_held: Optional[int]
    nodes_held: Optional[int]
    because: str
    site: bool
    expires_at: Optional[str]
    granted: Optional[Granted]
    caps: List[Cap]


class QuotaAmount(TypedDict):
    """What a cap or grant says; null means every one, and of a limit any amount."""

    grant: bool
    group: Optional[str]
    user: Optional[str]
    team: Optional[str]
    priority: Optional[str]
    unit: Optional[str]
    limit: Optional[int]
    unlimited: bool
    level_max: Optional[str]
    expires_at: Optional[str]


class QuotaBody(TypedDict):
    """A cap on what may be held at once, or a grant. Left out or null: every one."""

    grant: NotRequired[bool]
    group: NotRequired[Optional[str]]
    user: NotRequired[Optional[str]]
    team: NotRequired[Optional[str]]
    priority: NotRequired[
        Optional[
            Literal[
                "auto",
                "idle",
                "low",
                "below_normal",
                "normal",
                "above_normal",
                "high",
                "very_high",
                "extreme_high",
            ]
        ]
    ]
    unit: NotRequired[Optional[Literal["gpus", "nodes", "gpus_or_nodes"]]]
    limit: NotRequired[Optional[int]]
    unlimited: NotRequired[bool]
    level_max: NotRequired[
        Optional[
            Literal[
                "auto",
                "idle",
                "low",
                "below_normal",
                "normal",
                "above_normal",
                "high",
                "very_high",
                "extreme_high",
            ]
        ]
    ]
    expires_at: NotRequired[Optional[str]]
    remove: NotRequired[bool]


class QuotaChangedData(TypedDict):
    """QuotaChanged: a cap or a grant was set, changed or removed."""

    group_token: str
    quota: EventQuota
    removed: bool
    version: int
    changed_by: str
    changed_at: str
    expired: bool


class QuotaChangedEvent(TypedDict):
    """quota.changed: a cap or a grant was set, changed or removed."""

    position: int
    type: Literal["quota.changed"]
    task: Optional[str]
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: QuotaChangedData


class QuotaExplanation(TypedDict):
    """What a user may hold, and which rows decide that."""

    user: str
    team: Optional[str]
    explained_at: Optional[str]
    permissions: List[QuotaAllowance]


class QuotaPage(TypedDict):
    """One page of caps and grants, oldest change first."""

    items: List[Quota]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]


class QuotaSet(TypedDict):
    """A row is stored: the number of this change among all changes of quotas."""

    version: int


class RankEndedData(TypedDict):
    """RankEnded: one rank of a run in debug mode has ended; the others go on."""

    task_id: str
    attempt: int
    exit: EventRankExit
    role: str
    noted_at: str


class RankEndedEvent(TypedDict):
    """run.rank_ended: one rank of a run in debug mode has ended; the others go on."""

    position: int
    type: Literal["run.rank_ended"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: RankEndedData


class RankErrorLines(TypedDict):
    """The last lines of one rank's output that look like an error; ``kind`` is the name of the
    pattern that the last one matched."""

    rank: int
    role: str
    kind: str
    offset: int
    lines: List[str]


class RankExit(TypedDict):
    """How one rank ended."""

    rank: int
    code: Optional[int]
    signal: Optional[int]
    fault: str


class RankMetrics(TypedDict):
    """What one rank reported: the newest values, and a thinned history. With ``series``, all that
    is known of the rank as series."""

    rank: int
    attempt: int
    at: str
    latest: Dict[str, Union[float, str]]
    points: List[MetricPoint]
    series: NotRequired[List[SignalSeries]]


class RankRestartedData(TypedDict):
    """RankRestarted: one rank of the run ended and is started again on its node; the others go on."""

    task_id: str
    attempt: int
    rank: int
    role: str
    restarts: int
    restarts_max: int
    detail: str
    noted_at: str
    node_id: str


class RankRestartedEvent(TypedDict):
    """run.rank_restarted: one rank of the run ended and is started again on its node; the others go on."""

    position: int
    type: Literal["run.rank_restarted"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: RankRestartedData


class Ready(TypedDict):
    """A rank's report of readiness is stored."""

    ready: bool


class ReadyBody(TypedDict):
    """A rank that is ready."""

    rank: int
    restarts: NotRequired[int]


class ReadyProbe(TypedDict):
    """ReadyProbe is how the platform learns that a rank is ready: by its port, or by its program, which calls shiftwork.ready()."""

    port: str
    path: str
    period_seconds: float
    within_seconds: float


class ReadyProbeBody(TypedDict):
    """ReadyProbe is how the platform learns that a rank is ready: by its port, or by its program, which calls shiftwork.ready()."""

    port: NotRequired[str]
    path: NotRequired[str]
    period_seconds: NotRequired[float]
    within_seconds: NotRequired[float]


class Reason(TypedDict):
    """Why something is as it is: ``text`` is the sentence for people. The numbers and names in it
    stand beside it, under names that belong to the code."""

    code: str
    text: str


class RestartRule(TypedDict):
    """RestartRule decides what a failure of one of a role's replicas leads to. It does not concern what the platform or the cluster did to the replica, such as a lost node: the task then starts again."""

    when: str
    exit_codes: List[str]
    scope: str
    max_restarts: Optional[int]


class RestartRuleBody(TypedDict):
    """RestartRule decides what a failure of one of a role's replicas leads to. It does not concern what the platform or the cluster did to the replica, such as a lost node: the task then starts again."""

    when: NotRequired[Optional[Literal["never", "on_failure", "always", "exit_code"]]]
    exit_codes: NotRequired[List[str]]
    scope: NotRequired[Optional[Literal["gang", "rank"]]]
    max_restarts: NotRequired[Optional[int]]


class RetriesUsed(TypedDict):
    """How many retries of each limit are used; the limits are in ``retry``."""

    max_retries: int
    user: int
    transient: int
    platform: int
    unknown: int


class Retry(TypedDict):
    """RetryPolicy bounds how often a failed run is tried again. Failures of a class with a limit of its own have a counter of their own; all others count together."""

    max_retries: int
    user: Optional[int]
    transient: Optional[int]
    platform: Optional[int]
    unknown: Optional[int]


class RetryBody(TypedDict):
    """RetryPolicy bounds how often a failed run is tried again. Failures of a class with a limit of its own have a counter of their own; all others count together."""

    max_retries: NotRequired[int]
    user: NotRequired[Optional[int]]
    transient: NotRequired[Optional[int]]
    platform: NotRequired[Optional[int]]
    unknown: NotRequired[Optional[int]]


class Revision(TypedDict):
    """A change is stored; a task's ``observed_revision`` shows when it is applied."""

    task: str
    revision: int


class Role(TypedDict):
    """Role is one kind of replica in a gang. What it leaves out is as the task says."""

    env: NotRequired[Dict[str, str]]
    name: str
    replicas: int
    command: List[str]
    image: str
    gpus: Optional[int]
    cpus: Optional[float]
    memory_bytes: Optional[int]
    spread: Optional[bool]
    auxiliary: bool
    working_directory: str
    ports: List[Port]
    restart: Optional[RestartRule]
    starts_after: List[StartsAfter]
    ready: Optional[ReadyProbe]
    debug: Optional[DebugProgram]
    resume: Optional[Override]
    args: List[str]
    pod: Optional[Pod]
    cpus_request: Optional[float]
    memory_request_bytes: Optional[int]


class RoleBody(TypedDict):
    """Role is one kind of replica in a gang. What it leaves out is as the task says."""

    name: NotRequired[str]
    replicas: NotRequired[int]
    command: NotRequired[List[str]]
    env: NotRequired[Dict[str, str]]
    image: NotRequired[str]
    gpus: NotRequired[Optional[int]]
    cpus: NotRequired[Optional[float]]
    memory_bytes: NotRequired[Optional[int]]
    spread: NotRequired[Optional[bool]]
    auxiliary: NotRequired[bool]
    working_directory: NotRequired[str]
    ports: NotRequired[List[PortBody]]
    restart: NotRequired[Optional[RestartRuleBody]]
    starts_after: NotRequired[List[StartsAfterBody]]
    ready: NotRequired[Optional[ReadyProbeBody]]
    debug: NotRequired[Optional[DebugProgramBody]]
    resume: NotRequired[Optional[OverrideBody]]
    args: NotRequired[List[str]]
    pod: NotRequired[Optional[PodBody]]
    cpus_request: NotRequired[Optional[float]]
    memory_request_bytes: NotRequired[Optional[int]]


class Run(TypedDict):
    """One attempt."""

    id: str
    task: str
    attempt: int
    live: bool
    debug: bool
    ended_ranks: List[EndedRank]
    assigned_at: Optional[str]
    start_deadline_at: Optional[str]
    delayed: Optional[Delay]
    activity: Optional[Activity]
    started_at: Optional[str]
    listening_at: Optional[str]
    resume_from: Optional[Checkpoint]
    preemption: Optional[PreemptionRequest]
    kill: Optional[KillRequest]
    yielded: Optional[Yielded]
    checkpoint: Optional[Checkpoint]
    exit: Optional[Exit]
    finished_at: Optional[str]
    error_lines: List[RankErrorLines]
    placements: List[Placement]
    endpoints: List[Endpoint]


class RunActivityChangedData(TypedDict):
    """RunActivityChanged: how much of what the run holds it uses, as measured. Said when a GPU or the whole run begins or ends to be idle, now and then for the sums, and once after its end."""

    task_id: str
    attempt: int
    measured_from: str
    measured_until: str
    measured_gpu_seconds: float
    idle_gpu_seconds: float
    gpus: int
    idle_gpus: int
    idle_since: NotRequired[str]
    quiet_since: NotRequired[str]


class RunActivityChangedEvent(TypedDict):
    """run.activity_changed: how much of what the run holds it uses, as measured. Said when a GPU or the whole run begins or ends to be idle, now and then for the sums, and once after its end."""

    position: int
    type: Literal["run.activity_changed"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: RunActivityChangedData


class RunAssignedData(TypedDict):
    """RunAssigned: the first attempt of a task has its nodes."""

    task_id: str
    attempt: int
    owner: str
    spec: EventTaskSpec
    placements: List[EventPlacement]
    start_deadline_at: str
    resume_from: NotRequired[EventCheckpoint]
    assigned_at: str
    team: str


class RunAssignedEvent(TypedDict):
    """run.assigned: the first attempt of a task has its nodes."""

    position: int
    type: Literal["run.assigned"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: RunAssignedData


class RunDelayedData(TypedDict):
    """RunDelayed: the run was launched, but not every process exists yet; says why. Without a detail: nothing delays it any more."""

    task_id: str
    attempt: int
    ranks: int
    detail: str
    noted_at: str
    running: bool
    node_ids: List[str]


class RunDelayedEvent(TypedDict):
    """run.delayed: the run was launched, but not every process exists yet; says why. Without a detail: nothing delays it any more."""

    position: int
    type: Literal["run.delayed"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: RunDelayedData


class RunExitedData(TypedDict):
    """RunExited: no process of the run is left; published once per run."""

    task_id: str
    attempt: int
    exit: EventRunExit
    checkpoint: NotRequired[EventCheckpoint]
    placements: List[EventPlacement]
    owner: str


class RunExitedEvent(TypedDict):
    """run.exited: no process of the run is left; published once per run."""

    position: int
    type: Literal["run.exited"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: RunExitedData


class RunListenedData(TypedDict):
    """RunListened: the run's program asked for the first time whether it should leave."""

    task_id: str
    attempt: int
    asked_at: str


class RunListenedEvent(TypedDict):
    """run.listened: the run's program asked for the first time whether it should leave."""

    position: int
    type: Literal["run.listened"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: RunListenedData


class RunPage(TypedDict):
    """One page of attempts."""

    items: List[Run]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]


class RunResumedData(TypedDict):
    """RunResumed: a later attempt of a task has its nodes and the checkpoint to start from."""

    task_id: str
    attempt: int
    owner: str
    spec: EventTaskSpec
    placements: List[EventPlacement]
    start_deadline_at: str
    resume_from: NotRequired[EventCheckpoint]
    assigned_at: str
    team: str


class RunResumedEvent(TypedDict):
    """run.resumed: a later attempt of a task has its nodes and the checkpoint to start from."""

    position: int
    type: Literal["run.resumed"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: RunResumedData


class RunStartedData(TypedDict):
    """RunStarted: the process of every rank exists that waits for no other role. Where roles start in order, the others follow while the run runs."""

    task_id: str
    attempt: int
    started_at: str
    placements: List[EventPlacement]
    endpoints: List[EventEndpoint]
    owner: str


class RunStartedEvent(TypedDict):
    """run.started: the process of every rank exists that waits for no other role. Where roles start in order, the others follow while the run runs."""

    position: int
    type: Literal["run.started"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: RunStartedData


class RunState(TypedDict):
    """What the platform wants of a run."""

    attempt: int
    revision: int
    preempt: bool
    deadline_at: Optional[str]
    superseded: bool
    ask_again_seconds: NotRequired[float]


class RunYieldedData(TypedDict):
    """RunYielded: the run's program hands its nodes over on its own. Its ranks are asked to leave."""

    task_id: str
    attempt: int
    reason: str
    requested_at: str


class RunYieldedEvent(TypedDict):
    """run.yielded: the run's program hands its nodes over on its own. Its ranks are asked to leave."""

    position: int
    type: Literal["run.yielded"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: RunYieldedData


class SampleBody(TypedDict):
    """Numbers at one time."""

    at: NotRequired[Optional[str]]
    values: Dict[str, float]


class SavedVersion(TypedDict):
    """Which version of a life state was stored."""

    version: int


class Schedulable(TypedDict):
    """Whether a node accepts new runs, and whether those on it are to leave."""

    schedulable: bool
    draining: bool
    id: str


class SchedulableBody(TypedDict):
    """Whether new runs may be placed on the node."""

    schedulable: bool
    drain: NotRequired[bool]


class Scheduling(TypedDict):
    """Whether new runs are accepted, and whether those that are there are to leave."""

    schedulable: bool
    draining: bool


class SeriesPoint(TypedDict):
    """One step of a series. Of what a program reported all three are the reported value."""

    at_seconds: float
    average: Union[float, str]
    minimum: Union[float, str]
    maximum: Union[float, str]


class Session(TypedDict):
    """A browser's session. It ends earlier than ``expires_at`` if it is not used."""

    id: str
    user: str
    made_by: Literal["oidc", "password", "token"]
    created_at: str
    expires_at: str
    last_used_at: Optional[str]
    address: Optional[str]
    current: bool


class SessionPage(TypedDict):
    """One page of sessions."""

    items: List[Session]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]


class SignalSeries(TypedDict):
    """One signal over time: sampled by the platform, or reported by the program. A step without
    a point is a gap."""

    signal: str
    source: Literal["sampled", "reported"]
    node: Optional[str]
    gpu: Optional[int]
    attempt: Optional[int]
    step_seconds: Optional[int]
    points: List[SeriesPoint]


class StartsAfter(TypedDict):
    """StartsAfter names a role that has to be there before the ranks of this one start."""

    role: str
    condition: str


class StartsAfterBody(TypedDict):
    """StartsAfter names a role that has to be there before the ranks of this one start."""

    role: str
    condition: NotRequired[Optional[Literal["running", "ready"]]]


class TaintsBody(TypedDict):
    """What to change of a node's taints; the others stay."""

    set: NotRequired[List[str]]
    remove: NotRequired[List[str]]


class Task(TypedDict):
    """A task. ``reason`` has ``code`` and ``text``, and the numbers and names in it."""

    env: NotRequired[Dict[str, str]]
    name: str
    group: str
    priority: str
    roles: List[Role]
    gpus_per_node: Optional[int]
    working_directory: str
    labels: Dict[str, str]
    retry: Retry
    preemption: Preemption
    max_run_seconds: Optional[float]
    fence_after_seconds: Optional[float]
    cpus: Optional[float]
    memory_bytes: Optional[int]
    nodes: int
    node_selector: Dict[str, str]
    tolerations: List[str]
    pod: Optional[Pod]
    wait_for_nodes: bool
    contract: str
    completion: Optional[Completion]
    run_mode: str
    cpus_request: Optional[float]
    memory_request_bytes: Optional[int]
    secret_env: List[str]
    id: str
    owner: str
    team: str
    goal: str
    debug: bool
    state: str
    reason: Optional[Reason]
    attempt: int
    submitted_at: str
    started_at: Optional[str]
    finished_at: Optional[str]
    checkpoint: Optional[Checkpoint]
    life_state: Optional[LifeStateSaved]
    chain: str
    continues: Optional[str]
    progress: Optional[Progress]
    exit: Optional[Exit]
    held_gpus: int
    held_nodes: int
    attempts_without_progress: int
    abnormal: List[str]
    retries_used: RetriesUsed
    endpoints: List[Endpoint]
    warnings: List[TaskWarning]
    revision: int
    observed_revision: int
    run_seconds: NotRequired[Optional[float]]
    activity: NotRequired[Activity]


class TaskBody(TypedDict):
    """A new task: roles, or one command. What is left out is filled in."""

    name: NotRequired[str]
    group: NotRequired[str]
    priority: NotRequired[
        Optional[
            Literal[
                "auto",
                "idle",
                "low",
                "below_normal",
                "normal",
                "above_normal",
                "high",
                "very_high",
                "extreme_high",
            ]
        ]
    ]
    roles: NotRequired[List[RoleBody]]
    gpus_per_node: NotRequired[Optional[int]]
    env: NotRequired[Dict[str, str]]
    working_directory: NotRequired[str]
    labels: NotRequired[Dict[str, str]]
    retry: NotRequired[RetryBody]
    preemption: NotRequired[PreemptionBody]
    max_run_seconds: NotRequired[Optional[float]]
    fence_after_seconds: NotRequired[Optional[float]]
    cpus: NotRequired[Optional[float]]
    memory_bytes: NotRequired[Optional[int]]
    nodes: NotRequired[int]
    node_selector: NotRequired[Dict[str, str]]
    tolerations: NotRequired[List[str]]
    pod: NotRequired[Optional[PodBody]]
    wait_for_nodes: NotRequired[bool]
    contract: NotRequired[
        Optional[Literal["torch", "tf_config", "rank", "coordinator", "mpi", "none"]]
    ]
    completion: NotRequired[Optional[CompletionBody]]
    run_mode: NotRequired[Optional[Literal["normal", "debug", "pause"]]]
    cpus_request: NotRequired[Optional[float]]
    memory_request_bytes: NotRequired[Optional[int]]
    secret_env: NotRequired[List[str]]
    command: NotRequired[List[str]]


class TaskPage(TypedDict):
    """One page of tasks."""

    items: List[Task]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]


class TaskStateChangedData(TypedDict):
    """TaskStateChanged: the scheduler moved the task, or the reason for its waiting changed."""

    task_id: str
    version: int
    state: Literal[
        "unspecified",
        "queued",
        "starting",
        "running",
        "preempting",
        "killing",
        "paused",
        "succeeded",
        "failed",
        "stopped",
        "rejected",
    ]
    previous: Literal[
        "unspecified",
        "queued",
        "starting",
        "running",
        "preempting",
        "killing",
        "paused",
        "succeeded",
        "failed",
        "stopped",
        "rejected",
    ]
    reason: Reason
    attempt: int
    observed_revision: int
    started_at: NotRequired[str]
    finished_at: NotRequired[str]
    checkpoint: NotRequired[EventCheckpoint]
    exit: NotRequired[EventRunExit]
    changed_at: str
    owner: str
    team: str
    group: str
    held_gpus: int
    held_nodes: int
    priority: Literal[
        "unspecified",
        "auto",
        "idle",
        "low",
        "below_normal",
        "normal",
        "above_normal",
        "high",
        "very_high",
        "extreme_high",
    ]
    attempts_without_progress: int
    retries_used: int
    class_retries: NotRequired[EventClassRetries]


class TaskStateChangedEvent(TypedDict):
    """task.state_changed: the scheduler moved the task, or the reason for its waiting changed."""

    position: int
    type: Literal["task.state_changed"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: TaskStateChangedData


class TaskSubmittedData(TypedDict):
    """TaskSubmitted: a valid task is stored and waits for the scheduler."""

    task_id: str
    owner: str
    team: str
    spec: EventTaskSpec
    submitted_at: str
    revision: int
    warnings: List[EventTaskWarning]


class TaskSubmittedEvent(TypedDict):
    """task.submitted: a valid task is stored and waits for the scheduler."""

    position: int
    type: Literal["task.submitted"]
    task: str
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: TaskSubmittedData


class TaskUtilization(TypedDict):
    """The newest samples of all ranks of a task together. Null: not measured."""

    task: str
    attempt: int
    sampled_at: str
    ranks: int
    gpus: int
    cpu_cores: Optional[float]
    memory_bytes: Optional[float]
    gpu_percent: Optional[float]
    gpu_memory_used_bytes: Optional[float]


class TaskWarning(TypedDict):
    """A field that was accepted and has no effect, or will probably surprise."""

    code: str
    field: str
    value: str
    message: str


class Team(TypedDict):
    """A set of users that quotas can name."""

    name: str
    default_group: Optional[str]
    default_priority: Optional[str]
    created_at: str


class TeamBody(TypedDict):
    """A new team."""

    default_group: NotRequired[Optional[str]]
    default_priority: NotRequired[
        Optional[
            Literal[
                "auto",
                "idle",
                "low",
                "below_normal",
                "normal",
                "above_normal",
                "high",
                "very_high",
                "extreme_high",
                "",
            ]
        ]
    ]
    name: str


class TeamChangeBody(TypedDict):
    """What to change of a team; what is left out stays."""

    default_group: NotRequired[Optional[str]]
    default_priority: NotRequired[
        Optional[
            Literal[
                "auto",
                "idle",
                "low",
                "below_normal",
                "normal",
                "above_normal",
                "high",
                "very_high",
                "extreme_high",
                "",
            ]
        ]
    ]


class TeamPage(TypedDict):
    """One page of teams."""

    items: List[Team]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]


class Token(TypedDict):
    """A token without its secret. ``scopes``: what it is good for; none: all that its user may
    do. ``last_used_at`` is up to a minute late."""

    id: str
    user: str
    name: str
    created_by: str
    created_at: str
    expires_at: Optional[str]
    revoked_at: Optional[str]
    scopes: List[str]
    last_used_at: Optional[str]
    last_used_from: Optional[str]


class TokenBody(TypedDict):
    """A new token."""

    user: NotRequired[Optional[str]]
    name: NotRequired[str]
    expires_in_seconds: NotRequired[Optional[float]]
    scopes: NotRequired[List[Literal["read", "secrets", "tasks", "tokens", "operate", "people"]]]


class TokenFacts(TypedDict):
    """The token of a request."""

    id: str
    name: str
    expires_at: Optional[str]
    scopes: List[str]
    is_admin_file: bool


class TokenPage(TypedDict):
    """One page of tokens."""

    items: List[Token]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]


class Undelivered(TypedDict):
    """A message that was given up."""

    id: str
    task_id: str
    occasion: str
    happened_at: str
    tries: int
    problem: str


class UndeliveredList(TypedDict):
    """The newest first."""

    items: List[Undelivered]


class Unreadable(TypedDict):
    """A row of a list that cannot be shown, set apart from the others."""

    id: str
    problem: str


class UnreadableOutput(TypedDict):
    """A rank whose output a page lacks."""

    attempt: int
    rank: int
    problem: str


Usage = TypedDict(
    "Usage",
    {
        "from": "str",
        "to": "str",
        "group_by": "List[str]",
        "items": "List[UsageItem]",
        "total": "UsageAmounts",
    },
)


class UsageAmounts(TypedDict):
    """What attempts held in the range. GPU-seconds are GPUs times seconds; a task without GPUs has
    node-seconds alone."""

    attempts: int
    held_gpu_seconds: float
    held_node_seconds: float
    starting_seconds: float
    starting_gpu_seconds: float
    measured_gpu_seconds: float
    idle_gpu_seconds: float
    lost_to_preemption_gpu_seconds: float
    lost_to_preemption_node_seconds: float
    lost_to_failure_gpu_seconds: float
    lost_to_failure_node_seconds: float


class UsageItem(TypedDict):
    """One group. It has the fields of ``group_by`` alone."""

    attempts: int
    held_gpu_seconds: float
    held_node_seconds: float
    starting_seconds: float
    starting_gpu_seconds: float
    measured_gpu_seconds: float
    idle_gpu_seconds: float
    lost_to_preemption_gpu_seconds: float
    lost_to_preemption_node_seconds: float
    lost_to_failure_gpu_seconds: float
    lost_to_failure_node_seconds: float
    user: NotRequired[Optional[str]]
    team: NotRequired[Optional[str]]
    group: NotRequired[Optional[str]]
    priority: NotRequired[Optional[str]]
    outcome: NotRequired[Optional[Outcome]]
    task: NotRequired[Optional[str]]
    day: NotRequired[Optional[str]]


class UsageRecordedData(TypedDict):
    """UsageRecorded: a run ended and its use was entered in the ledger."""

    group: str
    task_id: str
    attempt: int
    owner: str
    team: str
    gpus: int
    nodes: int
    started_at: str
    ended_at: str
    gpu_seconds: float
    node_seconds: float


class UsageRecordedEvent(TypedDict):
    """quota.usage: a run ended and its use was entered in the ledger."""

    position: int
    type: Literal["quota.usage"]
    task: Optional[str]
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: UsageRecordedData


class User(TypedDict):
    """A person or program that may use the platform."""

    name: str
    role: Literal["viewer", "user", "operator", "admin"]
    team: Optional[str]
    disabled: bool
    archived: bool
    default_group: Optional[str]
    default_priority: Optional[str]
    mail: Optional[str]
    created_at: str


class UserBody(TypedDict):
    """A new user."""

    default_group: NotRequired[Optional[str]]
    default_priority: NotRequired[
        Optional[
            Literal[
                "auto",
                "idle",
                "low",
                "below_normal",
                "normal",
                "above_normal",
                "high",
                "very_high",
                "extreme_high",
                "",
            ]
        ]
    ]
    name: str
    role: NotRequired[Literal["viewer", "user", "operator", "admin"]]
    team: NotRequired[Optional[str]]
    mail: NotRequired[Optional[str]]


class UserChangeBody(TypedDict):
    """What to change of a user; what is left out stays."""

    default_group: NotRequired[Optional[str]]
    default_priority: NotRequired[
        Optional[
            Literal[
                "auto",
                "idle",
                "low",
                "below_normal",
                "normal",
                "above_normal",
                "high",
                "very_high",
                "extreme_high",
                "",
            ]
        ]
    ]
    role: NotRequired[Optional[Literal["viewer", "user", "operator", "admin"]]]
    team: NotRequired[Optional[str]]
    disabled: NotRequired[Optional[bool]]
    archived: NotRequired[Optional[bool]]
    mail: NotRequired[Optional[str]]


class UserDetail(TypedDict):
    """One user, with what people log in as this user with, besides tokens."""

    name: str
    role: Literal["viewer", "user", "operator", "admin"]
    team: Optional[str]
    disabled: bool
    archived: bool
    default_group: Optional[str]
    default_priority: Optional[str]
    mail: Optional[str]
    created_at: str
    accounts: List[LinkedAccount]
    password: Optional[PasswordFacts]


class UserPage(TypedDict):
    """One page of users."""

    items: List[User]
    next_cursor: Optional[str]
    unreadable: NotRequired[List[Unreadable]]


class Utilization(TypedDict):
    """What is in use now, of the nodes and live tasks that were asked for and were sampled within
    the last minute."""

    nodes: List[NodeUtilization]
    tasks: List[TaskUtilization]


class Verdict(TypedDict):
    """What is decided about a task: a decision's kind, or wait."""

    decision: str
    reason: Optional[Reason]
    beneficiary: Optional[str]


class WaitsFor(TypedDict):
    """What a waiting task waits for: ``kind`` is nodes, promised_nodes, tasks_ahead, quota,
    virtual_cluster, share, retry, inventory, larger_cluster or decision; the row of a quota and its
    numbers are in ``reason``. ``tasks_ahead`` of its group stand before it. ``until``: when its
    promised nodes are free at the latest, or when it is tried again; null: not known, see
    ``/v1/tasks/ID/explain`` for a forecast."""

    kind: str
    tasks_ahead: int
    promised_nodes: int
    until: Optional[str]


class WhoAmI(TypedDict):
    """The user of this token, and the account that runs tasks on the gateway's machine."""

    user: str
    role: Literal["viewer", "user", "operator", "admin"]
    team: Optional[str]
    default_group: Optional[str]
    default_priority: Optional[str]
    visibility: Literal["own", "team", "all"]
    token: TokenFacts
    tasks_run_as: Optional[str]


class YieldBody(TypedDict):
    """The program hands its nodes over on its own."""

    reason: NotRequired[str]


class Yielded(TypedDict):
    """A program handed its nodes over on its own, with its words for people."""

    requested_at: str
    reason: str


class OtherEvent(TypedDict):
    """Event of a type that this version of the library does not know, for ``cast``: ``Event`` itself is one of the known types, so that type checkers tell them apart."""

    position: int
    type: str
    task: Optional[str]
    attempt: Optional[int]
    at: str
    owner: Optional[str]
    team: Optional[str]
    group: Optional[str]
    data: Dict[str, Any]


Event = Union[
    TaskSubmittedEvent,
    GoalChangedEvent,
    ModeChangedEvent,
    PriorityChangedEvent,
    TaskStateChangedEvent,
    RunAssignedEvent,
    RunResumedEvent,
    PreemptionRequestedEvent,
    KillRequestedEvent,
    RunActivityChangedEvent,
    RunDelayedEvent,
    RunStartedEvent,
    RankRestartedEvent,
    RankEndedEvent,
    RunListenedEvent,
    RunYieldedEvent,
    LifeStateSavedEvent,
    CheckpointSavedEvent,
    RunExitedEvent,
    ErrorLinesFoundEvent,
    AbnormalTaskChangedEvent,
    AbnormalActionSettledEvent,
    NodeChangedEvent,
    QuotaChangedEvent,
    PolicyChangedEvent,
    UsageRecordedEvent,
]
