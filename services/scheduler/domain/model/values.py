"""Values that rows and decisions consist of: shapes, order keys, reasons.

Equal shapes and equal reasons are one object each, so that comparing thousands of them is cheap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from libs.contracts.messages import Priority, Reason, ReasonCode, TaskSpec
from libs.contracts.rank_sizes import (
    effective,
    has_own_size,
    has_request,
    size_of,
    sizes_differ,
)

WEIGHTS: Mapping[Priority, int] = MappingProxyType(
    {
        Priority.EXTREME_HIGH: 50,
        Priority.VERY_HIGH: 40,
        Priority.HIGH: 30,
        Priority.ABOVE_NORMAL: 20,
        Priority.NORMAL: 10,
        Priority.BELOW_NORMAL: 8,
        Priority.LOW: 5,
        Priority.IDLE: 0,
        Priority.AUTO: -1,
        Priority.UNSPECIFIED: -1,
    }
)
# The priorities that a run can have, the highest first. AUTO becomes one of them.
LEVELS: tuple[Priority, ...] = tuple(
    sorted(
        (level for level in WEIGHTS if level not in (Priority.AUTO, Priority.UNSPECIFIED)),
        key=lambda level: -WEIGHTS[level],
    )
)

# The order key in seconds, and the task id, which makes it unique.
Key: TypeAlias = tuple[float, str]

# More than any node has; what is beyond counts as this.
CPUS_MAX = 1e9
SHAPES_KEPT_MAX = 65_536
REASONS_KEPT_MAX = 65_536


class NodeResources(NamedTuple):
    """What a rank takes of its node besides GPUs."""

    # Thousandths of a CPU.
    cpus: int = 0
    memory_bytes: int = 0


NO_RESOURCES = NodeResources()


class Shape(NamedTuple):
    """What a task needs of the cluster; tasks of one shape are interchangeable for placement.

    Most gangs consist of ranks of one size with a node each. The others have ``parts``, and their
    own amounts are the largest of those.
    """

    group: str
    # The number of ranks.
    nodes: int
    # GPUs of each rank; None = whole nodes, 0 = CPU only.
    gpus: int | None
    cpus: float
    memory_bytes: int
    # Labels that its nodes must have, and taints that it tolerates (``key`` or ``key=value``).
    selector: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[str, ...] = ()
    # Nodes on which starts of this task failed. It takes them only if the others cannot hold it.
    avoids: tuple[str, ...] = ()
    # The roles of a gang whose ranks differ or share nodes, in their order.
    parts: tuple[Part, ...] = ()

    @property
    def each(self) -> tuple[Shape, ...]:
        """The same for ranks of one size: a shape for each size."""
        return tuple(part.shape for part in self.parts) if self.parts else (self,)

    @property
    def counted(self) -> int:
        """How many nodes it counts as in a limit: auxiliary ranks count as none."""
        if not self.parts:
            return self.nodes
        return sum(part.shape.nodes for part in self.parts if not part.auxiliary)

    @property
    def numbers(self) -> dict[str, float | None]:
        """Its size in numbers, as reasons name it."""
        if not self.parts:
            return {
                "nodes": self.nodes,
                "gpus": self.gpus,
                "cpus": self.cpus or None,
                "memory_bytes": self.memory_bytes or None,
            }
        return {
            "replicas": self.nodes,
            "whole_nodes": sum(each.nodes for each in self.each if each.gpus is None) or None,
            "gpus": sum(each.nodes * (each.gpus or 0) for each in self.each),
        }

    @property
    def resources(self) -> NodeResources:
        """What each rank takes of its node besides GPUs."""
        if not self.cpus and not self.memory_bytes:
            return NO_RESOURCES
        return NodeResources(millicpus(self.cpus), self.memory_bytes)


class Part(NamedTuple):
    """The ranks of one role in a gang whose ranks differ or share nodes."""

    # So many ranks of this size, without parts of its own.
    shape: Shape
    # No two ranks of one scope lie on one node; None: they may share nodes with all others.
    scope: int | None
    # They are placed after all others.
    auxiliary: bool


def millicpus(cpus: float) -> int:
    """CPUs in thousandths, as Kubernetes counts them; more than none is at least one."""
    return max(1, round(min(cpus, CPUS_MAX) * 1000)) if cpus > 0 else 0


@lru_cache(maxsize=SHAPES_KEPT_MAX)
def _shape(*fields: Any) -> Shape:  # noqa: ANN401 - those of Shape
    return Shape(*fields)


def shape_of(spec: TaskSpec, avoids: tuple[str, ...] = ()) -> Shape:
    """The shape of a task with this specification."""
    for role in spec.roles:
        if has_own_size(role):
            return _of_roles(spec, avoids)
    if has_request(spec):
        spec = effective(spec)
    return _shape(
        spec.group,
        spec.nodes,
        spec.gpus_per_node,
        spec.cpus or 0.0,
        spec.memory_bytes or 0,
        tuple(sorted(spec.node_selector.items())) if spec.node_selector else (),
        tuple(sorted(set(spec.tolerations))) if spec.tolerations else (),
        avoids,
    )


# The scope of all roles without a size of their own: each of their ranks has a node.
NODE_EACH = -1


def _of_roles(spec: TaskSpec, avoids: tuple[str, ...]) -> Shape:
    rules = (
        tuple(sorted(spec.node_selector.items())) if spec.node_selector else (),
        tuple(sorted(set(spec.tolerations))) if spec.tolerations else (),
    )
    sizes = [size_of(spec, role) for role in spec.roles]
    if not sizes_differ(spec):
        gpus, cpus, memory_bytes = sizes[0][:3]
        return _shape(spec.group, spec.nodes, gpus, cpus, memory_bytes, *rules, avoids)
    parts = tuple(
        Part(
            # What nodes a gang avoids is decided for the whole of it.
            _shape(spec.group, role.replicas, *size[:3], *rules, ()),
            (number if has_own_size(role) else NODE_EACH) if size.spread else None,
            size.auxiliary,
        )
        for number, (role, size) in enumerate(zip(spec.roles, sizes, strict=True))
    )
    return _of_parts(parts, avoids)


@lru_cache(maxsize=SHAPES_KEPT_MAX)
def _of_parts(parts: tuple[Part, ...], avoids: tuple[str, ...]) -> Shape:
    shapes = [part.shape for part in parts]
    whole = any(shape.gpus is None for shape in shapes)
    return shapes[0]._replace(
        nodes=sum(shape.nodes for shape in shapes),
        gpus=None if whole else max(shape.gpus or 0 for shape in shapes),
        cpus=max(shape.cpus for shape in shapes),
        memory_bytes=max(shape.memory_bytes for shape in shapes),
        avoids=avoids,
        parts=parts,
    )


@dataclass(frozen=True, slots=True)
class OrderKey:
    """A task's place in the order of its level, as the discipline of its pool computed it.

    Tasks are ordered by ``key + scale * scaled`` (seconds; the smallest runs first), where
    ``scale`` is the pool's load scale: when it changes, no row does. Stored as JSON.
    """

    # The discipline that computed it. Another one computes it again.
    policy: str = ""
    # True for a task that waits, False for one that runs.
    waiting: bool = True
    key: float = 0.0
    scaled: float = 0.0
    # The submission that ``key`` begins with, the fairness between users in it, and the value after
    # which the user's next task begins.
    base: float = 0.0
    tag: float = 0.0
    user_finish: float = 0.0
    # While the task runs: when the key is computed again, and until when no task of the same level
    # may preempt it.
    rekey_at: datetime | None = None
    held_until: datetime | None = None
    # True while a starvation grant gives it the smallest key.
    granted: bool = False
    # The class of similar tasks in which the predictor put it on arrival.
    kin: int = 0
    # Running time that the statistics have counted.
    counted_seconds: float = 0.0


NO_ORDER_KEY = OrderKey()


@lru_cache(maxsize=REASONS_KEPT_MAX)
def _reason(
    code: ReasonCode, numbers: tuple[tuple[str, float], ...], names: tuple[tuple[str, str], ...]
) -> Reason:
    return Reason(code=code, numbers=dict(numbers), names=dict(names))


def reason(
    code: ReasonCode, *, names: dict[str, str] | None = None, **numbers: float | None
) -> Reason:
    """The reason with this code, these names and these numbers; numbers that are None are left out.

    The reason that is stored with a waiting task holds only what stays true while it waits (its
    size, the limit that binds). Numbers that change when another task starts belong to the
    explanation: otherwise each start would rewrite the whole queue.
    """
    kept = tuple((key, float(value)) for key, value in numbers.items() if value is not None)
    return _reason(code, kept, tuple((names or {}).items()))


def same_reason(one: Reason, other: Reason) -> bool:
    """True if both reasons are equal."""
    return one is other or one == other
