"""What requests carry, as types: checked by pydantic, described in /v1/openapi.json.

Only forms are checked here. Whether a size fits, a group exists or a name is free is submit's to
say. A field that is not known is refused, so that a misspelt one is noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    Strict,
    model_validator,
)

from libs.contracts.limits import CHECKPOINT_URI_BYTES_MAX
from services.gateway.strict import Moment
from services.gateway.words import GoalWord, PreemptWord, PriorityWord, UnitWord

NAME = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1

Name = Annotated[str, Field(pattern=NAME)]
Count = Annotated[int, Field(ge=0, le=INT32_MAX)]
Big = Annotated[int, Field(ge=0, le=INT64_MAX)]
# At most a century.
Seconds = Annotated[float, Field(ge=0, le=3.2e9, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=4096)]
# JSON has words for it: "yes" and 1 are mistakes.
Flag = Annotated[bool, Strict()]

# Of the fields that are not known so many are named.
UNKNOWN_NAMED_MAX = 10
ENTRIES_MAX = 1000


def few(value: object) -> object:
    """Refuse a large map before each of its entries is validated."""
    if isinstance(value, dict) and len(cast("dict[str, object]", value)) > ENTRIES_MAX:
        raise ValueError(f"has more than {ENTRIES_MAX} entries")
    return cast("object", value)


TextMap = Annotated[dict[str, str], BeforeValidator(few)]
Texts = Annotated[list[str], FailFast()]
NamedTexts = Annotated[list[Text], FailFast(), Field(max_length=ENTRIES_MAX)]


class Body(BaseModel):
    """A JSON object with the fields named here and no others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _few_unknown(cls, value: object) -> object:
        """Pydantic describes each field that is not known: name some, and pass over the rest."""
        if isinstance(value, dict):
            given = cast("dict[str, object]", value)
            unknown = given.keys() - cls.model_fields.keys()
            for name in sorted(unknown)[UNKNOWN_NAMED_MAX:]:
                given.pop(name)
        return cast("object", value)


def fields_beside(body: object, place: Sequence[str | int]) -> Collection[str]:
    """The fields of that part of a body in which ``place`` is one; none if they cannot be told."""
    part = _body_in(body)
    for name in place[:-1]:
        if isinstance(name, str):
            known = part.model_fields if part is not None else {}
            part = _body_in(known[name].annotation) if name in known else None
    return part.model_fields.keys() if part is not None else ()


def _body_in(kind: object) -> type[BaseModel] | None:
    """The body that a type consists of, such as the items of a list."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next(filter(None, map(_body_in, get_args(kind))), None)


class RoleBody(Body):
    """One kind of replica in the gang."""

    name: Text = ""
    replicas: Count = 0
    command: Texts = Field(min_length=1)
    env: TextMap = Field(default_factory=dict)
    image: Text = Field(default="", description="left out: the task's")


class EnvSourceBody(Body):
    """A variable whose value is kept in a Secret, a ConfigMap or the pod: exactly one of them."""

    name: Text
    secret: Text = ""
    config_map: Text = ""
    field: Text = Field(default="", description="of the pod, such as status.podIP")
    key: Text = Field(default="", description="in the Secret or ConfigMap")
    optional: Flag = Field(default=False, description="whether the pod may start without it")


class PodBody(Body):
    """What the task asks of its pods; a runtime without pods ignores it."""

    image: Text = Field(default="", description="left out: the site's")
    image_pull_policy: Literal["", "Always", "IfNotPresent", "Never"] = ""
    image_pull_secrets: NamedTexts = Field(default_factory=list)
    storage: NamedTexts = Field(default_factory=list, description="storage grants to mount")
    resources: Annotated[dict[str, Text], BeforeValidator(few)] = Field(
        default_factory=dict, description="more of each pod, such as rdma/hca"
    )
    shm_bytes: Big | None = Field(default=None, description="of /dev/shm; left out: the site's")
    capabilities: NamedTexts = Field(default_factory=list)
    env_from: Annotated[list[EnvSourceBody], FailFast()] = Field(
        default_factory=list, max_length=ENTRIES_MAX
    )
    template: dict[str, Any] | None = Field(
        default=None,
        description="metadata and spec of a pod, merged over the platform's as the site allows",
    )


class RetryBody(Body):
    """How often a failed run is tried again."""

    max_retries: Count = 0


class PreemptionBody(Body):
    """How and how patiently the task is asked to hand its nodes over."""

    mode: PreemptWord | None = None
    signal: Text = Field(default="", description="for the mode signal: its name, such as USR1")
    ack_deadline_seconds: Seconds = 0.0


class TaskBody(Body):
    """A new task: roles, or one command. What is left out is filled in."""

    name: Text = ""
    group: Text = ""
    priority: PriorityWord | None = None
    command: Texts = Field(
        default_factory=list, description="instead of roles: one role, one replica for each node"
    )
    roles: Annotated[list[RoleBody], FailFast()] = Field(
        default_factory=list, max_length=ENTRIES_MAX
    )
    nodes: Count = Field(default=0, description="the sum of the roles' replicas; 0: count them")
    gpus_per_node: Count | None = Field(
        default=None, description="left out: whole nodes; 0: CPU only"
    )
    env: TextMap = Field(default_factory=dict)
    working_directory: Text = ""
    labels: TextMap = Field(default_factory=dict)
    retry: RetryBody = RetryBody()
    preemption: PreemptionBody = PreemptionBody()
    max_run_seconds: Seconds | None = None
    fence_after_seconds: Seconds | None = None
    cpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    memory_bytes: Big | None = None
    node_selector: TextMap = Field(
        default_factory=dict, description="labels that its nodes must have"
    )
    tolerations: list[Text] = Field(
        default_factory=list,
        max_length=ENTRIES_MAX,
        description="taints of nodes that it does not mind: key, or key=value",
    )
    wait_for_nodes: Flag = Field(
        default=False, description="wait for nodes that are to come, if those there never fit"
    )
    pod: PodBody | None = Field(default=None, description="for runtimes with pods")


class BatchTaskBody(TaskBody):
    """A task of a batch, with its own idempotency key."""

    idempotency_key: Annotated[str, Field(max_length=200)] = ""


class BatchBody(Body):
    """Several new tasks; each is accepted or refused by itself."""

    tasks: Annotated[list[BatchTaskBody], FailFast()] = Field(min_length=1)


class GoalBody(Body):
    """What the task should do."""

    goal: GoalWord
    # With pause or stop: a run is ended at once, without being asked to save.
    now: Flag = False


class PriorityBody(Body):
    """Another level."""

    priority: PriorityWord


class SchedulableBody(Body):
    """Whether new runs may be placed on the node."""

    schedulable: Flag
    drain: Flag = Field(
        default=False, description="with schedulable false: what runs there saves and leaves"
    )


class LabelsBody(Body):
    """What to change of a node's labels; the others stay."""

    set: Annotated[dict[str, Text], BeforeValidator(few)] = Field(default_factory=dict)
    remove: NamedTexts = Field(default_factory=list, description="keys")


