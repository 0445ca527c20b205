"""Closed sets of words that options take, where no message of ``proto/`` declares them.

A test compares them with the tables of the server.
"""

from __future__ import annotations

from shiftwork.cli.task_options import PRIORITIES

ROLES = ("viewer", "user", "operator", "admin")
SCOPES = ("read", "tasks", "tokens", "operate", "people")
SERVICES = ("submit", "scheduler", "launcher", "log_collector", "quota", "monitor", "gateway")
PREEMPTIONS = ("sdk", "signal", "kill")
SHELLS = ("bash", "zsh", "fish", "powershell")

TASK_ORDERS = ("submitted", "name", "priority", "state", "owner", "team", "group")

USAGE_DIMENSIONS = ("user", "team", "group", "priority", "outcome", "task", "day")
USAGE_OUTCOMES = (
    *("succeeded", "failed", "lost", "preempted", "yielded", "paused", "stopped"),
    *("mode_changed", "timed_out", "debug", "starting", "running", "unknown"),
)

AUDIT_ACTIONS = (
    *("dead-letters.discard", "dead-letters.replay"),
    *("login.cli", "login.oidc", "login.password"),
    *("node.drain", "node.labels", "node.schedulable.False", "node.schedulable.True"),
    *("node.taints", "policy.set", "policy.take_away", "quota.expire", "quota.set"),
    *("request", "session.end", "task.continue", "task.exec", "task.exec.end"),
    *(f"task.goal.{goal}" for goal in ("run", "pause", "stop")),
    *(f"task.mode.{mode}" for mode in ("normal", "debug", "pause")),
    *(f"task.own_priority.{level}" for level in PRIORITIES),
    *(f"task.priority.{level}" for level in PRIORITIES),
    *("task.retry", "task.submit", "team.add", "team.change", "team.remove"),
    *("token.add", "token.revoke", "user.add", "user.change", "user.link", "user.password"),
    "user.remove",
)
AUDIT_OUTCOMES = (
    *("done", "started", "unknown", "refused", "conflict", "forbidden", "gone", "internal"),
    *("invalid", "malformed", "method-not-allowed", "not-found", "superseded", "timeout"),
    *("too-large", "too-many", "unauthenticated", "unavailable"),
)
