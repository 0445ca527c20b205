"""``shiftwork dead-letters ls|replay``: events that a service has set apart."""

from typing import Any, Dict, List, Optional

import typer

from shiftwork.cli import render, session
from shiftwork.cli.failures import usage

SERVICES = ("submit", "scheduler", "launcher", "log_collector", "quota", "gateway")


def register(app: session.App) -> None:
    """Add the commands."""
    letters = session.App(
        name="dead-letters", help="Events that a service has set apart.", no_args_is_help=True
    )
    letters.command("ls")(ls)
    letters.command("replay")(replay)
    app.add_typer(letters)


def _services(given: Optional[str]) -> List[str]:
    if given is not None and given not in SERVICES:
        raise usage(
            f"there is no service {given!r}",
            where="--service",
            fix="give one of: " + ", ".join(SERVICES),
        )
    return [given] if given else list(SERVICES)


_IDS = typer.Argument(None, metavar="ID...", help="As `ls` shows them.")
_SERVICE = typer.Option(None, "--service", help="Left out: every service.")


def ls(service: Optional[str] = _SERVICE) -> None:
    """List events that a service could not handle or that the bus did not take."""
    now = session.current()
    items: List[Dict[str, Any]] = []
    for name in _services(service):
        items += now.api().items("/v1/dead-letters", {"service": name})["items"]
    if now.json:
        render.document({"items": items, "next_cursor": None})
        return
    render.table(
        (
            render.Column("ID"),
            render.Column("SERVICE"),
            render.Column("TYPE", drop=3, least=8),
            render.Column("SET APART", drop=2),
            render.Column("REPLAYS", drop=4),
            render.Column("REASON", drop=1, least=12),
        ),
        [_row(letter) for letter in items],
        "no dead letters",
    )


def _row(letter: Dict[str, Any]) -> List["str | render.Cell"]:
    replays = str(letter["replays"]) + (", one to come" if letter["replaying"] else "")
    return [
        letter["id"],
        letter["service"],
        letter["type"].rpartition(".")[2] or "?",
        render.when(letter["set_apart_at"]),
        replays,
        letter["reason"].splitlines()[0] if letter["reason"] else "",
    ]


def replay(
    ids: Optional[List[str]] = _IDS,
    service: Optional[str] = _SERVICE,
    every: bool = typer.Option(False, "--all", help="Every letter (of the service)."),
) -> None:
    """Let the service try again. What succeeds is gone from the list."""
    if bool(ids) == every:
        raise usage(
            "which letters is not clear" if every else "no letter is named",
            where="dead-letters replay",
            fix="give IDs, or --all",
        )
    now = session.current()
    replayed: List[Dict[str, Any]] = []
    for name in _services(service):
        body: Dict[str, Any] = {"service": name}
        if not every:
            found = now.api().items("/v1/dead-letters", {"service": name})["items"]
            wanted = {each["id"] for each in found} & set(ids or [])
            if not wanted:
                continue
            body["ids"] = sorted(wanted)
        answer = now.api().create("/v1/dead-letters:replay", body)
        if answer["ids"]:
            replayed.append(answer)
    missing = set(ids or []) - {each for answer in replayed for each in answer["ids"]}
    if missing:
        raise usage(
            f"no service has the dead letter {min(missing)}",
            where="dead-letters replay",
            fix="shiftwork dead-letters ls",
        )
    if now.json:
        render.document({"items": replayed})
    else:
        for answer in replayed:
            render.note(f"{answer['service']}: {len(answer['ids'])} to be tried again")
        if not replayed:
            render.note("no dead letters")
