"""Derives the state of a rank from its pod's JSON: pending and why, running, or how it ended. Pure.

Called by ``pods.py`` for every change of a pod of ours. The faults are the table of
``domain/rank_faults.py``; this module only knows where Kubernetes reports them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from libs.pods.kubernetes_names import MAIN
from services.launcher.domain.model import Fault, ObservedRank, RankState
from services.launcher.domain.rank_faults import (
    FaultRule,
    Wait,
    describe,
    ended_fault,
    is_own_fault,
    waiting_fault,
)

Json = dict[str, Any]
TEXT_CHARACTERS_MAX = 300
OVER_PHASES = ("Succeeded", "Failed")
SHELL_SIGNAL_BASE = 128


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank a pod is, and on which node."""

    rank: int
    node_id: str
    # How often the rank had been restarted in place before.
    start: int = 0


def parse_time(text: str | None) -> datetime | None:
    """A time of Kubernetes, which has whole seconds."""
    return datetime.fromisoformat(text) if text else None


def is_over(pod: Json) -> bool:
    """Whether all containers of the pod have ended for good, so that its resources are free."""
    return pod.get("status", {}).get("phase") in OVER_PHASES


def main_is_over(pod: Json) -> bool:
    """Whether the task's own container ended, whatever the user's others do."""
    return "terminated" in _main(pod).get("state", {})


def only_others_run(pod: Json) -> bool:
    """Whether the task's own container ended and another one keeps the pod from ending. A kubelet
    reports the pod as Running slightly longer than its last container."""
    status: Json = pod.get("status", {})
    run_all = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
    others = (each for each in run_all if each["name"] != MAIN)
    return (
        not is_over(pod)
        and main_is_over(pod)
        and any("terminated" not in each.get("state", {}) for each in others)
    )


def rank_of(pod: Json, place: Place) -> ObservedRank:
    """The state of the rank according to its pod."""
    state: Json = _main(pod).get("state", {})
    if is_over(pod):
        return _ended(pod, place)
    started: Json | None = state.get("running") or state.get("terminated")
    if started is not None:
        return ObservedRank(
            place.rank,
            place.node_id,
            RankState.RUNNING,
            started_at=parse_time(started.get("startedAt")),
            start=place.start,
            ready="running" in state and _has_probe(pod) and bool(_main(pod).get("ready")),
        )
    fault, note = _why_pending(pod, place)
    return ObservedRank(
        place.rank,
        place.node_id,
        RankState.PENDING,
        note=note,
        fault=fault,
        start=place.start,
    )


def _has_probe(pod: Json) -> bool:
    """Whether the kubelet probes the task's own container. It reports one without a probe as ready
    from its start."""
    containers: list[Json] = pod["spec"].get("containers") or []
    return any(each["name"] == MAIN and each.get("readinessProbe") for each in containers)


def vanished(pod: Json | None, last: ObservedRank, *, ordered: bool) -> ObservedRank:
    """The state of a rank whose pod is gone. ``pod``: its last state, if observed; ``ordered``: the
    launcher had it deleted."""
    place = Place(last.rank, last.node_id, last.start)
    if pod is not None and (is_over(pod) or main_is_over(pod)):
        return _ended(pod, place)
    if last.over:
        return last
    if ordered:
        # It has ended, but how is unknown.
        return ObservedRank(
            last.rank,
            last.node_id,
            RankState.EXITED,
            started_at=last.started_at,
            note="ended by the platform",
            start=last.start,
        )
    line = _disruption(pod) if pod is not None else None
    fault = line.fault if line is not None else Fault.DELETED
    return _lost(place, fault, _disruption_text(pod) if pod else "", last.started_at)


def lost_by_deletion(pod: Json, place: Place) -> ObservedRank | None:
    """The rank as lost, if it ended because others deleted its pod: it was not finished, however
    the program reacted to SIGTERM. None if it still runs, or ended before the deletion."""
    meta: Json = pod["metadata"]
    end: Json = _main(pod).get("state", {}).get("terminated") or {}
    deadline = parse_time(meta.get("deletionTimestamp"))
    if deadline is None or not (is_over(pod) or end):
        return None
    deleted_at = deadline - timedelta(seconds=meta.get("deletionGracePeriodSeconds") or 0)
    exited_at = parse_time(end.get("finishedAt"))
    if exited_at is not None and exited_at < deleted_at:
        return None
    line = _disruption(pod)
    fault = line.fault if line is not None else Fault.DELETED
    return _lost(place, fault, _disruption_text(pod), parse_time(end.get("startedAt")))


def _lost(place: Place, fault: Fault, text: str, started_at: datetime | None) -> ObservedRank:
    return ObservedRank(
        place.rank,
        place.node_id,
        RankState.LOST,
        started_at=started_at,
        note=describe(fault, text),
        fault=fault,
        start=place.start,
    )


