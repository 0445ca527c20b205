"""``shiftwork queue``: the waiting tasks in the order in which they get nodes."""

from __future__ import annotations

from typing import Any, Mapping

import typer

from shiftwork.cli import complete, ids, parse, render, session
from shiftwork.cli.client import Api

LISTED_MAX = 100_000
# In place of what a task keeps from those who may not see it.
HIDDEN = "-"
COLUMNS = (
    render.Column("PLACE"),
    render.Column("ID"),
    render.Column("NAME", least=8),
    render.Column("OWNER", drop=2, least=5),
    render.Column("GROUP", drop=4),
    render.Column("LEVEL"),
    render.Column("GPUS"),
    render.Column("NODES", drop=3),
    render.Column("WAITS", drop=1),
    render.Column("FOR", least=16),
)


def register(app: session.App) -> None:
    """Add the command."""
    app.command("queue", cls=session.Watched)(queue)


def queue(
    group: str = typer.Option(
        "", "--group", help="One group. Left out: each, by name.", autocompletion=complete.groups
    ),
    mine: bool = typer.Option(False, "--mine", help="Your own only, at their places."),
    limit: int = typer.Option(100, "--limit", min=1, max=LISTED_MAX, help="Places to look at."),
) -> None:
    """List waiting tasks in the order in which they get nodes, with what each waits for."""
    now = session.current()
    api = now.api()
    found = api.items("/v1/queue", {"group": group} if group else {}, limit)
    if mine:
        me = api.get("/v1/whoami")["user"]
        found["items"] = [each for each in found["items"] if each.get("owner") == me]
    if now.json:
        render.document(found)
        return
    _show(api, found["items"], mine=mine)
    if found.get("next_cursor"):
        render.note(f"more than {limit} wait: raise --limit")


def _show(api: Api, rows: list[dict[str, Any]], *, mine: bool) -> None:
    known = {each["id"]: each for each in rows if each.get("id")}
    short = ids.shortened(known)
    names = ids.Names(api, known)
    none = "none of your tasks waits" if mine else "no task waits"
    render.table(COLUMNS, [_row(each, short, names) for each in rows], none)


def _row(
    task: dict[str, Any], short: Mapping[str, str], names: ids.Names
) -> list[str | render.Cell]:
    task_id = task.get("id") or HIDDEN
    return [
        str(task["position"]),
        render.Cell(short.get(task_id, task_id), task_id),
        task.get("name") or HIDDEN,
        task.get("owner") or HIDDEN,
        task["group"],
        task["level"],
        str(task["gpus"]),
        str(task["nodes"]),
        render.when(task.get("waiting_since")),
        _waits_for(task, names),
    ]


def _waits_for(task: dict[str, Any], names: ids.Names) -> str | render.Cell:
    text = str(parse.fields(task.get("reason")).get("text", ""))
    until = parse.fields(task.get("waits_for")).get("until")
    if until:
        text += f" (at the latest {render.ago(until)})"
    return render.Cell(names.put_into(text), text) if render.is_narrow() else text
