"""Questions before a command stops tasks. Scripts answer with ``--yes``."""

from __future__ import annotations

import sys
from typing import Any, Mapping, Sequence

import typer

from shiftwork.cli import render
from shiftwork.cli.failures import usage

# So many tasks are stopped at once, and so many are named.
STOPPED_MAX = 10_000
NAMED_MAX = 5


def tasks_text(tasks: Sequence[Mapping[str, Any]], note: str = "") -> str:
    """``2 tasks: one, two``; ``note`` follows the number."""
    names = ", ".join(render.one_line(task["name"]) for task in tasks[:NAMED_MAX])
    more = f" and {len(tasks) - NAMED_MAX} more" if len(tasks) > NAMED_MAX else ""
    return f"{render.counted(len(tasks), 'task')}{note}: {names}{more}"


def require_yes(deed: str, *, where: str) -> None:
    """Ask whether to do this. Raises Failure where nobody can answer."""
    if not (render.is_terminal(sys.stdin) and render.is_terminal(sys.stderr)):
        raise usage(f"this would {deed}", where=where, fix="add --yes")
    typer.confirm(f"{deed[:1].upper()}{deed[1:]}?", abort=True, err=True)
