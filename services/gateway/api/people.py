"""Users, their passwords, and teams. Administrators change them; everybody sees themselves."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeVar

from fastapi import Query, Request
from starlette.responses import Response

from libs.contracts.messages import (
    FieldError,
    ListNotifications,
    ListNotificationsReply,
    RemoveNotification,
    RemoveNotificationReply,
)
from libs.contracts.wording import no_such
from libs.store.port import Op, Tx, Where
from services.gateway import store as rows_of
from services.gateway import views
from services.gateway.api import people_shapes as shapes
from services.gateway.api.deps import (
    Caller,
    Context,
    PageQuery,
    Parts,
    allows,
    answer,
    answer_page,
    router_of,
)
from services.gateway.api.guard import address_of
from services.gateway.api.query_parameters import NameQuery
from services.gateway.audit import audit
from services.gateway.auth import (
    ADMIN_FILE,
    FIRST_ADMIN,
    not_permitted,
    require_below_user_limit,
    team_exists,
)
from services.gateway.bodies import (
    DefaultsBody,
    PasswordBody,
    TeamBody,
    TeamChangeBody,
    UserBody,
    UserChangeBody,
)
from services.gateway.browser_sessions import end_all
from services.gateway.json_values import rfc3339
from services.gateway.known_names import names_near, require_findable, require_known
from services.gateway.passwords import Line
from services.gateway.permissions import (
    Action,
    NotPermitted,
    Reach,
    Role,
    RoleWord,
    Visibility,
    refusal_to_reach_others,
)
from services.gateway.problems import (
    CONFLICT,
    FORBIDDEN,
    INVALID,
    ProblemError,
    absent,
    invalid,
    taken,
)
from services.gateway.rows import (
    AcceptedRow,
    ExternalIdentityRow,
    LoginCodeRow,
    PasswordRow,
    QuotaRow,
    TaskRow,
    TeamRow,
    TokenRow,
    TokenUseRow,
    UsageRow,
    UserRow,
)
from services.gateway.sight import Sight
from services.gateway.store import Sort

router = router_of("people")
LIMITED = NotPermitted(
    "a token with scopes or an expiry may not set a password: logins with it would have neither",
    "log in with a browser, or use a token without scopes and expiry; with the old password, any"
    " token with the scope tokens changes its user's own",
)
HasQuotas = Annotated[
    bool, Query(alias="force", description="accept a name that quotas name already")
]
DryRun = Annotated[
    bool, Query(description="check the change, answer as if it were made, and change nothing")
]
R = TypeVar("R", UserRow, TeamRow)
# Of a team that cannot be removed, so many members are named.
MEMBERS_NAMED_MAX = 10
BY_NAME = Sort("name", False, "name", False)


@router.get("/whoami", response_model=shapes.WhoAmI)
@allows(Action.KNOW_ONESELF)
async def whoami(caller: Caller, parts: Parts) -> Response:
    """Whose token this is, and as which user of the gateway's machine tasks run (null: they run in
    pods, with users of their own)."""
    return answer(
        {
            "user": caller.user,
            "role": caller.role,
            "team": caller.team or None,
            "default_group": caller.default_group or None,
            "default_priority": caller.default_priority or None,
            "visibility": _visible_to(caller.sight),
            "token": {
                "id": caller.token_id,
                "name": caller.token_name,
                "expires_at": rfc3339(caller.expires_at),
                "scopes": list(caller.scopes),
                "is_admin_file": caller.token_id == ADMIN_FILE,
            },
            "tasks_run_as": parts.settings.tasks_run_as or None,
        }
    )


def _visible_to(sight: Sight) -> Visibility:
    if sight.is_full:
        return Visibility.ALL
    return Visibility.TEAM if sight.team else Visibility.OWN


@router.get("/users", response_model=shapes.UserPage)
@allows(Action.READ_USERS)
async def list_users(
    caller: Caller,
    parts: Parts,
    paging: PageQuery,
    *,
    team: NameQuery = None,
    role: Annotated[RoleWord | None, Query()] = None,
    disabled: bool | None = None,
    everything: Annotated[
        bool, Query(alias="all", description="all=true: archived users, too")
    ] = False,
) -> Response:
    """Users; those who run the platform see all, others themselves."""
    where = [] if caller.reach is Reach.ALL else [Where("name", Op.EQ, caller.user)]
    where += [] if everything else [Where("archived", Op.EQ, value=False)]
    for column, value in (("team", team), ("role", role), ("disabled", disabled)):
        if value is not None:
            where.append(Where(column, Op.EQ, value))
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, UserRow, where, BY_NAME, paging)
        if not page.rows and paging.cursor is None and team:
            await require_findable(
                tx, caller, teams={"team": team}, kept=[(TaskRow, "team", "team")]
            )
    return answer_page(
        page.rows, views.user, lambda row: row.name, page.next_cursor, left_out=tx.unreadable
    )


@router.post("/users", status_code=201, response_model=shapes.User)
@allows(Action.CHANGE_PEOPLE)
async def add_user(
    body: UserBody, caller: Caller, parts: Parts, *, force: HasQuotas = False
) -> Response:
    """Add a user, who can do nothing before a token exists."""
    async with parts.store.transaction() as tx:
        if (there := await tx.get(UserRow, body.name)) is not None:
            fix = f"change it with PATCH /v1/users/{body.name}, or choose another name"
            if there.archived:
                fix = f"bring it back with PATCH /v1/users/{body.name} with archived: false"
            raise taken("name", "user", body.name, fix)
        await require_below_user_limit(tx, parts.settings.users_max)
        await _check_team(tx, body.team or "")
        await _check_group(tx, body)
        await _require_no_quotas(tx, "user", body.name, force=force)
        # Made while the user of that name before was removed.
        await _drop_tokens(tx, body.name)
        made = UserRow(body.name, body.role, body.team or "", False, tx.now, mail=body.mail or "")
        row = _with_defaults(made, body)
        tx.put(row)
        after = views.user(row)
        audit(
            tx,
            parts.mint,
            caller,
            action="user.add",
            target=body.name,
            detail=body.role,
            after=after,
        )
    return answer(after, 201, {"location": f"/v1/users/{body.name}"})


@router.get("/users/{name}", response_model=shapes.UserDetail)
@allows(Action.READ_USERS)
async def show_user(name: str, caller: Caller, parts: Parts) -> Response:
    """One user, with the accounts of the login provider and the password, if there are such."""
    if name != caller.user and caller.reach is not Reach.ALL:
        raise not_permitted(refusal_to_reach_others(Action.READ_USERS, caller.user))
    async with parts.store.transaction() as tx:
        row = await user_or_404(tx, name)
        accounts = await tx.select(ExternalIdentityRow, Where("user", Op.EQ, name))
        password = await tx.get(PasswordRow, name)
    return answer(views.user_detail(row, accounts, password))


@router.patch("/users/{name}", response_model=shapes.User)
@allows(Action.CHANGE_PEOPLE)
async def change_user(
    name: str, body: UserChangeBody, caller: Caller, parts: Parts, *, dry_run: DryRun = False
) -> Response:
    """Another role or team, or shut out. The tasks of a user who is disabled or archived save and
    are stopped, soon after this answers."""
    async with parts.store.transaction() as tx:
        row = await user_or_404(tx, name)
        after = _changed(row, body, caller.user, tx.now)
        if name == FIRST_ADMIN and (after.disabled or after.role != Role.ADMIN):
            field = "role" if body.role else "archived" if body.archived else "disabled"
            message = f"{FIRST_ADMIN} stays an administrator: the admin token's file speaks for it"
            error = FieldError(field=field, value="", message=message, fix="choose another user")
            raise ProblemError(CONFLICT, message, [error])
        await _check_team(tx, body.team or "")
        await _check_group(tx, body)
        if dry_run:
            return answer(views.user(after))
        tx.put(after)
        audit(
            tx,
            parts.mint,
            caller,
            action="user.change",
            target=name,
            before=views.user(row),
            after=views.user(after),
        )
    return answer(views.user(after))


def _changed(row: UserRow, body: UserChangeBody, by: str, now: datetime) -> UserRow:
    """The row after a change. Raises 409 for an archived user who is to be enabled.

    Disabling again stops the tasks that an older version left running when it disabled the user.
    """
    archived = row.archived if body.archived is None else body.archived
    disabled = row.disabled if body.disabled is None else body.disabled
    if archived and body.disabled is False:
        message, fix = f"{row.name} is archived", "give archived: false with it"
        error = FieldError(field="disabled", value="false", message=message, fix=fix)
        raise ProblemError(CONFLICT, f"{message}; {fix}", [error])
    disabled = disabled or archived
    return replace(
        _with_defaults(row, body),
        role=body.role or row.role,
        team=row.team if body.team is None else body.team,
        mail=row.mail if body.mail is None else body.mail,
        archived=archived,
        disabled=disabled,
        disabled_by=(by if body.disabled or body.archived else row.disabled_by) * disabled,
        disabled_at=(row.disabled_at if row.disabled else now) if disabled else None,
    )


@router.delete("/users/{name}", status_code=204)
@allows(Action.CHANGE_PEOPLE)
async def remove_user(name: str, caller: Caller, parts: Parts) -> Response:
    """Remove a disabled user, with all tokens, if nothing names the user any more.

    A user with tasks, usage or quotas is archived instead: the next user of that name would own
    them. The user's notifications go first, for the same reason.
    """
    async with parts.store.transaction() as tx:
        await _removable(tx, name, parts.settings.auth_cache_seconds)
    await _remove_notifications(parts, name)
    async with parts.store.transaction() as tx:
        row = await _removable(tx, name, parts.settings.auth_cache_seconds)
        await _drop_tokens(tx, name)
        tx.delete(UserRow, name)
        audit(tx, parts.mint, caller, action="user.remove", target=name, before=views.user(row))
    return Response(status_code=204)


async def _remove_notifications(parts: Context, name: str) -> None:
    """Ask the monitor to remove all notifications of a user; 503 if it does not answer."""
    listed = await parts.commands.ask(ListNotifications(owner=name), ListNotificationsReply)
    for each in listed.notifications:
        command = RemoveNotification(owner=name, name=each.name)
        await parts.commands.ask(command, RemoveNotificationReply)


async def _removable(tx: Tx, name: str, cache_seconds: float) -> UserRow:
    """The row of a user who can be removed; otherwise a problem."""
    row = await user_or_404(tx, name)
    if name == FIRST_ADMIN:
        message, fix = f"{FIRST_ADMIN} stays: the admin token's file is its own", "name another"
        error = FieldError(field="name", value=name, message=message, fix=fix)
        raise ProblemError(CONFLICT, message, [error])
    if (held := await _held_by(tx, "user", name)) is not None:
        fix = f"archive the user: PATCH /v1/users/{name} with archived: true"
        error = FieldError(field="name", value=name, message=f"has {held}", fix=fix)
        raise ProblemError(CONFLICT, f"{name} has {held}; {fix}", [error])
    _require_shut_out(row, tx.now, cache_seconds)
    return row


def _require_shut_out(row: UserRow, now: datetime, cache_seconds: float) -> None:
    """409 while a gateway process may still accept the user's tokens: a task that it accepts would
    belong to whoever gets the name."""
    if not row.disabled:
        fix = f"disable the user first: PATCH /v1/users/{row.name} with disabled: true"
        error = FieldError(field="name", value=row.name, message="is not disabled", fix=fix)
        raise ProblemError(CONFLICT, f"{row.name} is not disabled; {fix}", [error])
    seconds = 2 * cache_seconds
    # A time further ahead is that of a clock which was set back since.
    if row.disabled_at is not None and abs(now - row.disabled_at) < timedelta(seconds=seconds):
        detail = f"{row.name} was disabled less than {seconds:g} s ago; try again then"
        raise ProblemError(CONFLICT, detail, headers={"retry-after": f"{math.ceil(seconds)}"})


async def _drop_tokens(tx: Tx, name: str) -> None:
    """Remove all that somebody could log in with as this user."""
    await end_all(tx, name)
    for identity in await tx.select(ExternalIdentityRow, Where("user", Op.EQ, name)):
        tx.delete(ExternalIdentityRow, identity.issuer, identity.subject)
    for code in await tx.select(LoginCodeRow, Where("user", Op.EQ, name)):
        tx.delete(LoginCodeRow, code.code_hash)
    if await tx.get(PasswordRow, name) is not None:
        tx.delete(PasswordRow, name)
    for token in await tx.select(TokenRow, Where("user", Op.EQ, name)):
        tx.delete(TokenRow, token.token_hash)
        tx.delete(TokenUseRow, token.id)


async def _held_by(tx: Tx, what: Literal["user", "team"], name: str) -> str | None:
    """What names a user or a team: tasks, of any age, usage or quotas; None if nothing does."""
    column = "owner" if what == "user" else "team"
    for kind in (TaskRow, AcceptedRow):
        for task in await tx.select(kind, Where(column, Op.EQ, name), limit=1):
            return f"tasks, such as {task.task_id}"
    if await tx.select(UsageRow, Where(what, Op.EQ, name), limit=1):
        return "entries in the usage ledger"
    return "quotas" if await _has_quotas(tx, what, name) else None


async def _has_quotas(tx: Tx, what: str, name: str) -> bool:
    rows = Where(what, Op.EQ, name), Where("removed", Op.EQ, value=False)
    return bool(await tx.select(QuotaRow, *rows, limit=1))


async def _require_no_quotas(
    tx: Tx, what: Literal["user", "team"], name: str, *, force: bool
) -> None:
    """409 for a new name that quotas name already: of somebody who had it before, perhaps."""
    if force or not await _has_quotas(tx, what, name):
        return
    message = f"quotas name a {what} {name} already, who would get them"
    fix = f"remove them (GET /v1/quotas lists them), or give force: true if {name} shall have them"
    error = FieldError(field="name", value=name, message=message, fix=fix)
    raise ProblemError(CONFLICT, f"{message}; {fix}", [error])


async def user_or_404(tx: Tx, name: str, field: str = "name") -> UserRow:
    """A user, or the problem that there is none."""
    row = await tx.get(UserRow, name)
    if row is None:
        raise absent(field, "user", name, await names_near(tx, UserRow, name))
    return row


def _with_defaults(row: R, body: DefaultsBody) -> R:
    """The row with the defaults that a body gives."""
    return replace(
        row,
        default_group=row.default_group if body.default_group is None else body.default_group,
        default_priority=row.default_priority
        if body.default_priority is None
        else body.default_priority,
    )


async def _check_group(tx: Tx, body: DefaultsBody) -> None:
    if body.default_group:
        await require_known(tx, groups={"default_group": body.default_group})


async def _check_team(tx: Tx, team: str) -> None:
    if not await team_exists(tx, team):
        error = no_such("team", "team", team, await names_near(tx, TeamRow, team))
        fix = f"{error.fix}; add it with POST /v1/teams, or leave it out"
        raise invalid("team", team, error.message, fix)


@router.put("/users/{name}/password", status_code=204)
@allows(Action.SET_PASSWORD)
async def set_password(
    request: Request, name: str, body: PasswordBody, caller: Caller, parts: Parts
) -> Response:
    """Set one's own password, with the old one if there is one; administrators set those of others.
    The user's other sessions end; tokens go on. A token with scopes or an expiry changes a password
    with the old one alone, because a login with the new one has neither."""
    passwords = parts.passwords
    passwords.require_enabled()
    if name != caller.user and caller.reach is not Reach.ALL:
        raise not_permitted(refusal_to_reach_others(Action.SET_PASSWORD, caller.user))
    new = body.password.get_secret_value()
    passwords.check(new)
    async with parts.store.transaction() as tx:
        await user_or_404(tx, name)
        before = await tx.get(PasswordRow, name)
        if caller.is_limited and (before is None or name != caller.user):
            raise not_permitted(LIMITED)
        if before is None and name == caller.user:
            await _require_no_account(tx, name)
    line = Line(f"user {caller.user}", is_known=True)
    if before is not None and name == caller.user and caller.token_id != ADMIN_FILE:
        await _check_old(parts, body, before, address_of(request.scope), line)
    made = await passwords.hash(new, line)
    async with parts.store.transaction() as tx:
        await user_or_404(tx, name)
        if await tx.get(PasswordRow, name) != before:
            raise ProblemError(FORBIDDEN, "the password has just been changed; try again")
        tx.put(PasswordRow(name, made, tx.now, caller.user))
        own = caller.token_id if caller.is_session and name == caller.user else ""
        await end_all(tx, name, but=own)
        audit(tx, parts.mint, caller, action="user.password", target=name)
    return Response(status_code=204)


async def _require_no_account(tx: Tx, name: str) -> None:
    """403 for a first password of a user who logs in at the provider: it would go on working when
    the provider removes that person."""
    bound = await tx.select(ExternalIdentityRow, Where("user", Op.EQ, name), limit=1)
    if bound:
        why = f"{name} logs in at the provider, and may not set a first password here"
        raise not_permitted(NotPermitted(why, "ask an administrator, who may set one"))


async def _check_old(
    parts: Context, body: PasswordBody, before: PasswordRow, address: str, line: Line
) -> None:
    """422 without the old password, 403 if it is wrong. Guesses are slowed as those of logins."""
    if body.old is None:
        message, fix = "is missing", "give the present password; an administrator can set another"
        error = FieldError(field="old", value="", message=message, fix=fix)
        raise ProblemError(INVALID, f"old: {message}; {fix}", [error])
    with parts.passwords.delays.attempt(before.user, address):
        if not await parts.passwords.matches(before.hash, body.old.get_secret_value(), line):
            raise ProblemError(FORBIDDEN, "old: is not the present password; give that one")


@router.get("/teams", response_model=shapes.TeamPage)
@allows(Action.READ_TEAMS)
async def list_teams(caller: Caller, parts: Parts, paging: PageQuery) -> Response:
    """Teams."""
    del caller
    async with parts.store.transaction() as tx:
        page = await rows_of.page(tx, TeamRow, (), BY_NAME, paging)
    return answer_page(
        page.rows, views.team, lambda row: row.name, page.next_cursor, left_out=tx.unreadable
    )


@router.post("/teams", status_code=201, response_model=shapes.Team)
@allows(Action.CHANGE_PEOPLE)
async def add_team(
    body: TeamBody, caller: Caller, parts: Parts, *, force: HasQuotas = False
) -> Response:
    """A new team."""
    async with parts.store.transaction() as tx:
        if await tx.get(TeamRow, body.name) is not None:
            raise taken("name", "team", body.name, "choose another name")
        await _check_group(tx, body)
        await _require_no_quotas(tx, "team", body.name, force=force)
        row = _with_defaults(TeamRow(body.name, tx.now), body)
        tx.put(row)
        after = views.team(row)
        audit(tx, parts.mint, caller, action="team.add", target=body.name, after=after)
    return answer(after, 201)


@router.patch("/teams/{name}", response_model=shapes.Team)
@allows(Action.CHANGE_PEOPLE)
async def change_team(name: str, body: TeamChangeBody, caller: Caller, parts: Parts) -> Response:
    """Other defaults for what its members submit from now on."""
    async with parts.store.transaction() as tx:
        row = await tx.get(TeamRow, name)
        if row is None:
            raise absent("name", "team", name, await names_near(tx, TeamRow, name))
        await _check_group(tx, body)
        after = _with_defaults(row, body)
        tx.put(after)
        audit(
            tx,
            parts.mint,
            caller,
            action="team.change",
            target=name,
            before=views.team(row),
            after=views.team(after),
        )
    return answer(views.team(after))


@router.delete("/teams/{name}", status_code=204)
@allows(Action.CHANGE_PEOPLE)
async def remove_team(name: str, caller: Caller, parts: Parts) -> Response:
    """Remove a team without users, if nothing names it any more. The next team of that name would
    get the quotas, tasks and usage of one that has some."""
    async with parts.store.transaction() as tx:
        row = await tx.get(TeamRow, name)
        if row is None:
            raise absent("name", "team", name, await names_near(tx, TeamRow, name))
        members = await tx.select(UserRow, Where("team", Op.EQ, name), limit=MEMBERS_NAMED_MAX + 1)
        if members:
            users = [each.name for each in members[:MEMBERS_NAMED_MAX]]
            named = ", ".join(users) + (" and more" if len(members) > len(users) else "")
            message = f"{named} {'is' if len(members) == 1 else 'are'} in {name}"
            fix = f"move them first: PATCH /v1/users/{users[0]} with another team"
            error = FieldError(field="name", value=name, message=message, fix=fix)
            raise ProblemError(CONFLICT, f"{message}; {fix}", [error])
        if (held := await _held_by(tx, "team", name)) is not None:
            fix = "remove its quotas, and keep the team as long as its tasks and usage are kept"
            error = FieldError(field="name", value=name, message=f"has {held}", fix=fix)
            raise ProblemError(CONFLICT, f"{name} has {held}; {fix}", [error])
        tx.delete(TeamRow, name)
        audit(tx, parts.mint, caller, action="team.remove", target=name, before=views.team(row))
    return Response(status_code=204)
