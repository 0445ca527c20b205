"""The faults of ranks as one table: how and when the run ends, and the text that its owner sees.
Called by ``reconcile`` and by the runtimes with pods; rendered into the docs.

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


class Phase(StrEnum):
    """The phase of a run in which the fault occurs."""

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
class FaultRule:
    """One fault."""

    fault: Fault
    phase: Phase
    # The cluster's reasons of containers, pods and conditions, or status codes of its answers.
    reasons: tuple[str, ...]
    # The text for people, which precedes the cluster's own message.
    text: str
    kind: ExitKind
    wait: Wait = Wait.NONE


F, S = Fault, Phase
FAILED, LOST = ExitKind.FAILED, ExitKind.LOST

RULES: tuple[FaultRule, ...] = (
    FaultRule(
        F.INVALID_POD, S.LAUNCH, ("400", "413", "422"), "the cluster refuses the pod", FAILED
    ),
    FaultRule(F.AGAINST_POLICY, S.LAUNCH, (), "the site's pod policy does not allow it", FAILED),
    FaultRule(F.NO_COMMAND, S.LAUNCH, (), "it has no command, and its node no images", FAILED),
    FaultRule(
        F.NOT_ADMITTED, S.LAUNCH, ("403 of an admission",), "the cluster does not admit it", FAILED
    ),
    FaultRule(
        F.OVER_QUOTA, S.LAUNCH, ("403 exceeded quota",), "the namespace's quota is used up", LOST
    ),
    FaultRule(F.NAME_TAKEN, S.LAUNCH, ("409",), "another object has the name", LOST),
    FaultRule(
        F.BEING_MADE,
        S.WAITING,
        ("ContainerCreating", "PodInitializing"),
        "the pod is being made",
        LOST,
        Wait.START_DEADLINE,
    ),
    FaultRule(
        F.UNSCHEDULABLE,
        S.WAITING,
        ("Unschedulable", "SchedulingGated"),
        "the cluster's scheduler does not bind it",
        LOST,
        Wait.START_DEADLINE,
    ),
    FaultRule(
        F.INVALID_IMAGE,
        S.WAITING,
        ("InvalidImageName",),
        "the image's name is invalid",
        FAILED,
    ),
    FaultRule(
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
    FaultRule(
        F.BAD_REFERENCE,
        S.WAITING,
        ("CreateContainerConfigError",),
        "something that the pod names is not there",
        FAILED,
        Wait.CREATE,
    ),
    FaultRule(
        F.NOT_CREATED,
        S.WAITING,
        ("CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError"),
        "the container cannot be made",
        FAILED,
        Wait.CREATE,
    ),
    FaultRule(F.OUT_OF_MEMORY, S.ENDED, ("OOMKilled",), "out of memory", FAILED),
    FaultRule(
        F.CANNOT_RUN,
        S.ENDED,
        ("StartError", "ContainerCannotRun"),
        "the command cannot be run",
        FAILED,
    ),
    FaultRule(
        F.INIT_FAILED, S.ENDED, ("an init container's code",), "an init container failed", FAILED
    ),
    FaultRule(
        F.OVER_STORAGE,
        S.ENDED,
        ("Evicted over a limit of the pod",),
        "it used more storage than its limit",
        FAILED,
    ),
    FaultRule(
        F.OVER_TIME, S.ENDED, ("DeadlineExceeded",), "the pod's own deadline is over", FAILED
    ),
    FaultRule(
        F.EVICTED, S.ENDED, ("Evicted", "EvictionByEvictionAPI"), "evicted from its node", LOST
    ),
    FaultRule(
        F.DISPLACED,
        S.ENDED,
        ("Preempting", "PreemptionByScheduler"),
        "displaced by a pod that is not of this platform",
        LOST,
    ),
    FaultRule(
        F.NODE_DOWN,
        S.ENDED,
        ("Terminated", "NodeShutdown", "TerminationByKubelet"),
        "its node was shut down",
        LOST,
    ),
    FaultRule(
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
    FaultRule(
        F.NODE_LOST,
        S.ENDED,
        ("NodeLost", "DeletionByTaintManager", "DeletionByPodGC"),
        "its node does not answer",
        LOST,
    ),
    FaultRule(F.DELETED, S.ENDED, ("the pod is gone",), "its pod was deleted by somebody", LOST),
)

TABLE: Mapping[Fault, FaultRule] = {rule.fault: rule for rule in RULES}
# Faults of the node, if a rank is lost before it began.
NODE_FAULTS = frozenset({F.NODE_DOWN, F.NODE_REFUSED, F.NODE_LOST})
_BY_SIGN: Mapping[tuple[Phase, str], FaultRule] = {
    (rule.phase, reason): rule for rule in RULES for reason in rule.reasons
}

# Parts of the kubelet's message for evictions that the pod itself caused.
_OWN_LIMIT = ("exceeds the total limit", "exceeded its local", "exceeds the limit")


@dataclass(frozen=True, slots=True)
class PendingLimits:
    """The numbers behind ``Wait``."""

    image_pull: timedelta = timedelta(seconds=120)
    create: timedelta = timedelta(seconds=60)


def waiting_fault(reason: str) -> FaultRule | None:
    """The line for the reason of a container that waits, or of a pod that is not bound."""
    return _BY_SIGN.get((Phase.WAITING, reason))


def ended_fault(reason: str, message: str = "") -> FaultRule | None:
    """The line for the reason of a container, a pod or a condition that ended."""
    rule = _BY_SIGN.get((Phase.ENDED, reason))
    if rule is not None and rule.fault is F.EVICTED and any(w in message for w in _OWN_LIMIT):
        return TABLE[F.OVER_STORAGE]
    return rule


def is_own_fault(fault: Fault) -> bool:
    """Whether the task itself has to change before it can start."""
    return TABLE[fault].kind is FAILED


def pending_limit(fault: Fault, limits: PendingLimits) -> timedelta | None:
    """How long a rank may be pending with this fault; None: until the start deadline."""
    match TABLE[fault].wait:
        case Wait.NONE:
            return timedelta(0)
        case Wait.IMAGE_PULL:
            return limits.image_pull
        case Wait.CREATE:
            return limits.create
        case Wait.START_DEADLINE:
            return None


def describe(fault: Fault, details: str = "") -> str:
    """The text for people: the rule's, then the cluster's details."""
    text = TABLE[fault].text
    return f"{text}: {details}" if details else text


def render_markdown() -> str:
    """The table for the documentation."""
    lines = [
        "| phase | reason in the cluster | text for people | the run is | after |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {rule.phase} | {', '.join(f'`{reason}`' for reason in rule.reasons) or 'our own check'}"
        f" | {rule.text} | {rule.kind.name.lower()}"
        f" | {rule.wait if rule.phase is Phase.WAITING else ''} |"
        for rule in RULES
    ]
    return "\n".join(lines) + "\n"
