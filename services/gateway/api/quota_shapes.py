"""What the routes of quotas answer."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from services.gateway.api.shapes import Unreadable


class Cap(TypedDict):
    """A cap that applies to a user; null means every one."""

    user: str | None
    team: str | None
    group: str | None
    priority: str | None
    limit: int
    unit: str
    # Null where the caller may not see the usage of others.
    held: int | None
    free: int | None
    expires_at: str | None


class Granted(TypedDict):
    """The number of the grant that decides, and what is held of it. ``unit`` null: the level is not
    permitted, by a default without a number."""

    limit: int
    unit: str | None
    # Null where the caller may not see the usage of others.
    held: int | None
    free: int | None


class QuotaAllowance(TypedDict):
    """What a user may hold in one group at one level."""

    group: str
    priority: str
    # False: the grant that decides does not permit the level.
    permitted: bool
    # Of the row that stops further runs first; null: nothing limits them. ``binds``: ``grant``, or
    # ``cap``, which is then the first of ``caps``.
    limit: int | None
    unit: str | None
    held: int | None
    free: int | None
    binds: str | None
    # What the user holds in this group at this level; null where the caller may not see the usage
    # of others, with every other amount that is held.
    gpus_held: int | None
    nodes_held: int | None
    # The grant that decides, in words; ``site``: it is the site's default.
    because: str
    site: bool
    expires_at: str | None
    # Of that grant; null: it permits any amount.
    granted: Granted | None
    caps: list[Cap]


class QuotaExplanation(TypedDict):
    """What a user may hold, and which rows decide that."""

    user: str
    team: str | None
    explained_at: str | None
    permissions: list[QuotaAllowance]


class QuotaAmount(TypedDict):
    """What a cap or grant says; null means every one, and of a limit any amount."""

    grant: bool
    group: str | None
    user: str | None
    team: str | None
    priority: str | None
    unit: str | None
    limit: int | None
    unlimited: bool
    level_max: str | None
    expires_at: str | None


class Quota(QuotaAmount):
    """A cap or grant; null means every one, and of a limit any amount."""

    version: int
    changed_by: str
    changed_at: str


class QuotaPage(TypedDict):
    """One page of caps and grants, oldest change first."""

    items: list[Quota]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]


class QuotaSet(TypedDict):
    """A row is stored: the number of this change among all changes of quotas."""

    version: int
