"""Nodes, and what other pods use of them. Filled by the reflectors; read by ``cache.py``.

Kubernetes gives whole numbers of GPUs, no indices: those that other people's pods use are taken to
be the highest that no run of ours has, and stay the same ones while that holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from libs.contracts.ids import NAME_RULE, is_label_key, is_label_value, is_name, is_taint
from libs.contracts.messages import Node
from libs.pods.formats import TIMES
from services.launcher.domain.model import ObservedNode
from services.launcher.domain.node_labels import key_of

Json = dict[str, Any]
CONTROL_PLANE_LABEL = "node-role.kubernetes.io/control-plane"
# Kubernetes' own taints repeat the node's state, which is read from its status.
OWN_TAINTS = "node.kubernetes.io/"
GPU_MODEL_LABEL = "nvidia.com/gpu.product"


@dataclass(frozen=True, slots=True)
class NodeRules:
    """Rules for reading nodes."""

    gpu_resource: str = "nvidia.com/gpu"
    group_label: str = "shiftwork.dev/group"
    group_default: str = "default"
    # Taints that every pod of ours tolerates: key or key=value.
    tolerated: tuple[str, ...] = ("nvidia.com/gpu",)


# Reported if other pods use everything: 0 would mean unknown.
_LEAST_CPUS = 0.001


@dataclass(frozen=True, slots=True)
class Use:
    """The resources that a pod requests."""

    gpus: int = 0
    cpus: float = 0.0
    memory_bytes: int = 0


@dataclass(slots=True)
class _Facts:
    """What a node reports about itself."""

    node: Node
    problem: str
    # GPUs that it has and does not offer: broken, or not ready yet.
    withheld: int


@dataclass(slots=True)
class _Held:
    """The pods that use resources of a node."""

    # Pods of others, by uid.
    others: dict[str, Use] = field(default_factory=dict[str, Use])
    # GPU indices of pods of ours that may run, by pod; and of those whose runs are lost.
    ours: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    lost: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    # The last reported unusable GPUs.
    unusable: tuple[int, ...] = ()
    sum: Use = Use()


def quantity(value: str | float | None) -> float:
    """The number that a quantity of Kubernetes means; 0 if there is none."""
    text = str(value or "0")
    for length in (2, 1):
        if text[-length:] in TIMES:
            return float(text[:-length]) * float(TIMES[text[-length:]])
    return float(text)


def use_of(pod: Json, gpu_resource: str) -> Use:
    """The sum of a pod's containers, or its largest init container if that is more."""
    spec: Json = pod["spec"]
    asked = [_asked(c, gpu_resource) for c in spec.get("containers") or ()]
    inits = [_asked(c, gpu_resource) for c in spec.get("initContainers") or ()]
    both = [_sum(asked), *inits]
    return Use(
        gpus=max(use.gpus for use in both),
        cpus=max(use.cpus for use in both),
        memory_bytes=max(use.memory_bytes for use in both),
    )


def _asked(container: Json, gpu_resource: str) -> Use:
    resources: Json = container.get("resources") or {}
    asked: Json = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return Use(
        int(quantity(asked.get(gpu_resource))),
        quantity(asked.get("cpu")),
        int(quantity(asked.get("memory"))),
    )


def _sum(uses: Iterable[Use]) -> Use:
    gpus, cpus, memory_bytes = 0, 0.0, 0
    for use in uses:
        gpus, cpus = gpus + use.gpus, cpus + use.cpus
        memory_bytes += use.memory_bytes
    return Use(gpus, cpus, memory_bytes)


