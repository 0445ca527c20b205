"""From an account of the login provider to a user of this site. Called by ``api/login.py``.

An account is its issuer and subject. Its name only suggests a user's name at the first login: a
name that is changed at the provider, or given to somebody else, reaches no other user here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from libs.contracts.ids import NAME_RULE, is_name
from libs.contracts.mail_addresses import is_mail_address
from libs.store.port import Op, Tx, Where
from services.gateway.auth import FIRST_ADMIN, forbidden, require_below_user_limit
from services.gateway.permissions import Role
from services.gateway.rows import ExternalIdentityRow, TeamRow, UserRow
from services.gateway.settings import GatewaySettings

GROUPS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Account:
    """What the provider says about a person, as far as it matters here. ``role`` and ``team`` are
    None where the settings map no groups."""

    issuer: str
    subject: str
    # Perhaps no valid user name; checked when a user is made of it.
    name: str
    role: Role | None
    team: str | None
    # The address that the provider has verified; empty: none.
    mail: str = ""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A user who logs in, and what the login has changed."""

    user: UserRow
    # None: the login has made the user.
    before: UserRow | None
    # The login has bound the user to the account.
    is_linked: bool
    new_team: TeamRow | None


def account_of(settings: GatewaySettings, claims: Mapping[str, Any]) -> Account:
    """The account that verified claims describe. Raises 403 for one that may not log in here."""
    groups = _groups(claims.get(settings.oidc_groups_claim))
    if settings.oidc_groups and not groups & set(settings.oidc_groups):
        if settings.oidc_groups_claim not in claims:
            raise forbidden(
                f"the provider sends no claim {settings.oidc_groups_claim}, by which this site"
                " admits people; an administrator lets the provider send it, or sets"
                " SHIFTWORK_GATEWAY_OIDC_GROUPS_CLAIM to the claim that has the groups"
            )
        raise forbidden("your account is in none of the groups that may log in here")
    if settings.oidc_email_domains:
        _check_domain(settings, claims)
    roles = [Role(role) for group, role in settings.oidc_roles.items() if group in groups]
    highest = max(roles, key=list(Role).index, default=Role.USER)
    team = next((team for group, team in settings.oidc_teams.items() if group in groups), "")
    name = claims.get(settings.oidc_username_claim)
    return Account(
        issuer=claims["iss"],
        subject=claims["sub"],
        name=name if isinstance(name, str) else "",
        role=highest if settings.oidc_roles else None,
        team=team if settings.oidc_teams else None,
        mail=_verified_address(claims),
    )


def _verified_address(claims: Mapping[str, Any]) -> str:
    """The account's address, if the provider has verified that it is this person's."""
    address = claims.get("email")
    if claims.get("email_verified") is not True or not isinstance(address, str):
        return ""
    return address if is_mail_address(address) else ""


def _groups(value: object) -> set[str]:
    if isinstance(value, str):
        return {value}
    values = cast("list[Any]", value) if isinstance(value, list) else []
    return {each for each in values[:GROUPS_MAX] if isinstance(each, str)}


def _check_domain(settings: GatewaySettings, claims: Mapping[str, Any]) -> None:
    address, verified = claims.get("email"), claims.get("email_verified")
    _, at, domain = address.lower().rpartition("@") if isinstance(address, str) else ("", "", "")
    if verified is not True:
        raise forbidden("your account has no verified e-mail address; verify it at the provider")
    if not at or domain not in {each.lower() for each in settings.oidc_email_domains}:
        raise forbidden(f"accounts of {domain[:100]!r} may not log in here")


async def user_of(tx: Tx, settings: GatewaySettings, account: Account) -> Admitted:
    """The user behind an account. Raises 403 if there is none and none may be made. The caller
    enters in the audit trail what the login has changed."""
    bound = await tx.get(ExternalIdentityRow, account.issuer, account.subject)
    before = await tx.get(UserRow, bound.user) if bound is not None else None
    is_linked = before is None
    if before is None:
        name = _name_of(settings, account)
        before = await tx.get(UserRow, name)
        await _check_first_login(tx, settings, name, before)
        tx.put(ExternalIdentityRow(account.issuer, account.subject, name, tx.now))
        user = before or UserRow(name, Role.USER.value, "", False, tx.now)
    else:
        user = before
    if user.disabled:
        raise forbidden(f"user {user.name} is disabled; ask an administrator")
    after = _mapped(user, account)
    new_team = await _new_team(tx, user, after)
    if new_team is not None:
        tx.put(new_team)
    if after != before:
        tx.put(after)
    return Admitted(after, before, is_linked, new_team)


def _name_of(settings: GatewaySettings, account: Account) -> str:
    name = account.name
    if not is_name(name):
        shown = name[:80] or "none"
        raise forbidden(
            f"the provider's claim {settings.oidc_username_claim} is {shown!r}, which is no user"
            f" name here: use {NAME_RULE}; an administrator may set"
            " SHIFTWORK_GATEWAY_OIDC_USERNAME_CLAIM to another claim"
        )
    return name


async def _check_first_login(
    tx: Tx, settings: GatewaySettings, name: str, there: UserRow | None
) -> None:
    """403 for an account that may not become the user of its name."""
    if there is None:
        if not settings.oidc_create_users:
            raise forbidden(
                f"there is no user {name}; ask an administrator: shiftwork user add {name}"
            )
        await require_below_user_limit(tx, settings.users_max)
        return
    others = await tx.select(ExternalIdentityRow, Where("user", Op.EQ, name), limit=1)
    if others or name == FIRST_ADMIN or not settings.oidc_link_by_name:
        hint = "choose another name at the provider, or ask an administrator"
        if not others and name != FIRST_ADMIN:
            hint = (
                "ask an administrator, who may set SHIFTWORK_GATEWAY_OIDC_LINK_BY_NAME if names at"
                " the provider are not chosen by people themselves"
            )
        raise forbidden(f"user {name} exists here and is not bound to your account; {hint}")


def _mapped(user: UserRow, account: Account) -> UserRow:
    """With the role and team that the account's groups give, and the account's address."""
    if user.name == FIRST_ADMIN:
        return user
    role = user.role if account.role is None else account.role.value
    team = user.team if account.team is None else account.team
    return replace(user, role=role, team=team, mail=account.mail or user.mail)


async def _new_team(tx: Tx, before: UserRow, after: UserRow) -> TeamRow | None:
    """The team that a login makes because the user comes into it."""
    if not after.team or after.team == before.team or await tx.get(TeamRow, after.team):
        return None
    return TeamRow(after.team, tx.now)
