"""Texts about the mode of a task, for `show`, `events` and `debug`. Pure."""

from __future__ import annotations

import shlex
from typing import Any

from shiftwork.cli import parse
from shiftwork.cli.task_options import ENDED

ENDED_RANKS_SHOWN_MAX = 8


def shown(task: dict[str, Any]) -> str:
    """The mode, if it is not the normal one."""
    if task["state"] in ENDED:
        return "debug" if task.get("debug") else ""
    if not task.get("debug"):
        return "pause" if task.get("run_mode") == "pause" else ""
    if task.get("run_mode") == "pause":
        return "pause; debug once it is resumed"
    return f"debug; its program runs after: shiftwork debug {task['id']} --off"


def reason(task: dict[str, Any]) -> str:
    """The reason of its state for a list, which names debug mode."""
    text = str(parse.fields(task.get("reason")).get("text", ""))
    if task["state"] in ENDED or not task.get("debug") or "debug mode" in text:
        return text
    return f"debug mode: {text}" if text else "debug mode"


def ended_ranks(runs: list[dict[str, Any]], task: dict[str, Any]) -> str:
    """In debug mode, the ranks of the live run that have ended while others go on."""
    for run in runs:
        if run["attempt"] == task["attempt"] and run.get("live"):
            found = parse.listed(run.get("ended_ranks"))
            listed = ", ".join(map(rank_end, found[:ENDED_RANKS_SHOWN_MAX]))
            return listed + (", ..." if len(found) > ENDED_RANKS_SHOWN_MAX else "")
    return ""


def is_live(runs: list[dict[str, Any]], task: dict[str, Any]) -> bool:
    """True if the attempt that runs now is one in debug mode."""
    return any(
        run["attempt"] == task["attempt"] and bool(run.get("live") and run.get("debug"))
        for run in runs
    )


def end(run: dict[str, Any]) -> str:
    """How an attempt ended, and whether it is one in debug mode."""
    kind = str(parse.fields(run.get("exit")).get("kind", ""))
    return f"{kind} (debug)".strip() if run.get("debug") else kind


def rank_end(ended: dict[str, Any]) -> str:
    """How one rank ended, in a few words."""
    how = "signal" if ended.get("code") is None else "code"
    number = ended.get(how)
    return f"rank {ended.get('rank')} ended" + ("" if number is None else f" with {how} {number}")


def resumes(task: dict[str, Any], runs: list[dict[str, Any]]) -> bool:
    """Whether the next start of its program is not the first one: its roles have their ``resume``
    then. A task that begins from a checkpoint of another one has it from the beginning."""
    begins = bool(task.get("continues") and task.get("checkpoint"))
    return begins or any(not run.get("debug") for run in runs)


def programs(found: dict[str, Any], *, again: bool) -> list[tuple[str, str]]:
    """The task's own programs, as lines for a shell; each with its role, if there are several.
    ``again``: as they are started in every attempt after the first."""
    roles = [parse.fields(role) for role in parse.listed(found.get("roles"))]
    several = len(roles) > 1
    return [
        (
            f"program of {role['name']}" if several else "its program",
            shlex.join(_argv(role, again=again)),
        )
        for role in roles
    ]


def _argv(role: dict[str, Any], *, again: bool) -> list[str]:
    other = parse.listed(parse.fields(role.get("resume")).get("command")) if again else []
    return other or [*parse.listed(role.get("command")), *parse.listed(role.get("args"))]
