"""The numbers of the loops, as ``main.py`` takes them from the settings."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.launcher.domain.delays import DelayPolicy
from services.launcher.domain.inventory import LeasePolicy, QuarantinePolicy
from services.launcher.domain.patience import PatiencePolicy
from services.launcher.domain.ports import PortRange
from services.launcher.domain.reconcile import Policy


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers of the loops."""

    policy: Policy
    leases: LeasePolicy
    ports: PortRange
    actions_parallel_max: int
    retry_first_seconds: float
    retry_most_seconds: float
    quarantine: QuarantinePolicy
    patience: PatiencePolicy = field(default_factory=PatiencePolicy)
    delays: DelayPolicy = field(default_factory=DelayPolicy)
