"""``shiftwork quota ls|set``: the most that may be held at once."""

from typing import Any, Dict, List, Optional

import typer

from shiftwork.cli import complete, parse, render, session, timeline
from shiftwork.cli.failures import naming, usage


def register(app: session.App) -> None:
    """Add the commands."""
    quota = session.App(
        name="quota", help="Limits on what may be held at once.", no_args_is_help=True
    )
    quota.command("ls")(ls)
    quota.command("set")(set_limit)
    app.add_typer(quota)


def ls() -> None:
    """List the limits; what has none is unlimited."""
    now = session.current()
    found = now.api().items("/v1/quotas")
    if now.json:
        render.document(found)
        return
    render.table(
        (
            render.Column("GROUP", least=8),
            render.Column("USER", least=8),
            render.Column("TEAM", least=8),
            render.Column("PRIORITY"),
            render.Column("LIMIT"),
            render.Column("SET BY", drop=2, least=8),
            render.Column("SINCE", drop=1),
        ),
        [_row(quota) for quota in found["items"]],
        "no limits: everything is unlimited",
    )


def _row(quota: Dict[str, Any]) -> List["str | render.Cell"]:
    return [
        quota.get("group") or "every",
        quota.get("user") or "every",
        quota.get("team") or "every",
        quota.get("priority") or "every",
        f"{quota['limit']} {quota['unit']}",
        quota.get("changed_by") or "",
        render.when(quota.get("changed_at")),
    ]


def set_limit(
    user: str = typer.Option(
        "", "--user", help="Left out: every user.", autocompletion=complete.users
    ),
    team: str = typer.Option(
        "", "--team", help="Left out: every team.", autocompletion=complete.teams
    ),
    priority: str = typer.Option(
        "", "--priority", help="Left out: every priority.", autocompletion=complete.priorities
    ),
    group: str = typer.Option(
        "", "--group", help="Left out: every group.", autocompletion=complete.groups
    ),
    gpus: Optional[int] = typer.Option(None, "--gpus", min=0),
    nodes: Optional[int] = typer.Option(None, "--nodes", min=0),
    unlimited: bool = typer.Option(False, "--unlimited", help="Take the limit away."),
    force: bool = typer.Option(
        False, "--force", help="Accept a user, team or group that is to come."
    ),
) -> None:
    """Set a limit, or take it away. What runs already goes on."""
    chosen = [gpus is not None, nodes is not None, unlimited]
    if sum(chosen) != 1:
        raise usage(
            "a quota is one of --gpus N, --nodes N and --unlimited",
            where="quota set",
            fix="give exactly one of them",
        )
    body: Dict[str, Any] = {
        "group": group or None,
        "user": user or None,
        "team": team or None,
        "priority": parse.priority(priority, "--priority") if priority else None,
    }
    if unlimited:
        body["unlimited"] = True
    else:
        body["unit"] = "gpus" if gpus is not None else "nodes"
        body["limit"] = gpus if gpus is not None else nodes
    now = session.current()
    with naming({"limit": f"--{body.get('unit', 'unlimited')}"}):
        reply = now.api().put("/v1/quotas?force=true" if force else "/v1/quotas", body)
    if now.json:
        render.document(reply)
    else:
        text = "no limit" if unlimited else timeline.limit(body)
        render.note(f"quota of {timeline.scope(body)}: {text}")
