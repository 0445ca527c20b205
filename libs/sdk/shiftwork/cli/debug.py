"""``shiftwork debug``: turns debug mode on and off."""

from __future__ import annotations

import secrets
from typing import Any

import typer

from shiftwork.cli import complete, modes, render, session, tasks
from shiftwork.cli.client import Api
from shiftwork.client.paths import part


def register(app: session.App) -> None:
    """Add the command."""
    app.command("debug")(debug)


def debug(
    task: str = typer.Argument(
        ..., metavar="TASK", help=tasks.TASK_HELP, autocompletion=complete.live_tasks
    ),
    off: bool = typer.Option(False, "--off", help="Turn debug mode off: the program runs again."),
) -> None:
    """Start a task in debug mode: it gets its nodes, and each rank waits for people instead of
    running its program. Prints how to enter, and the program."""

    def act(api: Api, text: str) -> dict[str, Any]:
        found = tasks.find(api, text)
        body = {"mode": "normal", "stay_paused": True} if off else {"mode": "debug"}
        path = f"/v1/tasks/{part(found['id'])}/mode"
        runs: list[dict[str, Any]] = []
        if off and found.get("debug"):
            runs = api.get(f"/v1/tasks/{part(found['id'])}/runs")["items"]
        reply: dict[str, Any] = api.post(path, body, secrets.token_hex(16))
        name = f"{found['name']} ({found['id']})"
        render.note(f"{name}: {_off(found, runs) if off else _on(found)}")
        if not off and not session.current().json:
            runs = api.get(f"/v1/tasks/{part(found['id'])}/runs")["items"]
            lines = modes.programs(found, again=modes.resumes(found, runs))
            render.facts([("enter it", f"shiftwork exec {found['id']}"), *lines])
        return {"id": found["id"], **reply}

    tasks.each([task], act)


def _on(found: dict[str, Any]) -> str:
    """The message after debug mode was turned on, by where the task stood."""
    state, again = found["state"], found.get("debug")
    if state == "paused":
        noted = "debug mode is on already" if again else "debug mode is on"
        return f"{noted}; it waits until it is resumed: shiftwork resume {found['id']}"
    if again:
        return f"debug mode is on already; it is {state}"
    if state == "queued":
        return "debug mode is on; it begins when the task gets its nodes"
    return (
        "debug mode is on; the run is asked to save and leave, and the task starts in debug mode"
        " when it gets its nodes again"
    )


def _off(found: dict[str, Any], runs: list[dict[str, Any]]) -> str:
    """The message after debug mode was turned off, by where the task stood with its runs."""
    state = found["state"]
    if not found.get("debug"):
        return f"debug mode is off already; it is {state}"
    if state == "paused":
        return f"debug mode is off; it waits until it is resumed: shiftwork resume {found['id']}"
    if state == "queued":
        return "debug mode is off; its program starts when the task gets its nodes"
    if not modes.is_live(runs, found):
        return (
            "debug mode is off; its program, which was asked to save and leave, starts again when"
            " the task gets its nodes again"
        )
    return (
        "debug mode is off; the debug programs are ended, and its own program starts when the task"
        " gets its nodes again"
    )
