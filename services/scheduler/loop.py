"""The loop: snapshot, decide, check, commit. The only place where a task moves by decision.

Wired in ``main.py``. The leader keeps the working set in memory: loaded when it begins to lead,
then followed commit by commit. A round in which nothing changed and no deadline came is skipped.

A defect affects as little as possible: a decision, an urgent task, a node group, a row. The loop
leaves the failing part out for a while (``refused_plans.py``), everything else goes on, and the
process stays up.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import groupby

from libs.contracts.envelope import EVENT_BYTES_MAX
from libs.contracts.messages import Reason, ReasonCode
from libs.service import observability
from libs.service.definition import Ports
from libs.service.metrics import Metrics
from libs.store.port import (
    DatabaseFaultError,
    Delta,
    EventTooLargeError,
    StoreUnavailableError,
    TermOverError,
)
from services.scheduler import set_apart, store
from services.scheduler.cluster_metrics import METRICS, ClusterMetrics
from services.scheduler.domain.check.isolate import (
    CheckedPlan,
    Decide,
    decide_checked,
    of_groups,
    raised,
)
from services.scheduler.domain.check.plan import check
from services.scheduler.domain.decide import decide
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.decisions import Assign, Hold, Plan
from services.scheduler.domain.model.group_policy import GroupPolicy
from services.scheduler.domain.model.rows import Node, Task
from services.scheduler.domain.model.values import reason
from services.scheduler.refused_plans import RefusedPlans
from services.scheduler.replay import write_dump
from services.scheduler.set_apart import Apart
from services.scheduler.settings import SchedulerSettings

declare = Metrics("scheduler")
DECIDED = declare.counter("shiftwork_scheduler_decisions_total", "Decisions committed", ["kind"])
VIOLATIONS = declare.counter(
    "shiftwork_scheduler_plan_violations_total", "Faults found in plans before commit", ["fault"]
)
REFUSED = declare.counter(
    "shiftwork_scheduler_plans_refused_total", "Plans not committed, or not all of them", ["why"]
)
# A series that begins at its first event shows alerts no increase.
for _why in ("violation", "error", "conflict", "too large"):
    REFUSED.labels(_why)
DECIDE_SECONDS = declare.histogram(
    "shiftwork_scheduler_decide_seconds", "Duration of one decision round"
)

# Nobody's fault here: the database is away, or somebody else leads.
PASSING = (StoreUnavailableError, DatabaseFaultError, TermOverError)
# After a plan that the tables refused: they are loaded again; a refusal that stays must not spin.
CONFLICT_PAUSE_SECONDS = 0.05
# From so many plans in a row on that the tables refused, each group is committed separately.
CONFLICTS_TOGETHER_MAX = 2
# How many settling times nodes that keep opening can delay decisions at most.
SETTLE_TIMES_MAX = 4
# How many are named in one line of the log.
NAMED_MAX = 20
# Under which name a round that failed as a whole is noted.
ROUND = "the round"


class Brain:
    """The leader's working set, and the steps of its loops."""

    def __init__(
        self,
        ports: Ports,
        settings: SchedulerSettings,
        *,
        policy_function: Decide = decide,
        metrics: ClusterMetrics = METRICS,
    ) -> None:
        self._ports = ports
        self._metrics = metrics
        self._settings = settings
        self._policy = settings.policy()
        self._too_large_retry = timedelta(seconds=settings.too_large_retry_seconds)
        self._node_settle = timedelta(seconds=settings.node_settle_seconds)
        # When the first and the last of the nodes that the next round has not seen were opened.
        self._nodes_opened: tuple[datetime, datetime] | None = None
        self._decide = policy_function
        self._index = Index(self._policy)
        # Rows that the index is without.
        self.apart = Apart()
        # Counts what concerns scheduling: the version that a plan is made for.
        self._version: int = 0
        self._decided_version: int = -1
        self._due_at: datetime | None = None
        # True from before a commit until its success is known: memory may differ from the rows.
        self._stale = False
        # True when the rows are to be loaded again for another reason.
        self._reload = False
        # How many plans in a row the tables refused.
        self._conflicts = 0
        # Groups, and tasks about which something urgent is to be decided; and whole rounds.
        pauses = settings.tick_seconds, settings.refusal_backoff_seconds_max
        self.refused_plans, self._refused_tasks, self._failures = (
            RefusedPlans(settings.refusals_max, *pauses) for _ in range(3)
        )
        # Rows that are set apart and were tried again in vain; their alarm is another.
        self._retries = RefusedPlans(sys.maxsize, *pauses)
        # Which of those that are set apart changed since the last load.
        self._changed_apart: set[str] = set()
        self._log = observability.log("scheduler")
        ports.store.observe(self._observe)

    def _observe(self, delta: Delta) -> None:
        put, deleted = delta.put, delta.deleted
        if self.apart.rows:
            # What is set apart is tried again as a whole, by a load.
            put = tuple(row for row in put if not self._is_apart(row))
            deleted = tuple(each for each in deleted if each not in self.apart.rows)
            # Its end does not wait.
            self._reload = self._reload or len(deleted) < len(delta.deleted)
        self._metrics.committed(self._index, put, deleted)
        if self._node_settle and any(self._is_opened(row) for row in put):
            now = self._ports.clock.now()
            self._nodes_opened = (self._nodes_opened[0] if self._nodes_opened else now, now)
        if self._index.apply(put, deleted):
            self._version += 1

    def _is_opened(self, row: object) -> bool:
        """True for a node that takes new runs from now on."""
        if not isinstance(row, Node) or not row.offered:
            return False
        before = self._index.nodes.get(row.id)
        return before is None or not before.offered

    def _settling(self, now: datetime) -> timedelta | None:
        """How long to wait for further nodes; None: decide now.

        Nodes come back in a burst when the platform or a rack starts again, each with a commit of
        its own. A decision on the first few of them places runs that the next decision preempts.
        """
        if self._nodes_opened is None:
            return None
        first, last = self._nodes_opened
        left = min(last + self._node_settle, first + SETTLE_TIMES_MAX * self._node_settle) - now
        # A clock that was set back must not hold decisions up.
        if timedelta(0) < left <= SETTLE_TIMES_MAX * self._node_settle:
            return left
        self._nodes_opened = None
        return None

    def _is_apart(self, row: object) -> bool:
        """True for a new version of a row that is set apart: it is to be tried, but a load costs
        as much as all rows, and a run that saves often changes often."""
        if type(row) not in self.apart.kinds:
            return False
        known = self.apart.rows.get((type(row), set_apart.key_of(row)))
        if known is None:
            return False
        self._changed_apart.add(known.name)
        if isinstance(row, Task) and isinstance(known.row, Task):
            # A run that has ended gives its nodes back at once.
            self._reload = self._reload or bool(known.row.placements and not row.placements)
        return True

    async def lead(self, epoch: int) -> None:
        """Load the working set; a new leader's first step."""
        del epoch
        for each in (self.refused_plans, self._refused_tasks, self._failures, self._retries):
            each.clear()
        self._changed_apart.clear()
        self._conflicts = 0
        await self._load()

    async def _load(self) -> None:
        """Load the working set from the rows, with everything to be decided."""
        self._stale = True
        before = self.apart.rows
        self._index, self.apart = await store.load(self._ports.store, self._policy)
        self._metrics.loaded(self._index)
        self._version += 1
        self._due_at = None
        self._stale = self._reload = False
        rows = {problem.name: problem for problem in self.apart.rows.values()}
        tried = {name: [raised(rows[name].error)] for name in self._changed_apart & rows.keys()}
        self._changed_apart.clear()
        self._retries.note(tried, self._ports.clock.now())
        self._retries.passed(self._retries.names - rows.keys())
        for key, problem in self.apart.rows.items():
            if key not in before:
                self._log.error(
                    "a row cannot be loaded and is set apart",
                    row=problem.name,
                    withheld=sorted(self.apart.withheld)[:NAMED_MAX],
                    exc_info=problem.error,
                )
        for key in before.keys() - self.apart.rows.keys():
            self._log.warning("a row is loaded again, or gone", row=before[key].name)
        set_apart.count(self.apart)

    def leadership_ended(self) -> None:
        """Another process leads now, or nobody."""
        self._metrics.leadership_ended(self._index)

    @property
    def index(self) -> Index:
        """The working set, to be read only; it changes with the next commit."""
        return self._index

    @property
    def version(self) -> int:
        """Counts what concerns scheduling: while it stays, so do the answers."""
        return self._version

    def held_up(self, group: str) -> Reason | None:
        """Why nothing is decided about a group now; None: nothing holds its decisions up."""
        apart = self.apart.group(group)
        return apart.reason if apart else self.refused_plans.why(group)

    def snapshot(self) -> Snapshot:
        """The current state; valid until the next commit."""
        return Snapshot.view(self._index, self._version)

    def snapshot_with(self, policies: Mapping[str, GroupPolicy]) -> Snapshot:
        """The current state under other policies: a copy with everything still to be decided."""
        index = self._index
        return Snapshot.of(
            version=self._version,
            tasks=index.tasks.values(),
            nodes=index.nodes.values(),
            limits=index.limits.values(),
            inventories=index.inventories.values(),
            policies=[*{**index.policies, **policies}.values()],
            ledgers=index.ledgers.values(),
            settings=self._policy,
            histories={group: pool.history for group, pool in index.pools.items()},
        )

    async def step(self, epoch: int) -> float | None:
        """One round; returns in how many seconds to make the next, if nothing wakes it before."""
        now = self._ports.clock.now()
        if (wait := self._failures.next_at(now)) is not None:
            return (wait - now).total_seconds()
        try:
            found = await self._round(epoch)
        except PASSING:
            raise
        except Exception as error:  # noqa: BLE001 - a defect; a process that ends would meet it again
            return self._fail(error, now)
        self._failures.passed([ROUND])
        return found

    def _fail(self, error: Exception, now: datetime) -> float:
        """A whole round failed, and nobody knows by which group."""
        self._stale = True
        REFUSED.labels("error").inc()
        found = [raised(error)]
        self.refused_plans.note(dict.fromkeys(self._index.pools, found), now)
        self._failures.note({ROUND: found}, now)
        self._log.error("a round of decisions failed", exc_info=error)
        return self._settings.tick_seconds

    async def _round(self, epoch: int) -> float:
        waiting = self._retries.waiting(self._ports.clock.now())
        if self._stale or self._reload or self._changed_apart - waiting:
            await self._load()
        if self._ports.store.in_doubt:
            # Somebody's commit was not answered: whatever became of it shows here.
            async with self._ports.store.transaction(epoch=epoch):
                pass
        now = self._ports.clock.now()
        idle: bool = self._version == self._decided_version
        if idle and (self._due_at is None or now < self._due_at):
            return self._until_due(now)
        if (left := self._settling(now)) is not None:
            return left.total_seconds()
        # What this plan is decided on; what changes while it is committed is for the next.
        version = self._version
        snapshot = replace(
            self.snapshot(),
            left_out=self.refused_plans.waiting(now) | self.apart.groups,
            left_out_tasks=self._refused_tasks.waiting(now),
        )
        with DECIDE_SECONDS.time():
            checked = decide_checked(snapshot, now, self._decide, check)
        self.refused_plans.know(snapshot.pools)
        if checked.violations:
            self._refuse(snapshot, checked)
        plan = checked.plan
        for part in self._parts(snapshot, plan):
            try:
                if not await self._carry_out(part, epoch, settles=part is plan):
                    return CONFLICT_PAUSE_SECONDS
            except store.DecisionFailedError as failure:
                # Nothing of it was stored. The next round decides what goes without it.
                return await self._put_off(snapshot, part, failure, epoch)
        self._conflicts = 0
        self._pass(checked)
        if not (plan.decisions or plan.ledgers):
            # After a commit this is not so: the next round, at the latest in a tick, confirms it.
            self._decided_version = version
        again = (plan.due_at, self.refused_plans.next_at(now), self._refused_tasks.next_at(now))
        self._due_at = min((each for each in again if each is not None), default=None)
        return self._until_due(now)

    def _until_due(self, now: datetime) -> float:
        """The seconds until the next deadline, at most a tick, because a wake-up may get lost."""
        if self._due_at is None:
            return self._settings.tick_seconds
        return min(self._settings.tick_seconds, max(0.0, (self._due_at - now).total_seconds()))

    def _pass(self, checked: CheckedPlan) -> None:
        """Record and log the groups and tasks that succeed again, after their commit."""
        plan = checked.plan
        # Groups that were tried, or about which there was nothing to decide.
        tried = self.refused_plans.names - plan.left_out - checked.refused.keys()
        for group, refusal in self.refused_plans.passed(tried).items():
            self._log.warning("decisions of a group pass again", group=group, rounds=refusal.count)
        tasks = self._refused_tasks
        for task_id, refusal in tasks.passed(tasks.names - plan.left_out_tasks).items():
            self._log.warning("decisions of a task pass again", task=task_id, rounds=refusal.count)

    def _refuse(self, snapshot: Snapshot, checked: CheckedPlan) -> None:
        """Count and log what is wrong; after so many refusals in a row memory is not trusted."""
        REFUSED.labels("error" if checked.errors else "violation").inc()
        for violation in checked.violations:
            VIOLATIONS.labels(violation.fault.name.lower()).inc()
        now = checked.plan.decided_at
        of_tasks = {task_id: [each] for task_id, each in checked.refused_tasks.items()}
        held_up = self.refused_plans.note(checked.refused, now)
        held_up |= self._refused_tasks.note(of_tasks, now)
        for name, refusal in held_up.items():
            self._reload = True
            self._log.error(
                "decisions of a group are held up: they are refused again and again",
                group=name if name in checked.refused else "",
                task=name if name in of_tasks else "",
                rounds=refusal.count,
                since=refusal.since.isoformat(),
                faults=refusal.faults,
            )
        first = self.refused_plans.first(checked.refused) or self._refused_tasks.first(of_tasks)
        if not (held_up or first or not (checked.refused or of_tasks)):
            # The same refusal again, shortly after.
            return
        self._log.error(
            "plan refused",
            groups=sorted(checked.refused),
            tasks=sorted(of_tasks)[:NAMED_MAX],
            violations=[str(violation) for violation in checked.violations[:NAMED_MAX]],
            count=len(checked.violations),
            snapshot=self._dump(snapshot, now),
            exc_info=checked.errors[0] if checked.errors else None,
        )

    def _dump(self, snapshot: Snapshot, now: datetime) -> str | None:
        """Keep the snapshot for ``replay``; the file, if there is one."""
        if self._settings.dumps is None:
            return None
        try:
            kept = write_dump(
                self._settings.dumps, snapshot, now, files_max=self._settings.dumps_max
            )
        except Exception as error:  # noqa: BLE001 - what cannot be decided on may not be written either
            self._log.warning("snapshot not written", problem=f"{type(error).__name__}: {error}")
            return None
        return str(kept) if kept else None

    # Commits.

    def _parts(self, snapshot: Snapshot, plan: Plan) -> Iterator[Plan]:
        """What is committed at once: everything but the groups that were refused the last time; or,
        while the tables refuse it, each group's part separately, so that the group which they
        refuse is found. They come in the order in which they were decided: a part may take from a
        limit what one before it gave back.
        """
        groups = {snapshot.tasks[each.task_id].group for each in plan.decisions}
        groups.update(ledger.group for ledger in plan.ledgers)
        each_apart = self._conflicts >= CONFLICTS_TOGETHER_MAX
        alone = groups if each_apart else groups & self.refused_plans.names
        if not alone or (len(groups) == 1 and not each_apart):
            yield plan
            return
        for is_alone, some in groupby(sorted({*groups, *plan.scans}), alone.__contains__):
            for part in ([each] for each in some) if is_alone else (some,):
                # Parts of one plan: what the others changed was taken into account.
                yield replace(of_groups(snapshot, plan, part), version=self._version)

    async def _carry_out(self, plan: Plan, epoch: int, *, settles: bool) -> bool:
        """Commit a plan. False if the tables refused it: then memory is loaded again.

        ``settles``: the plan is about all there was to decide. After a part of a plan the next
        round evaluates everything again.
        """
        if plan.decisions or plan.ledgers:
            return await self._commit(plan, epoch, settles=settles)
        if settles:
            self._index.settle(plan)
        return True

    async def _commit(self, plan: Plan, epoch: int, *, settles: bool = True) -> bool:
        """Commit the plan if the tables are still those it was made for.

        Dying before the commit leaves nothing of it; dying after it leaves all, which the next
        leader loads. DecisionFailedError leaves memory as it is.
        """
        try:
            async with self._ports.store.transaction(epoch=epoch) as tx:
                await store.commit(tx, plan, version=self._version)
                # From here to the end of the commit memory is ahead of the rows: it takes for
                # settled what the commit has still to make true, so that the commit's own changes,
                # which the observer brings, are for the next round. Whatever ends the commit but
                # success, a cancellation included, leaves memory stale: the next round loads the
                # rows.
                self._stale = True
                if settles:
                    self._index.settle(plan)
        except DatabaseFaultError as error:
            # It may be one row's fault, or the whole database's: the caller waits before it tries
            # again, then each group individually.
            self._refused_by_tables(plan, error)
            raise
        except (StoreUnavailableError, TermOverError, store.DecisionFailedError):
            raise
        except Exception as error:  # noqa: BLE001 - a conflict, or a value that no row can hold
            self._refused_by_tables(plan, error)
            return False
        self._stale = False
        for decision in plan.decisions:
            DECIDED.labels(decision.kind).inc()
        return True

    def _refused_by_tables(self, plan: Plan, error: Exception) -> None:
        """The working set may differ from the tables: believe the tables."""
        self._stale = True
        self._conflicts += 1
        REFUSED.labels("conflict").inc()
        problem = f"{type(error).__name__}: {error}"
        self._log.warning("plan not committed", problem=problem, times=self._conflicts)
        snapshot = self.snapshot()
        groups = {
            task.group for each in plan.decisions if (task := snapshot.tasks.get(each.task_id))
        }
        again = groups <= self.refused_plans.names or self._conflicts > CONFLICTS_TOGETHER_MAX
        if again and len(groups) == 1:
            found = raised(error, group=groups.pop())
            self._refuse(
                snapshot, CheckedPlan(plan, [found], {found.group: [found]}, errors=[error])
            )

    async def _put_off(
        self, snapshot: Snapshot, plan: Plan, failure: store.DecisionFailedError, epoch: int
    ) -> float:
        """Leave out, from the next round on, a decision that cannot be carried out; returns in how
        many seconds to make that round.

        A start whose event is larger than the bus accepts is put off, with a reason in the task.
        Anything else is a defect: the loop refuses its group, or the task alone if it was an urgent
        decision.
        """
        decision, error = failure.decision, failure.__cause__
        assert isinstance(error, Exception), "it is raised from what went wrong"
        task = snapshot.tasks[decision.task_id]
        if isinstance(error, EventTooLargeError) and isinstance(decision, Assign):
            REFUSED.labels("too large").inc()
            self._log.error("a start is put off", task=task.id, problem=str(error))
            why = reason(ReasonCode.EVENT_TOO_LARGE, bytes=error.size, limit=float(EVENT_BYTES_MAX))
            until = plan.decided_at + self._too_large_retry
            hold = Hold(task.id, why, accepted=True, reserved=(), not_before_at=until)
            alone = Plan(self._version, plan.decided_at, (hold,), {task.id: why})
            try:
                kept = await self._commit(alone, epoch, settles=False)
            except store.DecisionFailedError as again:
                return await self._put_off(snapshot, alone, again, epoch)
            return 0.0 if kept else CONFLICT_PAUSE_SECONDS
        violation = raised(error, group=task.group, task_id=task.id)
        if failure.number < plan.urgent:
            self._refuse(
                snapshot, CheckedPlan(plan, [violation], {}, {task.id: violation}, [error])
            )
        else:
            self._refuse(
                snapshot, CheckedPlan(plan, [violation], {task.group: [violation]}, {}, [error])
            )
        return 0.0

    async def learn(self, epoch: int) -> float | None:
        """Keep what the disciplines learned since the last time."""
        try:
            learned = self._index.learned()
            if learned:
                async with self._ports.store.transaction(epoch=epoch) as tx:
                    await store.save_learned(tx, learned)
                # Only now: what was not committed is saved the next time.
                self._index.saved(learned)
        except PASSING:
            raise
        except Exception:  # noqa: BLE001 - a defect of the statistics stops nothing else
            # Predictions are a little poorer after the next start, nothing else.
            self._log.exception("what was learned is not saved")
        return None
