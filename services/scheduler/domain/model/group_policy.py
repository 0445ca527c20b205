"""How node groups are shared: the settings of all groups, and the policy of each.

``policy_documents.py`` parses and validates policy files. A ``GroupPolicy`` is also a row that
``store.py`` keeps. What it leaves open, ``PolicySettings`` says for all groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from libs.contracts.messages import Priority


@dataclass(frozen=True, slots=True)
class Demotion:
    """A task at ``level`` counts at ``to`` once it ran so long."""

    level: Priority
    to: Priority
    after_seconds: float


# From the HAI Platform's documented rule.
DEMOTIONS: tuple[Demotion, ...] = (Demotion(Priority.ABOVE_NORMAL, Priority.NORMAL, 1800.0),)


@dataclass(frozen=True, slots=True)
class VirtualCluster:
    """Nodes guaranteed to teams and users. Other tasks borrow what is idle.

    ``nodes`` is a number of node equivalents: 0.5 is half of a node's GPUs. ``parent`` names the
    virtual cluster that this one is a part of: inside it, it borrows before others do.
    """

    name: str
    nodes: float
    parent: str = ""
    teams: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    # The most that it may hold, borrowed nodes included; None: no maximum.
    nodes_max: float | None = None


@dataclass(frozen=True, slots=True)
class Shares:
    """Weights between users (default 1); a user of a team has the team's weight unless named."""

    users: Mapping[str, float] = field(default_factory=dict[str, float])
    teams: Mapping[str, float] = field(default_factory=dict[str, float])

    def of(self, owner: str, team: str) -> float:
        """The weight of a user."""
        return self.users.get(owner, self.teams.get(team, 1.0))


@dataclass(frozen=True, slots=True)
class Timeshare:
    """The parameters of the ``timeshare`` discipline; times are in seconds."""

    # How often a waiting task may preempt a running one of its own level.
    pass_seconds: float = 60.0
    # What a preemption costs a task whose own cost is not measured yet.
    restart_seconds: float = 60.0
    # Part of the pool's capacity that preemptions inside a level may cost.
    budget_share: float = 0.018
    # Part of the pool's capacity for starvation grants, and after how long without service a task
    # gets one.
    grant_share: float = 0.015
    grant_after_seconds: float = 86_400.0
    slice_seconds_min: float = 3600.0
    slice_share: float = 0.6
    hold_seconds: float = 16 * 3600.0
    # The run time limits that users give are read as estimates.
    use_limits: bool = True
    # Slices, holds and grants are shorter where tasks are, and longer where they run for days.
    adapt_times: bool = True
    # A user with a backlog of more than a day of the whole pool yields while others wait.
    flood_guard: bool = False


@dataclass(frozen=True, slots=True)
class Rotation:
    """The numbers of the ``rotation`` discipline; seconds."""

    first_slice_seconds: float = 900.0
    slice_seconds: float = 14_400.0
    half_life_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """How one node group is shared."""

    group: str
    version: int = 0
    # The name of a discipline.
    policy: str = "timeshare"
    timeshare: Timeshare = field(default_factory=Timeshare)
    rotation: Rotation = field(default_factory=Rotation)
    demotions: tuple[Demotion, ...] = DEMOTIONS
    shares: Shares = field(default_factory=Shares)
    virtual_clusters: tuple[VirtualCluster, ...] = ()
    # A run is not preempted before it ran so long; None: as ``PolicySettings`` says.
    protected_seconds: float | None = None
    # Node labels from the largest domain to the smallest.
    topology: tuple[str, ...] = ("zone", "spine", "leaf")
    # How many gangs may span more than one of the largest domains at once.
    cross_zone_gangs_max: int = 1
    # The policy was removed: the group has the defaults again. Kept for its version.
    removed: bool = False
    # True if the scheduler's policy file set it, False if a command did.
    from_file: bool = False
    changed_by: str = ""
    changed_at: datetime | None = None

    def demoted(self, level: Priority, run_seconds: float) -> Priority:
        """The level at which a task of ``level`` counts after running so long.

        Demotions form chains, which are followed to their end whatever their order in the list.
        """
        steps = {demotion.level: demotion for demotion in self.demotions}
        # Each demotion is used at most once, so a cycle could not hang this.
        while (step := steps.pop(level, None)) and run_seconds >= step.after_seconds:
            level = step.to
        return level

    def same_rules(self, other: GroupPolicy) -> bool:
        """True if both policies share the group in the same way, whoever set them and when."""
        return self._rules() == other._rules()

    def _rules(self) -> GroupPolicy:
        return replace(self, version=0, from_file=False, changed_by="", changed_at=None)


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The parameters of the policy; times are in seconds."""

    # The discipline of groups without a policy of their own.
    policy: str = "timeshare"
    start_deadline_seconds: float = 300.0
    start_attempts_max: int = 5
    # A run is not preempted before it ran so long.
    protected_seconds: float = 0.0
    retry_delay_seconds: float = 10.0
    retry_delay_seconds_max: float = 600.0
    # A task that handed its nodes over on its own starts again after this; after twice as long each
    # time that it does so again within ``yield_soon_seconds`` of its start, up to the maximum. The
    # same holds from the second attempt in a row on that a change of the mode or a pause ended so.
    yield_delay_seconds: float = 1.0
    yield_delay_seconds_max: float = 60.0
    yield_soon_seconds: float = 30.0
    # A task that is to stop gets no more than this to save.
    stop_ack_seconds_max: float = 30.0
    # A run whose program never polled for requests gets no more than this.
    silent_ack_seconds_max: float = 5.0
    # An attempt in debug mode lasts no longer than this.
    debug_seconds_max: float = 8 * 3600.0
    # CPU-only ranks on one node: as many as it has CPUs, this many where that is not known.
    cpu_ranks_per_node: int = 16
    # AUTO rises above this only to a level that a limit names together with the owner or the
    # team; limits for each user only lower it.
    auto_level_max: Priority = Priority.NORMAL
    # After so many attempts in a row without a newer checkpoint, the owner is warned.
    no_progress_attempts: int = 3
