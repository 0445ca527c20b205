"""Whether a running program polls for preemption requests; called by ``show`` and ``submit -f``.
Pure."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

from shiftwork.cli import parse, render

# Many programs need a while before their first step.
QUIET_SECONDS = 60.0


def advice(task: Mapping[str, Any], runs: Iterable[Mapping[str, Any]]) -> str:
    """Advice about a run that has run for a while and never polled for preemption requests; empty
    if there is none, or the server does not know."""
    mode = parse.fields(task.get("preemption")).get("mode")
    run = next((run for run in runs if run["attempt"] == task["attempt"]), None)
    if task["state"] != "running" or mode != "sdk" or run is None:
        return ""
    started_at = parse.at(run.get("started_at"))
    if run.get("listening_at", "unknown") or started_at is None:
        return ""
    if (render.now() - started_at).total_seconds() < QUIET_SECONDS:
        return ""
    saved = parse.fields(task.get("checkpoint"))
    where = f"go back to step {saved['step']}" if saved else "start from the beginning"
    return (
        "this program has not asked for preemption; it would"
        f" {where} when preempted (guide, 'The SDK': three lines; or --preempt signal)"
    )
