"""``shiftwork user``, ``team`` and ``token``: who may use the platform."""

from typing import Any, Dict, List, Optional

import typer

from shiftwork.cli import asking, complete, login, parse, render, server_choices, session
from shiftwork.cli.client import Api
from shiftwork.cli.failures import naming, usage
from shiftwork.client.paths import part


def register(app: session.App) -> None:
    """Add the commands."""
    user = session.App(name="user", help="People and programs.", no_args_is_help=True)
    user.command("add")(user_add)
    user.command("set")(user_set)
    user.command("passwd")(user_passwd)
    user.command("rm")(user_rm)
    user.command("ls", cls=session.Paged)(user_ls)
    user.command("show")(user_show)
    app.add_typer(user)
    team = session.App(name="team", help="Teams of users.", no_args_is_help=True)
    team.command("add")(team_add)
    team.command("set")(team_set)
    team.command("ls")(team_ls)
    team.command("rm")(team_rm)
    app.add_typer(team)
    token = session.App(name="token", help="Bearer tokens.", no_args_is_help=True)
    token.command("create")(token_create)
    token.command("ls", cls=session.Paged)(token_ls)
    token.command("revoke")(token_revoke)
    app.add_typer(token)
    app.command("whoami")(whoami)


_ROLE = typer.Option(
    "", "--role", help="viewer, user, operator or admin.", autocompletion=complete.roles
)
_MAIL = typer.Option(
    None, "--mail", metavar="ADDRESS", help='Where mail about tasks goes; "": nowhere.'
)
_GROUP = typer.Option(
    None,
    "--default-group",
    help='Of nodes, for tasks that name none. "": none.',
    autocompletion=complete.groups,
)
_LEVEL = typer.Option(
    None,
    "--default-priority",
    help='For tasks that name none. "": none.',
    autocompletion=complete.priorities,
)
_ADMIN = typer.Option(False, "--admin", help="The same as --role admin.")


def _role(role: str, admin: bool, member: bool = False) -> str:
    """The one role that the options name; empty if they name none."""
    named = {"--role": role, "--admin": "admin" if admin else "", "--member": member and "user"}
    given = {option: str(value) for option, value in named.items() if value}
    if len(given) > 1:
        first, second = list(given)[:2]
        what = f"{first} and {second} contradict each other"
        raise usage(what, where=second, fix="give one of them")
    return (
        parse.choice(role, server_choices.ROLES, "role", "--role")
        if role
        else "".join(given.values())
    )


def _defaults(group: Optional[str], priority: Optional[str]) -> Dict[str, str]:
    """The defaults that the options give, as the API takes them."""
    found: Dict[str, str] = {}
    if group is not None:
        found["default_group"] = group
    if priority is not None:
        found["default_priority"] = (
            parse.priority(priority, "--default-priority") if priority else ""
        )
    return found


# A token that is good for less is warned of.
SHORT_SECONDS = 3600.0

_FORCE = typer.Option(False, "--force", help="Accept a name that quotas name already.")


def user_add(
    name: str = typer.Argument(..., metavar="NAME"),
    team: str = typer.Option("", "--team", autocompletion=complete.teams),
    role: str = _ROLE,
    admin: bool = _ADMIN,
    mail: Optional[str] = _MAIL,
    default_group: Optional[str] = _GROUP,
    default_priority: Optional[str] = _LEVEL,
    force: bool = _FORCE,
) -> None:
    """Add a user. Left out, the role is user: submits tasks, and changes its own."""
    now = session.current()
    body: Dict[str, Any] = {"name": name}
    if found := _role(role, admin):
        body["role"] = found
    body.update(_defaults(default_group, default_priority))
    if team:
        body["team"] = team
    if mail is not None:
        body["mail"] = mail
    reply = now.api().create("/v1/users?force=true" if force else "/v1/users", body)
    if now.json:
        render.document(reply)
    else:
        render.note(f"{name} is there; `shiftwork token create --user {name}` makes a token")


