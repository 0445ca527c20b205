"""The values that submit's decisions are made of: facts heard from others, and bounds.

Built by ``handlers.py`` from rows and by ``main.py`` from settings; read by the other modules here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from libs.contracts.messages import FieldError, PreemptMode, Quota, TaskState

TERMINAL_STATES = frozenset(
    {TaskState.SUCCEEDED, TaskState.FAILED, TaskState.STOPPED, TaskState.REJECTED}
)
VALUE_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class Shape:
    """How many nodes of a group look the same. Lost and cordoned nodes count, removed ones not.

    ``cpus`` and ``memory_bytes`` are 0 where the launcher could not tell.
    """

    group: str
    gpus: int
    cpus: float
    memory_bytes: int
    nodes: int
    taints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Facts:
    """What submit has heard about the world when it judges one spec."""

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


@dataclass(frozen=True, slots=True)
class Defaults:
    """What an empty field becomes."""

    group: str = "default"
    role: str = "worker"
    mode: PreemptMode = PreemptMode.SDK
    signal: str = "USR1"
    ack_deadline_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The most (and least) of everything in a spec; an administrator's choice."""

    roles_max: int = 32
    nodes_max: int = 8192
    gpus_per_node_max: int = 1024
    command_arguments_max: int = 1024
    command_bytes_max: int = 65_536
    env_entries_max: int = 512
    env_bytes_max: int = 65_536
    labels_max: int = 64
    label_characters_max: int = 1024
    # Labels that are selected, and taints that are tolerated.
    selector_max: int = 32
    tolerations_max: int = 32
    path_characters_max: int = 4096
    spec_bytes_max: int = 262_144
    retries_max: int = 100
    ack_deadline_seconds_min: float = 1.0
    ack_deadline_seconds_max: float = 3600.0
    fence_after_seconds_min: float = 10.0
    fence_after_seconds_max: float = 30 * 86_400.0
    run_seconds_max: float = 10 * 366 * 86_400.0
    cpus_max: float = 65_536.0
    memory_bytes_max: int = 1 << 50


@dataclass(frozen=True, slots=True)
class Rules:
    """Defaults and limits together, as one argument."""

    defaults: Defaults = Defaults()
    limits: Limits = Limits()


def problem(field: str, value: object, message: str, fix: str) -> FieldError:
    """A refusal of one field. Long values are cut; callers give no secret as ``value``."""
    text = str(value)
    shown = text if len(text) <= VALUE_SHOWN_MAX else text[: VALUE_SHOWN_MAX - 1] + "…"
    return FieldError(field=field, value=shown, message=message, fix=fix)


def sentence(errors: Sequence[FieldError]) -> str:
    """One line for people over all errors of a refusal."""
    first = f"{errors[0].field}: {errors[0].message}"
    more = len(errors) - 1
    return first if not more else f"{first} (and {more} more)"
