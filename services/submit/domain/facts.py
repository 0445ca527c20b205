"""The values that submit's decisions depend on: facts from other services, and bounds.

Built by ``handlers.py`` from rows and by ``main.py`` from settings; read by the other modules here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field

from libs.contracts.fields import SHOWN
from libs.contracts.messages import FieldError, Quota
from libs.contracts.rank_sizes import ROLE_FIELDS
from libs.contracts.runtimes import KUBERNETES, PROCESS
from libs.contracts.shown import Shown


@dataclass(frozen=True, slots=True)
class Shape:
    """The number of equal nodes of a group. Lost and cordoned nodes count, removed ones do not.

    ``cpus`` and ``memory_bytes`` are 0 where the launcher does not know them.
    """

    group: str
    gpus: int
    cpus: float
    memory_bytes: int
    nodes: int
    taints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What submit knows of nodes, quotas and names when it validates a spec."""

    shapes: tuple[Shape, ...] = ()
    # One full list of the nodes has been received; before that no size is too large.
    inventory_known: bool = False
    quotas: tuple[Quota, ...] = ()
    # The nodes of the task's group that have the labels it selects, and labels that nodes of the
    # group have; None: it selects none, or not every node's labels are known.
    selected: tuple[Shape, ...] | None = None
    labels: tuple[str, ...] = ()
    # The owner's live task that has the wanted name already; empty if none.
    name_taken_by: str = ""
    # The runtimes of which a full list of nodes has been received.
    runtimes: frozenset[str] = frozenset()
    # A node of the task's group reports that it does not enforce limits.
    limits_not_enforced: bool = False

    @property
    def has_pods(self) -> bool | None:
        """Whether the nodes run pods; None: not known, or some do."""
        if len(self.runtimes) != 1:
            return None
        return {KUBERNETES: True, PROCESS: False}.get(next(iter(self.runtimes)))


def bound(message: str, field: str) -> Shown:
    """What ``proto/`` says of a field: its bounds, and what an empty one becomes."""
    return SHOWN[message][field]


def most(message: str, field: str) -> float:
    """The upper bound of a field that has one."""
    highest = bound(message, field).max
    assert highest is not None, f"{message}.{field} has no upper bound"
    return highest


def bound_setting(field: str, end: str) -> str:
    """What the setting is called, if there is one, that bounds a field's number: ``end`` is ``min``
    or ``max``. A role's field has the setting of the task's."""
    return f"{TASK_FIELDS.get(field, field).removeprefix('max_')}_{end}"


# Fields of a task by what they are called in a role.
TASK_FIELDS = {name: field for field, name in ROLE_FIELDS.items()}
ACK = bound("PreemptionPolicy", "ack_deadline_seconds")


class Defaults(BaseModel):
    """What an empty field becomes; an administrator's choice."""

    model_config = ConfigDict(frozen=True)

    # What an empty field of a spec becomes.
    default_group: str = bound("TaskSpec", "group").initial
    default_ack_deadline_seconds: float = Field(default=float(ACK.initial), gt=0)


class Limits(BaseModel):
    """The bounds of a spec that an administrator may choose. One that bounds a single number is
    called like the field, with ``_min`` or ``_max``; fields without one have the bounds of
    ``proto/``.
    """

    model_config = ConfigDict(frozen=True)

    # The bounds of a spec.
    ack_deadline_seconds_min: float = Field(default=ACK.min or 0.0, gt=0)
    ack_deadline_seconds_max: float = Field(
        default=most("PreemptionPolicy", "ack_deadline_seconds"), gt=0
    )
    # Assignments carry one placement for each node and must stay below the bus's payload limit:
    # 135 bytes each with names of nodes as they usually are, 400 with the longest and 16 GPUs.
    nodes_max: int = Field(default=int(most("TaskSpec", "nodes")), ge=1, le=16_384)
    gpus_per_node_max: int = Field(default=int(most("TaskSpec", "gpus_per_node")), ge=0)
    roles_max: int = Field(default=32, ge=1, le=1000)
    command_arguments_max: int = Field(default=1024, ge=1)
    command_bytes_max: int = Field(default=65_536, ge=1)
    env_entries_max: int = Field(default=512, ge=0)
    env_bytes_max: int = Field(default=65_536, ge=0)
    labels_max: int = Field(default=64, ge=0)
    label_characters_max: int = Field(default=1024, ge=1)
    # Labels that are selected, and taints that are tolerated.
    selector_max: int = Field(default=32, ge=0)
    tolerations_max: int = Field(default=32, ge=0)
    spec_bytes_max: int = Field(default=262_144, ge=1024, le=524_288)
    retries_max: int = Field(default=int(most("RetryPolicy", "max_retries")), ge=0)


class Rules(Defaults, Limits):
    """Defaults and limits together, as one argument."""


def sentence(errors: Sequence[FieldError]) -> str:
    """One line for people over all errors of a refusal."""
    first = f"{errors[0].field}: {errors[0].message}"
    more = len(errors) - 1
    return first if not more else f"{first} (and {more} more)"
