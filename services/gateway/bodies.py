"""What requests carry, as types: checked by pydantic, described in /v1/openapi.json.

This module checks forms only. Submit checks whether a size fits, a group exists or a name is free.
An unknown field is refused, so that a misspelt one is noticed.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    FailFast,
    Field,
    SecretStr,
    Strict,
    ValidationInfo,
    field_validator,
)

from libs.contracts.enum_words import (
    GoalWord,
    NotifiedTasksWord,
    OccasionWord,
    PriorityWord,
    RunModeWord,
    UnitWord,
)
from libs.contracts.limits import (
    CHECKPOINT_URI_BYTES_MAX,
    LIFE_STATE_BYTES_MAX,
    YIELD_REASON_MAX,
)
from libs.contracts.mail_addresses import ADDRESS_MAX, ADDRESS_RULE, is_mail_address
from libs.contracts.services import ServiceWord
from services.gateway.body_types import (
    ENTRIES_MAX,
    NAME,
    Big,
    Body,
    Count,
    Flag,
    Label,
    Name,
    NamedTexts,
    Text,
    Texts,
    few,
)
from services.gateway.permissions import RoleWord, ScopeWord
from services.gateway.spec_bodies import TaskSpecBody
from services.gateway.strict_input import Timestamp


def body_around(body: object, place: Sequence[str | int]) -> type[BaseModel] | None:
    """The part of a body in which ``place`` is a field; None if it is not found."""
    part = body_in(body)
    for name in place[:-1]:
        if isinstance(name, str):
            known = part.model_fields if part is not None else {}
            part = body_in(known[name].annotation) if name in known else None
    return part


def body_in(kind: object) -> type[BaseModel] | None:
    """The body that a type consists of, such as the items of a list."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    return next(filter(None, map(body_in, get_args(kind))), None)


class TaskBody(TaskSpecBody):
    """A new task: roles, or one command. What is left out is filled in."""

    command: Texts = Field(
        default_factory=list, description="instead of roles: one role, one replica for each node"
    )


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


