"""``shiftwork top``: what the cluster has free, how much waits, and one's own tasks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping

import typer

from shiftwork.cli import charts, ids, metrics, render, session, tasks, watch
from shiftwork.cli.client import Api
from shiftwork.cli.task_options import HOLDING

# A request's worth; a screen shows fewer.
TASKS_MAX = 100
# The states in the order of the picture.
ORDER = ("running", "preempting", "killing", "starting", "queued", "paused")


def register(app: session.App) -> None:
    """Add the command."""
    app.command("top")(top)


def top(
    everybody: bool = typer.Option(False, "-A", "--all-users", help="Everybody's tasks."),
    once: bool = typer.Option(False, "--once", help="One picture. So without a terminal."),
    seconds: float = typer.Option(
        watch.SECONDS,
        "-n",
        "--interval",
        metavar="SECONDS",
        min=watch.SECONDS_MIN,
        max=watch.SECONDS_MAX,
        help="How often it is refreshed.",
    ),
) -> None:
    """Show what is free, what waits and how your tasks do, refreshed until Ctrl-C or q."""
    now = session.current()
    is_live = not (once or now.json) and watch.is_possible()
    if is_live:
        session.begin(replace(now, call_seconds=watch.CALL_SECONDS))
    api = session.current().api()

    def draw() -> None:
        _draw(api, everybody=everybody)

    if now.json:
        render.document(_document(api, everybody=everybody))
    elif is_live:
        watch.repeat(draw, seconds, "shiftwork top" + (" --all-users" if everybody else ""))
    else:
        draw()


def _document(api: Api, *, everybody: bool) -> dict[str, Any]:
    """The groups, the live tasks and what they use: four requests, whatever the cluster's size.
    Tasks that hold nodes come first, so that no number of waiting ones hides them."""
    groups = api.get("/v1/groups")["items"]
    found: list[Any] = []
    has_more = False
    for states in (ORDER[:-2], ORDER[-2:]):
        if len(found) == TASKS_MAX:
            has_more = True
            break
        query: dict[str, Any] = {"state": ",".join(states), "limit": TASKS_MAX - len(found)}
        if not everybody:
            query["mine"] = "true"
        page = api.get("/v1/tasks", query)
        found += page["items"]
        has_more |= page.get("next_cursor") is not None
    found.sort(key=_place)
    running = [task["id"] for task in found if task["state"] in HOLDING]
    return {
        "groups": groups,
        "tasks": found,
        "more_tasks": has_more,
        "utilization": list(metrics.utilization(api, (), running).values()),
    }


def _place(task: dict[str, Any]) -> int:
    return ORDER.index(task["state"]) if task["state"] in ORDER else len(ORDER)


def _draw(api: Api, *, everybody: bool) -> None:
    found = _document(api, everybody=everybody)
    render.table(
        (
            render.Column("GROUP", least=8),
            render.Column("GPUS USED"),
            render.Column("FREE"),
            render.Column("ALL", drop=2),
            render.Column("NODES USED"),
            render.Column("FREE"),
            render.Column("ALL", drop=3),
            render.Column("WAITING", drop=1),
        ),
        [_group(each) for each in found["groups"]],
        "no nodes yet",
    )
    render.line("")
    shown: list[dict[str, Any]] = found["tasks"]
    tasks.show_table(api, shown, "no live tasks" if everybody else "no live tasks of yours")
    used = [each for each in found["utilization"] if each["ranks"]]
    if used:
        names = ids.shortened(task["id"] for task in shown)
        called = {task["id"]: task["name"] for task in shown}
        render.line("")
        render.table(
            ("TASK", "NAME", "RANKS", "CPU CORES", "MEMORY", "GPUS", "GPU", "GPU MEMORY"),
            [_used(each, names, called) for each in used],
            "",
        )
    if found["more_tasks"]:
        render.note(f"only {TASKS_MAX} are shown: `shiftwork ls` lists all")


def _used(used: dict[str, Any], names: Mapping[str, str], called: Mapping[str, str]) -> list[str]:
    return [
        names[used["task"]],
        called[used["task"]],
        str(used["ranks"]),
        charts.valued("cpu_cores", used["cpu_cores"]),
        charts.valued("memory_bytes", used["memory_bytes"]),
        str(used["gpus"]),
        metrics.percent(used["gpu_percent"]) or "-",
        charts.valued("gpu_memory_used_bytes", used["gpu_memory_used_bytes"]),
    ]


def _group(group: dict[str, Any]) -> list[str]:
    """A row; a server that is older leaves out some of the numbers."""
    names = ("used_gpus", "free_gpus", "gpus", "used_nodes", "free_nodes", "nodes", "waiting")
    return [group["name"], *(_number(group.get(name)) for name in names)]


def _number(value: object) -> str:
    return "?" if value is None else str(value)
