"""What people submit, as JSON bodies. GENERATED from proto/ by `make gen`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import FailFast, Field

from libs.contracts.enum_words import (
    ContractWord,
    PreemptModeWord,
    PriorityWord,
    RestartScopeWord,
    RestartWhenWord,
    RunModeWord,
    StartConditionWord,
)
from services.gateway.body_types import (
    ENTRIES_MAX,
    Amount,
    Big,
    Body,
    Count,
    Flag,
    NamedTexts,
    PodTemplate,
    Seconds,
    Text,
    TextMap,
    Texts,
)


class PortBody(Body):
    """Port is one at which each replica of a role serves others."""

    name: Text = Field(
        description="Lower-case letters, digits and -, at most 15; the program finds the port in SHIFTWORK_PORT_NAME."
    )
    port: Count | None = Field(
        default=None,
        description="Its number in pods; left out: one of the platform's range. Replicas that share a machine get other ones. At least 1024, at most 65535.",
    )


class RestartRuleBody(Body):
    """RestartRule decides what a failure of one of a role's replicas leads to. It does not concern what the platform or the cluster did to the replica, such as a lost node: the task then starts again."""

    when: RestartWhenWord | None = Field(
        default=None,
        description="Which ends lead to a restart: none, every failure, also the end with code 0 (only with the scope rank), or failures with certain exit codes. Any other failure ends the task for good. Left out: on_failure.",
    )
    exit_codes: NamedTexts = Field(
        default_factory=list,
        description='With exit_code: codes and ranges of codes, such as "137" or "128-255"; a signal counts as 128 and its number.',
    )
    scope: RestartScopeWord | None = Field(
        default=None,
        description="What is restarted: the gang (the whole task, as a new attempt that counts as a retry), or the rank in its place. Left out: gang.",
    )
    max_restarts: Count | None = Field(
        default=None,
        description="How often a rank is restarted in its place; only with the scope rank. At most 1000.",
    )


class StartsAfterBody(Body):
    """StartsAfter names a role that has to be there before the ranks of this one start."""

    role: Text = Field(description="Name of the other role.")
    condition: StartConditionWord | None = Field(
        default=None,
        description="What has to be true of all ranks of that role. Left out: running.",
    )


class ReadyProbeBody(Body):
    """ReadyProbe is how the platform learns that a rank is ready: by its port, or by its program, which calls shiftwork.ready()."""

    port: Text = Field(
        default="",
        description="Name of one of the role's ports: the rank is ready when that accepts a connection; left out: the program says so.",
    )
    path: Text = Field(
        default="",
        description="Asked for over HTTP at that port instead, such as /healthz: ready when the answer is 200 to 399.",
    )
    period_seconds: Seconds = Field(
        default=0.0,
        description="Time between two probes of a rank. At least 1, at most 300 s. Left out: 2 s.",
    )
    within_seconds: Seconds = Field(
        default=0.0,
        description="Time that the ranks of the role have to become ready, from when all of them run, while other roles wait for that. At least 1, at most 86400 s. Left out: 600 s.",
    )


class DebugProgramBody(Body):
    """DebugProgram is what the ranks of a role run in debug mode instead of their program."""

    command: Texts = Field(default_factory=list, description="The program, and arguments.")
    args: Texts = Field(default_factory=list, description="Arguments after the command.")


class OverrideBody(Body):
    """Override takes the place of a part of a role."""

    command: Texts = Field(
        default_factory=list,
        description="The program and its arguments, in the place of the role's command and args; left out: those.",
    )
    env: TextMap = Field(
        default_factory=dict, description="Environment variables, over the role's."
    )


class EnvSourceBody(Body):
    """EnvSource is a variable whose value is kept elsewhere, in exactly one of a Secret, a ConfigMap and the pod."""

    name: Text = Field(description="Of the variable.")
    secret: Text = Field(default="", description="Name of the Secret.")
    config_map: Text = Field(default="", description="Name of the ConfigMap.")
    field: Text = Field(default="", description="Path of a field of the pod, such as status.podIP.")
    key: Text = Field(default="", description="Key in the Secret or ConfigMap.")
    optional: Flag = Field(default=False, description="Whether the pod may start without it.")


