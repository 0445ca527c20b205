"""Isolation: the part of a plan that may be committed although another part is wrong.

Called by ``loop.py`` with ``decide`` and ``check``. What is wrong with a group (its plan has a
violation, or deciding or checking it raises an exception) takes out the decisions about that group:
the group is left out, and everything else is decided again. The rest of the first plan would
not do, for one limit may count several groups: what a run of one gives back, by sinking to another
level, a task of another takes in the same plan. Of a group that is left out, the urgent decisions
stay (deadlines, goals, drains): they share nothing out. One of those that is wrong itself is left
out alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType

from services.scheduler.domain.check.violations import Fault, Violation
from services.scheduler.domain.decide import UndecidedError
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Decision, Kill, Plan, Preempt

Check = Callable[[Snapshot, Plan], list[Violation]]
Decide = Callable[[Snapshot, datetime], Plan]


@dataclass(frozen=True, slots=True)
class CheckedPlan:
    """The plan that may be committed, and every violation that was found: all together, by group,
    and by task where nothing else of its group is concerned."""

    plan: Plan
    violations: Sequence[Violation] = ()
    refused: Mapping[str, Sequence[Violation]] = field(default_factory=lambda: MappingProxyType({}))
    refused_tasks: Mapping[str, Violation] = field(default_factory=lambda: MappingProxyType({}))
    # The exception that was raised, if any.
    errors: Sequence[Exception] = ()


def decide_checked(snapshot: Snapshot, now: datetime, decide: Decide, check: Check) -> CheckedPlan:
    """Decide and check: a plan without the groups, and the urgent tasks, about which deciding or
    checking raises, or whose decisions have a violation.

    Each attempt leaves something more out, so it ends; usually the first one finds nothing wrong.
    Raises what ``decide`` raises only if not even the urgent decisions can be made.
    """
    exclusions = _Exclusions()
    while True:
        try:
            plan = decide(snapshot, now)
        except Exception as error:
            rest = exclusions.undecided(snapshot, error)
            if rest is None:
                raise
        else:
            found = _checked(snapshot, plan, check, exclusions.errors) if plan.decisions else []
            if not found:
                return exclusions.result(plan)
            rest = exclusions.wrong(snapshot, found)
            if rest is None:
                return _remainder(snapshot, plan, check, exclusions, found)
        snapshot = rest


class _Exclusions:
    """What was found wrong so far, and what is left out because of it."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self._violations: list[Violation] = []
        self._groups: defaultdict[str, list[Violation]] = defaultdict(list)
        self._tasks: dict[str, Violation] = {}

    def result(self, plan: Plan) -> CheckedPlan:
        """The plan, with all that was found wrong on the way to it."""
        return CheckedPlan(plan, self._violations, dict(self._groups), self._tasks, self.errors)

    def undecided(self, snapshot: Snapshot, error: Exception) -> Snapshot | None:
        """Deciding raised: without what it raised for; None if that is left out already."""
        self.errors.append(error)
        group, task_id = (
            (error.group, error.task_id) if isinstance(error, UndecidedError) else ("", "")
        )
        if task_id and task_id not in snapshot.left_out_tasks:
            of_task = raised(error, group=_group_of(snapshot, task_id), task_id=task_id)
            self._violations.append(of_task)
            return self._without(snapshot, (), {task_id: of_task})
        # If the group is unknown, every group is left out.
        groups = {group} if group else set(snapshot.pools)
        found = [raised(error, group=each) for each in sorted(groups - snapshot.left_out)]
        self._violations += found
        return self._without(snapshot, found, {}) if found else None

    def wrong(self, snapshot: Snapshot, found: Sequence[Violation]) -> Snapshot | None:
        """The plan has these violations: the snapshot without their groups and tasks; None if they
        name none."""
        self._violations += found
        groups = [each for each in found if each.group and each.group not in snapshot.left_out]
        # Of a group that is left out already, it is about one of the urgent decisions.
        tasks = {
            each.task_id: each
            for each in found
            if each.task_id
            and each.task_id not in snapshot.left_out_tasks
            and (not each.group or each.group in snapshot.left_out)
        }
        return self._without(snapshot, groups, tasks) if groups or tasks else None

    def _without(
        self, snapshot: Snapshot, groups: Sequence[Violation], tasks: Mapping[str, Violation]
    ) -> Snapshot:
        for each in groups:
            self._groups[each.group].append(each)
        self._tasks.update(tasks)
        return replace(
            snapshot,
            left_out=snapshot.left_out.union(each.group for each in groups),
            left_out_tasks=snapshot.left_out_tasks.union(tasks),
        )

    def everything(self, groups: Iterable[str], found: Sequence[Violation]) -> None:
        """Leave out all of these groups, because the violations name none."""
        for group in sorted(groups):
            self._groups[group] = [*found]


