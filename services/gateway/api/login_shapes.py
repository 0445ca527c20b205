"""What the routes of logins and sessions answer."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from services.gateway.api.shapes import Unreadable
from services.gateway.permissions import RoleWord


class OidcLogin(TypedDict):
    """The button for a login at the provider, and where it leads."""

    label: str
    url: str


class LoginWays(TypedDict):
    """How people can log in here. With neither: with a bearer token alone."""

    oidc: OidcLogin | None
    password: bool


class CurrentSession(TypedDict):
    """The user who is logged in. ``csrf`` is for the header x-shiftwork-csrf of requests that
    change something; null for a bearer token, which needs none."""

    user: str
    role: RoleWord
    team: str | None
    csrf: str | None
    expires_at: str | None


class Session(TypedDict):
    """A browser's session. It ends earlier than ``expires_at`` if it is not used."""

    id: str
    user: str
    made_by: Literal["oidc", "password", "token"]
    created_at: str
    expires_at: str
    last_used_at: str | None
    address: str | None
    current: bool


class SessionPage(TypedDict):
    """One page of sessions."""

    items: list[Session]
    next_cursor: str | None
    unreadable: NotRequired[list[Unreadable]]


class LoginToken(TypedDict):
    """A token that a login has made, with its secret."""

    token: str
    id: str
    user: str
    expires_at: str
