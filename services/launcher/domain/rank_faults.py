"""What a runtime can find wrong with a rank, as one table: how the run ends, when, and what its
owner is told. Called by ``reconcile`` and by the runtimes with pods; rendered into the docs.

A fault of the task itself ends as ``failed`` and uses its retries. A fault of the site ends as
``lost``: the task waits and is tried elsewhere, and its starts are counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from libs.contracts.messages import ExitKind
from services.launcher.domain.model import Fault


class Seen(StrEnum):
    """At which point of a run the fault shows."""

    LAUNCH = "launch refused"
    WAITING = "not started"
    ENDED = "ended"


class Wait(StrEnum):
    """How long a rank may be pending with the fault before the run is ended."""

    NONE = "at once"
    IMAGE_PULL = "image_pull_seconds"
    CREATE = "create_seconds"
    START_DEADLINE = "the start deadline"


@dataclass(frozen=True, slots=True)
class Line:
    """One fault."""

    fault: Fault
    seen: Seen
    # What the cluster calls it: reasons of containers, pods and conditions, or codes of answers.
    signs: tuple[str, ...]
    # How it is said to people, before the cluster's own words.
    says: str
    kind: ExitKind
    wait: Wait = Wait.NONE


F, S = Fault, Seen
FAILED, LOST = ExitKind.FAILED, ExitKind.LOST

LINES: tuple[Line, ...] = (
    Line(F.INVALID_POD, S.LAUNCH, ("400", "413", "422"), "the cluster refuses the pod", FAILED),
    Line(F.AGAINST_POLICY, S.LAUNCH, (), "the site's pod policy does not allow it", FAILED),
    Line(
        F.NOT_ADMITTED, S.LAUNCH, ("403 of an admission",), "the cluster does not admit it", FAILED
    ),
    Line(F.OVER_QUOTA, S.LAUNCH, ("403 exceeded quota",), "the namespace's quota is used up", LOST),
    Line(F.NAME_TAKEN, S.LAUNCH, ("409",), "another object has the name", LOST),
    Line(
        F.BEING_MADE,
        S.WAITING,
        ("ContainerCreating", "PodInitializing"),
        "the pod is being made",
        LOST,
        Wait.START_DEADLINE,
    ),
    Line(
        F.UNSCHEDULABLE,
        S.WAITING,
        ("Unschedulable", "SchedulingGated"),
        "the cluster's scheduler does not bind it",
        LOST,
        Wait.START_DEADLINE,
    ),
    Line(
        F.INVALID_IMAGE,
        S.WAITING,
        ("InvalidImageName",),
        "the image's name is invalid",
        FAILED,
    ),
    Line(
        F.IMAGE_PULL,
        S.WAITING,
        (
            "ErrImagePull",
            "ImagePullBackOff",
            "ErrImageNeverPull",
            "RegistryUnavailable",
            "ImageInspectError",
            "SignatureValidationFailed",
        ),
        "the image cannot be pulled",
        FAILED,
        Wait.IMAGE_PULL,
    ),
    Line(
        F.BAD_REFERENCE,
        S.WAITING,
        ("CreateContainerConfigError",),
        "something that the pod names is not there",
        FAILED,
        Wait.CREATE,
    ),
    Line(
        F.NOT_CREATED,
        S.WAITING,
        ("CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError"),
        "the container cannot be made",
        FAILED,
        Wait.CREATE,
    ),
    Line(F.OUT_OF_MEMORY, S.ENDED, ("OOMKilled",), "out of memory", FAILED),
    Line(
        F.CANNOT_RUN,
        S.ENDED,
        ("StartError", "ContainerCannotRun"),
        "the command cannot be run",
        FAILED,
    ),
    Line(F.INIT_FAILED, S.ENDED, ("an init container's code",), "an init container failed", FAILED),
    Line(
        F.OVER_STORAGE,
        S.ENDED,
        ("Evicted over a limit of the pod",),
        "it used more storage than its limit",
        FAILED,
    ),
    Line(F.OVER_TIME, S.ENDED, ("DeadlineExceeded",), "the pod's own deadline is over", FAILED),
    Line(F.EVICTED, S.ENDED, ("Evicted", "EvictionByEvictionAPI"), "evicted from its node", LOST),
    Line(
        F.DISPLACED,
        S.ENDED,
        ("Preempting", "PreemptionByScheduler"),
        "displaced by a pod that is not of this platform",
        LOST,
    ),
    Line(
        F.NODE_DOWN,
        S.ENDED,
        ("Terminated", "NodeShutdown", "TerminationByKubelet"),
        "its node was shut down",
        LOST,
    ),
    Line(
        F.NODE_REFUSED,
        S.ENDED,
        (
            "UnexpectedAdmissionError",
            "AdmissionError",
            "NodeAffinity",
            "NodePorts",
            "OutOfcpu",
            "OutOfmemory",
            "OutOfpods",
            "OutOfephemeral-storage",
            "TopologyAffinityError",
        ),
        "its node refused it",
        LOST,
    ),
    Line(
        F.NODE_LOST,
        S.ENDED,
        ("NodeLost", "DeletionByTaintManager", "DeletionByPodGC"),
        "its node does not answer",
        LOST,
    ),
    Line(F.DELETED, S.ENDED, ("the pod is gone",), "its pod was deleted by somebody", LOST),
)

TABLE: Mapping[Fault, Line] = {line.fault: line for line in LINES}
# Of a rank that was lost before it began, the faults that speak against its node.
OF_THE_NODE = frozenset({F.NODE_DOWN, F.NODE_REFUSED, F.NODE_LOST})
_BY_SIGN: Mapping[tuple[Seen, str], Line] = {
    (line.seen, sign): line for line in LINES for sign in line.signs
}

# Evictions that the pod itself brought about, by the kubelet's words.
_OWN_LIMIT = ("exceeds the total limit", "exceeded its local", "exceeds the limit")


@dataclass(frozen=True, slots=True)
class Waits:
    """The numbers behind ``Wait``."""

    image_pull: timedelta = timedelta(seconds=120)
    create: timedelta = timedelta(seconds=60)


def waiting_as(reason: str) -> Line | None:
    """The line for the reason of a container that waits, or of a pod that is not bound."""
    return _BY_SIGN.get((Seen.WAITING, reason))


def ended_as(reason: str, message: str = "") -> Line | None:
    """The line for the reason of a container, a pod or a condition that ended."""
    line = _BY_SIGN.get((Seen.ENDED, reason))
    if line is not None and line.fault is F.EVICTED and any(w in message for w in _OWN_LIMIT):
        return TABLE[F.OVER_STORAGE]
    return line


def is_own_fault(fault: Fault) -> bool:
    """Whether the task itself has to change before it can start."""
    return TABLE[fault].kind is FAILED


def patience(fault: Fault, waits: Waits) -> timedelta | None:
    """How long a rank may be pending with this fault; None: until the start deadline."""
    match TABLE[fault].wait:
        case Wait.NONE:
            return timedelta(0)
        case Wait.IMAGE_PULL:
            return waits.image_pull
        case Wait.CREATE:
            return waits.create
        case Wait.START_DEADLINE:
            return None


def sentence(fault: Fault, words: str = "") -> str:
    """What people are told: our sentence, then the cluster's words."""
    says = TABLE[fault].says
    return f"{says}: {words}" if words else says


def render_markdown() -> str:
    """The table for the documentation."""
    lines = [
        "| seen | the cluster says | people are told | the run is | after |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {line.seen} | {', '.join(f'`{sign}`' for sign in line.signs) or 'our own check'}"
        f" | {line.says} | {line.kind.name.lower()}"
        f" | {line.wait if line.seen is Seen.WAITING else ''} |"
        for line in LINES
    ]
    return "\n".join(lines) + "\n"
