"""Pods and run objects of ours, as small records, and the runs that they make up. Filled by the
reflectors and by the answers to our own calls; read by ``runtime.py``.

A record is never older than what was put before: versions of the cluster only grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from libs.contracts.ids import RunId, TaskId, is_task_id
from libs.pods.kubernetes_names import DOMAIN, MANAGED_BY, MANAGER
from services.launcher.domain.model import Fault, ObservedRank, ObservedRun, RankState
from services.launcher.domain.rank_faults import describe
from services.launcher.runtimes.kubernetes.cluster_nodes import Nodes
from services.launcher.runtimes.kubernetes.pod_state import (
    Place,
    is_over,
    lost_by_deletion,
    main_is_over,
    only_others_run,
    parse_time,
    rank_of,
    vanished,
)

Json = dict[str, Any]
TASK, ATTEMPT, RANK = f"{DOMAIN}/task", f"{DOMAIN}/attempt", f"{DOMAIN}/rank"
NODE, GPUS = f"{DOMAIN}/node", f"{DOMAIN}/gpus"
# How often the rank of a pod had been restarted in place before; left out: never.
RESTARTS = f"{DOMAIN}/restarts"
ENDED, FORGOTTEN = f"{DOMAIN}/ended", f"{DOMAIN}/forgotten"


@dataclass(slots=True)
class Pod:
    """One pod of ours."""

    name: str
    uid: str
    version: int
    run_id: RunId
    owner_uid: str
    bound: bool
    gpus: tuple[int, ...]
    observed: ObservedRank
    over: bool
    # Its main container ended while others of it go on.
    only_others: bool
    # Seconds of grace of its deletion, once that is ordered.
    deleting: int | None
    # Its run was given up with its node, whatever the pod still reports.
    lost: bool = False
    # Its main container had ended before any deletion was ordered.
    done: bool = False
    # The rank as lost, where it ended only because of that deletion; so it is unless it was ours.
    taken: ObservedRank | None = None
    # Why it is not created yet; only the cluster's events have that.
    event_text: str = ""


@dataclass(slots=True)
class RunObject:
    """The object that owns everything of a run."""

    uid: str
    version: int
    ended: bool
    forgotten_at: datetime | None


def run_id_of(thing: Json) -> RunId | None:
    """Which run an object of ours belongs to; None if it is not one of ours."""
    labels: Json = thing["metadata"].get("labels") or {}
    task, attempt = labels.get(TASK, ""), labels.get(ATTEMPT, "")
    ours = labels.get(MANAGED_BY) == MANAGER and is_task_id(task) and attempt.isdecimal()
    return RunId(TaskId(task), int(attempt)) if ours else None


def restarts_of(thing: Json) -> int:
    """How often the rank of a pod had been restarted in place before."""
    notes: Json = thing["metadata"].get("annotations") or {}
    text: str = notes.get(RESTARTS, "")
    return int(text) if text.isdecimal() else 0


def owner_uid_of(thing: Json) -> str:
    """The uid of the run object that owns it."""
    for owner in thing["metadata"].get("ownerReferences") or ():
        if owner.get("kind") == "ConfigMap":
            return owner["uid"]
    return ""


class Runs:
    """Every run of which something is there."""

    def __init__(self, nodes: Nodes, now: Callable[[], datetime]) -> None:
        self._nodes, self._now = nodes, now
        self.objects: dict[RunId, RunObject] = {}
        self._run_of: dict[str, RunId] = {}
        self._pods: dict[str, Pod] = {}
        self._by_run: dict[RunId, dict[int, Pod]] = {}
        self._on_node: dict[str, dict[str, Pod]] = {}
        # Ranks whose pods are gone, while their runs are not forgotten.
        self._gone: dict[RunId, dict[int, ObservedRank]] = {}
        self._observed: dict[RunId, ObservedRun] = {}
        self._dirty: set[RunId] = set()

    # Queries

    def pod(self, name: str) -> Pod | None:
        """A pod of ours by its name."""
        return self._pods.get(name)

    def pods_of(self, run_id: RunId) -> list[Pod]:
        """The pods of a run that are there."""
        return list(self._by_run.get(run_id, {}).values())

    def pods_on(self, node_id: str) -> list[Pod]:
        """The pods of ours that are bound to a node."""
        return list(self._on_node.get(node_id, {}).values())

    def names(self) -> list[tuple[str, str]]:
        """All pods of ours: name and uid."""
        return [(pod.name, pod.uid) for pod in self._pods.values()]

    def is_gone(self, run_id: RunId, rank: int, start: int) -> bool:
        """Whether the rank had a pod with this start, or a later one, that is gone."""
        last = self._gone.get(run_id, {}).get(rank)
        return last is not None and last.start >= start

    def left_with_others(self) -> Iterator[Pod]:
        """Pods in which only the user's other containers still run."""
        return (pod for pod in self._pods.values() if pod.only_others and pod.deleting is None)

    def strays(self) -> Iterator[Pod]:
        """Pods of ended runs that were not deleted: an outdated leader created them."""
        for pod in self._pods.values():
            thing = self.objects.get(pod.run_id)
            if thing is not None and thing.ended and not pod.over and pod.deleting is None:
                yield pod

    def forgotten(self) -> Iterator[tuple[RunId, RunObject, datetime]]:
        """Forgotten runs, and when they were forgotten."""
        for run_id, thing in self.objects.items():
            if thing.forgotten_at is not None:
                yield run_id, thing, thing.forgotten_at

    def listing(self) -> tuple[dict[RunId, ObservedRun], tuple[RunId, ...]]:
        """Every run as it is now, and those that may have changed since this was last asked; only
        they are evaluated."""
        changed = tuple(self._dirty)
        for run_id in changed:
            observed = self._observe(run_id)
            if observed is None:
                self._observed.pop(run_id, None)
            else:
                self._observed[run_id] = observed
        self._dirty.clear()
        return dict(self._observed), changed

    def _observe(self, run_id: RunId) -> ObservedRun | None:
        thing = self.objects.get(run_id)
        pods = self._by_run.get(run_id, {})
        forgotten = thing is not None and thing.forgotten_at is not None
        if forgotten:
            # Except for pods that an outdated leader has created.
            pods = {rank: pod for rank, pod in pods.items() if not (pod.over or pod.lost)}
        gone = {} if forgotten else self._gone.get(run_id, {})
        if not pods and not gone and (thing is None or forgotten):
            return None
        ranks = dict(gone)
        for rank, pod in pods.items():
            if self._is_certain(pod):
                ranks[rank] = self._observed_rank(pod)
            else:
                ranks.pop(rank, None)
        there = frozenset(rank.node_id for rank in ranks.values())
        # The API server knows every pod, even if its node does not answer.
        return ObservedRun(run_id, ranks, there, whole=all(map(self._is_certain, pods.values())))

    def _is_certain(self, pod: Pod) -> bool:
        """Whether the known state of a pod holds. On a silent node, only final states do."""
        return pod.over or pod.lost or not pod.bound or self._nodes.ready(pod.observed.node_id)

    def _observed_rank(self, pod: Pod) -> ObservedRank:
        if pod.taken is None or pod.lost or self._ordered(pod):
            return pod.observed
        return pod.taken

    # Updates

    def put_object(self, run_id: RunId, thing: Json) -> bool:
        """A run object as it now is; True if that changed something."""
        meta, known = thing["metadata"], self.objects.get(run_id)
        version = int(meta["resourceVersion"])
        if known is not None and version < known.version:
            return False
        notes: Json = meta.get("annotations") or {}
        forgotten_at = parse_time(notes.get(FORGOTTEN))
        if known is not None and known.uid != meta["uid"]:
            self._run_of.pop(known.uid, None)
        self._run_of[meta["uid"]] = run_id
        self.objects[run_id] = RunObject(meta["uid"], version, ENDED in notes, forgotten_at)
        if forgotten_at is not None:
            self._gone.pop(run_id, None)
        self._dirty.add(run_id)
        return True

    def drop_object(self, uid: str, version: int) -> bool:
        """A run object is gone; True if that changed something."""
        run_id = self._run_of.get(uid)
        known = self.objects.get(run_id) if run_id is not None else None
        if run_id is None or known is None or known.version > version:
            return False
        del self.objects[run_id], self._run_of[uid]
        if known.forgotten_at is not None:
            self._gone.pop(run_id, None)
        self._dirty.add(run_id)
        return True

    def forget(self, run_id: RunId) -> None:
        """Drop what only memory holds of a run."""
        self._gone.pop(run_id, None)
        self._dirty.add(run_id)

    def put_pod(self, run_id: RunId, thing: Json) -> bool:
        """A pod of ours as it now is; True if that changed something."""
        meta = thing["metadata"]
        name: str = meta["name"]
        version = int(meta["resourceVersion"])
        known = self._pods.get(name)
        if known is not None and version < known.version:
            return False
        labels: Json = meta.get("labels") or {}
        rank = str(labels.get(RANK, ""))
        if not rank.isdecimal():
            return False
        if known is not None and known.uid != meta["uid"]:
            self._remove(known, vanished(None, known.observed, ordered=self._ordered(known)))
            known = None
        pod = self._read(run_id, int(rank), thing, version, known)
        self._pods[name] = pod
        self._by_run.setdefault(run_id, {})[pod.observed.rank] = pod
        if pod.bound:
            self._on_node.setdefault(pod.observed.node_id, {})[name] = pod
        self._note_use(pod)
        if known is None or _visible(known) != _visible(pod):
            self._dirty.add(run_id)
            return True
        return known.deleting != pod.deleting or known.only_others != pod.only_others

    def _read(self, run_id: RunId, rank: int, thing: Json, version: int, known: Pod | None) -> Pod:
        meta, spec = thing["metadata"], thing["spec"]
        notes: Json = meta.get("annotations") or {}
        bound: str = spec.get("nodeName") or ""
        place = Place(rank, bound or notes.get(NODE, ""), restarts_of(thing))
        over, lost = is_over(thing), known is not None and known.lost
        event_text = known.event_text if known is not None else ""
        observed = _with_event_text(self._since(rank_of(thing, place), known), event_text)
        deleting = meta.get("deletionTimestamp") is not None
        done = (known is not None and known.done) or (
            not deleting and (over or main_is_over(thing))
        )
        return Pod(
            name=meta["name"],
            uid=meta["uid"],
            version=version,
            run_id=run_id,
            owner_uid=owner_uid_of(thing),
            bound=bool(bound),
            gpus=tuple(int(gpu) for gpu in notes.get(GPUS, "").split(",") if gpu.isdecimal()),
            observed=_given_up(observed) if lost else observed,
            over=over,
            only_others=only_others_run(thing),
            deleting=int(meta.get("deletionGracePeriodSeconds") or 0) if deleting else None,
            lost=lost,
            done=done,
            taken=None if done else lost_by_deletion(thing, place),
            event_text=event_text,
        )

    def waiting(self, before: datetime) -> Iterator[Pod]:
        """Pods that were bound before that time and are not created yet."""
        for pod in self._pods.values():
            since = pod.observed.fault_since
            if pod.bound and pod.observed.fault is Fault.BEING_MADE and since and since <= before:
                yield pod

    def explain(self, pod: Pod, event_text: str) -> bool:
        """Note from events why a pod is not created yet. True if that changed."""
        if pod.event_text == event_text or self._pods.get(pod.name) is not pod:
            return False
        pod.event_text, pod.observed = event_text, _with_event_text(pod.observed, event_text)
        self._dirty.add(pod.run_id)
        return True

    def _since(self, observed: ObservedRank, known: Pod | None) -> ObservedRank:
        """Add the time since which the rank has its fault."""
        if observed.state is not RankState.PENDING:
            return observed
        before = known.observed if known is not None else None
        same = before is not None and before.fault is observed.fault
        since = before.fault_since if before is not None and same else self._now()
        return replace(observed, fault_since=since)

    def drop_pod(self, name: str, thing: Json | None, version: int) -> bool:
        """A pod of ours is gone; ``thing`` is its last state, if known."""
        known = self._pods.get(name)
        if known is None or version < known.version:
            return False
        if thing is not None and known.uid != thing["metadata"]["uid"]:
            return False
        last = vanished(thing, known.observed, ordered=self._ordered(known))
        taken = known.taken
        if thing is not None and not known.done:
            last_place = known.observed
            place = Place(last_place.rank, last_place.node_id, last_place.start)
            taken = lost_by_deletion(thing, place)
        if known.lost:
            last = known.observed
        elif taken is not None and not self._ordered(known):
            last = taken
        self._remove(known, last)
        return True

    def _ordered(self, pod: Pod) -> bool:
        thing = self.objects.get(pod.run_id)
        return (thing is not None and thing.ended) or pod.only_others

    def _remove(self, pod: Pod, last: ObservedRank) -> None:
        del self._pods[pod.name]
        _drop(self._by_run, pod.run_id, pod.observed.rank)
        _drop(self._on_node, pod.observed.node_id, pod.name)
        self._nodes.use_by_us(pod.observed.node_id, pod.name, None)
        thing = self.objects.get(pod.run_id)
        if thing is None or thing.forgotten_at is None:
            self._gone.setdefault(pod.run_id, {})[pod.observed.rank] = last
        self._dirty.add(pod.run_id)

    def give_up(self, pod: Pod) -> None:
        """What runs in the pod is lost with its node, though the pod is still there."""
        if not (pod.lost or pod.over):
            pod.lost, pod.observed = True, _given_up(pod.observed)
            self._note_use(pod)
            self._dirty.add(pod.run_id)

    def node_changed(self, node_id: str) -> None:
        """A node began or ceased to answer."""
        self._dirty |= {pod.run_id for pod in self._on_node.get(node_id, {}).values()}

    def _note_use(self, pod: Pod) -> None:
        if pod.bound:
            gpus = None if pod.over else pod.gpus
            self._nodes.use_by_us(pod.observed.node_id, pod.name, gpus, lost=pod.lost)


def _visible(pod: Pod) -> tuple[object, ...]:
    return pod.observed, pod.lost, pod.taken


def _with_event_text(observed: ObservedRank, event_text: str) -> ObservedRank:
    if (
        not event_text
        or observed.fault is not Fault.BEING_MADE
        or observed.state is not RankState.PENDING
    ):
        return observed
    return replace(observed, note=describe(Fault.BEING_MADE, event_text))


def _given_up(observed: ObservedRank) -> ObservedRank:
    fault = Fault.NODE_LOST
    return replace(
        observed, state=RankState.LOST, fault=fault, note=describe(fault), fault_since=None
    )


def _drop(index: dict[Any, dict[Any, Pod]], key: object, inner: object) -> None:
    held = index.get(key)
    if held is not None:
        held.pop(inner, None)
        if not held:
            del index[key]
