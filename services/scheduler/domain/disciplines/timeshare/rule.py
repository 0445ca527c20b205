"""The rule of the timeshare discipline in numbers: delay, slice, hold, load scale, tags, accounts.

The smallest key runs first: key = submit + tag + s * delay. ``delay`` orders by what a task has
had and how long it may still run, ``tag`` keeps users from flooding each other, ``s`` is the
pool's load scale, and accounts bound what preemptions and grants may cost. All of it is pure;
called by the timeshare discipline at arrivals, slice ends and passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2

from services.scheduler.domain.model.group_policy import Timeshare


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """The numbers of the rule that policies do not set; those they set are in ``Timeshare``.

    Seconds unless said otherwise; a share is a part of the pool.
    """

    # The weight of the attained running time in the delay; the prediction has the rest.
    attained_part: float = 0.0
    # Seconds by which a second of either delays a gang of ``reference_share``.
    delay_factor: float = 30.0
    # Bigger gangs are delayed more, by this power of their share, between the two shares.
    size_power: float = 0.35
    reference_share: float = 0.0625
    share_min: float = 0.006
    share_max: float = 0.25
    # A gang of a quarter of the pool yields only to tasks submitted at most so long after it;
    # others in proportion to their size.
    delay_seconds_max: float = 3e6
    # From this share on a gang is big: held after a start, and served from the whole budget.
    big_share: float = 0.25
    # A held gang catches up with this part of its age.
    hold_age_part: float = 0.40
    # A task takes nodes of its own level only from runs that come this much of its delay later,
    # and so many restart costs, for the part of its nodes that it takes.
    margin_part: float = 0.5
    margin_restarts: float = 20.0
    # How often the load is sampled, and the half-life of its mean.
    sample_seconds: float = 1800.0
    load_half_life_seconds: float = 43_200.0
    # The mean age of live work from which on delays grow with the load; the steps per octave.
    load_seconds: float = 2.5e5
    scale_steps: float = 2.0
    # A user's own tasks set their next ones back by at most so much.
    tag_seconds_max: float = 3 * 86_400.0
    # The budget of preemptions holds at most so many restarts of the whole pool; the last so many
    # are for big gangs and granted tasks.
    budget_restarts_max: float = 4.0
    budget_restarts_reserved: float = 1.0
    # The length of a grant; the account holds so many of the whole pool's, or so many seconds.
    grant_seconds: float = 900.0
    grants_max: float = 1.5
    grants_seconds_max: float = 5_400.0
    # The flood guard: a user's backlog of so many seconds of the whole pool is a flood; then the
    # user holds at most ``flood_part`` of the pool per flood, and never less than the minimum.
    flood_seconds: float = 86_400.0
    flood_part: float = 0.25
    flood_share_min: float = 0.05

    def __post_init__(self) -> None:
        """Reject impossible numbers."""
        for name in ("reference_share", "share_min", "load_half_life_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: above 0")
        if self.load_seconds <= 0 or self.scale_steps <= 0 or self.flood_seconds <= 0:
            raise ValueError("load_seconds, scale_steps and flood_seconds: above 0")
        if not self.share_min <= self.share_max or self.budget_restarts_reserved < 0:
            raise ValueError("share_max: at least share_min; budget_restarts_reserved: at least 0")
        if self.budget_restarts_max <= self.budget_restarts_reserved:
            raise ValueError("budget_restarts_max: above budget_restarts_reserved")


RULE = RuleSettings()


def delay(settings: RuleSettings, share: float, attained_seconds: float, index: float) -> float:
    """The delay of a task at a load scale of 1; the scale multiplies it. Seconds."""
    part = settings.attained_part
    expected = part * attained_seconds + (1.0 - part) * index
    bounded = min(max(share, settings.share_min), settings.share_max)
    factor = settings.delay_factor * (bounded / settings.reference_share) ** settings.size_power
    longest = settings.delay_seconds_max * settings.big_share / max(share, 1e-9)
    return min(factor * expected, longest)


def is_big(settings: RuleSettings, share: float) -> bool:
    """Whether assembling the gang costs many preemptions."""
    return share >= settings.big_share


def slice_seconds(numbers: Timeshare, attained_seconds: float) -> float:
    """How long a task runs before its key is computed again."""
    return max(numbers.slice_seconds_min, numbers.slice_share * attained_seconds)


def hold_seconds(
    settings: RuleSettings,
    numbers: Timeshare,
    *,
    share: float,
    age_seconds: float,
    attained_seconds: float,
    restart_seconds: float,
) -> float:
    """How long after a start a task is not preempted inside its level; 0 unless it is big.

    Until it has run for a part of its age, up to ``hold_seconds`` in all: an old gang that ran
    little catches up, one that ran for its part is preempted like any other.
    """
    if not is_big(settings, share):
        return 0.0
    part = settings.hold_age_part
    owed = min(numbers.hold_seconds, part * age_seconds) - attained_seconds
    return restart_seconds + min(max(owed / (1.0 - part), 0.0), numbers.hold_seconds)


def margin_seconds(
    settings: RuleSettings,
    *,
    delay_seconds: float,
    scale: float,
    restart_seconds: float,
    ratio: float,
) -> float:
    """How far after its submission and tag a run must be so that a waiting task may take its nodes.

    ``delay_seconds`` is its delay at the present scale, ``ratio`` the part of its nodes that would
    be taken from others: preempting costs more than it gains unless they are clearly later.
    """
    restarts = settings.margin_restarts * settings.delay_factor * scale * restart_seconds
    return ((1.0 + settings.margin_part) * delay_seconds + restarts) * ratio


@dataclass(frozen=True, slots=True)
class Load:
    """The mean age of live work in a pool, smoothed, and when it was sampled."""

    mean_age_seconds: float
    sampled_at: float


def sample_due(settings: RuleSettings, load: Load, now: float) -> bool:
    """Whether the load is to be sampled; also after a clock went far back."""
    return abs(now - load.sampled_at) >= settings.sample_seconds


def sampled(settings: RuleSettings, load: Load, age_seconds: float, now: float) -> Load:
    """The load after one more sample; ``age_seconds`` is the mean age of live work now.

    That is sum(q * age) / sum(q) over live tasks of q nodes, 0 where there is none.
    """
    elapsed = max(now - load.sampled_at, 0.0)
    kept = 0.5 ** (elapsed / settings.load_half_life_seconds)
    return Load(kept * load.mean_age_seconds + (1.0 - kept) * max(age_seconds, 0.0), now)


def scale(settings: RuleSettings, load: Load) -> float:
    """The load scale: 1, or more in steps where work waits so long that age would decide alone."""
    over = max(load.mean_age_seconds / settings.load_seconds, 1.0)
    return 2.0 ** (floor(settings.scale_steps * log2(over) + 0.5) / settings.scale_steps)


def tag(
    settings: RuleSettings,
    now: float,
    finish: float,
    *,
    share: float,
    mean_seconds: float,
    users: int,
    weight: float = 1.0,
) -> tuple[float, float]:
    """Fairness between users: the tag of a task, and the ``finish`` for the user's next one.

    ``finish`` is when all that the user submitted so far would be served at their share of the
    pool; 0 where the user has no live task. ``users`` is the number of users with
    live tasks; ``weight`` is the user's share against the others' 1.
    """
    latest = now + settings.tag_seconds_max
    # After a clock went back, the tag is still at most what the rule allows.
    start = min(max(now, finish), latest)
    served = mean_seconds * share * max(1, users) / max(weight, 1e-6)
    return start - now, min(start + served, latest)


@dataclass(frozen=True, slots=True)
class Account:
    """Node-seconds that may be spent, and when they were counted."""

    tokens: float
    counted_at: float


@dataclass(frozen=True, slots=True)
class Budget:
    """How an account fills: node-seconds per second, and at most; the last part is reserved."""

    rate: float
    ceiling: float
    reserved: float = 0.0

    def opened(self, now: float) -> Account:
        """A full account."""
        return Account(self.ceiling, now)

    def accrued(self, account: Account, now: float) -> Account:
        """The account now; time that ran backwards adds nothing."""
        elapsed = max(now - account.counted_at, 0.0)
        return Account(min(account.tokens + self.rate * elapsed, self.ceiling), now)

    def covers(self, account: Account, cost: float, *, entitled: bool = True) -> bool:
        """Whether a cost can be paid from an account counted now.

        A cost above the ceiling is paid from a full account and leaves a debt: it is late, never
        impossible. Only entitled payers may use the reserved part. Without a rate nothing is ever
        spent.
        """
        if self.rate <= 0.0:
            return False
        kept = 0.0 if entitled else self.reserved
        # Tokens are sums of many small steps.
        slack = 1e-9 * self.ceiling
        return account.tokens - kept + slack >= min(cost, self.ceiling - kept)

    def covered_at(self, account: Account, cost: float, *, entitled: bool = True) -> float | None:
        """When the cost can be paid if nothing else is paid before; None: never."""
        if self.rate <= 0.0:
            return None
        kept = 0.0 if entitled else self.reserved
        missing = min(cost, self.ceiling - kept) + kept - account.tokens
        if missing <= 0.0:
            return account.counted_at
        return account.counted_at + missing / self.rate


def spent(account: Account, cost: float) -> Account:
    """The account after paying."""
    return Account(account.tokens - cost, account.counted_at)


def preemption_budget(
    settings: RuleSettings, numbers: Timeshare, nodes: float, restart_seconds: float
) -> Budget:
    """The budget of preemptions inside a level: victims' restarts and lost work.

    ``restart_seconds`` is what a restart usually costs here.
    """
    pool = nodes * restart_seconds
    return Budget(
        numbers.budget_share * nodes,
        settings.budget_restarts_max * pool,
        settings.budget_restarts_reserved * pool,
    )


def grant_budget(settings: RuleSettings, numbers: Timeshare, nodes: float) -> Budget:
    """The budget of starvation grants."""
    most = max(settings.grants_max * settings.grant_seconds, settings.grants_seconds_max)
    return Budget(numbers.grant_share * nodes, most * nodes)


def grant_cost(settings: RuleSettings, size: float, restart_seconds: float) -> float:
    """The cost of a grant: the gang's nodes for its length, and the restart."""
    return size * (settings.grant_seconds + restart_seconds)


def flood_share(settings: RuleSettings, backlog_seconds: float) -> float:
    """The share a user may hold while others want it, for a backlog in seconds of the whole pool.

    The backlog is sum(q) * mean duration / N over the user's live tasks. 1 where it is no flood.
    """
    if backlog_seconds <= settings.flood_seconds:
        return 1.0
    part = settings.flood_part * settings.flood_seconds / backlog_seconds
    return min(max(part, settings.flood_share_min), 1.0)