def user_set(
    name: str = typer.Argument(..., metavar="NAME", autocompletion=complete.users),
    team: Optional[str] = typer.Option(
        None, "--team", help='"": in no team.', autocompletion=complete.teams
    ),
    role: str = _ROLE,
    admin: bool = _ADMIN,
    member: bool = typer.Option(False, "--member", help="The same as --role user.", hidden=True),
    disable: bool = typer.Option(
        False, "--disable", help="Refuse every token; the tasks save and are stopped."
    ),
    enable: bool = typer.Option(False, "--enable", help="Accept the user's tokens again."),
    archive: bool = typer.Option(
        False, "--archive", help="Disable for good, and leave out of lists; the name stays."
    ),
    unarchive: bool = typer.Option(False, "--unarchive", help="Bring back, still disabled."),
    mail: Optional[str] = _MAIL,
    default_group: Optional[str] = _GROUP,
    default_priority: Optional[str] = _LEVEL,
    yes: bool = typer.Option(
        False, "-y", "--yes", help="Do not ask before tasks are stopped (--disable, --archive)."
    ),
) -> None:
    """Change a user's team or role, or shut the user out."""
    texts = {"team": team, "role": _role(role, admin, member) or None, "mail": mail}
    body: Dict[str, Any] = {field: text for field, text in texts.items() if text is not None}
    if _one_of(disable, "--disable", enable, "--enable"):
        body["disabled"] = disable
    if _one_of(archive, "--archive", unarchive, "--unarchive"):
        body["archived"] = archive
    body.update(_defaults(default_group, default_priority))
    if not body:
        raise usage("there is nothing to change", fix="give --team, --role, --disable or another")
    now = session.current()
    typed = {
        "role": "--admin" if admin else "--role",
        "disabled": "--disable" if disable else "--enable",
        "archived": "--archive" if archive else "--unarchive",
    }
    api = now.api()
    stopped: List[Any] = []
    if disable or archive:
        deed = "disable" if disable else "archive"
        with naming(typed):
            # What the server refuses is an error before anything is asked about it.
            api.patch(f"/v1/users/{part(name)}?dry_run=true", body)
        stopped = _tasks_to_stop(api, name, deed, yes=yes)
    with naming(typed):
        reply = api.patch(f"/v1/users/{part(name)}", body)
    if now.json:
        render.document({**reply, "stopped_tasks": len(stopped)} if disable or archive else reply)
    else:
        state = ", ".join(["", _state(reply)]) if reply.get("disabled") else ""
        shown = _shown_defaults(reply)
        defaults = f", defaults: {shown}" if shown else ""
        if mail is not None:
            defaults += f", mail to {reply['mail'] or 'nowhere'}"
        render.note(f"{name}: {reply['role']}, team {reply.get('team') or 'none'}{state}{defaults}")
        if stopped:
            render.note(f"{render.counted(len(stopped), 'task')} to save and to be stopped")
        if team is not None:
            render.note(
                "tasks that were submitted before keep the team that they were submitted under"
            )


def _tasks_to_stop(api: Api, name: str, deed: str, *, yes: bool) -> List[Any]:
    """The tasks that go on until this user is disabled or archived, once the caller is sure."""
    live = api.items("/v1/tasks", {"all": "false", "owner": name}, asking.STOPPED_MAX)["items"]
    found = [task for task in live if task["goal"] != "stop"]
    if found and not yes:
        tasks = asking.tasks_text(found, ", which save first")
        asking.require_yes(f"{deed} {name} and stop {tasks}", where=f"--{deed}")
    return found


def _one_of(one: bool, option: str, other: bool, opposite: str) -> bool:
    """True if one of two options that contradict each other was given. Raises Failure for both."""
    if one and other:
        what = f"{option} and {opposite} contradict each other"
        raise usage(what, where=opposite, fix="give one of them")
    return one or other


def _state(user: Dict[str, Any]) -> str:
    return "archived" if user.get("archived") else "disabled" if user.get("disabled") else "enabled"


def user_passwd(
    name: str = typer.Argument(..., metavar="NAME", autocompletion=complete.users),
) -> None:
    """Set a password, where the site has passwords. Typed, or from standard input."""
    now = session.current()
    api = now.api()
    me = api.get("/v1/whoami")
    body = {"password": ""}
    if me["user"] == name and not me["token"].get("is_admin_file"):
        old = login.old_password()
        body.update({"old": old} if old else {})
    body["password"] = login.new_password()
    api.put(f"/v1/users/{part(name)}/password", body)
    if now.json:
        render.document({"name": name, "changed": True})
    else:
        render.note(f"the password of {name} is set; the browsers of {name} are logged out")


