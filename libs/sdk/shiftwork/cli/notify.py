"""``shiftwork notify ls|set|rm|undelivered|replay``: messages about what happens to tasks."""

from pathlib import Path
from typing import Any, Dict, List, Optional

import typer

from shiftwork.cli import complete, parse, render, server_choices, session
from shiftwork.cli.failures import naming, usage
from shiftwork.client.paths import part, with_query


def register(app: session.App) -> None:
    """Add the commands."""
    notify = session.App(
        name="notify", help="Messages about what happens to tasks.", no_args_is_help=True
    )
    notify.command("ls")(ls)
    notify.command("set")(set_notification)
    notify.command("rm")(rm)
    notify.command("undelivered")(undelivered)
    notify.command("replay")(replay)
    app.add_typer(notify)


MAIL = "mail"
_NAME = typer.Argument(
    ..., metavar="NAME", help="As `notify ls` shows it.", autocompletion=complete.notifications
)
_USER = typer.Option(
    "", "--user", help="Whose it is; left out: yours.", autocompletion=complete.users
)


def _path(name: str, rest: str = "") -> str:
    return f"/v1/notifications/{part(name)}{rest}"


def _of(user: str) -> Optional[Dict[str, Any]]:
    return {"user": user} if user else None


def ls(
    user: str = _USER,
    everybody: bool = typer.Option(False, "--all", help="Those of all users."),
) -> None:
    """List notifications, and how their deliveries go."""
    now = session.current()
    query = {**(_of(user) or {}), **({"everybody": "true"} if everybody else {})}
    found = now.api().get("/v1/notifications", query)
    if now.json:
        render.document(found)
        return
    render.table(
        (
            render.Column("NAME"),
            render.Column("USER", drop=4),
            render.Column("TO", least=16),
            render.Column("TASKS"),
            render.Column("OCCASIONS", drop=3, least=12),
            render.Column("WAITING", drop=2),
            render.Column("UNDELIVERED", drop=1),
            render.Column("PROBLEM", least=12),
        ),
        [_row(each) for each in found["items"]],
        "no notifications; make one with: shiftwork notify set --help",
    )


def _row(found: Dict[str, Any]) -> List["str | render.Cell"]:
    problem = str(found["problem"] or "")
    return [
        found["name"],
        found["user"],
        found["url"] or found.get("channel", MAIL),
        found["tasks"],
        " ".join(found["occasions"]),
        str(found["waiting"]),
        str(found["undelivered"]),
        f"paused: {problem}" if found["paused_at"] else problem,
    ]


def set_notification(
    name: str = typer.Argument(
        ..., metavar="NAME", help="Of your choice.", autocompletion=complete.notifications
    ),
    to: str = typer.Option(
        ...,
        "--to",
        metavar="mail|URL",
        help="mail: to your own address; or https://… that takes webhooks.",
    ),
    on: Optional[List[str]] = typer.Option(
        None,
        "--on",
        metavar="OCCASION",
        autocompletion=complete.occasions,
        help=f"Repeat it for several; left out: all of {', '.join(server_choices.OCCASIONS)}.",
    ),
    tasks: str = typer.Option(
        "own",
        "--tasks",
        metavar="own|team|all",
        help="Whose tasks it is about.",
        autocompletion=complete.notified_tasks,
    ),
    secret_file: str = typer.Option(
        "", "--secret-file", metavar="FILE", help="A secret of your own; left out: one is made."
    ),
    user: str = _USER,
) -> None:
    """Make a notification, or replace it. Of a webhook, prints the secret that signs its messages,
    once. Mail goes to the address that `shiftwork user show` has.

    A notification that was paused because its receiver failed for days gets messages again.
    """
    occasions = [
        parse.choice(each, server_choices.OCCASIONS, "occasion", "--on") for each in on or []
    ]
    body: Dict[str, Any] = {
        **({"channel": MAIL} if to == MAIL else {"url": to}),
        "occasions": occasions or list(server_choices.OCCASIONS),
        "tasks": parse.choice(tasks, server_choices.NOTIFIED_TASKS, "choice", "--tasks"),
    }
    if user:
        body["user"] = user
    if secret_file:
        body["secret"] = _read(secret_file)
    now = session.current()
    with naming({"channel": "--to", "url": "--to"}):
        found = now.api().put(_path(name), body)
    if now.json:
        render.document(found)
        return
    render.note(f"{name}: {', '.join(found['occasions'])} of {found['tasks']} tasks")
    if found["secret"]:
        render.note("the secret that signs its messages; it is not shown again:")
        render.line(found["secret"])


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as problem:
        raise usage(f"the secret cannot be read: {problem}", where="--secret-file") from None


def rm(name: str = _NAME, user: str = _USER) -> None:
    """Remove a notification; what waits for it is not sent."""
    session.current().api().delete(with_query(_path(name), _of(user) or {}))
    render.note(f"{name} is removed")


def undelivered(name: str = _NAME, user: str = _USER) -> None:
    """List the messages that were given up."""
    now = session.current()
    found = now.api().get(_path(name, "/undelivered"), _of(user))
    if now.json:
        render.document(found)
        return
    render.table(
        (
            render.Column("TASK"),
            render.Column("OCCASION"),
            render.Column("HAPPENED", drop=2),
            render.Column("TRIES", drop=1),
            render.Column("PROBLEM", least=12),
        ),
        [
            [
                each["task_id"],
                each["occasion"],
                render.when(each["happened_at"]),
                str(each["tries"]),
                each["problem"],
            ]
            for each in found["items"]
        ],
        "nothing was given up",
    )


def replay(name: str = _NAME, user: str = _USER) -> None:
    """Let the messages that were given up be tried again."""
    now = session.current()
    found = now.api().create(with_query(_path(name, "/replay"), _of(user) or {}), {})
    if now.json:
        render.document(found)
    else:
        render.note(f"{found['messages']} messages will be tried again")
