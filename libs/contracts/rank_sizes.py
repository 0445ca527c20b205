"""What each rank of a role takes of its node: the role's own size over the task's.

Submit asks this before it accepts a task, the scheduler before it places one and the launcher
before it starts one, so that all of them mean the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from libs.contracts.messages import Role, TaskSpec

# Fields of a task that have another name in a role.
ROLE_FIELDS: Mapping[str, str] = MappingProxyType({"gpus_per_node": "gpus"})
# Limits, and the requests that are counted instead of them. Both have these names in a role, too.
REQUESTS: Mapping[str, str] = MappingProxyType(
    {"cpus": "cpus_request", "memory_bytes": "memory_request_bytes"}
)
# The fields of a role that say anything about its size.
SIZE_FIELDS = ("gpus", *REQUESTS, *REQUESTS.values(), "spread", "auxiliary")


class RankSize(NamedTuple):
    """What one rank takes, and what it shares its node with."""

    # None: a whole node; 0: CPU only.
    gpus: int | None
    # What placement counts; 0: nothing.
    cpus: float
    memory_bytes: int
    # No other rank of its role lies on its node.
    spread: bool
    # It is placed after all others and counts as no node.
    auxiliary: bool


class RankLimits(NamedTuple):
    """What the runtime lets one rank have; None: as much as there is."""

    cpus: float | None
    memory_bytes: int | None


def has_own_size(role: Role) -> bool:
    """True if the role says anything about its size; most do not."""
    return (
        role.gpus is not None
        or role.cpus is not None
        or role.memory_bytes is not None
        or role.auxiliary
        or role.spread is not None
        or role.cpus_request is not None
        or role.memory_request_bytes is not None
    )


def has_request(spec: TaskSpec) -> bool:
    """True if the task itself requests anything else than its limits."""
    return spec.cpus_request is not None or spec.memory_request_bytes is not None


def size_of(spec: TaskSpec, role: Role) -> RankSize:
    """The size of each rank of a role.

    Ranks of a role with a size of its own share nodes, unless ``spread`` says otherwise. Without
    one, each has a node of its own, as ``gpus_per_node`` is an amount of a node.
    """
    gpus = spec.gpus_per_node if role.gpus is None else role.gpus
    if role.auxiliary and role.gpus is None:
        gpus = 0
    limits = limits_of(spec, role)
    cpus = spec.cpus_request if role.cpus_request is None else role.cpus_request
    memory = (
        spec.memory_request_bytes
        if role.memory_request_bytes is None
        else role.memory_request_bytes
    )
    return RankSize(
        gpus=gpus,
        cpus=(limits.cpus if cpus is None else cpus) or 0.0,
        memory_bytes=(limits.memory_bytes if memory is None else memory) or 0,
        spread=not has_own_size(role) if role.spread is None else role.spread,
        auxiliary=role.auxiliary,
    )


def limits_of(spec: TaskSpec, role: Role) -> RankLimits:
    """The limits of each rank of a role."""
    return RankLimits(
        cpus=spec.cpus if role.cpus is None else role.cpus,
        memory_bytes=spec.memory_bytes if role.memory_bytes is None else role.memory_bytes,
    )


def limits_in(spec: TaskSpec) -> Iterator[float | None]:
    """Every limit of CPUs and memory that the task or a role gives; None where it gives none."""
    for given in (spec, *spec.roles):
        yield from (given.cpus, given.memory_bytes)


def sizes_of(spec: TaskSpec) -> dict[str, RankSize]:
    """The size of each rank, by the name of its role."""
    return {role.name: size_of(spec, role) for role in spec.roles}


def _amounts(size: RankSize) -> dict[str, object]:
    """A size as the task's own fields: amounts that are counted."""
    return {
        "gpus_per_node": size.gpus,
        "cpus": size.cpus or None,
        "memory_bytes": size.memory_bytes or None,
        **dict.fromkeys(REQUESTS.values()),
    }


# The update of a role that leaves its size to the task.
_WITHOUT_SIZE: Mapping[str, object] = MappingProxyType(
    {**dict.fromkeys(SIZE_FIELDS), "auxiliary": False}
)


def role_specs(spec: TaskSpec) -> tuple[TaskSpec, ...]:
    """For each role the specification of a task that consists of it alone, a node for each rank.

    Its ``cpus`` and ``memory_bytes`` are what is counted."""
    return tuple(
        spec.model_copy(
            update={
                **_amounts(size_of(spec, role)),
                "nodes": role.replicas,
                "roles": (role.model_copy(update=_WITHOUT_SIZE),),
            }
        )
        for role in spec.roles
    )


def sizes_differ(spec: TaskSpec) -> bool:
    """True unless all ranks have one size, and a node each."""
    if not any(map(has_own_size, spec.roles)):
        return False
    first, *others = {size_of(spec, role) for role in spec.roles}
    alone = first.gpus is None or first.spread or spec.nodes == 1
    return bool(others) or first.auxiliary or not alone


def effective(spec: TaskSpec) -> TaskSpec:
    """The specification with the common size of its ranks as the task's own amounts: its ``cpus``
    and ``memory_bytes`` are what is counted.

    The same object if its sizes differ, or if the amounts of the task already are those.
    """
    if sizes_differ(spec) or not (has_request(spec) or any(map(has_own_size, spec.roles))):
        return spec
    amounts = _amounts(size_of(spec, spec.roles[0] if spec.roles else Role()))
    changed = {name: value for name, value in amounts.items() if value != getattr(spec, name)}
    return spec.model_copy(update=changed) if changed else spec


def given_at(spec: TaskSpec, field: str) -> str:
    """Where an amount that is counted for each rank was given: ``roles[0].gpus`` for
    ``gpus_per_node`` that the first role has, else the field of the task."""
    for index, role in enumerate(spec.roles):
        if has_own_size(role):
            found = role_given_at(spec, index, field)
            if found.startswith("roles"):
                return found
    request = REQUESTS.get(field, "")
    return request if request and getattr(spec, request) is not None else field


def role_given_at(spec: TaskSpec, index: int, field: str) -> str:
    """The same for the ranks of one role."""
    role, request = spec.roles[index], REQUESTS.get(field, "")
    own = ROLE_FIELDS.get(field, field)
    if request and getattr(role, request) is not None:
        return f"roles[{index}].{request}"
    if request and getattr(spec, request) is not None:
        return request
    return f"roles[{index}].{own}" if getattr(role, own) is not None else field