def _ended(pod: Json, place: Place) -> ObservedRank:
    status: Json = pod["status"]
    end: Json = _main(pod).get("state", {}).get("terminated") or {}
    started_at, exited_at = parse_time(end.get("startedAt")), parse_time(end.get("finishedAt"))
    code: int | None = end.get("exitCode")
    if code == 0 and status["phase"] != "Failed":
        return ObservedRank(
            place.rank,
            place.node_id,
            RankState.EXITED,
            0,
            None,
            started_at,
            exited_at,
            start=place.start,
        )
    fault, text = _why_ended(pod, end)
    if fault is not None and not is_own_fault(fault):
        return _lost(place, fault, text, started_at)
    if code is None and fault is None:
        # Failed without a container status: it never had a container.
        unknown = f"{status.get('reason') or 'Failed'}: {status.get('message') or 'no reason'}"
        return _lost(place, Fault.NODE_REFUSED, one_line(unknown), started_at)
    if code is None:
        code = _init_code(pod)
    signal: int | None = end.get("signal") or None
    return ObservedRank(
        rank=place.rank,
        node_id=place.node_id,
        state=RankState.EXITED,
        code=None if signal else code,
        signal=signal,
        started_at=started_at,
        exited_at=exited_at,
        note=describe(fault, text) if fault is not None else text,
        words=_words(pod, end),
        fault=fault,
        start=place.start,
    )


def _why_ended(pod: Json, end: Json) -> tuple[Fault | None, str]:
    """The fault, if there is more than an exit code, and the cluster's message."""
    status: Json = pod["status"]
    reason, message = status.get("reason") or "", status.get("message") or ""
    if line := ended_fault(reason, message):
        return line.fault, one_line(message)
    if line := _disruption(pod):
        return line.fault, _disruption_text(pod)
    if line := ended_fault(end.get("reason") or ""):
        return line.fault, one_line(end.get("message") or _limit(pod, line))
    if not end and (failed := _failed_init(pod)):
        ended: Json = failed["state"]["terminated"]
        if line := ended_fault(ended.get("reason") or ""):
            return line.fault, f"{failed['name']} {one_line(ended.get('message') or '')}".strip()
        text = f"{failed['name']} ended with code {ended.get('exitCode')}"
        return Fault.INIT_FAILED, f"{text} {one_line(ended.get('message') or '')}".strip()
    return None, one_line(end.get("message") or "")


def _words(pod: Json, end: Json) -> str:
    """What the program wrote, or the end of its log: with that the note ends, if it has it."""
    ended: Json = end or (_failed_init(pod) or {}).get("state", {}).get("terminated") or {}
    return one_line(ended.get("message") or "")


def _limit(pod: Json, line: FaultRule) -> str:
    if line.fault is not Fault.OUT_OF_MEMORY:
        return ""
    for container in pod["spec"].get("containers", ()):
        limits: Json = container.get("resources", {}).get("limits") or {}
        if container["name"] == MAIN and "memory" in limits:
            return f"its limit is {limits['memory']}"
    return "its node has no more"


def _disruption(pod: Json) -> FaultRule | None:
    found = _condition(pod, "DisruptionTarget", "True")
    return ended_fault(found.get("reason") or "", found.get("message") or "")


def _disruption_text(pod: Json) -> str:
    return one_line(_condition(pod, "DisruptionTarget", "True").get("message") or "")


def _why_pending(pod: Json, place: Place) -> tuple[Fault, str]:
    """What it waits for: a container with a fault first, then its node, then its making."""
    making = ""
    for container in _containers(pod):
        waiting: Json = container.get("state", {}).get("waiting") or {}
        reason: str = waiting.get("reason") or ""
        line = waiting_fault(reason)
        if line is not None and line.wait is not Wait.START_DEADLINE:
            image = container.get("image") or ""
            text = one_line(waiting.get("message") or reason)
            detail = f"image {image}: {text}" if line.wait is Wait.IMAGE_PULL else text
            return line.fault, describe(line.fault, detail)
        making = making or (f"{reason} {one_line(waiting.get('message') or '')}".strip())
    bound = _condition(pod, "PodScheduled")
    if not pod["spec"].get("nodeName"):
        text = one_line(bound.get("message") or "")
        if bound.get("reason") in ("Unschedulable", "SchedulingGated"):
            return Fault.UNSCHEDULABLE, describe(Fault.UNSCHEDULABLE, text)
        return Fault.BEING_MADE, "waits to be bound to its node"
    return Fault.BEING_MADE, describe(Fault.BEING_MADE, making or f"node {place.node_id} has it")


def one_line(text: str) -> str:
    """One line of bounded length."""
    return " ".join(text.split())[:TEXT_CHARACTERS_MAX]


def _condition(pod: Json, kind: str, status: str | None = None) -> Json:
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition["type"] == kind and status in (None, condition["status"]):
            return condition
    return {}


def _containers(pod: Json) -> Iterator[Json]:
    """The status of each container, in the order in which they start."""
    status: Json = pod.get("status", {})
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _main(pod: Json) -> Json:
    for container in pod.get("status", {}).get("containerStatuses") or ():
        if container["name"] == MAIN:
            return container
    return {}


def _failed_init(pod: Json) -> Json | None:
    for container in pod["status"].get("initContainerStatuses") or ():
        end = container.get("state", {}).get("terminated")
        if end and end.get("exitCode"):
            return container
    return None


def _init_code(pod: Json) -> int | None:
    failed = _failed_init(pod)
    return failed["state"]["terminated"].get("exitCode") if failed else None
