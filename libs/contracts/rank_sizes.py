"""What each rank of a role takes of its node: the role's own size over the task's.

Submit asks this before it accepts a task, the scheduler before it places one and the launcher
before it starts one, so that all of them mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from libs.contracts.messages import Role, TaskSpec

# Fields of a task that have another name in a role.
ROLE_FIELDS: Mapping[str, str] = MappingProxyType({"gpus_per_node": "gpus"})


class RankSize(NamedTuple):
    """What one rank takes, and what it shares its node with."""

    # None: a whole node; 0: CPU only.
    gpus: int | None
    # 0: no request.
    cpus: float
    memory_bytes: int
    # No other rank of its role lies on its node.
    spread: bool
    # It is placed after all others and counts as no node.
    auxiliary: bool


def has_own_size(role: Role) -> bool:
    """True if the role says anything about its size; most do not."""
    return (
        role.gpus is not None
        or role.cpus is not None
        or role.memory_bytes is not None
        or role.auxiliary
        or role.spread is not None
    )


def size_of(spec: TaskSpec, role: Role) -> RankSize:
    """The size of each rank of a role.

    Ranks of a role with a size of its own share nodes, unless ``spread`` says otherwise. Without
    one, each has a node of its own, as ``gpus_per_node`` is an amount of a node.
    """
    gpus = spec.gpus_per_node if role.gpus is None else role.gpus
    if role.auxiliary and role.gpus is None:
        gpus = 0
    return RankSize(
        gpus=gpus,
        cpus=(spec.cpus if role.cpus is None else role.cpus) or 0.0,
        memory_bytes=(spec.memory_bytes if role.memory_bytes is None else role.memory_bytes) or 0,
        spread=not has_own_size(role) if role.spread is None else role.spread,
        auxiliary=role.auxiliary,
    )


def sizes_of(spec: TaskSpec) -> dict[str, RankSize]:
    """The size of each rank, by the name of its role."""
    return {role.name: size_of(spec, role) for role in spec.roles}


def _amounts(size: RankSize) -> dict[str, object]:
    """A size as the task's own fields."""
    return {
        "gpus_per_node": size.gpus,
        "cpus": size.cpus or None,
        "memory_bytes": size.memory_bytes or None,
    }


# The update of a role that leaves its size to the task.
_WITHOUT_SIZE: Mapping[str, object] = MappingProxyType(
    {"gpus": None, "cpus": None, "memory_bytes": None, "spread": None, "auxiliary": False}
)


def role_specs(spec: TaskSpec) -> tuple[TaskSpec, ...]:
    """For each role the specification of a task that consists of it alone, a node for each rank."""
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
    """The specification with the common size of its ranks as the task's own amounts.

    The same object if its sizes differ, or if no role changes the amounts of the task.
    """
    if sizes_differ(spec) or not any(map(has_own_size, spec.roles)):
        return spec
    amounts = _amounts(size_of(spec, spec.roles[0]))
    changed = {name: value for name, value in amounts.items() if value != getattr(spec, name)}
    return spec.model_copy(update=changed) if changed else spec


def given_at(spec: TaskSpec, field: str) -> str:
    """Where an amount of each rank was given: ``roles[0].gpus`` for ``gpus_per_node`` that the
    first role has, else the field of the task."""
    own = ROLE_FIELDS.get(field, field)
    for index, role in enumerate(spec.roles):
        if getattr(role, own) is not None:
            return f"roles[{index}].{own}"
    return field