class ModeBody(Body):
    """Another mode."""

    mode: RunModeWord
    # With normal: a task that its owner has paused stays paused.
    stay_paused: Flag = False

    @field_validator("stay_paused")
    @classmethod
    def _only_with_normal(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("mode", "normal") != "normal":
            raise ValueError("goes with the mode normal only; leave it out")
        return value


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
    """A cap on what may be held at once, or a grant. Left out or null: every one."""

    grant: Flag = Field(default=False, description="a permission that one row decides; else a cap")
    group: Text | None = None
    user: Text | None = None
    team: Text | None = None
    priority: PriorityWord | None = None
    unit: UnitWord | None = Field(default=None, description="left out: gpus")
    limit: Big | None = None
    unlimited: Flag = Field(
        default=False, description="of a grant: any amount; of a cap: the same as remove"
    )
    level_max: PriorityWord | None = Field(
        default=None, description="of the site's default: the highest level that is permitted"
    )
    expires_at: Timestamp | None = Field(default=None, description="when the row is removed")
    remove: Flag = Field(default=False, description="remove the row")

    @property
    def removes(self) -> bool:
        """True if the row is removed."""
        return self.remove or (self.unlimited and not self.grant)


def _role(value: object) -> object:
    """The role's name of before still works."""
    return "user" if value == "member" else value


AcceptedRole = Annotated[RoleWord, BeforeValidator(_role)]


class DefaultsBody(Body):
    """Where and how tasks are submitted that do not say so."""

    default_group: Annotated[str, Field(pattern=r"^$|" + NAME)] | None = Field(
        default=None, description="group of nodes; empty: the team's default, or the platform's"
    )
    default_priority: PriorityWord | Literal[""] | None = Field(
        default=None, description="level; empty: the team's default, or the platform's"
    )


def mail_address(text: str) -> str:
    """Refuse what is no address; empty text removes one."""
    if text and not is_mail_address(text):
        raise ValueError(f"is no mail address; write {ADDRESS_RULE}")
    return text


MailAddress = Annotated[
    str,
    Field(max_length=ADDRESS_MAX, description="where mail about tasks goes; empty: nowhere"),
    AfterValidator(mail_address),
]


class UserBody(DefaultsBody):
    """A new user."""

    name: Name
    role: AcceptedRole = "user"
    team: Annotated[str, Field(pattern=NAME)] | None = None
    mail: MailAddress | None = None


class UserChangeBody(DefaultsBody):
    """What to change of a user; what is left out stays."""

    role: AcceptedRole | None = None
    team: Annotated[str, Field(pattern=r"^$|" + NAME)] | None = Field(
        default=None, description="empty: no team"
    )
    disabled: Flag | None = Field(
        default=None,
        description="true: every token is refused, and the user's tasks save and are stopped",
    )
    archived: Flag | None = Field(
        default=None, description="true: disabled for good, and left out of lists; the name stays"
    )
    mail: MailAddress | None = None


class TeamChangeBody(DefaultsBody):
    """What to change of a team; what is left out stays."""


class TeamBody(DefaultsBody):
    """A new team."""

    name: Name


class TokenBody(Body):
    """A new token."""

    user: Name | None = Field(default=None, description="left out: the caller")
    name: Annotated[Label, Field(max_length=100)] = ""
    expires_in_seconds: Annotated[float, Field(gt=0, le=3.2e9, allow_inf_nan=False)] | None = Field(
        default=None, description="left out: when the caller's token expires, else never"
    )
    scopes: Annotated[list[ScopeWord], FailFast(), Field(max_length=20)] = Field(
        default=[], description="none: those of the caller's token, else all that the user may do"
    )


# Secrets are never shown in errors (SecretStr), and bounded: hashing takes time.
Secret = Annotated[SecretStr, Field(min_length=1, max_length=256)]


class PasswordLoginBody(Body):
    """A login with a password."""

    user: Name
    password: Secret


class PasswordBody(Body):
    """Another password."""

    password: Secret
    old: Secret | None = Field(
        default=None, description="the present password, for changing one's own"
    )


class LoginCodeBody(Body):
    """What `shiftwork login` gets its token with."""

    code: Annotated[str, Field(min_length=1, max_length=64)]
    verifier: Annotated[str, Field(min_length=43, max_length=128)]


class NotificationBody(Body):
    """Where messages about tasks go."""

    channel: Literal["webhook", "mail"] = Field(
        default="webhook", description="mail goes to the address of the user"
    )
    url: (
        Annotated[
            str,
            Field(min_length=1, max_length=2048, description="https://HOST/PATH of a webhook"),
        ]
        | None
    ) = None
    occasions: Annotated[list[OccasionWord], FailFast(), Field(min_length=1, max_length=20)]
    tasks: NotifiedTasksWord = "own"
    secret: Secret | None = Field(
        default=None, description="whsec_ and base64; left out: it stays, or one is made"
    )
    user: Name | None = Field(default=None, description="whose it is; left out: the caller's")


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


class ReadyBody(Body):
    """A rank that is ready."""

    rank: Annotated[Count, Strict()]
    restarts: Annotated[
        Count, Strict(), Field(description="SHIFTWORK_RESTARTS of the process; else 0")
    ] = 0


class YieldBody(Body):
    """The program hands its nodes over on its own."""

    reason: Annotated[
        str, Field(max_length=YIELD_REASON_MAX, description="for people, in a few words")
    ] = ""


def short_state(text: str) -> str:
    """Refuse a content that is no base64, or too large. The error does not repeat it."""
    try:
        size = len(b64decode(text, validate=True))
    except ValueError:
        raise ValueError("is not base64; encode the content in base64") from None
    if size > LIFE_STATE_BYTES_MAX:
        raise ValueError(
            f"has {size} bytes; give at most {LIFE_STATE_BYTES_MAX}, and keep more in a checkpoint"
        )
    return text


class LifeStateBody(Body):
    """What the task keeps across attempts."""

    data: Annotated[
        str,
        Field(description=f"base64; at most {LIFE_STATE_BYTES_MAX} bytes when decoded"),
        AfterValidator(short_state),
    ]
    media_type: Literal["application/json", "application/octet-stream"] = "application/octet-stream"


MetricName = Annotated[Label, Field(min_length=1, max_length=128)]


class SampleBody(Body):
    """Numbers at one time."""

    at: Timestamp | None = None
    # A loss may be infinite or none at all; JSON has no numbers for that, so they come as texts:
    # "NaN", "Infinity", "-Infinity".
    values: Annotated[dict[MetricName, float], BeforeValidator(few)] = Field(min_length=1)


class MetricsBody(Body):
    """What one rank reports, oldest first."""

    rank: Count = 0
    samples: Annotated[list[SampleBody], FailFast()] = Field(min_length=1)