def user_rm(
    name: str = typer.Argument(..., metavar="NAME", autocompletion=complete.users),
) -> None:
    """Remove a user without tasks and quotas, with all tokens. Others are archived instead."""
    now = session.current()
    now.api().delete(f"/v1/users/{part(name)}")
    if now.json:
        render.document({"name": name, "removed": True})
    else:
        render.note(f"user {name} is removed")


def user_ls(
    everyone: bool = typer.Option(False, "--all", "-a", help="Archived users, too."),
) -> None:
    """List the users."""
    now = session.current()
    found = now.api().items("/v1/users", {"all": "true"} if everyone else None)
    if now.json:
        render.document(found)
        return
    render.table(
        (
            render.Column("NAME", least=12),
            render.Column("ROLE"),
            render.Column("TEAM", least=8),
            render.Column("SINCE", drop=1),
            render.Column("STATE"),
            render.Column("DEFAULT GROUP", drop=3),
            render.Column("DEFAULT PRIORITY", drop=2),
        ),
        [
            [
                one["name"],
                one["role"],
                one.get("team") or "",
                render.when(one.get("created_at")),
                _state(one),
                one.get("default_group") or "",
                one.get("default_priority") or "",
            ]
            for one in found["items"]
        ],
        "no users",
    )


def user_show(
    name: str = typer.Argument(..., metavar="NAME", autocompletion=complete.users),
) -> None:
    """Show one user."""
    now = session.current()
    api = now.api()
    found = api.get(f"/v1/users/{part(name)}")
    if now.json:
        render.document(found)
        return
    render.facts(
        [
            ("user", found["name"]),
            ("role", found["role"]),
            ("team", found.get("team") or ""),
            ("state", _state(found)),
            ("mail", found.get("mail") or ""),
            ("default group", found.get("default_group") or ""),
            ("default priority", found.get("default_priority") or ""),
            ("since", render.timestamp(found.get("created_at"))),
            *(("account", _account(each)) for each in found.get("accounts") or ()),
            ("password", _password(found.get("password"))),
        ]
    )


def _account(found: Dict[str, Any]) -> str:
    since = render.timestamp(found.get("linked_at"))
    return f"{found['account']} of {found['issuer']}, since {since}"


def _password(found: Optional[Dict[str, Any]]) -> str:
    if not found:
        return ""
    return f"set {render.timestamp(found.get('changed_at'))} by {found['changed_by']}"


def team_add(
    name: str = typer.Argument(..., metavar="NAME"),
    default_group: Optional[str] = _GROUP,
    default_priority: Optional[str] = _LEVEL,
    force: bool = _FORCE,
) -> None:
    """Add a team."""
    now = session.current()
    body = {"name": name, **_defaults(default_group, default_priority)}
    reply = now.api().create("/v1/teams?force=true" if force else "/v1/teams", body)
    if now.json:
        render.document(reply)
    else:
        render.note(f"team {name} is there; `shiftwork user set USER --team {name}` fills it")


def team_set(
    name: str = typer.Argument(..., metavar="NAME", autocompletion=complete.teams),
    default_group: Optional[str] = _GROUP,
    default_priority: Optional[str] = _LEVEL,
) -> None:
    """Change what tasks of the team's members get that do not say so."""
    body = _defaults(default_group, default_priority)
    if not body:
        raise usage("there is nothing to change", fix="give --default-group or --default-priority")
    now = session.current()
    reply = now.api().patch(f"/v1/teams/{part(name)}", body)
    if now.json:
        render.document(reply)
    else:
        render.note(f"{name}: {_shown_defaults(reply) or 'no defaults'}")


def _shown_defaults(one: Dict[str, Any]) -> str:
    named = ("group", one.get("default_group")), ("priority", one.get("default_priority"))
    return ", ".join(f"{name} {value}" for name, value in named if value)


def team_ls() -> None:
    """List the teams."""
    now = session.current()
    found = now.api().items("/v1/teams")
    if now.json:
        render.document(found)
        return
    rows = [
        [one["name"], _shown_defaults(one), render.when(one.get("created_at"))]
        for one in found["items"]
    ]
    render.table((render.Column("NAME", least=12), "DEFAULTS", "SINCE"), rows, "no teams")


def team_rm(
    name: str = typer.Argument(..., metavar="NAME", autocompletion=complete.teams),
) -> None:
    """Remove a team that has no users."""
    now = session.current()
    now.api().delete(f"/v1/teams/{part(name)}")
    if now.json:
        render.document({"name": name, "removed": True})
    else:
        render.note(f"team {name} is removed")


