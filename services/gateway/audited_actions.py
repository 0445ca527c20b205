"""The actions and outcomes of the audit trail, for the filters that name them. Pure.

A filter with a word that is none of these would find nothing, unnoticed. A test compares the
actions with those that the routes enter.
"""

from __future__ import annotations

from collections.abc import Iterable

from libs.contracts.wording import meant
from services.gateway import problems
from services.gateway.json_values import GOALS, PRIORITIES, RUN_MODES
from services.gateway.problems import ProblemError, invalid


def _each(action: str, words: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{action}.{word}" for word in words if word != "unspecified")


# The filter finds an action by its beginning: ``task.goal`` finds ``task.goal.stop``.
ACTIONS = (
    *("dead-letters.discard", "dead-letters.replay"),
    *("login.cli", "login.oidc", "login.password"),
    *("node.drain", "node.labels", "node.schedulable.False", "node.schedulable.True"),
    *("notification.remove", "notification.replay", "notification.set"),
    *("node.taints", "policy.set", "policy.take_away", "quota.expire", "quota.set"),
    # Requests that were refused before their action was known.
    *("request", "session.end", "task.continue", "task.exec", "task.exec.end"),
    *_each("task.goal", GOALS),
    *_each("task.mode", RUN_MODES),
    *_each("task.own_priority", PRIORITIES),
    *_each("task.priority", PRIORITIES),
    *("task.retry", "task.submit", "team.add", "team.change", "team.remove"),
    *("token.add", "token.revoke", "user.add", "user.change", "user.link", "user.password"),
    "user.remove",
)
# ``refused``: of several kinds, summed up. ``started`` and ``unknown``: it may have been done.
OUTCOMES = (
    *("done", "started", "unknown", "refused"),
    *sorted({kind.type for kind in vars(problems).values() if isinstance(kind, problems.Kind)}),
)


def require_known(action: str | None, outcome: str | None) -> None:
    """Raise a problem for a filter that no entry can meet."""
    if action and not any(known.startswith(action) for known in ACTIONS):
        parts = {known.rsplit(".", n)[0] for known in ACTIONS for n in range(known.count(".") + 1)}
        families = ", ".join(sorted({known.partition(".")[0] for known in ACTIONS}))
        fix = f"{meant(action, sorted(parts))} give the beginning of one, of {families}".strip()
        raise _unknown("action", action, fix)
    if outcome and outcome not in OUTCOMES:
        raise _unknown(
            "outcome", outcome, f"{meant(outcome, OUTCOMES)} give one of {', '.join(OUTCOMES)}"
        )


def _unknown(field: str, value: str, fix: str) -> ProblemError:
    return invalid(field, value, "is not known here", fix.strip())
