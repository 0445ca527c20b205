"""How the parts of a release fare, and why what is not ready is not. Pure: objects in, words out.

Fed by ``up`` while it waits, by ``status`` and by ``doctor --kubernetes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shiftwork.cli.parse import fields, listed

Json = Mapping[str, Any]

# What is asked of the cluster, and the label of everything that is ours.
KINDS = "deployments,statefulsets,daemonsets,jobs,pods,events"
SELECTOR = "app.kubernetes.io/part-of=shiftwork"
COMPONENT = "app.kubernetes.io/component"
_TEXT_MAX = 300


@dataclass(frozen=True, slots=True)
class UnhealthyPod:
    """One pod that is not as it should be."""

    name: str
    why: str
    # A container that ended at least once: its last output may explain more.
    container: str = ""
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """One Deployment, StatefulSet, DaemonSet or Job."""

    kind: str
    name: str
    component: str
    ready: int
    wanted: int
    restarts: int = 0
    pods: tuple[str, ...] = ()
    # What the workload itself cannot do, and what its pods lack.
    problem: str = ""
    troubled: tuple[UnhealthyPod, ...] = ()
    # It will never be ready by itself.
    failed: bool = False

    @property
    def is_ready(self) -> bool:
        """All of it runs, in its newest form."""
        return self.ready >= self.wanted and not self.problem

    @property
    def line(self) -> str:
        """A line for people: the number of ready pods, and the problem of the first other one."""
        why = self.problem or next((f"{each.name} {each.why}" for each in self.troubled), "")
        return f"{self.component} {self.ready}/{self.wanted}" + (f": {why}" if why else "")


def parts(objects: Sequence[Json]) -> tuple[Part, ...]:
    """Every workload of the platform's, by name. Only the newest Job of each component counts."""
    pods = [each for each in objects if each["kind"] == "Pod"]
    events = [each for each in objects if each["kind"] == "Event"]
    ours = [each for each in objects if _is_ours(each)]
    found = [_WAYS[each["kind"]](each, pods, events) for each in ours if each["kind"] in _WAYS]
    newest: dict[str, Json] = {}
    for job in (each for each in ours if each["kind"] == "Job"):
        component = _component(job)
        if component not in newest or _made(newest[component]) < _made(job):
            newest[component] = job
    found += [_job(job, pods) for job in newest.values()]
    return tuple(sorted(found, key=lambda part: (part.component, part.name)))


def _is_ours(it: Json) -> bool:
    key, _, value = SELECTOR.partition("=")
    return fields(it["metadata"].get("labels")).get(key) == value


def _deployment(it: Json, pods: Sequence[Json], events: Sequence[Json]) -> Part:
    status = fields(it.get("status"))
    wanted = it["spec"].get("replicas", 1)
    current = min(status.get("updatedReplicas", 0), status.get("readyReplicas", 0))
    return _workload(it, pods, events, ready=current if _seen(it) else 0, wanted=wanted)


def _daemon_set(it: Json, pods: Sequence[Json], events: Sequence[Json]) -> Part:
    status = fields(it.get("status"))
    wanted = status.get("desiredNumberScheduled", 0)
    current = min(status.get("updatedNumberScheduled", 0), status.get("numberReady", 0))
    # The controller has not seen it yet: count one as wanted, so that it does not appear ready.
    return _workload(
        it, pods, events, ready=current if _seen(it) else 0, wanted=wanted if _seen(it) else 1
    )


_WAYS = {"Deployment": _deployment, "StatefulSet": _deployment, "DaemonSet": _daemon_set}


def _seen(it: Json) -> bool:
    """The cluster's controllers know the newest form of it."""
    observed = fields(it.get("status")).get("observedGeneration", 0)
    return bool(observed >= it["metadata"].get("generation", 1))


def _workload(
    it: Json, pods: Sequence[Json], events: Sequence[Json], *, ready: int, wanted: int
) -> Part:
    own = list(_own(fields(it["spec"]["selector"].get("matchLabels")), pods))
    troubled = tuple(_troubled(own, events)) if ready < wanted else ()
    return Part(
        kind=it["kind"],
        name=it["metadata"]["name"],
        component=_component(it),
        ready=ready,
        wanted=wanted,
        restarts=sum(_restarts(pod) for pod in own),
        pods=tuple(pod["metadata"]["name"] for pod in own),
        problem=_cannot_make(it) or ("" if own or ready >= wanted else _reason_text(it, events)),
        troubled=troubled,
    )


def _job(it: Json, pods: Sequence[Json]) -> Part:
    status = fields(it.get("status"))
    conditions = listed(status.get("conditions"))
    own = list(_own(fields(fields(it["spec"].get("selector")).get("matchLabels")), pods))
    over = next((each for each in conditions if _holds(each, "Failed")), None)
    done = any(_holds(each, "Complete") for each in conditions) or bool(status.get("succeeded"))
    why = f"failed for good: {over.get('message', '')}" if over else ""
    return Part(
        kind="Job",
        name=it["metadata"]["name"],
        component=_component(it),
        ready=1 if done else 0,
        wanted=1,
        restarts=status.get("failed", 0),
        pods=tuple(pod["metadata"]["name"] for pod in own),
        problem=why,
        troubled=() if done else tuple(_troubled(own, ())),
        failed=over is not None,
    )