class TaintsBody(Body):
    """What to change of a node's taints; the others stay."""

    set: NamedTexts = Field(default_factory=list, description="key or key=value, one for each key")
    remove: NamedTexts = Field(default_factory=list, description="keys")


class QuotaBody(Body):
    """A limit on what may be held at once. Left out or null: every one."""

    group: Text | None = None
    user: Text | None = None
    team: Text | None = None
    priority: PriorityWord | None = None
    unit: UnitWord | None = Field(default=None, description="left out: gpus")
    limit: Big | None = None
    unlimited: Flag = Field(default=False, description="take the limit away")


class UserBody(Body):
    """A new user."""

    name: Name
    role: Literal["admin", "member"] = "member"
    team: Annotated[str, Field(pattern=NAME)] | None = None


class UserChangeBody(Body):
    """What to change of a user; what is left out stays."""

    role: Literal["admin", "member"] | None = None
    team: Annotated[str, Field(pattern=r"^$|" + NAME)] | None = Field(
        default=None, description="empty: no team"
    )
    disabled: Flag | None = None


class TeamBody(Body):
    """A new team."""

    name: Name


class TokenBody(Body):
    """A new token for a user."""

    user: Name
    name: Annotated[str, Field(max_length=100)] = ""
    expires_in_seconds: Annotated[float, Field(gt=0, le=3.2e9, allow_inf_nan=False)] | None = None


ServiceWord = Literal["submit", "scheduler", "launcher", "log_collector", "quota", "gateway"]


class LettersBody(Body):
    """Which dead letters of a service are meant; without ids all of them."""

    service: ServiceWord
    ids: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=300)]],
            Field(min_length=1, max_length=ENTRIES_MAX),
        ]
        | None
    ) = None


def short_uri(uri: str) -> str:
    """Refuse a place that is too long to be kept with every checkpoint."""
    size = len(uri.encode())
    if size > CHECKPOINT_URI_BYTES_MAX:
        raise ValueError(f"has {size} bytes; give at most {CHECKPOINT_URI_BYTES_MAX}")
    return uri


class CheckpointBody(Body):
    """A checkpoint that is durable."""

    step: Big
    uri: Annotated[
        str,
        Field(min_length=1, max_length=CHECKPOINT_URI_BYTES_MAX, description="bytes count"),
        AfterValidator(short_uri),
    ]
    digest: Annotated[str, Field(max_length=256)] = ""


MetricName = Annotated[str, Field(min_length=1, max_length=128)]


class SampleBody(Body):
    """Numbers at one moment."""

    at: Moment | None = None
    # A loss may be infinite or none at all; JSON has no numbers for that, so they come as texts:
    # "NaN", "Infinity", "-Infinity".
    values: Annotated[dict[MetricName, float], BeforeValidator(few)] = Field(min_length=1)


class MetricsBody(Body):
    """What one rank reports, oldest first."""

    rank: Count = 0
    samples: Annotated[list[SampleBody], FailFast()] = Field(min_length=1)
