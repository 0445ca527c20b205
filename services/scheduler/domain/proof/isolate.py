"""The part of a plan that may be committed although another part is wrong.

Called by ``loop.py`` with ``check``. Node groups share nothing but limits, and to start less breaks
none: so a violation takes out the decisions about its own group, and everything else is committed.
Of a group that is taken out, the urgent decisions stay (deadlines, goals, drains): they share
nothing out. One of those that is wrong itself is taken out alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from services.scheduler.domain.model import Plan
from services.scheduler.domain.proof.violations import Violation
from services.scheduler.domain.snapshot import Snapshot

Check = Callable[[Snapshot, Plan], list[Violation]]


@dataclass(frozen=True, slots=True)
class Sifted:
    """What may be committed; everything that was found wrong; and that again by group."""

    plan: Plan
    violations: Sequence[Violation] = ()
    refused: Mapping[str, Sequence[Violation]] = field(default_factory=lambda: MappingProxyType({}))


def sound_part(snapshot: Snapshot, plan: Plan, check: Check) -> Sifted:
    """The largest part of the plan in which ``check`` finds nothing wrong.

    Each turn takes something more out, so it ends; usually the first one finds nothing.
    """
    found = check(snapshot, plan)
    if not found:
        return Sifted(plan)
    violations: list[Violation] = []
    refused: defaultdict[str, list[Violation]] = defaultdict(list)
    groups: set[str] = set()
    tasks: set[str] = set()
    rest = plan
    while found:
        violations += found
        before = len(groups), len(tasks)
        # Of a group that is out already, it is about one of the urgent decisions.
        tasks |= {each.task_id for each in found if not each.group or each.group in groups}
        tasks.discard("")
        for violation in found:
            if violation.group:
                groups.add(violation.group)
                refused[violation.group].append(violation)
        if (len(groups), len(tasks)) == before:
            # Nothing says which part it is: the plan was made for something else altogether.
            everywhere = sorted({*plan.looks, *refused})
            groups, tasks = set(snapshot.pools), {each.task_id for each in plan.decisions}
            rest = _without(snapshot, plan, groups, tasks)
            return Sifted(rest, violations, dict.fromkeys(everywhere, found))
        rest = _without(snapshot, plan, groups, tasks)
        found = check(snapshot, rest)
    return Sifted(rest, violations, dict(refused))


def _without(snapshot: Snapshot, plan: Plan, groups: set[str], tasks: set[str]) -> Plan:
    """The plan without what shares out these groups, and without anything about these tasks."""
    kept = [
        (number, each)
        for number, each in enumerate(plan.decisions)
        if each.task_id not in tasks
        and (number < plan.urgent or snapshot.tasks[each.task_id].group not in groups)
    ]
    return replace(
        plan,
        decisions=tuple(each for _, each in kept),
        urgent=sum(number < plan.urgent for number, _ in kept),
        books=tuple(book for book in plan.books if book.group not in groups),
        looks={group: look for group, look in plan.looks.items() if group not in groups},
        left_out=frozenset(groups),
        left_out_tasks=frozenset(tasks),
    )