class PodBody(Body):
    """PodRequest is what a task asks of its pods; a runtime without pods ignores it."""

    image: Text = Field(default="", description="Container image; left out: the site's.")
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = Field(
        default="", description="When the image is pulled; left out: as the cluster does."
    )
    image_pull_secrets: NamedTexts = Field(
        default_factory=list, description="Names of Secrets in the namespace of the tasks."
    )
    storage: NamedTexts = Field(
        default_factory=list,
        description="Storage grants to mount, beside those that are mounted by default.",
    )
    resources: TextMap = Field(
        default_factory=dict, description="More resources of each pod, such as rdma/hca=1."
    )
    shm_bytes: Big | None = Field(
        default=None, description="Size of /dev/shm, such as 8Gi; left out: the site's."
    )
    capabilities: NamedTexts = Field(
        default_factory=list, description="Linux capabilities to add, such as IPC_LOCK."
    )
    env_from: Annotated[list[EnvSourceBody], FailFast()] = Field(
        default_factory=list,
        max_length=ENTRIES_MAX,
        description="Variables whose values are kept elsewhere.",
    )
    template: PodTemplate | None = Field(
        default=None,
        description="Part of a pod, merged over the platform's as far as the site allows.",
    )


class RoleBody(Body):
    """Role is one kind of replica in a gang. What it leaves out is as the task says."""

    name: Text = Field(default="", description="Unique in the task.")
    replicas: Count = Field(
        default=0,
        description="How many it has; left out: 1, or with a single role the task's nodes. At least 1.",
    )
    command: Texts = Field(
        default_factory=list,
        description="The program and its arguments; with args, and where nodes run pods, it may be left out: the image's own.",
    )
    env: TextMap = Field(
        default_factory=dict, description="Environment variables, over the task's."
    )
    image: Text = Field(default="", description="Container image; left out: the task's.")
    gpus: Count | None = Field(
        default=None,
        description="GPUs of each replica; left out: the task's gpus_per_node; 0: CPU only. At most 1024 unless the site sets other bounds.",
    )
    cpus: Amount | None = Field(
        default=None,
        description="Limit of each replica; left out: the task's. At most 65536 cores.",
    )
    memory_bytes: Big | None = Field(
        default=None,
        description="Limit of each replica; left out: the task's. At most 1125899906842624 bytes.",
    )
    spread: Flag | None = Field(
        default=None,
        description="Whether each replica has a node that it shares with no other of its role; left out: only if the role has no size of its own.",
    )
    auxiliary: Flag = Field(
        default=False,
        description="Whether it rides along: it has no GPU and counts as no node, such as a launcher.",
    )
    working_directory: Text = Field(
        default="", description="Where its program starts; left out: the task's."
    )
    ports: Annotated[list[PortBody], FailFast()] = Field(
        default_factory=list,
        max_length=ENTRIES_MAX,
        description="Ports at which each replica serves others, such as a dashboard.",
    )
    restart: RestartRuleBody | None = Field(
        default=None,
        description="What a failure of one of its replicas leads to; left out: a retry of the whole task, as far as retries are left.",
    )
    starts_after: Annotated[list[StartsAfterBody], FailFast()] = Field(
        default_factory=list,
        max_length=ENTRIES_MAX,
        description="Roles that have to be there before the ranks of this one start; they also end after it.",
    )
    ready: ReadyProbeBody | None = Field(
        default=None,
        description="How and by when each replica becomes ready, for the roles that wait for that.",
    )
    debug: DebugProgramBody | None = Field(
        default=None,
        description="What its ranks run in debug mode; left out: a program that waits until it is ended.",
    )
    resume: OverrideBody | None = Field(
        default=None,
        description="What every attempt after the first does differently; left out: nothing.",
    )
    args: Texts = Field(default_factory=list, description="Arguments after the command.")
    pod: PodBody | None = Field(
        default=None,
        description="What the pods of this role request beside what the task's pods do.",
    )
    cpus_request: Amount | None = Field(
        default=None,
        description="What each replica is planned with; left out: the task's, else its limit. At most 65536 cores.",
    )
    memory_request_bytes: Big | None = Field(
        default=None,
        description="What each replica is planned with; left out: the task's, else its limit. At most 1125899906842624 bytes.",
    )


class RetryBody(Body):
    """RetryPolicy bounds how often a failed run is tried again. Failures of a class with a limit of its own have a counter of their own; all others count together."""

    max_retries: Count = Field(
        default=0,
        description="How often it is tried again after failures. At most 100 unless the site sets other bounds.",
    )
    user: Count | None = Field(
        default=None,
        description="The same for failures of the task itself, such as out of memory. At most 1000.",
    )
    transient: Count | None = Field(
        default=None,
        description="The same for failures that seem to pass, such as SIGTERM from outside. At most 1000.",
    )
    platform: Count | None = Field(
        default=None,
        description="The same for runs that the platform or the cluster lost, such as with a node; left out: any number of times. At most 1000.",
    )
    unknown: Count | None = Field(
        default=None,
        description="The same for failures whose cause is not known, such as exit code 1. At most 1000.",
    )


