"""The input of a replay: jobs in the order of their submission, and the cluster they run on.

Made by the readers in ``traces/``, by ``cluster_file.py`` and by ``generator.py``; read by
``drive.py`` and ``results.py``. Plain values: nothing here reads a file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from libs.contracts.ids import NodeId
from libs.contracts.messages import PreemptionPolicy, Priority, RetryPolicy, Role, TaskSpec
from services.scheduler.domain.model.group_policy import (
    GroupPolicy,
    PolicySettings,
    VirtualCluster,
)
from services.scheduler.domain.model.rows import Limit, Node
from services.scheduler.domain.model.values import shape_of
from services.scheduler.domain.placement.capacity import Capacity

DEFAULT_GROUP = "default"
PACKINGS_KEPT_MAX = 10_000


class RoleSize(NamedTuple):
    """One role of a gang whose ranks differ or share nodes."""

    name: str
    replicas: int
    # Of each rank; None: a whole node, 0: CPU only.
    gpus: int | None
    # No other rank of its role lies on its node.
    spread: bool
    auxiliary: bool

    @property
    def role(self) -> Role:
        """The same in a specification."""
        return Role(
            name=self.name,
            replicas=self.replicas,
            command=("job",),
            gpus=self.gpus,
            spread=self.spread,
            auxiliary=self.auxiliary,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One job of a trace; seconds, from the submission of the first job of the trace.

    Attributes:
        number: its place in ``Workload.jobs``, from 0.
        duration_s: work: how long it runs if it is never interrupted.
        nodes: nodes of its gang; with ``roles`` those that it takes of an empty cluster.
        gpus_per_node: GPUs on each of them; None: whole nodes, 0: CPU only. With ``roles`` the
            most that it takes of a node of an empty cluster.
        roles: the roles of a gang whose ranks differ or share nodes; empty: its ranks have
            ``gpus_per_node`` and a node each.
        user: the owner; empty is one user, too.
        team: the trace's virtual cluster, queue or team.
        requested_s: the user's own limit on its duration; None: none. It is an estimate: a job
            that worked longer in the trace works as long here.
    """

    number: int
    submit_s: float
    duration_s: float
    nodes: int
    gpus_per_node: int | None = None
    user: str = ""
    team: str = ""
    priority: Priority = Priority.NORMAL
    requested_s: float | None = None
    group: str = DEFAULT_GROUP
    roles: tuple[RoleSize, ...] = ()


@dataclass(frozen=True, slots=True)
class LabNode:
    """One node of the simulated cluster."""

    name: str
    gpus: int
    labels: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class LabGroup:
    """One node group: a pool with its nodes, and how it is shared.

    ``policy`` has the virtual clusters, the shares and the numbers of the disciplines; each run
    chooses its own discipline.
    """

    name: str
    nodes: tuple[LabNode, ...]
    policy: GroupPolicy = field(default_factory=lambda: GroupPolicy(DEFAULT_GROUP))

    @property
    def virtual_clusters(self) -> tuple[VirtualCluster, ...]:
        """Nodes guaranteed to teams and users."""
        return self.policy.virtual_clusters

    @property
    def gpus_per_node(self) -> int:
        """GPUs of its largest node."""
        return max((node.gpus for node in self.nodes), default=0)

    def virtual_cluster_of(self, user: str, team: str) -> str:
        """The name of the virtual cluster that this work counts to; empty: none.

        A user named by one comes before their team.
        """
        by_team = ""
        for each in self.virtual_clusters:
            if user in each.users:
                return each.name
            if team in each.teams and not by_team:
                by_team = each.name
        return by_team


@dataclass(frozen=True, slots=True)
class Cluster:
    """The simulated machine."""

    groups: tuple[LabGroup, ...]
    quotas: tuple[Limit, ...] = ()

    @property
    def nodes(self) -> int:
        """Nodes of all groups."""
        return sum(len(group.nodes) for group in self.groups)

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the largest node."""
        return max((group.gpus_per_node for group in self.groups), default=0)

    def group(self, name: str) -> LabGroup | None:
        """A group by name."""
        return next((group for group in self.groups if group.name == name), None)


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace made ready: jobs by submission, all of which fit the cluster.

    Attributes:
        skipped: rows of the trace that are not among the jobs.
        notes: sentences for people about the changes that were made to the trace.
    """

    name: str
    jobs: Sequence[Job]
    cluster: Cluster
    skipped: int = 0
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> int:
        """Nodes of the whole cluster."""
        return self.cluster.nodes

    @property
    def gpus_per_node(self) -> int:
        """GPUs of the largest node."""
        return self.cluster.gpus_per_node

    @property
    def virtual_clusters(self) -> tuple[VirtualCluster, ...]:
        """Those of all groups."""
        return tuple(each for group in self.cluster.groups for each in group.virtual_clusters)

    def share(self, job: Job) -> float:
        """The nodes that a job occupies while it runs: 1 of 8 GPUs of a node is 0.125."""
        if job.gpus_per_node is None and not job.roles:
            return float(job.nodes)
        group = self.cluster.group(job.group)
        gpus = group.gpus_per_node if group else self.gpus_per_node
        if job.roles and gpus:
            each = ((gpus if role.gpus is None else role.gpus, role) for role in job.roles)
            return sum(taken * role.replicas for taken, role in each) / gpus
        if job.gpus_per_node is None:
            return float(job.nodes)
        return job.nodes * job.gpus_per_node / gpus if gpus else float(job.nodes)

    def virtual_cluster_of(self, job: Job) -> str:
        """The virtual cluster a job counts to; where there is none, the trace's own name for it."""
        group = self.cluster.group(job.group)
        if group is None or not group.virtual_clusters:
            return job.team
        return group.virtual_cluster_of(job.user, job.team)

    def scaled(self, factor: float) -> Workload:
        """The same jobs, their arrivals closer together (factor < 1) or further apart."""
        if factor == 1.0:
            return self
        jobs = [replace(job, submit_s=job.submit_s * factor) for job in self.jobs]
        return replace(self, jobs=jobs)

    def first(self, count: int) -> Workload:
        """Only the first jobs."""
        return replace(self, jobs=self.jobs[:count]) if count < len(self.jobs) else self


