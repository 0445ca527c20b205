"""``shiftwork quota ls|set|default|explain``: what may be held at once."""

from typing import Any, Dict, List, Optional, Tuple
from urllib.parse import urlencode

import typer

from shiftwork.cli import complete, parse, render, session, timeline
from shiftwork.cli.failures import naming, usage


def register(app: session.App) -> None:
    """Add the commands."""
    quota = session.App(
        name="quota", help="What users and teams may hold at once.", no_args_is_help=True
    )
    quota.command("ls")(ls)
    quota.command("set")(set_limit)
    quota.command("default")(default)
    quota.command("explain", cls=session.Paged)(explain)
    app.add_typer(quota)


def ls() -> None:
    """List the caps and grants. All caps apply; of the grants the most specific one decides."""
    now = session.current()
    found = now.api().items("/v1/quotas")
    if now.json:
        render.document(found)
        return
    render.table(
        (
            render.Column("KIND"),
            render.Column("GROUP", least=8),
            render.Column("USER", least=8),
            render.Column("TEAM", least=8),
            render.Column("PRIORITY"),
            render.Column("LIMIT"),
            render.Column("EXPIRES", drop=3),
            render.Column("SET BY", drop=2, least=8),
            render.Column("SINCE", drop=1),
        ),
        [_row(quota) for quota in found["items"]],
        "no caps and no grants: everything is unlimited",
    )


def _row(quota: Dict[str, Any]) -> List["str | render.Cell"]:
    return [
        _kind(quota),
        quota.get("group") or "every",
        quota.get("user") or "every",
        quota.get("team") or "every",
        quota.get("priority") or "every",
        _amount(quota),
        _until(quota),
        quota.get("changed_by") or "",
        render.when(quota.get("changed_at")),
    ]


def _kind(quota: Dict[str, Any]) -> str:
    if not quota.get("grant"):
        return "cap"
    named = any(quota.get(name) for name in ("group", "user", "team", "priority"))
    return "grant" if named else "default"


def _amount(quota: Dict[str, Any]) -> str:
    """``4 gpus``, ``unlimited``, ``unlimited up to normal``."""
    up_to = f" up to {quota['level_max']}" if quota.get("level_max") else ""
    if quota.get("unlimited"):
        return f"unlimited{up_to}"
    unit = str(quota["unit"]).replace("_", " ")
    return f"{quota['limit']} {unit if quota['limit'] != 1 else unit.replace('s', '')}{up_to}"


def _until(quota: Dict[str, Any]) -> str:
    at = parse.at(quota.get("expires_at"))
    return f"{at:%Y-%m-%d %H:%MZ}" if at is not None else ""


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
    unlimited: bool = typer.Option(
        False, "--unlimited", help="With --grant: any amount. Of a cap: remove it."
    ),
    grant: bool = typer.Option(
        False, "--grant", help="A grant: replaces less specific grants, up or down. Else a cap."
    ),
    remove: bool = typer.Option(
        False, "--remove", help="Remove the cap, or with --grant the grant."
    ),
    expires: str = typer.Option(
        "",
        "--expires",
        metavar="WHEN",
        help="When it is removed: 30d, or 2026-12-24T00:00:00Z.",
    ),
    force: bool = typer.Option(
        False, "--force", help="Accept a user, team or group that is to come."
    ),
) -> None:
    """Set a cap or a grant, or remove it. What runs already goes on.

    All caps that match a task apply. Of the grants one decides: the user's, else the team's, else
    the one for every user.
    """
    chosen = [gpus is not None, nodes is not None, unlimited, remove]
    if sum(chosen) != 1:
        raise usage(
            "a quota is one of --gpus N, --nodes N, --unlimited and --remove",
            where="quota set",
            fix="give exactly one of them",
        )
    body: Dict[str, Any] = {
        "group": group or None,
        "user": user or None,
        "team": team or None,
        "priority": parse.priority(priority, "--priority") if priority else None,
    }
    if grant:
        body["grant"] = True
    if unlimited or remove:
        body["unlimited" if unlimited else "remove"] = True
    else:
        body["unit"] = "gpus" if gpus is not None else "nodes"
        body["limit"] = gpus if gpus is not None else nodes
    if expires:
        body["expires_at"] = parse.timestamp(expires, "--expires", render.now(), ahead=True)
    removes = remove or (unlimited and not grant)
    silent = removes or session.current().json
    rows: List[Dict[str, Any]] = []
    if not silent:
        rows = session.current().api().items("/v1/quotas")["items"]
    _put(body, force=force)
    if not expires:
        _note_no_end(rows, body)
    default = next((each for each in rows if _kind(each) == "default"), None)
    if default is not None and grant and not priority:
        _note_replaced(default, body)


