"""Closed sets of words that options take, where neither ``proto/`` nor the gateway declares them
(``task_options.py`` and ``server_choices.py`` are generated from these)."""

from __future__ import annotations

NOTIFIED_TASKS = ("own", "team", "all")
OCCASIONS = (
    "started",
    "preempted",
    "failed",
    "finished",
    "waiting",
    "quota_reached",
    "abnormal",
)
SERVICES = ("submit", "scheduler", "launcher", "log_collector", "quota", "monitor", "gateway")
PREEMPTIONS = ("sdk", "signal", "kill")
SHELLS = ("bash", "zsh", "fish", "powershell")

TASK_ORDERS = ("submitted", "name", "priority", "state", "owner", "team", "group")