# Whose tasks a user sees.
_SIGHT = {"own": "own tasks", "team": "own tasks and the team's", "all": "everybody's tasks"}


def whoami() -> None:
    """Show whose token is used, and at which server."""
    now = session.current()
    api = now.api()
    reply = api.get("/v1/whoami")
    if now.json:
        render.document(reply)
        return
    token = parse.fields(reply.get("token"))
    render.facts(
        [
            ("user", reply["user"]),
            ("role", reply["role"]),
            ("team", reply.get("team") or ""),
            ("server", api.url),
            ("token", token.get("name") or token.get("id") or ""),
            ("expires", render.timestamp(token.get("expires_at")) or ("never" if token else "")),
            ("defaults", _shown_defaults(reply)),
            ("scopes", ", ".join(token.get("scopes") or ())),
            ("sees", _SIGHT.get(str(reply.get("visibility")), "")),
        ]
    )


def token_create(
    user: str = typer.Option(
        "", "--user", help="Left out: yourself.", autocompletion=complete.users
    ),
    name: str = typer.Option("", "--name", help="What it is for."),
    expires_in: str = typer.Option("", "--expires-in", help="Such as 90d; left out: never."),
    scope: List[str] = typer.Option(
        [],
        "--scope",
        help="read, secrets, tasks, tokens, operate or people; may be repeated. Left out: all that"
        " the user may do.",
        autocompletion=complete.scopes,
    ),
) -> None:
    """Make a token. It is shown once, alone on standard output."""
    now = session.current()
    api = now.api()
    body: Dict[str, Any] = {"user": user or api.get("/v1/whoami")["user"], "name": name}
    if scope:
        body["scopes"] = [
            parse.choice(each, server_choices.SCOPES, "scope", "--scope") for each in scope
        ]
    if expires_in:
        body["expires_in_seconds"] = parse.duration(expires_in, "--expires-in")
    with naming({"scopes": "--scope"}):
        reply = api.create("/v1/tokens", body)
    if now.json:
        render.document(reply)
    else:
        render.line(reply["token"])
        expires = reply.get("expires_at")
        until = f"expires {render.timestamp(expires)}" if expires else "never expires"
        good_for = ", ".join(reply.get("scopes") or ()) or "all that its user may do"
        render.note(f"token {reply['id']} of {body['user']}: {until}; good for: {good_for}")
        render.note("keep it, it is not shown again")
        _warn_if_short(expires)


def _warn_if_short(expires_at: Optional[str]) -> None:
    """Warn of a token that ends soon: with the token or the session that made it, perhaps."""
    at = parse.at(expires_at)
    seconds = (at - render.now()).total_seconds() if at is not None else SHORT_SECONDS
    if seconds < SHORT_SECONDS:
        render.warning(f"the token is good for {render.span(max(seconds, 0))} only")


def token_ls(
    user: str = typer.Option("", "--user", help="Of one user.", autocompletion=complete.users),
) -> None:
    """List the tokens, without their secrets."""
    now = session.current()
    found = now.api().items("/v1/tokens", {"user": user})
    if now.json:
        render.document(found)
        return
    render.table(
        (
            render.Column("ID"),
            render.Column("USER", least=8),
            render.Column("NAME", drop=2, least=8),
            render.Column("SCOPES", drop=3, least=5),
            render.Column("SINCE", drop=1),
            render.Column("USED", drop=4),
            render.Column("EXPIRES"),
            render.Column("REVOKED"),
        ),
        [
            [
                one["id"],
                one["user"],
                one.get("name") or "",
                ",".join(one.get("scopes") or ()) or "all",
                render.when(one.get("created_at")),
                render.when(one.get("last_used_at")),
                render.when(one.get("expires_at")),
                render.when(one.get("revoked_at")),
            ]
            for one in found["items"]
        ],
        "no tokens",
    )


def token_revoke(
    token: str = typer.Argument(..., metavar="ID", autocompletion=complete.tokens),
) -> None:
    """Take a token out of use, at once."""
    now = session.current()
    now.api().delete(f"/v1/tokens/{part(token)}")
    if now.json:
        render.document({"id": token, "revoked": True})
    else:
        render.note(f"token {token} is revoked")
