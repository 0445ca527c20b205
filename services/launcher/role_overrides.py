"""What a role does in one attempt: as it was submitted, with its override, or in debug mode. Pure;
called by ``run_orders.py``, and by ``handlers.py`` for an assignment in debug mode.
"""

from __future__ import annotations

import shlex

from libs.contracts.messages import Override, Role, TaskSpec

# In debug mode, the role's own program with its arguments, as one line for a shell.
COMMAND_VARIABLE = "SHIFTWORK_COMMAND"
# The kernel takes at most 128 KiB for one variable, and quoting makes a command longer.
COMMAND_CHARACTERS_MAX = 65_536
TOO_LONG = "# longer than a variable may be: shiftwork show --json has it"
# What a rank runs in debug mode if its role does not say it: it waits, and ends at once on SIGTERM
# (also as the first process of a container, where a signal without a trap does nothing).
_WAITS = """\
trap 'exit 0' TERM INT HUP
echo "This rank waits in debug mode.\
 Enter it with: shiftwork exec $SHIFTWORK_TASK --rank $SHIFTWORK_RANK"
echo "Its own program (SHIFTWORK_COMMAND): $SHIFTWORK_COMMAND"
while :; do sleep 3600 & wait $!; done
"""
WAIT = ("/bin/sh", "-c", _WAITS)


def resumes(spec: TaskSpec, attempt: int) -> bool:
    """Whether the roles have their ``resume`` in this attempt: from the second one on, whether or
    not there is a checkpoint (the program sees both in its variables), and on the first one if the
    task begins from a checkpoint of the task that it continues."""
    begins = spec.continues is not None and spec.continues.checkpoint is not None
    return attempt > 1 or begins


def role_of_attempt(role: Role, spec: TaskSpec, attempt: int) -> Role:
    """The role as it is in this attempt."""
    return _with(role, role.resume if resumes(spec, attempt) else None)


def argv_of(role: Role) -> tuple[str, ...]:
    """The program of a role's ranks with all of its arguments."""
    return (*role.command, *role.args)


def in_debug_mode(spec: TaskSpec, attempt: int) -> TaskSpec:
    """The specification of an attempt in debug mode: each role runs its debug program, and nothing
    judges or orders its ranks."""
    roles = tuple(_debug_role(role_of_attempt(role, spec, attempt)) for role in spec.roles)
    return spec.model_copy(update={"roles": roles})


def _debug_role(own: Role) -> Role:
    line = shlex.join(argv_of(own))
    if len(line.encode()) > COMMAND_CHARACTERS_MAX:
        line = TOO_LONG
    program = own.debug
    return own.model_copy(
        update={
            "command": program.command if program else WAIT,
            "args": program.args if program else (),
            "env": {**own.env, COMMAND_VARIABLE: line},
            "restart": None,
            "starts_after": (),
            "ready": None,
            "resume": None,
            "debug": None,
        }
    )


def _with(role: Role, override: Override | None) -> Role:
    if override is None:
        return role
    update: dict[str, object] = {"env": {**role.env, **override.env}}
    if override.command:
        update |= {"command": override.command, "args": ()}
    return role.model_copy(update=update)
