"""``shiftwork user add|ls`` and ``shiftwork token create|ls|revoke``: who may use the platform."""

from typing import Any, Dict

import typer

from shiftwork.cli import parse, render, session
from shiftwork.cli.client import part


def register(app: session.App) -> None:
    """Add the commands."""
    user = session.App(name="user", help="People and programs.", no_args_is_help=True)
    user.command("add")(user_add)
    user.command("ls")(user_ls)
    app.add_typer(user)
    token = session.App(name="token", help="Bearer tokens.", no_args_is_help=True)
    token.command("create")(token_create)
    token.command("ls")(token_ls)
    token.command("revoke")(token_revoke)
    app.add_typer(token)


def user_add(
    name: str = typer.Argument(..., metavar="NAME"),
    team: str = typer.Option("", "--team"),
    admin: bool = typer.Option(False, "--admin", help="May do everything."),
) -> None:
    """Add a user."""
    now = session.current()
    body: Dict[str, Any] = {"name": name, "role": "admin" if admin else "member"}
    if team:
        body["team"] = team
    told = now.api().create("/v1/users", body)
    if now.json:
        render.document(told)
    else:
        render.note(f"{name} is there; `shiftwork token create --user {name}` makes a token")


def user_ls() -> None:
    """List the users."""
    now = session.current()
    found = now.api().items("/v1/users")
    if now.json:
        render.document(found)
        return
    render.table(
        ("NAME", "ROLE", "TEAM", "SINCE", ""),
        [
            [
                one["name"],
                one["role"],
                one.get("team") or "",
                render.moment(one.get("created_at")),
                "disabled" if one.get("disabled") else "",
            ]
            for one in found["items"]
        ],
        "no users",
    )


def token_create(
    user: str = typer.Option("", "--user", help="Left out: yourself."),
    name: str = typer.Option("", "--name", help="What it is for."),
    expires_in: str = typer.Option("", "--expires-in", help="Such as 90d; left out: never."),
) -> None:
    """Make a token. It is shown once, alone on standard output."""
    now = session.current()
    api = now.api()
    body: Dict[str, Any] = {"user": user or api.get("/v1/whoami")["user"], "name": name}
    if expires_in:
        body["expires_in_seconds"] = parse.duration(expires_in, "--expires-in")
    told = api.create("/v1/tokens", body)
    if now.json:
        render.document(told)
    else:
        render.line(told["token"])
        render.note(f"token {told['id']} of {body['user']}: keep it, it is not shown again")


def token_ls() -> None:
    """List the tokens, without their secrets."""
    now = session.current()
    found = now.api().items("/v1/tokens")
    if now.json:
        render.document(found)
        return
    render.table(
        ("ID", "USER", "NAME", "SINCE", "EXPIRES", "REVOKED"),
        [
            [
                one["id"],
                one["user"],
                one.get("name") or "",
                render.moment(one.get("created_at")),
                render.moment(one.get("expires_at")),
                render.moment(one.get("revoked_at")),
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