def _note_no_end(rows: List[Dict[str, Any]], body: Dict[str, Any]) -> None:
    """Say that the row which is replaced had an end, and that the new one has none."""
    names = ("user", "team", "group", "priority", "grant")
    for row in rows:
        if all((row.get(name) or None) == (body.get(name) or None) for name in names):
            if until := _until(row):
                render.warning(
                    f"it does not expire any more: the row that it replaces ended {until};"
                    " to keep that, set it again with --expires"
                )
            return


def _note_replaced(default: Dict[str, Any], grant: Dict[str, Any]) -> None:
    """Say that a grant at every priority replaces the site's default, also above its highest
    priority."""
    named = any(grant.get(name) for name in ("user", "team", "group"))
    text = f"it replaces the site's default{' there' if named else ''} ({_amount(default)})"
    if not default.get("level_max"):
        render.note(text)
        return
    most = default["level_max"]
    render.warning(
        f"{text}: priorities above {most} are permitted, too; to grant one priority alone, remove"
        " this grant with --grant --remove and give --priority"
    )


def _put(body: Dict[str, Any], *, force: bool = False) -> None:
    now = session.current()
    options = {"limit": f"--{body.get('unit', 'unlimited')}", "expires_at": "--expires"}
    with naming(options):
        reply = now.api().put("/v1/quotas?force=true" if force else "/v1/quotas", body)
    if now.json:
        render.document(reply)
        return
    removed = bool(body.get("remove") or (body.get("unlimited") and not body.get("grant")))
    render.note(timeline.quota_text(body, removed=removed))


def default(
    setting: str = typer.Argument(
        "",
        metavar="[unlimited|normal|N]",
        show_default=False,
        help="Left out: show it.",
        autocompletion=complete.quota_defaults,
    ),
    up_to: str = typer.Option(
        "",
        "--up-to",
        metavar="PRIORITY",
        help="Nothing above this priority.",
        autocompletion=complete.priorities,
    ),
) -> None:
    """Show or set what each user may hold in each group where no grant decides.

    unlimited: any amount. normal: any amount, and nothing above priority normal. N: that many GPUs
    at once; runs without GPUs count their nodes.
    """
    if up_to and setting in ("", "normal"):
        fix = "write: shiftwork quota default unlimited --up-to PRIORITY, or: a number in its place"
        raise usage("--up-to goes with unlimited or a number", where="--up-to", fix=fix)
    if not setting:
        _show_defaults()
        return
    body: Dict[str, Any] = {"grant": True}
    if setting in ("unlimited", "normal"):
        body["unlimited"] = True
        if setting == "normal":
            body["level_max"] = "normal"
    elif setting.isdecimal():
        body.update(limit=int(setting), unit="gpus_or_nodes")
    else:
        fix = "write unlimited, normal or a number of GPUs"
        if parse.is_priority(setting):
            fix = f"write: shiftwork quota default unlimited --up-to {setting}"
        raise usage(f"{setting!r} is no default", where="quota default", fix=fix)
    if up_to:
        body["level_max"] = parse.priority(up_to, "--up-to")
    with naming({"level_max": "--up-to"}):
        _put(body)


