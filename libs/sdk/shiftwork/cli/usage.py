"""``shiftwork usage``: what users and teams held in a range of time, and the part that was lost."""

from typing import Any, Dict, List, Sequence

import typer

from shiftwork.cli import complete, csv_output, parse, render, session
from shiftwork.cli.failures import naming

HOUR_SECONDS = 3600.0
# What a table shows of an item's seconds, in hours: the name, the field, and when it is left out.
HOURS = (
    ("GPU-HOURS", "held_gpu_seconds", 0),
    ("NODE-HOURS", "held_node_seconds", 4),
    ("STARTING", "starting_gpu_seconds", 3),
    ("LOST TO PREEMPTION", "lost_to_preemption_gpu_seconds", 1),
    ("LOST TO FAILURE", "lost_to_failure_gpu_seconds", 2),
)
OPTIONS = {
    "from": "--from",
    "to": "--to",
    "group_by": "--group-by",
    **{name: f"--{name}" for name in ("user", "team", "group", "priority", "outcome")},
}


def register(app: session.App) -> None:
    """Add the command."""
    app.command("usage", cls=session.Paged)(show)


def show(
    since: str = typer.Option(
        "7d", "--from", metavar="WHEN", help="7d ago, 2026-11-01 or 2026-11-01T00:00:00Z."
    ),
    to: str = typer.Option("", "--to", metavar="WHEN", help="Left out: now."),
    group_by: str = typer.Option(
        "",
        "--group-by",
        help="Of user, team, group, priority, outcome, task and day (UTC), with commas. Left out:"
        " user; with --team the team.",
        autocompletion=complete.usage_dimensions,
    ),
    user: str = typer.Option("", "--user", autocompletion=complete.users),
    team: str = typer.Option(
        "", "--team", help="Yours; operators: any.", autocompletion=complete.teams
    ),
    group: str = typer.Option("", "--group", autocompletion=complete.groups),
    priority: str = typer.Option(
        "", "--priority", help="Tasks' level at the start.", autocompletion=complete.priorities
    ),
    outcome: str = typer.Option(
        "",
        "--outcome",
        help="succeeded, failed, preempted, running, ...",
        autocompletion=complete.usage_outcomes,
    ),
    as_csv: bool = typer.Option(False, "--csv", help="Answer in CSV, in seconds."),
) -> None:
    """Show who held how many GPU-hours, and what was lost.

    Nodes are held from their assignment until the end of the processes is observed; tasks that
    still run count until now. Lost is what was held after the last checkpoint by attempts that
    were preempted or failed.
    """
    now = session.current()
    session.refuse_csv_as_document(as_csv)
    if not group_by:
        group_by = "team" if team and not user else "user"
    asked = {
        "from": parse.timestamp(since, "--from", render.now()),
        "to": parse.timestamp(to, "--to", render.now()) if to else "",
        "group_by": group_by,
        "user": user,
        "team": team,
        "group": group,
        "priority": parse.priority(priority, "--priority") if priority else "",
        "outcome": outcome,
    }
    with naming(OPTIONS):
        found = now.api().get("/v1/usage", {name: value for name, value in asked.items() if value})
    if now.json:
        render.document(found)
    elif as_csv:
        csv_output.write([*found["group_by"], *found["total"]], found["items"])
    else:
        _draw(found)


def _draw(found: Dict[str, Any]) -> None:
    names: List[str] = found["group_by"]
    columns = [render.Column(name.upper(), least=8) for name in names]
    columns.append(render.Column("ATTEMPTS", drop=5))
    columns += [render.Column(name, drop=drop) for name, _, drop in HOURS]
    measured = bool(found["total"].get("measured_gpu_seconds"))
    if measured:
        columns.append(render.Column("IDLE", drop=3))
    rows = [
        _row([each[name] or "unknown" for name in names], each, measured=measured)
        for each in found["items"]
    ]
    if rows:
        rows.append(_row(["total", *[""] * (len(names) - 1)], found["total"], measured=measured))
    render.table(columns, rows, "nothing was held in this time")
    render.note(f"from {found['from']} to {found['to']}; lost and starting in GPU-hours")
    if measured:
        render.note("idle: the part of the measured GPU time in which utilization was low")


def _row(
    key: Sequence[str], amounts: Dict[str, Any], *, measured: bool
) -> List["str | render.Cell"]:
    hours = [f"{amounts[field] / HOUR_SECONDS:,.2f}" for _, field, _ in HOURS]
    idle = [_idle(amounts)] if measured else []
    return [*key, str(amounts["attempts"]), *hours, *idle]


def _idle(amounts: Dict[str, Any]) -> str:
    """The part of the measured GPU time in which GPUs were idle; empty where none was measured."""
    measured = amounts["measured_gpu_seconds"]
    return f"{100 * amounts['idle_gpu_seconds'] / measured:.0f} %" if measured else ""
