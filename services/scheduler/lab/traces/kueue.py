"""The configuration of Kueue's performance generator, expanded without running it.

Cohorts hold sets of queues, those hold sets of workloads; each set of each queue makes ``count``
rounds of its workloads, one every ``creationIntervalMs``, the first after one interval. A unit of a
request is a node; a queue is a virtual cluster guaranteed its nominal quota, a cohort their parent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

from services.scheduler.domain.model.group_policy import VirtualCluster
from services.scheduler.lab.errors import LabError
from services.scheduler.lab.traces.row import Parsed, Row, SkippedLine
from services.scheduler.lab.yaml_mapping import YamlMapping, read_yaml

JOBS_MAX = 5_000_000
COUNT_MAX = 1_000_000
_MILLI = 1000
# What shapes pods and machines only: the lab places whole units.
_IGNORED = frozenset(
    {"topology", "dra", "resourceFlavor", "tasConstraint", "tasLevel", "sliceSize", "devices"}
)
_QUEUES = (
    "className",
    "count",
    "nominalQuota",
    "borrowingLimit",
    "reclaimWithinCohort",
    "withinClusterQueue",
    "deviceNominalQuota",
    "deviceBorrowingLimit",
    "workloadsSets",
)
_WORKLOAD = ("className", "runtimeMs", "priority", "request", "podCount", *sorted(_IGNORED))


@dataclass(frozen=True, slots=True)
class _Class:
    """One kind of workload in one set, as it comes again and again in each queue."""

    sets_interval_s: float
    rounds: int
    place: int
    of: int
    row: Row


def parse(text: str, where: str) -> Parsed:
    """Expand a configuration. Raises LabError naming the key that is wrong."""
    root = YamlMapping(read_yaml(text, where), where)
    root.known("cohorts", "topology", "dra", "resourceFlavor")
    found: list[VirtualCluster] = []
    queues: list[tuple[str, list[_Class]]] = []
    for cohorts in root.items("cohorts"):
        cohorts.known("className", "count", "queuesSets")
        for number in range(cohorts.whole("count", 1, COUNT_MAX)):
            cohort = f"{cohorts.text('className')}-{number}"
            _cohort(cohort, cohorts, found, queues)
    total = sum(kind.rounds for _, kinds in queues for kind in kinds)
    if not total or total > JOBS_MAX:
        raise LabError(
            f"it makes {total} workloads",
            where=where,
            fix=f"write counts that make 1 to {JOBS_MAX} workloads in all",
        )
    nodes = sum(int(each.nodes) for each in found if each.parent)
    parsed = Parsed(_expand(queues), nodes=nodes, virtual_clusters=tuple(found))
    if _mentions(root.value):
        parsed.notes.append("topology and devices of the generator are left out")
    return parsed


def _cohort(
    cohort: str,
    cohorts: YamlMapping,
    found: list[VirtualCluster],
    queues: list[tuple[str, list[_Class]]],
) -> None:
    place = len(found)
    guaranteed = 0
    for set_number, queue_set in enumerate(cohorts.items("queuesSets")):
        queue_set.known(*_QUEUES)
        quota = queue_set.quantity("nominalQuota")
        borrows = queue_set.get("borrowingLimit")
        most = None if borrows is None else float(quota + queue_set.quantity("borrowingLimit"))
        kinds = [kind for sets in queue_set.items("workloadsSets") for kind in _kinds(sets)]
        for number in range(queue_set.whole("count", 1, COUNT_MAX)):
            name = f"{queue_set.text('className')}-{set_number}-{number}-{cohort}"
            found.append(
                VirtualCluster(name, float(quota), parent=cohort, teams=(name,), nodes_max=most)
            )
            queues.append((name, kinds))
            guaranteed += quota
    found.insert(place, VirtualCluster(cohort, float(guaranteed)))


def _kinds(sets: YamlMapping) -> Iterator[_Class]:
    sets.known("count", "creationIntervalMs", "workloads")
    rounds = sets.whole("count", 1, COUNT_MAX)
    interval_s = sets.whole("creationIntervalMs", 0, COUNT_MAX * _MILLI) / _MILLI
    workloads = list(sets.items("workloads"))
    for place, workload in enumerate(workloads):
        workload.known(*_WORKLOAD)
        pods = workload.whole("podCount", 1, COUNT_MAX) if workload.get("podCount") else 1
        row = Row(
            line=0,
            submit_s=0.0,
            duration_s=workload.whole("runtimeMs", 0, 10**12) / _MILLI,
            nodes=max(1, workload.quantity("request") * pods),
            priority=workload.whole("priority", -(2**31), 2**31),
        )
        yield _Class(interval_s, rounds, place, len(workloads), row)


def _expand(queues: list[tuple[str, list[_Class]]]) -> Iterator[Row | SkippedLine]:
    """Queue after queue, set after set: the loader sorts by time, and keeps this order in ties."""
    line = 0
    for queue, kinds in queues:
        for kind in kinds:
            owned = replace(kind.row, user=queue, team=queue)
            for turn in range(kind.rounds):
                line += 1
                ticks = turn * kind.of + kind.place + 1
                # Rounded as the generator's own milliseconds.
                at = round(ticks * kind.sets_interval_s, 3)
                yield replace(owned, line=line, submit_s=at)


def _mentions(value: Any) -> bool:  # noqa: ANN401 - any part of a YAML document
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        return any(key in _IGNORED or _mentions(of) for key, of in mapping.items())
    return isinstance(value, list) and any(map(_mentions, cast("list[Any]", value)))
