"""In which order the roles of a task start and end. Pure.

Submit refuses cycles with this module, and the launcher starts and ends ranks in this order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from libs.contracts.fields import SHOWN
from libs.contracts.messages import ReadyProbe, RestartScope, Role, StartCondition
from libs.contracts.restart_rules import rule_of

PERIOD_SECONDS = float(SHOWN["ReadyProbe"]["period_seconds"].initial)
WITHIN_SECONDS = float(SHOWN["ReadyProbe"]["within_seconds"].initial)


def is_ordered(roles: Iterable[Role]) -> bool:
    """Whether a role waits for another one."""
    return any(role.starts_after for role in roles)


def starts_more(roles: Iterable[Role]) -> bool:
    """Whether ranks may have to start while the run runs: those of roles that wait for others, and
    those that are restarted in their places."""
    return any(role.starts_after or rule_of(role).scope is RestartScope.RANK for role in roles)


def ready_probe(role: Role) -> ReadyProbe:
    """How and by when the role becomes ready, with the defaults for what it leaves out."""
    given = role.ready or ReadyProbe()
    return given.model_copy(
        update={
            "period_seconds": given.period_seconds or PERIOD_SECONDS,
            "within_seconds": given.within_seconds or WITHIN_SECONDS,
        }
    )


def awaited_ready(roles: Iterable[Role]) -> frozenset[str]:
    """The roles for whose readiness others wait."""
    return frozenset(
        each.role
        for role in roles
        for each in role.starts_after
        if each.condition is StartCondition.READY
    )


def find_cycle(roles: Sequence[Role]) -> tuple[str, ...]:
    """Roles that wait for each other, the first one again at the end; empty if there are none."""
    after = _after(roles)
    done = set[str]()
    for start in after:
        path = dict.fromkeys([start])
        # Each entry of the stack is what is left to visit of a role on the path.
        stack = [iter(after[start])]
        while stack:
            name = next(stack[-1], None)
            if name is None:
                stack.pop()
                done.add(path.popitem()[0])
            elif name in path:
                names = list(path)
                return (*names[names.index(name) :], name)
            elif name not in done:
                path[name] = None
                stack.append(iter(after[name]))
    return ()


def stages(roles: Sequence[Role]) -> tuple[tuple[str, ...], ...]:
    """The names of the roles in groups: each waits only for roles of the groups before its own.
    Roles that wait for each other, which submit refuses, are the last group."""
    after = _after(roles)
    found: list[tuple[str, ...]] = []
    placed = set[str]()
    while len(placed) < len(after):
        stage = tuple(
            name for name, others in after.items() if name not in placed and others <= placed
        )
        stage = stage or tuple(name for name in after if name not in placed)
        found.append(stage)
        placed.update(stage)
    return tuple(found)


def first_roles(roles: Sequence[Role]) -> frozenset[str]:
    """The names of the roles that wait for no other one."""
    return frozenset(stages(roles)[0]) if roles else frozenset()


def _after(roles: Sequence[Role]) -> Mapping[str, set[str]]:
    """The names of the roles for which each waits, without names that no role has."""
    names = {role.name for role in roles}
    return {role.name: {each.role for each in role.starts_after} & names for role in roles}