class Nodes:
    """Every node of ours, and everything that is bound to any node."""

    def __init__(self, rules: NodeRules) -> None:
        self._rules = rules
        self._facts: dict[str, _Facts] = {}
        self._held: dict[str, _Held] = {}
        self._observed: dict[str, ObservedNode] = {}
        self._dirty: set[str] = set()
        # Nodes that are gone although pods of ours are still listed on them.
        self._orphaned: set[str] = set()

    def ready(self, node_id: str) -> bool:
        """Whether the node answers."""
        facts = self._facts.get(node_id)
        return facts is not None and facts.node.ready

    def names(self) -> AbstractSet[str]:
        """The nodes of the inventory."""
        return self._facts.keys()

    def gpus(self, node_id: str) -> int:
        """How many GPUs the node has."""
        facts = self._facts.get(node_id)
        return facts.node.gpus if facts is not None else 0

    def labels(self, node_id: str) -> Mapping[str, str]:
        """A node's labels."""
        facts = self._facts.get(node_id)
        return facts.node.labels if facts is not None else {}

    def put(self, thing: Json) -> bool:
        """A node as it now is; True if it began or ceased to answer."""
        node_id: str = thing["metadata"]["name"]
        before = self._facts.get(node_id)
        self._facts[node_id] = after = self._read(thing)
        self._orphaned.discard(node_id)
        if before != after:
            self._dirty.add(node_id)
        return before is None or before.node.ready is not after.node.ready

    def drop(self, node_id: str) -> bool:
        """The node is gone; True if it was there."""
        if self._facts.pop(node_id, None) is None:
            return False
        if held := self._held.get(node_id):
            held.unusable = ()
            if held.ours or held.lost:
                self._orphaned.add(node_id)
        self._dirty.add(node_id)
        return True

    def use_by_other(self, node_id: str, uid: str, use: Use | None) -> bool:
        """A pod of others uses so much of a node; None: no more. True if that changed."""
        held = self._held.setdefault(node_id, _Held())
        if held.others.get(uid) == use:
            return False
        if use is None:
            del held.others[uid]
        else:
            held.others[uid] = use
        held.sum = _sum(held.others.values())
        self._changed(node_id, held)
        return True

    def use_by_us(
        self, node_id: str, name: str, gpus: tuple[int, ...] | None, *, lost: bool = False
    ) -> None:
        """A pod of ours holds these GPUs of a node; None: no more. ``lost``: its run is over."""
        held = self._held.setdefault(node_id, _Held())
        before = (held.ours.pop(name, None), held.lost.pop(name, None))
        if gpus is not None:
            (held.lost if lost else held.ours)[name] = gpus
        if before != (held.ours.get(name), held.lost.get(name)):
            self._changed(node_id, held)

    def _changed(self, node_id: str, held: _Held) -> None:
        self._dirty.add(node_id)
        if not (held.others or held.ours or held.lost):
            del self._held[node_id]
            self._orphaned.discard(node_id)

    def listing(self) -> dict[str, ObservedNode]:
        """Every node as it is now, and those that are gone with pods of ours still on them."""
        for node_id in self._dirty:
            facts = self._facts.get(node_id)
            if facts is not None:
                observed = self._observe(facts, node_id)
                # Callers detect changes by identity.
                if observed != self._observed.get(node_id):
                    self._observed[node_id] = observed
            elif node_id in self._orphaned and node_id in self._observed:
                last = self._observed[node_id].node
                self._observed[node_id] = ObservedNode(
                    last.model_copy(update={"ready": False}),
                    problem="the node was deleted, its pods are still there",
                    retired=True,
                )
            else:
                self._observed.pop(node_id, None)
        self._dirty.clear()
        return dict(self._observed)

    def _observe(self, facts: _Facts, node_id: str) -> ObservedNode:
        held = self._held.get(node_id)
        if held is None and not facts.withheld:
            return ObservedNode(facts.node, facts.problem)
        held = held or _Held()
        unusable = _unusable(
            facts.node.gpus,
            taken={gpu for gpus in held.ours.values() for gpu in gpus},
            lost={gpu for gpus in held.lost.values() for gpu in gpus},
            others=held.sum.gpus + facts.withheld,
            before=held.unusable,
        )
        held.unusable = unusable
        node = facts.node.model_copy(
            update={
                "unusable_gpus": unusable,
                # 0 would mean unknown, not that nothing is left.
                "cpus": max(_LEAST_CPUS, round(facts.node.cpus - held.sum.cpus, 3))
                if facts.node.cpus > 0
                else 0.0,
                "memory_bytes": max(1, facts.node.memory_bytes - held.sum.memory_bytes)
                if facts.node.memory_bytes > 0
                else 0,
            }
        )
        return ObservedNode(node, facts.problem)

    def _read(self, thing: Json) -> _Facts:
        meta: Json = thing["metadata"]
        spec: Json = thing.get("spec", {})
        status: Json = thing.get("status", {})
        all_labels: Json = meta.get("labels") or {}
        offers: Json = status.get("allocatable") or {}
        has: Json = status.get("capacity") or {}
        gpus = int(quantity(has.get(self._rules.gpu_resource)))
        labels = {
            key: str(value)
            for key, value in sorted(all_labels.items())
            if is_label_key(key) and is_label_value(value)
        }
        # As the cluster has it: what is no label value here is no group either.
        group = str(all_labels.get(self._rules.group_label) or self._rules.group_default)
        problem = _not_ready(status)
        if unfit := not is_name(group):
            problem = problem or (
                f"its label {self._rules.group_label} is {group[:63]!r}, which names no group: "
                f"use {NAME_RULE}"
            )
        node = Node(
            id=meta["name"],
            group=self._rules.group_default if unfit else group,
            gpus=gpus,
            cpus=quantity(offers.get("cpu")),
            memory_bytes=int(quantity(offers.get("memory"))),
            labels=labels,
            taints=tuple(sorted(self._taints(spec))),
            # In the default group it would run what is not meant for it.
            schedulable=not (unfit or spec.get("unschedulable", False)),
            ready=not _not_ready(status),
            gpu_model=labels.get(GPU_MODEL_LABEL, ""),
        )
        return _Facts(node, problem, gpus - int(quantity(offers.get(self._rules.gpu_resource))))

    def _taints(self, spec: Json) -> Iterable[str]:
        """The taints that pods of ours have to tolerate."""
        for taint in spec.get("taints") or ():
            key, value = taint["key"], taint.get("value") or ""
            text = f"{key}={value}" if value else key
            soft = taint.get("effect") == "PreferNoSchedule"
            tolerated = any(each in (key, text) for each in self._rules.tolerated)
            if not (soft or tolerated or key_of(text).startswith(OWN_TAINTS)) and is_taint(text):
                yield text


def _not_ready(status: Json) -> str:
    """Why the node does not answer; empty if it does."""
    for condition in status.get("conditions") or ():
        if condition["type"] == "Ready":
            if condition["status"] == "True":
                return ""
            reason = condition.get("message") or condition.get("reason") or ""
            return f"Ready is {condition['status']}: {reason}"[:200]
    return "it has not reported yet that it is ready"


def _unusable(
    gpus: int,
    *,
    taken: AbstractSet[int],
    lost: AbstractSet[int],
    others: int,
    before: tuple[int, ...],
) -> tuple[int, ...]:
    """GPU indices that no new run may have. Indices that were reported before come first, so that
    the end of one of our runs does not move those of others."""
    free = [gpu for gpu in range(gpus) if gpu not in taken and gpu not in lost]
    free.sort(key=lambda gpu: (gpu not in before, -gpu))
    return tuple(sorted({*(gpu for gpu in lost if gpu < gpus), *free[:others]}))