class PreemptionBody(Body):
    """PreemptionPolicy is how and how patiently a run is asked to hand over."""

    mode: PreemptModeWord | None = Field(
        default=None, description="How the task is asked to leave. Left out: sdk."
    )
    signal: Text = Field(
        default="",
        description="Name of the signal for the signal mode, without SIG. Left out: USR1.",
    )
    ack_deadline_seconds: Seconds = Field(
        default=0.0,
        description="Time to save a checkpoint when preempted. At least 1, at most 3600 s unless the site sets other bounds. Left out: 60 s.",
    )


class CompletionBody(Body):
    """Completion decides an attempt by the ends of its ranks. A rule is one condition or several joined by "and": ROLE[INDEX], ROLE[any], ROLE[all], ROLE[N+] (at least N of them), ROLE[ended]."""

    success: NamedTexts = Field(
        default_factory=list,
        description="It has succeeded as soon as one of these holds for ranks that exited with 0; left out: all of all roles.",
    )
    failure: NamedTexts = Field(
        default_factory=list,
        description='It has failed as soon as one of these holds for ranks that failed, or no rule for success can be met any more; left out: any of any role. The rule "never" is never met.',
    )


class TaskSpecBody(Body):
    """TaskSpec is what a person submits, complete after submit has filled in the defaults."""

    name: Text = Field(
        default="",
        description="Unique among the owner's live tasks; left out: made from the command.",
    )
    group: Text = Field(default="", description="Group of nodes. Left out: default.")
    priority: PriorityWord | None = Field(
        default=None, description="Level in the queue. Left out: normal."
    )
    roles: Annotated[list[RoleBody], FailFast()] = Field(
        default_factory=list,
        max_length=ENTRIES_MAX,
        description="Kinds of replicas; or a command instead: one role, one replica for each node.",
    )
    gpus_per_node: Count | None = Field(
        default=None,
        description="GPUs on each node; left out: whole nodes; 0: CPU only. At most 1024 unless the site sets other bounds.",
    )
    env: TextMap = Field(default_factory=dict, description="Environment variables of all roles.")
    working_directory: Text = Field(
        default="",
        description="Where the program starts; left out: here, if the server is on this machine.",
    )
    labels: TextMap = Field(default_factory=dict, description="For finding it again.")
    retry: RetryBody = Field(default=RetryBody(), description="What happens after failures.")
    preemption: PreemptionBody = Field(
        default=PreemptionBody(),
        description="How the task is asked to leave: through the SDK, by a signal, or not at all.",
    )
    max_run_seconds: Seconds | None = Field(
        default=None,
        description="Ends the task after running so long; left out: never. At most 316224000 s.",
    )
    fence_after_seconds: Seconds | None = Field(
        default=None,
        description="The SDK ends the program after being out of touch so long; left out: never. At least 10, at most 2592000 s.",
    )
    cpus: Amount | None = Field(
        default=None, description="Limit of each replica; left out: none. At most 65536 cores."
    )
    memory_bytes: Big | None = Field(
        default=None,
        description="Limit of each replica; left out: none. At most 1125899906842624 bytes.",
    )
    nodes: Count = Field(
        default=0,
        description="How many nodes, all of them at once; left out: as many as replicas, 1 without roles. At least 1, at most 8192 unless the site sets other bounds.",
    )
    node_selector: TextMap = Field(
        default_factory=dict, description="Labels that its nodes must have."
    )
    tolerations: NamedTexts = Field(
        default_factory=list,
        description="Taints of nodes that it does not mind: key (whatever the value) or key=value.",
    )
    pod: PodBody | None = Field(default=None, description="For runtimes with pods.")
    wait_for_nodes: Flag = Field(
        default=False,
        description="Wait for nodes that are to come, where the known ones could never hold it.",
    )
    contract: ContractWord | None = Field(
        default=None,
        description="How its ranks find each other: the variables and files of a framework. Left out: torch.",
    )
    completion: CompletionBody | None = Field(
        default=None,
        description="When an attempt has succeeded or failed; left out: it succeeds when all ranks exit with 0, and fails when any rank fails.",
    )
    run_mode: RunModeWord | None = Field(
        default=None,
        description="Run its program, wait paused, or debug: people enter its nodes. Left out: normal.",
    )
    cpus_request: Amount | None = Field(
        default=None,
        description="What each replica is planned with; left out: its limit. At most 65536 cores.",
    )
    memory_request_bytes: Big | None = Field(
        default=None,
        description="What each replica is planned with; left out: its limit. At most 1125899906842624 bytes.",
    )
    secret_env: NamedTexts = Field(
        default_factory=list, description="Variables whose values are masked in the output."
    )
