"""What people submitted, as types of answers. GENERATED from proto/ by `make gen`."""

from __future__ import annotations

from typing_extensions import TypedDict

from services.gateway.body_types import PodTemplate


class Port(TypedDict):
    """Port is one at which each replica of a role serves others."""

    name: str
    port: int | None


class RestartRule(TypedDict):
    """RestartRule decides what a failure of one of a role's replicas leads to. It does not concern what the platform or the cluster did to the replica, such as a lost node: the task then starts again."""

    when: str
    exit_codes: list[str]
    scope: str
    max_restarts: int | None


class StartsAfter(TypedDict):
    """StartsAfter names a role that has to be there before the ranks of this one start."""

    role: str
    condition: str


class ReadyProbe(TypedDict):
    """ReadyProbe is how the platform learns that a rank is ready: by its port, or by its program, which calls shiftwork.ready()."""

    port: str
    path: str
    period_seconds: float
    within_seconds: float


class DebugProgram(TypedDict):
    """DebugProgram is what the ranks of a role run in debug mode instead of their program."""

    command: list[str]
    args: list[str]


class _OverrideSecrets(TypedDict, total=False):
    env: dict[str, str]


class Override(_OverrideSecrets):
    """Override takes the place of a part of a role."""

    command: list[str]


class EnvSource(TypedDict):
    """EnvSource is a variable whose value is kept elsewhere, in exactly one of a Secret, a ConfigMap and the pod."""

    name: str
    secret: str
    config_map: str
    field: str
    key: str
    optional: bool


class _PodSecrets(TypedDict, total=False):
    template: PodTemplate | None


class Pod(_PodSecrets):
    """PodRequest is what a task asks of its pods; a runtime without pods ignores it."""

    image: str
    image_pull_policy: str
    image_pull_secrets: list[str]
    storage: list[str]
    resources: dict[str, str]
    shm_bytes: int | None
    capabilities: list[str]
    env_from: list[EnvSource]


class _RoleSecrets(TypedDict, total=False):
    env: dict[str, str]


class Role(_RoleSecrets):
    """Role is one kind of replica in a gang. What it leaves out is as the task says."""

    name: str
    replicas: int
    command: list[str]
    image: str
    gpus: int | None
    cpus: float | None
    memory_bytes: int | None
    spread: bool | None
    auxiliary: bool
    working_directory: str
    ports: list[Port]
    restart: RestartRule | None
    starts_after: list[StartsAfter]
    ready: ReadyProbe | None
    debug: DebugProgram | None
    resume: Override | None
    args: list[str]
    pod: Pod | None
    cpus_request: float | None
    memory_request_bytes: int | None


class Retry(TypedDict):
    """RetryPolicy bounds how often a failed run is tried again. Failures of a class with a limit of its own have a counter of their own; all others count together."""

    max_retries: int
    user: int | None
    transient: int | None
    platform: int | None
    unknown: int | None


class Preemption(TypedDict):
    """PreemptionPolicy is how and how patiently a run is asked to hand over."""

    mode: str
    signal: str
    ack_deadline_seconds: float


class Completion(TypedDict):
    """Completion decides an attempt by the ends of its ranks. A rule is one condition or several joined by "and": ROLE[INDEX], ROLE[any], ROLE[all], ROLE[N+] (at least N of them), ROLE[ended]."""

    success: list[str]
    failure: list[str]


class _TaskSpecSecrets(TypedDict, total=False):
    env: dict[str, str]


class TaskSpec(_TaskSpecSecrets):
    """TaskSpec is what a person submits, complete after submit has filled in the defaults."""

    name: str
    group: str
    priority: str
    roles: list[Role]
    gpus_per_node: int | None
    working_directory: str
    labels: dict[str, str]
    retry: Retry
    preemption: Preemption
    max_run_seconds: float | None
    fence_after_seconds: float | None
    cpus: float | None
    memory_bytes: int | None
    nodes: int
    node_selector: dict[str, str]
    tolerations: list[str]
    pod: Pod | None
    wait_for_nodes: bool
    contract: str
    completion: Completion | None
    run_mode: str
    cpus_request: float | None
    memory_request_bytes: int | None
    secret_env: list[str]