def _show_defaults() -> None:
    """The grants that hold for more than one user, the site's own first."""
    now = session.current()
    found = now.api().items("/v1/quotas")
    names = ("group", "team", "priority")
    rows = [each for each in found["items"] if each.get("grant") and not each.get("user")]
    rows.sort(key=lambda each: [str(each.get(name) or "") for name in names])
    if now.json:
        render.document({**found, "items": rows})
        return
    for each in rows:
        render.line(timeline.quota_text(each))
    if not any(_kind(each) == "default" for each in rows):
        render.line("the site has no default: where no grant decides, any amount is permitted")


def explain(
    user: str = typer.Option(
        "", "--user", help="Left out: yourself.", autocompletion=complete.users
    ),
    group: str = typer.Option(
        "", "--group", help="Left out: every group.", autocompletion=complete.groups
    ),
) -> None:
    """Show what a user may hold in each group at each priority, and which row decides that."""
    now = session.current()
    asked = {"user": user, "group": group}
    query = urlencode({name: value for name, value in asked.items() if value})
    with naming({"user": "--user", "group": "--group"}):
        found = now.api().get("/v1/quotas/explain" + (f"?{query}" if query else ""))
    if now.json:
        render.document(found)
        return
    render.table(
        (
            render.Column("GROUP", least=8),
            render.Column("PRIORITY"),
            render.Column("LIMIT"),
            render.Column("HELD"),
            render.Column("FREE"),
            render.Column("EXPIRES", drop=1),
            render.Column("BECAUSE OF", least=20, wrap=True),
        ),
        [_permission(*each) for each in _merged(found["permissions"])],
        "there are no groups of nodes yet",
    )


def _merged(permissions: List[Dict[str, Any]]) -> List[Tuple[Dict[str, Any], str]]:
    """Each permission with its priority; on a terminal, priorities that follow one another and are
    permitted the same are one."""
    runs: List[List[Dict[str, Any]]] = []
    for each in permissions:
        last = runs[-1][-1] if runs and render.is_narrow() else {}
        if {**last, "priority": ""} == {**each, "priority": ""}:
            runs[-1].append(each)
        else:
            runs.append([each])
    return [(run[0], _levels([str(each["priority"]) for each in run])) for run in runs]


def _levels(names: List[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


def _permission(each: Dict[str, Any], levels: str) -> List["str | render.Cell"]:
    held = render.counted(each["gpus_held"], "gpu") if each["gpus_held"] else ""
    held = held or (render.counted(each["nodes_held"], "node") if each["nodes_held"] else "0")
    # Of somebody else, whose usage this caller may not see.
    is_hidden = each["gpus_held"] is None
    limit, free = "any amount", ""
    if not each["permitted"]:
        limit = "not permitted"
    elif each["limit"] is not None:
        limit, held, free = _amount(each), str(each["held"]), str(each["free"])
    held, free = ("hidden", "") if is_hidden else (held, free)
    until = _until(each)
    return [
        each["group"],
        levels,
        limit,
        held,
        free,
        render.Cell("", until),
        # There the column of the end is too much.
        render.Cell(_because(each, until), _because(each, "")),
    ]


def _because(each: Dict[str, Any], until: str) -> str:
    """All rows that limit, the one that binds first; ``until``: when the grant ends."""
    caps = [_cap(cap) for cap in each["caps"]]
    granted = str(each["because"])
    own = each.get("granted")
    if each.get("binds") != "cap":
        rows = [granted + (f", until {until}" if until else ""), *caps]
    else:
        if own is not None and own["held"] is not None:
            granted += f" ({own['held']} held)"
        rows = [*caps[:1], granted + (f", until {until}" if until else ""), *caps[1:]]
    return "; ".join(rows)


def _cap(cap: Dict[str, Any]) -> str:
    until = _until(cap)
    ends = f", until {until}" if until else ""
    held = "" if cap["held"] is None else f"{cap['held']} of "
    return f"cap of {timeline.scope(cap)}: {held}{_amount(cap)}{ends}"
