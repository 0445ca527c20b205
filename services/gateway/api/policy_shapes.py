"""Answers about policies as types, for /v1/openapi.json; the others are in ``shapes.py``."""

from __future__ import annotations

from typing import Any

from typing_extensions import TypeAliasType, TypedDict

from services.gateway.api.shapes import FieldProblem, Reason

# Its schema is in ``policy_schemas.py``, which is generated from the scheduler's fields.
PolicyDocument = TypeAliasType("PolicyDocument", dict[str, Any])


class Policy(TypedDict):
    """How one node group is shared. ``source``: command, file or default."""

    group: str
    policy: str
    document: PolicyDocument
    version: int
    source: str
    changed_by: str | None
    changed_at: str | None


class PolicyPage(TypedDict):
    """One page of policies."""

    items: list[Policy]
    next_cursor: str | None


class PolicySet(TypedDict):
    """Policies are stored: the version of each group, and which of them were not so before."""

    versions: dict[str, int]
    changed: list[str]
    warnings: list[FieldProblem]


class Verdict(TypedDict):
    """What is decided about a task: a decision's kind, or wait."""

    decision: str
    reason: Reason | None
    beneficiary: str | None


class PolicyEffect(TypedDict):
    """A task about which something else would be decided; null: it is left as it is."""

    task: str
    name: str
    owner: str
    group: str
    state: str
    nodes: int
    now: Verdict | None
    then: Verdict | None


class PolicyRound(TypedDict):
    """What one round does to a group."""

    starts: int
    promised: int
    preemptions: int
    waiting: int
    gpus_held: int
    gpus_handed_over: int
    gpu_seconds_at_risk: float


class PolicyOutlook(TypedDict):
    """One group's rounds, compared."""

    group: str
    now: PolicyRound
    then: PolicyRound


class PolicyDryRun(TypedDict):
    """What would be decided under other policies; ``more`` effects are not named."""

    effects: list[PolicyEffect]
    more: int
    outlooks: list[PolicyOutlook]
    warnings: list[FieldProblem]
    decided_at: str | None
