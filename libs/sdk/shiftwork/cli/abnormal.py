"""``shiftwork abnormal``: tasks that rules find abnormal, and the rules."""

from __future__ import annotations

from typing import Any

import typer

from shiftwork.cli import complete, findings, ids, parse, render, server_choices, session, tasks


def register(app: session.App) -> None:
    """Add the command."""
    app.command("abnormal", cls=session.Paged)(abnormal)


def abnormal(  # noqa: PLR0917 - each is an option
    task: str = typer.Argument(
        "", metavar="[TASK]", help="One task, by name or id.", autocompletion=complete.tasks
    ),
    rule: str = typer.Option(
        "", "--rule", help="One rule's.", autocompletion=complete.abnormal_rules
    ),
    owner: str = typer.Option("", "--owner", help="One user's.", autocompletion=complete.users),
    team: str = typer.Option("", "--team", help="One team's.", autocompletion=complete.teams),
    group: str = typer.Option(
        "", "--group", help="In one group of nodes.", autocompletion=complete.groups
    ),
    everything: bool = typer.Option(False, "--all", "-a", help="Also what is over."),
    rules: bool = typer.Option(False, "--rules", help="The rules instead, as the site has them."),
) -> None:
    """List tasks that use little of what they hold, run for very long, or do not get on."""
    now = session.current()
    api = now.api()
    if rules:
        _show_rules(api.get("/v1/abnormal/rules"), as_json=now.json)
        return
    given = {"owner": owner, "team": team, "group": group}
    query: dict[str, Any] = {name: value for name, value in given.items() if value}
    if rule:
        query["rule"] = parse.choice(rule, server_choices.ABNORMAL_RULES, "rule", "--rule")
    if task:
        query["task_id"] = tasks.find(api, task)["id"]
    if everything:
        query["ended"] = "true"
    found = api.items("/v1/abnormal", query)
    if now.json:
        render.document(found)
        return
    render.table(
        (
            render.Column("TASK", least=8),
            render.Column("OWNER", drop=4),
            render.Column("RULE"),
            render.Column("SINCE", drop=2),
            render.Column("ENDED", drop=3),
            render.Column("ACTIONS", drop=1, least=8),
            render.Column("WHAT", least=20, wrap=True),
        ),
        [_row(each) for each in found["items"]],
        "no task is abnormal",
    )


def _row(found: dict[str, Any]) -> list[str | render.Cell]:
    short = f"{found['name']} {ids.short(found['task_id'])}"
    return [
        render.Cell(short, found["task_id"]),
        found["owner"],
        found["rule"],
        render.when(found["began_at"]),
        render.when(found["ended_at"]),
        "; ".join(findings.action(each) for each in found["actions"]),
        f"{found['detail']}. See: {found['suggestion']}",
    ]


def _show_rules(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        render.document(found)
        return
    render.table(
        (
            render.Column("RULE"),
            render.Column("THRESHOLD"),
            render.Column("ACTIONS", least=8),
            render.Column("OTHERWISE FOR", drop=2),
            render.Column("FINDS", drop=1, least=20, wrap=True),
        ),
        [
            [
                each["name"],
                f"{each['threshold']:g} {each['unit']}".strip() if each["enabled"] else "off",
                " ".join(each["actions"]) + (" (dry run)" if each["dry_run"] else ""),
                ", ".join(_otherwise(each)),
                each["detail"],
            ]
            for each in found["items"]
        ],
        "no rules",
    )


def _otherwise(rule: dict[str, Any]) -> list[str]:
    """For which groups of nodes and which teams the site has set it otherwise."""
    groups, teams = rule["groups"], rule.get("teams", [])
    return [f"group {name}" for name in groups] + [f"team {name}" for name in teams]
