"""``shiftwork dead-letters ls|replay|discard``: events that a service has set apart."""

from typing import Any, Dict, List, Optional

import typer

from shiftwork.cli import complete, parse, render, server_choices, session
from shiftwork.cli.failures import usage


def register(app: session.App) -> None:
    """Add the commands."""
    letters = session.App(
        name="dead-letters", help="Events that a service has set apart.", no_args_is_help=True
    )
    letters.command("ls")(ls)
    letters.command("replay")(replay)
    letters.command("discard")(discard)
    app.add_typer(letters)


def _services(given: Optional[str]) -> List[str]:
    return (
        [parse.choice(given, server_choices.SERVICES, "service", "--service")]
        if given
        else list(server_choices.SERVICES)
    )


_IDS = typer.Argument(None, metavar="ID...", help="As `ls` shows them.")
_SERVICE = typer.Option(
    None, "--service", help="Left out: every service.", autocompletion=complete.services
)


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


_EVERY = typer.Option(False, "--all", help="Every letter (of the service).")


def replay(
    ids: Optional[List[str]] = _IDS, service: Optional[str] = _SERVICE, every: bool = _EVERY
) -> None:
    """Let the service try again. Letters that succeed disappear from the list."""
    _command("replay", "to be tried again", ids or [], service, every)


def discard(
    ids: Optional[List[str]] = _IDS, service: Optional[str] = _SERVICE, every: bool = _EVERY
) -> None:
    """Drop events for good, without trying them again."""
    _command("discard", "discarded", ids or [], service, every)


def _command(verb: str, outcome: str, ids: List[str], service: Optional[str], every: bool) -> None:
    where = f"dead-letters {verb}"
    if bool(ids) == every:
        raise usage(
            "which letters is not clear" if every else "no letter is named",
            where=where,
            fix="give IDs, or --all",
        )
    now = session.current()
    requests = [_request(name, ids) for name in _services(service)]
    answers = [now.api().create(f"/v1/dead-letters:{verb}", body) for body in requests if body]
    done = [answer for answer in answers if answer["ids"]]
    missing = set(ids) - {each for answer in done for each in answer["ids"]}
    if now.json and done:
        render.document({"items": done})
    for answer in done:
        render.note(f"{answer['service']}: {len(answer['ids'])} {outcome}")
    if missing:
        raise usage(
            f"no service has the dead letter {min(missing)}",
            where=where,
            fix="shiftwork dead-letters ls",
        )
    if not done:
        render.note("no dead letters")
        if now.json:
            render.document({"items": []})


def _request(service: str, ids: List[str]) -> Dict[str, Any]:
    """The request to a service; empty if it has none of the named letters."""
    if not ids:
        return {"service": service}
    found = session.current().api().items("/v1/dead-letters", {"service": service})["items"]
    wanted = {each["id"] for each in found} & set(ids)
    return {"service": service, "ids": sorted(wanted)} if wanted else {}
