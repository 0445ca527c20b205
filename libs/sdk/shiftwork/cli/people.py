"""``shiftwork user``, ``team`` and ``token``: who may use the platform."""

from typing import Any, Dict, Optional

import typer

from shiftwork.cli import complete, parse, render, session
from shiftwork.cli.client import part
from shiftwork.cli.failures import naming, usage


def register(app: session.App) -> None:
    """Add the commands."""
    user = session.App(name="user", help="People and programs.", no_args_is_help=True)
    user.command("add")(user_add)
    user.command("set")(user_set)
    user.command("ls")(user_ls)
    app.add_typer(user)
    team = session.App(name="team", help="Teams of users.", no_args_is_help=True)
    team.command("add")(team_add)
    team.command("ls")(team_ls)
    team.command("rm")(team_rm)
    app.add_typer(team)
    token = session.App(name="token", help="Bearer tokens.", no_args_is_help=True)
    token.command("create")(token_create)
    token.command("ls")(token_ls)
    token.command("revoke")(token_revoke)
    app.add_typer(token)
    app.command("whoami")(whoami)


def user_add(
    name: str = typer.Argument(..., metavar="NAME"),
    team: str = typer.Option("", "--team", autocompletion=complete.teams),
    admin: bool = typer.Option(False, "--admin", help="May do everything."),
) -> None:
    """Add a user."""
    now = session.current()
    body: Dict[str, Any] = {"name": name, "role": "admin" if admin else "member"}
    if team:
        body["team"] = team
    reply = now.api().create("/v1/users", body)
    if now.json:
        render.document(reply)
    else:
        render.note(f"{name} is there; `shiftwork token create --user {name}` makes a token")


def user_set(
    name: str = typer.Argument(..., metavar="NAME"),
    team: Optional[str] = typer.Option(
        None, "--team", help='"": in no team.', autocompletion=complete.teams
    ),
    admin: bool = typer.Option(False, "--admin", help="May do everything."),
    member: bool = typer.Option(False, "--member", help="May do what every user may."),
    disable: bool = typer.Option(False, "--disable", help="Refuse every token of the user."),
    enable: bool = typer.Option(False, "--enable", help="Accept the user's tokens again."),
) -> None:
    """Change a user's team or role, or shut the user out. Tasks that run go on."""
    body: Dict[str, Any] = {}
    if team is not None:
        body["team"] = team
    if _one_of(admin, "--admin", member, "--member"):
        body["role"] = "admin" if admin else "member"
    if _one_of(disable, "--disable", enable, "--enable"):
        body["disabled"] = disable
    if not body:
        raise usage("there is nothing to change", fix="give --team, --admin, --disable or another")
    now = session.current()
    with naming({"role": "--member"}):
        reply = now.api().patch(f"/v1/users/{part(name)}", body)
    if now.json:
        render.document(reply)
    else:
        state = ", disabled" if reply.get("disabled") else ""
        render.note(f"{name}: {reply['role']}, team {reply.get('team') or 'none'}{state}")


def _one_of(one: bool, option: str, other: bool, opposite: str) -> bool:
    """True if one of two options that contradict each other was given. Raises Failure for both."""
    if one and other:
        what = f"{option} and {opposite} contradict each other"
        raise usage(what, where=opposite, fix="give one of them")
    return one or other


def user_ls() -> None:
    """List the users."""
    now = session.current()
    found = now.api().items("/v1/users")
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
        ),
        [
            [
                one["name"],
                one["role"],
                one.get("team") or "",
                render.when(one.get("created_at")),
                "disabled" if one.get("disabled") else "enabled",
            ]
            for one in found["items"]
        ],
        "no users",
    )


def team_add(name: str = typer.Argument(..., metavar="NAME")) -> None:
    """Add a team."""
    now = session.current()
    reply = now.api().create("/v1/teams", {"name": name})
    if now.json:
        render.document(reply)
    else:
        render.note(f"team {name} is there; `shiftwork user set USER --team {name}` fills it")


def team_ls() -> None:
    """List the teams."""
    now = session.current()
    found = now.api().items("/v1/teams")
    if now.json:
        render.document(found)
        return
    rows = [[one["name"], render.when(one.get("created_at"))] for one in found["items"]]
    render.table((render.Column("NAME", least=12), "SINCE"), rows, "no teams")


def team_rm(name: str = typer.Argument(..., metavar="NAME")) -> None:
    """Remove a team that has no users."""
    now = session.current()
    now.api().delete(f"/v1/teams/{part(name)}")
    if now.json:
        render.document({"name": name, "removed": True})
    else:
        render.note(f"team {name} is removed")


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
        ]
    )


def token_create(
    user: str = typer.Option(
        "", "--user", help="Left out: yourself.", autocompletion=complete.users
    ),
    name: str = typer.Option("", "--name", help="What it is for."),
    expires_in: str = typer.Option("", "--expires-in", help="Such as 90d; left out: never."),
) -> None:
    """Make a token. It is shown once, alone on standard output."""
    now = session.current()
    api = now.api()
    body: Dict[str, Any] = {"user": user or api.get("/v1/whoami")["user"], "name": name}
    if expires_in:
        body["expires_in_seconds"] = parse.duration(expires_in, "--expires-in")
    reply = api.create("/v1/tokens", body)
    if now.json:
        render.document(reply)
    else:
        render.line(reply["token"])
        render.note(f"token {reply['id']} of {body['user']}: keep it, it is not shown again")


def token_ls() -> None:
    """List the tokens, without their secrets."""
    now = session.current()
    found = now.api().items("/v1/tokens")
    if now.json:
        render.document(found)
        return
    render.table(
        (
            render.Column("ID"),
            render.Column("USER", least=8),
            render.Column("NAME", drop=2, least=8),
            render.Column("SINCE", drop=1),
            render.Column("EXPIRES"),
            render.Column("REVOKED"),
        ),
        [
            [
                one["id"],
                one["user"],
                one.get("name") or "",
                render.when(one.get("created_at")),
                render.when(one.get("expires_at")),
                render.when(one.get("revoked_at")),
            ]
            for one in found["items"]
        ],
        "no tokens",
    )


def token_revoke(token: str = typer.Argument(..., metavar="ID")) -> None:
    """Take a token out of use, at once."""
    now = session.current()
    now.api().delete(f"/v1/tokens/{part(token)}")
    if now.json:
        render.document({"id": token, "revoked": True})
    else:
        render.note(f"token {token} is revoked")