def private_partitions(workload: Workload) -> dict[str, Workload]:
    """Each virtual cluster with guaranteed nodes alone on just those nodes.

    The guarantee of a child does not count for its parent. A part of a node is a node with that
    part of the GPUs, rounded down. ``number`` of a job is its place in the new list. Jobs that do
    not fit the partition are skipped.
    """
    found: dict[str, Workload] = {}
    for group in workload.cluster.groups:
        for each in group.virtual_clusters:
            children = sum(c.nodes for c in group.virtual_clusters if c.parent == each.name)
            nodes = _private_nodes(group, each.nodes - children)
            theirs = [
                job
                for job in workload.jobs
                if job.group == group.name and workload.virtual_cluster_of(job) == each.name
            ]
            if not nodes or not theirs:
                continue
            fitting = [job for job in theirs if fits(job, nodes)]
            alone = replace(group.policy, virtual_clusters=())
            cluster = Cluster((LabGroup(group.name, nodes, alone),))
            found[each.name] = Workload(
                f"{workload.name}, {each.name} alone",
                [replace(job, number=place) for place, job in enumerate(fitting)],
                cluster,
                skipped=len(theirs) - len(fitting),
            )
    return found


def _private_nodes(group: LabGroup, amount: float) -> tuple[LabNode, ...]:
    whole = min(int(amount + 1e-9), len(group.nodes))
    nodes = list(group.nodes[:whole])
    part = math.floor((amount - whole) * group.gpus_per_node + 1e-9)
    if part > 0 and whole < len(group.nodes):
        nodes.append(replace(group.nodes[whole], gpus=part))
    return tuple(nodes)


def fits(job: Job, nodes: Sequence[LabNode]) -> bool:
    """True if these nodes, all free, could run it."""
    if job.roles:
        return packed(job.roles, nodes) is not None
    return fitting_nodes(nodes, job.gpus_per_node) >= job.nodes


def fitting_nodes(nodes: Sequence[LabNode], gpus_per_node: int | None) -> int:
    """How many of these nodes could each hold one rank of such a job.

    A whole-node job takes the nodes of the largest kind: a part of one is not a whole node.
    """
    if gpus_per_node is None:
        most = max((node.gpus for node in nodes), default=0)
        return sum(node.gpus == most for node in nodes)
    return sum(node.gpus >= gpus_per_node for node in nodes)


def packed(roles: tuple[RoleSize, ...], nodes: Sequence[LabNode]) -> tuple[int, int] | None:
    """How many of these nodes, all free, the gang takes, and the most GPUs that it takes of one.

    None if it does not fit. The scheduler's own placement finds the nodes.
    """
    return _packed(roles, tuple(node.gpus for node in nodes))


def spec_of(roles: tuple[Role, ...], gpus_per_node: int | None = None) -> TaskSpec:
    """The least specification of a gang of these roles."""
    return TaskSpec(
        group=DEFAULT_GROUP,
        nodes=sum(role.replicas for role in roles),
        gpus_per_node=gpus_per_node,
        roles=roles,
        retry=RetryPolicy(),
        preemption=PreemptionPolicy(),
    )


@lru_cache(maxsize=PACKINGS_KEPT_MAX)
def _packed(roles: tuple[RoleSize, ...], gpus: tuple[int, ...]) -> tuple[int, int] | None:
    nodes = [
        Node(id=NodeId(f"n{place}"), version=1, group=DEFAULT_GROUP, gpus=each)
        for place, each in enumerate(gpus)
    ]
    spec = spec_of(tuple(role.role for role in roles))
    slots = Capacity(nodes, PolicySettings()).pick(shape_of(spec))
    if slots is None:
        return None
    taken: Counter[str] = Counter()
    for slot in slots:
        taken[slot.node_id] += slot.mask.bit_count()
    return len(taken), max(taken.values())


def uniform(
    name: str,
    nodes: int,
    gpus_per_node: int,
    virtual_clusters: tuple[VirtualCluster, ...] = (),
) -> LabGroup:
    """A group of equal nodes."""
    width = len(str(nodes))
    made = tuple(LabNode(f"n{place:0{width}}", gpus_per_node) for place in range(1, nodes + 1))
    return LabGroup(name, made, GroupPolicy(name, virtual_clusters=virtual_clusters))