def _remainder(
    snapshot: Snapshot,
    plan: Plan,
    check: Check,
    exclusions: _Exclusions,
    found: Sequence[Violation],
) -> CheckedPlan:
    """The rest of a plan that decides about something that was left out, without that part.

    If the rest has a violation too, nothing of the plan remains.
    """
    rest = without(snapshot, plan, snapshot.left_out, snapshot.left_out_tasks)
    if _checked(snapshot, rest, check, exclusions.errors):
        exclusions.everything(plan.scans, found)
        tasks = {each.task_id for each in plan.decisions}
        rest = without(snapshot, plan, set(snapshot.pools), tasks)
    return exclusions.result(rest)


def raised(error: Exception, *, group: str = "", task_id: str = "") -> Violation:
    """An exception as a violation."""
    cause = error.__cause__ if isinstance(error, UndecidedError) else error
    return Violation(Fault.RAISED, task_id, f"{type(cause).__name__}: {cause}"[:500], group)


def _checked(
    snapshot: Snapshot, plan: Plan, check: Check, errors: list[Exception]
) -> list[Violation]:
    """What ``check`` finds; where it raises, the groups for which it does are violations."""
    try:
        return check(snapshot, plan)
    except Exception as error:  # noqa: BLE001 - whatever it is, the plan is not proved to be right
        errors.append(error)
        found: list[Violation] = []
        for group in sorted(_groups_of(snapshot, plan)):
            found += _culprits(snapshot, of_groups(snapshot, plan, [group]), group, check)
        return found or [raised(error)]


def _culprits(snapshot: Snapshot, plan: Plan, group: str, check: Check) -> list[Violation]:
    """The violations raised for this group's part of the plan. If that part consists of urgent
    decisions only, those for each decision that raises (or for all, if they only fail together)."""
    error = _raises(snapshot, plan, check)
    if error is None:
        return []
    if plan.urgent < len(plan.decisions) or not plan.decisions:
        return [raised(error, group=group)]
    tasks = {each.task_id for each in plan.decisions}
    alone = {
        task_id: found
        for task_id in sorted(tasks)
        if (found := _raises(snapshot, without(snapshot, plan, set(), tasks - {task_id}), check))
    }
    return [
        raised(found, group=group, task_id=task_id)
        for task_id, found in (alone or dict.fromkeys(sorted(tasks), error)).items()
    ]


def _raises(snapshot: Snapshot, plan: Plan, check: Check) -> Exception | None:
    try:
        check(snapshot, plan)
    except Exception as error:  # noqa: BLE001 - it is what is looked for
        return error
    return None


def _group_of(snapshot: Snapshot, task_id: str) -> str:
    task = snapshot.tasks.get(task_id)
    return task.group if task else ""


def _groups_of(snapshot: Snapshot, plan: Plan) -> set[str]:
    return {*plan.scans, *(_group_of(snapshot, each.task_id) for each in plan.decisions)}


def of_groups(snapshot: Snapshot, plan: Plan, groups: Iterable[str]) -> Plan:
    """These groups' part of the plan."""
    kept = set(groups)
    tasks = {each.task_id for each in plan.decisions}
    return without(
        snapshot,
        plan,
        _groups_of(snapshot, plan) - kept,
        {each for each in tasks if _group_of(snapshot, each) not in kept},
    )


def without(
    snapshot: Snapshot, plan: Plan, groups: AbstractSet[str], tasks: AbstractSet[str]
) -> Plan:
    """The plan without what shares out these groups, and without anything about these tasks.

    A run of another group that was to go for a task of these groups stays, too.
    """
    kept = [
        (number, each)
        for number, each in enumerate(plan.decisions)
        if each.task_id not in tasks
        and (number < plan.urgent or groups.isdisjoint(_groups_concerned(snapshot, each)))
    ]
    return replace(
        plan,
        decisions=tuple(each for _, each in kept),
        urgent=sum(number < plan.urgent for number, _ in kept),
        ledgers=tuple(ledger for ledger in plan.ledgers if ledger.group not in groups),
        scans={group: scan for group, scan in plan.scans.items() if group not in groups},
        left_out=plan.left_out | groups,
        left_out_tasks=plan.left_out_tasks | tasks,
    )


def _groups_concerned(snapshot: Snapshot, decision: Decision) -> Iterator[str]:
    """The groups that a decision is about: its task's, and the one of the task that it is for."""
    yield _group_of(snapshot, decision.task_id)
    if isinstance(decision, Preempt | Kill) and decision.beneficiary:
        yield _group_of(snapshot, decision.beneficiary)
