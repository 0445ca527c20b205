"""``shiftwork events``: the events of one task or of all, past and live."""

from math import inf
from typing import Any, Dict, List, Optional

import typer

from shiftwork.cli import complete, follow, ids, parse, render, session, timeline
from shiftwork.cli.tasks import find

RECENT = 100
# Further lines of an event begin under the first one's time.
HANG = 8


def register(app: session.App) -> None:
    """Add the command."""
    app.command("events", cls=session.Paged)(events)


def events(
    task: Optional[str] = typer.Argument(
        None, metavar="[TASK]", help="Left out: all tasks.", autocompletion=complete.tasks
    ),
    follow_it: bool = typer.Option(False, "-f", "--follow", help="Go on until interrupted."),
    start: Optional[int] = typer.Option(
        None,
        "--from",
        metavar="SEQ",
        help="After this position; 0: all that are kept; -N: the last N. "
        "Left out: a task's all, otherwise the last 100.",
    ),
    kind: str = typer.Option(
        "", "--type", help="Such as run.exited.", autocompletion=complete.facts
    ),
    owner: str = typer.Option(
        "", "--owner", help="Of one user's tasks.", autocompletion=complete.users
    ),
    team: str = typer.Option(
        "", "--team", help="Of tasks submitted under this team.", autocompletion=complete.teams
    ),
    group: str = typer.Option(
        "", "--group", help="Of one group of nodes.", autocompletion=complete.groups
    ),
) -> None:
    """Show what happened, to one task or to all."""
    now = session.current()
    api = now.api()
    filters = {"type": kind, "owner": owner, "team": team, "group": group}
    query: Dict[str, Any] = {**filters, "from": start}
    if task is not None:
        query["task"] = find(api, task)["id"]
    elif start is None:
        query["from"] = -RECENT
    if follow_it:
        repeats = timeline.Repeats()
        names = ids.Names(now.api(), lookups_max=inf)
        # Programs get events as they come; they continue from the last position.
        stream = follow.events if now.json or task is None else follow.events_in_order
        for event in stream(api, query):
            if now.json or not repeats.is_repeat(event):
                _show(event, names, of_task=task is not None)
        return
    found = api.items("/v1/events", {**query, "follow": 0})
    if now.json:
        render.document(found)
        return
    items = timeline.ordered(found["items"]) if task is not None else found["items"]
    repeats = timeline.Repeats()
    names = ids.Names(api)
    render.table(
        (
            render.Column("POSITION", drop=1),
            render.Column("TIME"),
            render.Column("ATTEMPT" if task is not None else "TASK"),
            render.Column("EVENT", least=30, wrap=True),
        ),
        [
            _row(each, names, of_task=task is not None)
            for each in items
            if not repeats.is_repeat(each)
        ],
        "no events",
    )


def _row(event: timeline.Data, names: ids.Names, *, of_task: bool) -> List["str | render.Cell"]:
    attempt = event.get("attempt") or ""
    subject: Any = str(attempt)
    if not of_task:
        run = f"{event['task']}.{attempt}".rstrip(".") if event.get("task") else ""
        subject = render.Cell(ids.short(event.get("task") or ""), run)
    naming = names.put_into if render.is_narrow() else None
    what = timeline.sentence(str(event.get("type", "")), parse.fields(event.get("data")), naming)
    return [
        str(event.get("position", "")),
        render.when(event.get("at"), exact=True),
        subject,
        what,
    ]


def _show(event: timeline.Data, names: ids.Names, *, of_task: bool) -> None:
    if render.wants_json():
        render.record(event)
    else:
        position = str(event.get("position", "")).rjust(6)
        naming = names.put_into if render.is_narrow() else None
        text = timeline.line(event, of_task=of_task, naming=naming)
        render.line(f"{position}  {text}", hang=HANG)