def _own(labels: Json, pods: Sequence[Json]) -> Iterator[Json]:
    for pod in pods:
        suffix = fields(pod["metadata"].get("labels"))
        if labels and all(suffix.get(key) == value for key, value in labels.items()):
            yield pod


def _troubled(pods: Sequence[Json], events: Sequence[Json]) -> Iterator[UnhealthyPod]:
    """Those that keep a workload from being ready, the ones that cannot mend themselves first."""
    found: list[tuple[int, UnhealthyPod]] = []
    for pod in pods:
        if "deletionTimestamp" in pod["metadata"] or _is_ready(pod):
            continue
        weight, why, container = _why(pod, events)
        name = pod["metadata"]["name"]
        found.append((weight, UnhealthyPod(name, why[:_TEXT_MAX], container, _restarts(pod))))
    yield from (each for _, each in sorted(found, key=lambda pair: pair[0]))


# Why a container waits -> in words; `{}` takes image and message. What is not here is under way.
WAITS: Mapping[str, str] = {
    "ErrImagePull": "image {image} cannot be pulled: {message}",
    "ImagePullBackOff": "image {image} cannot be pulled: {message}",
    "InvalidImageName": "image {image} has no valid name",
    "ErrImageNeverPull": "image {image} is not on the node, and may not be pulled",
    "CreateContainerConfigError": "cannot be made: {message}",
    "CreateContainerError": "cannot be made: {message}",
    "RunContainerError": "cannot be run: {message}",
}


def _why(pod: Json, events: Sequence[Json]) -> tuple[int, str, str]:
    """How bad it is (0 worst), why, and which container has last words."""
    for one in _statuses(pod):
        found = _container_why(one)
        if found is not None:
            return found
    status = fields(pod.get("status"))
    for condition in listed(status.get("conditions")):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return 1, f"has no node: {condition.get('message', '')}", ""
    reason_text = _reason_text(pod, events)
    if not reason_text and status.get("reason"):
        reason_text = f"{status['reason']}: {status.get('message', '')}"
    if reason_text:
        return 1, reason_text, ""
    return 3, "is being created" if pod["spec"].get("nodeName") else "waits for a node", ""


def _container_why(one: Json) -> tuple[int, str, str] | None:
    """The same of one container; None if it is on its way."""
    state = fields(one.get("state"))
    waits = fields(state.get("waiting"))
    last = fields(one.get("lastState"))
    ended = fields(state.get("terminated")) or fields(last.get("terminated"))
    name, count = str(one["name"]), int(one.get("restartCount", 0))
    if waits.get("reason") in WAITS:
        text = WAITS[waits["reason"]]
        return 0, text.format(image=one.get("image", ""), message=waits.get("message", "")), ""
    if "running" not in state and ended.get("exitCode"):
        return 0, f"crashes: {_ending(ended)}, {_times(max(1, count))}", name
    if "running" in state and not one.get("ready"):
        again = f" (restarted {_times(count)})" if count else ""
        return 2, f"runs, is not ready yet{again}", name
    return None


def _ending(ended: Json) -> str:
    reason = ended.get("reason", "")
    suffix = f" ({reason})" if reason not in ("", "Error", "Completed") else ""
    return f"ended with code {ended['exitCode']}{suffix}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _statuses(pod: Json) -> Sequence[Json]:
    status = fields(pod.get("status"))
    return [*listed(status.get("initContainerStatuses")), *listed(status.get("containerStatuses"))]


def _restarts(pod: Json) -> int:
    return sum(one.get("restartCount", 0) for one in _statuses(pod))


def _is_ready(pod: Json) -> bool:
    conditions = listed(fields(pod.get("status")).get("conditions"))
    return any(_holds(each, "Ready") for each in conditions)


def _holds(condition: Json, kind: str) -> bool:
    return condition["type"] == kind and condition["status"] == "True"


def _cannot_make(it: Json) -> str:
    """A Deployment whose pods are refused: a quota, a policy, a missing account."""
    for condition in listed(fields(it.get("status")).get("conditions")):
        if _holds(condition, "ReplicaFailure"):
            return f"pods are refused: {condition.get('message', '')}"[:_TEXT_MAX]
    return ""


def _reason_text(it: Json, events: Sequence[Json]) -> str:
    """The newest warning about an object."""
    key = (it["kind"], it["metadata"]["name"])
    about = [
        event
        for event in events
        if event.get("type") == "Warning"
        and (event["involvedObject"].get("kind"), event["involvedObject"].get("name")) == key
    ]
    newest = max(about, key=_at, default=None)
    return f"{newest.get('reason')}: {newest.get('message')}"[:_TEXT_MAX] if newest else ""


def _at(event: Json) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _component(it: Json) -> str:
    labels = fields(it["metadata"].get("labels"))
    return str(labels.get(COMPONENT) or it["metadata"]["name"])


def _made(it: Json) -> str:
    return str(it["metadata"].get("creationTimestamp", ""))
