"""The audit trail: how an entry is made, and the actions and outcomes that its filters name.

A filter with a word that is none of these would find nothing, unnoticed. A test compares the
actions with those that the routes enter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from libs.contracts.wording import meant
from libs.store.port import Tx
from services.gateway import problems
from services.gateway.auth import Identity
from services.gateway.ids import Mint
from services.gateway.json_values import GOALS, PRIORITIES, RUN_MODES
from services.gateway.problems import ProblemError, invalid
from services.gateway.rows import AuditRow

# Of what was before a change and is after it, so many bytes are kept in the audit trail.
AUDIT_STATE_BYTES_MAX = 16_384


def _each(action: str, words: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{action}.{word}" for word in words if word != "unspecified")


# The filter finds an action by its beginning: ``task.goal`` finds ``task.goal.stop``.
ACTIONS = (
    # By rules, not by requests.
    *("abnormal.cordon", "abnormal.lower_priority", "abnormal.preempt", "abnormal.stop"),
    *("dead-letters.discard", "dead-letters.replay"),
    *("login.cli", "login.oidc", "login.password", "login.token"),
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
    *("done", "started", "unknown", "refused", "dry_run"),
    *sorted({kind.type for kind in vars(problems).values() if isinstance(kind, problems.Kind)}),
)


# What people call an outcome; the spelling of some is near to another one's.
ALIASES = {"denied": "forbidden", "rejected": "refused", "failed": "invalid", "ok": "done"}


def require_known(action: str | None, outcome: str | None) -> None:
    """Raise a problem for a filter that no entry can meet."""
    if action and not any(known.startswith(action) for known in ACTIONS):
        parts = {known.rsplit(".", n)[0] for known in ACTIONS for n in range(known.count(".") + 1)}
        families = ", ".join(sorted({known.partition(".")[0] for known in ACTIONS}))
        fix = f"{meant(action, sorted(parts))} give the beginning of one, of {families}".strip()
        raise _unknown("action", action, fix)
    if outcome and outcome not in OUTCOMES:
        near = (
            f"did you mean {ALIASES[outcome]}?" if outcome in ALIASES else meant(outcome, OUTCOMES)
        )
        raise _unknown("outcome", outcome, f"{near} give one of {', '.join(OUTCOMES)}")


def _unknown(field: str, value: str, fix: str) -> ProblemError:
    return invalid(field, value, "is not known here", fix.strip())


def audit(
    tx: Tx,
    mint: Mint,
    identity: Identity,
    *,
    action: str,
    target: str,
    outcome: str = "done",
    detail: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    entry_id: str = "",
) -> None:
    """Enter a change, or the refusal of one, in the audit trail. ``before`` and ``after``: what was
    there and is there, without secrets; what is too large is left out. ``entry_id``: of the entry
    that is replaced."""
    tx.put(
        AuditRow(
            id=entry_id or mint.id(),
            at=tx.now,
            who=identity.user,
            action=action,
            target=target,
            outcome=outcome,
            detail=detail,
            address=identity.address,
            token=identity.token_id,
            before=_bounded(before),
            after=_bounded(after),
        )
    )


def _bounded(state: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if state is None:
        return None
    size = len(orjson.dumps(state))
    return dict(state) if size <= AUDIT_STATE_BYTES_MAX else {"left_out": f"{size} bytes"}
