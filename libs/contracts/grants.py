"""Which grant decides for a user in a group at a level, and how much it permits there. Pure.

The scheduler calls this when it decides and explains, and submit before it accepts a task, so both
give the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Protocol, TypeAlias, TypeVar

from libs.contracts.messages import Priority, Quota, Unit
from libs.contracts.reasons import level_name
from libs.contracts.wording import counted

# Group, user, team, priority; empty or UNSPECIFIED: every one.
Names: TypeAlias = tuple[str, str, str, Priority]
R = TypeVar("R")

# The levels that a run can have, the lowest first.
ASCENDING = tuple(level for level in Priority if level not in (Priority.UNSPECIFIED, Priority.AUTO))
# The names of the site's default: the grant that decides where no other does.
SITE: Names = ("", "", "", Priority.UNSPECIFIED)


class Permits(Protocol):
    """What a grant says, whatever row or message holds it."""

    @property
    def group(self) -> str:
        """The group; empty: each by itself."""
        ...

    @property
    def user(self) -> str:
        """The user; empty: each by themselves."""
        ...

    @property
    def team(self) -> str:
        """The team, for each member by themselves; empty: every team."""
        ...

    @property
    def priority(self) -> Priority:
        """The level; UNSPECIFIED: every one."""
        ...

    @property
    def unit(self) -> Unit:
        """What ``limit`` counts."""
        ...

    @property
    def limit(self) -> int:
        """How much is permitted at once."""
        ...

    @property
    def unlimited(self) -> bool:
        """True if any amount is permitted."""
        ...

    @property
    def level_max(self) -> Priority:
        """The highest level that is permitted; UNSPECIFIED: every level is."""
        ...


def scope_of(quota: Quota) -> str:
    """The scope of a cap or a grant: there is at most one row for each scope, in one unit. Services
    store it as the row's key."""
    scope = f"{quota.group}/{quota.user}/{quota.team}/{quota.priority}"
    return f"grant/{scope}" if quota.grant else scope


def deciding(
    find: Callable[[Names], R | None], user: str, team: str, group: str, level: Priority
) -> R | None:
    """Return the one grant that decides, the most specific; None: nothing limits.

    A grant for the user comes before one for the team, and that before one for each user; then a
    named group comes before every group, then a named priority before every priority. ``find``
    returns the grant with exactly these names. Raises ValueError without a level.
    """
    _require_level(level)
    who = [("", user), *([(team, "")] if team else []), ("", "")]
    for (of_team, of_user), in_group, at in product(
        who, (group, ""), (level, Priority.UNSPECIFIED)
    ):
        found = find((in_group, of_user, of_team, at))
        if found is not None:
            return found
    return None


def permitted(grant: Permits, level: Priority) -> int | None:
    """How much a grant permits at a level, in its unit; 0: the level is not permitted; None: any
    amount. Raises ValueError without a level."""
    _require_level(level)
    most = grant.level_max
    if most is not Priority.UNSPECIFIED and ASCENDING.index(level) > ASCENDING.index(most):
        return 0
    return None if grant.unlimited else grant.limit


def _require_level(level: Priority) -> None:
    """A task that waits has no level yet: its caller must take the one at which it would count."""
    if level not in ASCENDING:
        raise ValueError(f"quotas are per level, and {level.value or level.name} is none")


def amount(number: int, unit: Unit) -> str:
    """``4 GPUs``, ``1 node``, ``8 GPUs, or nodes for runs without GPUs``."""
    if unit is Unit.NODES:
        return counted(number, "node")
    either = ", or nodes for runs without GPUs" if unit is Unit.GPUS_OR_NODES and number else ""
    return counted(number, "GPU") + either


def grant_text(grant: Permits) -> str:
    """The grant as texts name it: ``ann's grant of 4 GPUs at high in group default``."""
    # What permits any amount has no unit, nor has it at a level that it does not permit.
    is_any = grant.unlimited or grant.unit is Unit.UNSPECIFIED
    much = "any amount" if is_any else amount(grant.limit, grant.unit)
    if grant.level_max is not Priority.UNSPECIFIED:
        above = f"nothing above {level_name(grant.level_max)}"
        much = f"{much}, {above}" if is_any or grant.limit else above
    if is_site(grant):
        return f"the site's default ({much})"
    at = "" if grant.priority is Priority.UNSPECIFIED else f" at {level_name(grant.priority)}"
    where = f"{at} in group {grant.group}" if grant.group else f"{at} in each group"
    if grant.user:
        return f"{grant.user}'s grant of {much}{where}"
    each = f"each member of team {grant.team}" if grant.team else "each user"
    return f"the grant of {much} for {each}{where}"


class Row(Permits, Protocol):
    """A cap or a grant."""

    @property
    def grant(self) -> bool:
        """False: a cap."""
        ...


def set_command(row: Row) -> str:
    """The command line that is about this row, up to its amount."""
    level = "" if row.priority is Priority.UNSPECIFIED else level_name(row.priority)
    scope = (("user", row.user), ("team", row.team), ("priority", level), ("group", row.group))
    options = "".join(f" --{name} {value}" for name, value in scope if value)
    return f"shiftwork quota set{' --grant' if row.grant else ''}{options}"


def is_site(grant: Permits) -> bool:
    """True for the site's default, the grant without any name."""
    return (grant.group, grant.user, grant.team, grant.priority) == SITE
