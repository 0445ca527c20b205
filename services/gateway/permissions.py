"""Who may do what: one table of roles and actions.

Each route names its action (``routing.allows``), the guard of the routes checks it, and the tests
derive from this table what every role gets on every route.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum, unique
from typing import Literal


class Role(StrEnum):
    """What a user is. Each may do at least what the roles before it may."""

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"

    @classmethod
    def _missing_(cls, value: object) -> Role | None:
        """A process of the version before, which runs beside this one during an upgrade, stores
        users under the name that they had."""
        return cls.USER if value == "member" else None


class Scope(StrEnum):
    """What a token is good for, if it is not good for all that its user may do. Every token reads
    what its user may read, but environments and life states."""

    READ = "read"
    SECRETS = "secrets"
    TASKS = "tasks"
    TOKENS = "tokens"
    OPERATE = "operate"
    PEOPLE = "people"


class Visibility(StrEnum):
    """Whose tasks users and viewers see: the site's setting ``visibility``."""

    OWN = "own"
    # And those that were submitted under the caller's present team.
    TEAM = "team"
    ALL = "all"


# The same words for bodies and answers, whose schemas list them.
RoleWord = Literal["viewer", "user", "operator", "admin"]
ScopeWord = Literal["read", "secrets", "tasks", "tokens", "operate", "people"]
VisibilityWord = Literal["own", "team", "all"]


class Reach(IntEnum):
    """Whose things an action reaches."""

    NONE = 0
    # The caller's own tasks, tokens or data.
    OWN = 1
    # And those of the caller's present team.
    TEAM = 2
    # In the table alone: as the site's setting says.
    SITE = 3
    ALL = 4


@dataclass(frozen=True, slots=True)
class Permission:
    """One row of the table: the scope that a token needs, and the reach of each role. ``verb``
    completes "ann may not ..."."""

    scope: Scope
    viewer: Reach
    user: Reach
    operator: Reach
    admin: Reach
    verb: str

    def reach(self, role: Role) -> Reach:
        """Whose things the role reaches."""
        found: Reach = getattr(self, role.value)
        return found


_N, _O, _T, _S, _A = Reach.NONE, Reach.OWN, Reach.TEAM, Reach.SITE, Reach.ALL
_OF_SITE = {
    Visibility.OWN: Reach.OWN,
    Visibility.TEAM: Reach.TEAM,
    Visibility.ALL: Reach.ALL,
}


@unique
class Action(Enum):
    """What routes do. Operators run the cluster; they read no secrets and enter no rank of others,
    and people, tokens of others and the audit trail are the administrators'."""

    #                                  viewer user operator admin
    KNOW_ONESELF = Permission(Scope.READ, _O, _O, _O, _O, "see itself")
    READ_CLUSTER = Permission(Scope.READ, _A, _A, _A, _A, "see nodes, quotas and policies")
    READ_TASKS = Permission(Scope.READ, _S, _S, _A, _A, "see tasks")
    READ_SECRETS = Permission(Scope.SECRETS, _O, _O, _O, _A, "read its environment or life state")
    SUBMIT = Permission(Scope.TASKS, _N, _A, _A, _A, "submit tasks")
    RESUBMIT = Permission(Scope.TASKS, _N, _O, _O, _A, "submit it again")
    CHANGE_TASKS = Permission(Scope.TASKS, _N, _O, _A, _A, "change it")
    ENTER_RANKS = Permission(Scope.TASKS, _N, _O, _O, _A, "open a session in it")
    EXPLAIN_QUOTA = Permission(Scope.READ, _A, _A, _A, _A, "see what others may use")
    READ_USAGE = Permission(Scope.READ, _O, _O, _A, _A, "see the usage of others")
    # A team as a whole, without its users and tasks, whatever the site lets users see of tasks.
    READ_TEAM_USAGE = Permission(Scope.READ, _T, _T, _A, _A, "see the usage of a team")
    CHANGE_NODES = Permission(Scope.OPERATE, _N, _N, _A, _A, "change nodes")
    CHANGE_QUOTAS = Permission(Scope.OPERATE, _N, _N, _A, _A, "set quotas")
    TRY_POLICIES = Permission(Scope.OPERATE, _N, _N, _A, _A, "try policies")
    CHANGE_POLICIES = Permission(Scope.OPERATE, _N, _N, _A, _A, "set policies")
    READ_DEAD_LETTERS = Permission(Scope.OPERATE, _N, _N, _A, _A, "list dead letters")
    CHANGE_DEAD_LETTERS = Permission(Scope.OPERATE, _N, _N, _A, _A, "change dead letters")
    READ_NOTIFICATIONS = Permission(Scope.READ, _O, _O, _A, _A, "see notifications")
    CHANGE_NOTIFICATIONS = Permission(Scope.TASKS, _N, _O, _O, _A, "set notifications")
    READ_TEAMS = Permission(Scope.READ, _A, _A, _A, _A, "see teams")
    READ_USERS = Permission(Scope.READ, _O, _O, _A, _A, "see accounts")
    CHANGE_PEOPLE = Permission(Scope.PEOPLE, _N, _N, _N, _A, "change users and teams")
    READ_TOKENS = Permission(Scope.READ, _O, _O, _O, _A, "see tokens")
    CHANGE_TOKENS = Permission(Scope.TOKENS, _O, _O, _O, _A, "make or revoke tokens")
    READ_AUDIT = Permission(Scope.PEOPLE, _N, _N, _N, _A, "read the audit trail")
    SET_PASSWORD = Permission(Scope.TOKENS, _O, _O, _O, _A, "set passwords")
    # Needs no token: the routes by which people log in.
    LOG_IN = Permission(Scope.READ, _A, _A, _A, _A, "log in")
    # Of run tokens alone.
    BE_A_RUN = Permission(Scope.READ, _N, _N, _N, _N, "act as a run")


