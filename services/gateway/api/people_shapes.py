"""What the routes of users, teams and tokens answer."""

from __future__ import annotations

from typing import NotRequired

from typing_extensions import TypedDict

from services.gateway.api.shapes import Unreadable
from services.gateway.permissions import RoleWord, VisibilityWord


class TokenFacts(TypedDict):
    """The token of a request."""

    id: str
    name: str
    expires_at: str | None
    scopes: list[str]
    # The first administrator's file, which sets passwords without the old one.
    is_admin_file: bool


class WhoAmI(TypedDict):
    """The user of this token, and the account that runs tasks on the gateway's machine."""

    user: str
    role: RoleWord
    team: str | None
    default_group: str | None
    default_priority: str | None
    # Whose tasks the user sees.
    visibility: VisibilityWord
    token: TokenFacts
    tasks_run_as: str | None


class User(TypedDict):
    """A person or program that may use the platform."""

    name: str
    role: RoleWord
    team: str | None
    disabled: bool
    archived: bool
    default_group: str | None
    default_priority: str | None
    # Where mail about tasks goes.
    mail: str | None
    created_at: str


class LinkedAccount(TypedDict):
    """An account of a login provider with which the user logs in."""

    issuer: str
    account: str
    linked_at: str


class PasswordFacts(TypedDict):
    """When a password was set, and who did it."""

    changed_at: str
    changed_by: str


class UserDetail(User):
    """One user, with what people log in as this user with, besides tokens."""

    accounts: list[LinkedAccount]
    password: PasswordFacts | None


class UserPage(TypedDict):
    """One page of users."""

    items: list[User]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]


class Team(TypedDict):
    """A set of users that quotas can name."""

    name: str
    default_group: str | None
    default_priority: str | None
    created_at: str


class TeamPage(TypedDict):
    """One page of teams."""

    items: list[Team]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]


class Token(TypedDict):
    """A token without its secret. ``scopes``: what it is good for; none: all that its user may
    do. ``last_used_at`` is up to a minute late."""

    id: str
    user: str
    name: str
    created_by: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    scopes: list[str]
    last_used_at: str | None
    last_used_from: str | None


class NewToken(Token):
    """A new token, with its secret."""

    token: str


class TokenPage(TypedDict):
    """One page of tokens."""

    items: list[Token]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]
