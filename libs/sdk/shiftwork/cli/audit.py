"""``shiftwork audit``: who changed what, from where, and what was refused."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import typer

from shiftwork.cli import complete, csv_output, failures, ids, parse, render, session, tasks
from shiftwork.cli.client import Api
from shiftwork.cli.failures import Failure

COLUMNS = (
    *("at", "who", "action", "target", "outcome", "detail"),
    *("address", "token", "before", "after"),
)


def register(app: session.App) -> None:
    """Add the command."""
    app.command("audit", cls=session.Paged)(audit)


def audit(  # noqa: PLR0917 - each is an option
    who: str = typer.Option("", "--who", help="One user's.", autocompletion=complete.users),
    action: str = typer.Option(
        "",
        "--action",
        help="Such as quota, or task.goal.stop.",
        autocompletion=complete.audit_actions,
    ),
    target: str = typer.Option(
        "", "--target", help="Of one task, by id or name, user, node or other."
    ),
    outcome: str = typer.Option(
        "",
        "--outcome",
        help="done, or forbidden, invalid and other refusals.",
        autocompletion=complete.audit_outcomes,
    ),
    begin: str = typer.Option("", "--from", help="7d, or 2026-11-21T10:00:00Z."),
    end: str = typer.Option("", "--to", help="As --from."),
    limit: int = typer.Option(100, "--limit", min=1, help="The newest so many."),
    everything: bool = typer.Option(False, "--all", "-a", help="All that are kept."),
    as_csv: bool = typer.Option(False, "--csv", help="Comma-separated, every column."),
) -> None:
    """List changes and refusals, newest first. For administrators."""
    now = session.current()
    session.refuse_csv_as_document(as_csv)
    query: dict[str, Any] = {
        name: value
        for name, value in (("who", who), ("action", action), ("target", target))
        if value
    }
    query.update({"outcome": outcome} if outcome else {})
    clock = datetime.now(timezone.utc)
    for name, text in (("from", begin), ("to", end)):
        if text:
            query[name] = parse.timestamp(text, f"--{name}", clock)
    found = _entries(now.api(), query, None if everything else limit)
    if now.json:
        render.document(found)
    elif as_csv:
        csv_output.write(COLUMNS, found["items"])
    else:
        _show(found)


def _entries(api: Api, query: dict[str, Any], limit: int | None) -> dict[str, Any]:
    """The entries. A target that none has may be a task by its name or its short id."""
    try:
        return api.items("/v1/audit", query, limit)
    except Failure as failure:
        errors = failures.objects(failure.problem.get("errors"))
        if [each.get("field") for each in errors] != ["target"]:
            raise
        try:
            task = tasks.find(api, query["target"])
        except Failure as no_task:
            if no_task.where != "TASK":
                raise
            what = f"no entry and no task is called {query['target']!r}"
            raise Failure(what, where="--target", fix=no_task.fix) from failure
    return api.items("/v1/audit", {**query, "target": task["id"]}, limit)


def _show(found: dict[str, Any]) -> None:
    render.table(
        (
            render.Column("WHEN"),
            render.Column("WHO", least=6),
            render.Column("ACTION", least=8),
            render.Column("TARGET", least=8),
            render.Column("OUTCOME"),
            render.Column("FROM", drop=2),
            render.Column("CHANGE", drop=1, least=12),
        ),
        [
            [
                render.when(one.get("at")),
                one["who"],
                one["action"],
                # An id by its end: ids of one day begin alike.
                render.Cell(ids.named(one["target"], {}), one["target"]),
                one["outcome"],
                one.get("address") or "",
                _change(one),
            ]
            for one in found["items"]
        ],
        "no entries",
    )
    if found.get("next_cursor"):
        render.note("there are more; --limit N or --all shows them, --from and --to narrow it")


def _change(entry: dict[str, Any]) -> str:
    """What differs between before and after, as far as the entry has both; else its detail."""
    before, after = parse.fields(entry.get("before")), parse.fields(entry.get("after"))
    if not before or not after:
        return str(entry.get("detail") or "")
    parts = [
        f"{name}: {_short(before.get(name))} -> {_short(value)}"
        for name, value in after.items()
        if before.get(name) != value
    ]
    return ", ".join(parts) or str(entry.get("detail") or "")


def _short(value: Any) -> str:  # noqa: ANN401 - JSON
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