def reach_of(
    action: Action,
    role: Role,
    scopes: Collection[Scope],
    visibility: Visibility = Visibility.OWN,
) -> Reach:
    """Whose things a caller reaches; ``scopes`` are its token's, and none is all of them.
    ``visibility`` is the site's setting."""
    permission = action.value
    if scopes and permission.scope is not Scope.READ and permission.scope not in scopes:
        return Reach.NONE
    reach = permission.reach(role)
    return _OF_SITE[visibility] if reach is Reach.SITE else reach


def scopes_of(role: Role) -> tuple[Scope, ...]:
    """The scopes that are of use to a role: those of the actions that reach something."""
    used = {each.value.scope for each in Action if each.value.reach(role) is not Reach.NONE}
    return tuple(scope for scope in Scope if scope in used)


def roles_of(scope: Scope) -> tuple[Role, ...]:
    """The roles to which a scope is of use, the least first."""
    return tuple(role for role in Role if scope in scopes_of(role))


@dataclass(frozen=True, slots=True)
class NotPermitted:
    """Why a caller may not do something, and what helps."""

    message: str
    fix: str


def refusal_of(
    action: Action, user: str, role: Role, scopes: Collection[Scope], verb: str = ""
) -> NotPermitted:
    """For a caller that reaches nothing. ``verb``: instead of the action's."""
    permission = action.value
    verb = verb or permission.verb
    if permission.reach(role) is not Reach.NONE and reach_of(action, role, scopes) is Reach.NONE:
        good_for = ", ".join(scope for scope in Scope if scope in {*scopes, Scope.READ})
        message = f"this token may not {verb}: it is good for {good_for}"
        return NotPermitted(message, f"use a token with the scope {permission.scope}")
    return NotPermitted(f"{user} may not {verb}", f"ask {whom_to_ask(action)}")


def refusal_to_reach_others(action: Action, user: str) -> NotPermitted:
    """For a caller that reaches its own things, and asks for those of others."""
    message = f"{user} may not {action.value.verb} of others"
    return NotPermitted(message, f"ask {whom_to_ask(action)}")


def whom_to_ask(action: Action) -> str:
    """Who can help: the least role that does it for others, or who gives the role for it."""
    least = next((role for role in Role if action.value.reach(role) is Reach.ALL), Role.ADMIN)
    if least in (Role.VIEWER, Role.USER):
        return f"an administrator for the role {least}"
    return "an operator" if least is Role.OPERATOR else "an administrator"
