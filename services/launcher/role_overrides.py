"""What a role does in one attempt: as it was submitted, or with its override. Pure; called by
``run_orders.py``.
"""

from __future__ import annotations

from libs.contracts.messages import Override, Role


def role_of_attempt(role: Role, attempt: int) -> Role:
    """The role as it is in this attempt: from the second attempt on with its ``resume``. That holds
    whether or not there is a checkpoint to resume from; the program sees both in its variables."""
    return _with(role, role.resume if attempt > 1 else None)


def _with(role: Role, override: Override | None) -> Role:
    if override is None:
        return role
    update: dict[str, object] = {"env": {**role.env, **override.env}}
    if override.command:
        update |= {"command": override.command, "args": ()}
    return role.model_copy(update=update)
