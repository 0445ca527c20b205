"""The loop: snapshot, decide, check, commit. The only place where a task moves by decision.

Wired in ``main.py``. The leader keeps the working set in memory: loaded when it begins to lead,
then followed commit by commit. A round in which nothing changed and no deadline came is skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path

from prometheus_client import Counter, Gauge, Histogram

from libs.service import observe
from libs.service.shape import Ports
from libs.store.port import ConflictError, Delta
from services.scheduler import store
from services.scheduler.domain.decide import decide
from services.scheduler.domain.index import Index
from services.scheduler.domain.model import Plan, PolicySettings
from services.scheduler.domain.policy import GroupPolicy
from services.scheduler.domain.proof.check import check
from services.scheduler.domain.proof.isolate import Sifted, sound_part
from services.scheduler.domain.snapshot import Snapshot
from services.scheduler.refusals import Refusals
from services.scheduler.replay import write_dump

DECIDED = Counter("shiftwork_scheduler_decisions_total", "Decisions committed", ["kind"])
VIOLATIONS = Counter(
    "shiftwork_scheduler_plan_violations_total", "Faults found in plans before commit", ["fault"]
)
REFUSED = Counter(
    "shiftwork_scheduler_plans_refused_total", "Plans not committed, or not all of them", ["why"]
)
QUEUED = Gauge("shiftwork_scheduler_queue_length", "Tasks that wait")
DECIDE_SECONDS = Histogram("shiftwork_scheduler_decide_seconds", "Duration of one decision round")

Decide = Callable[[Snapshot, datetime], Plan]
# After a plan that the tables refused: they are loaded again; a refusal that stays must not spin.
CONFLICT_PAUSE_SECONDS = 0.05


class Brain:
    """The leader's working set, and the steps of its loops."""

    def __init__(
        self,
        ports: Ports,
        policy: PolicySettings,
        *,
        tick_seconds: float = 1.0,
        dumps: Path | None = None,
        dumps_max: int = 20,
        refusals_max: int = 5,
        policy_function: Decide = decide,
    ) -> None:
        self._ports = ports
        self._policy = policy
        self._tick_seconds = tick_seconds
        self._dumps = dumps
        self._dumps_max = dumps_max
        self._decide = policy_function
        self._index = Index(policy)
        # Counts what concerns scheduling: the version that a plan is made for.
        self._version: int = 0
        self._decided_version: int = -1
        self._due_at: datetime | None = None
        # True from before a commit until its success is known: memory may differ from the rows.
        self._stale = False
        # True when the rows are to be loaded again for another reason.
        self._reload = False
        self.refusals = Refusals(refusals_max)
        self._log = observe.log("scheduler")
        ports.store.observe(self._observe)

    def _observe(self, delta: Delta) -> None:
        if self._index.apply(delta.put, delta.deleted):
            self._version += 1

    async def lead(self, epoch: int) -> None:
        """Load the working set; a new leader's first step."""
        del epoch
        self.refusals.clear()
        await self._load()

    async def _load(self) -> None:
        """Make the working set what the rows say, with everything to be decided."""
        self._stale = True
        self._index = await store.load(self._ports.store, self._policy)
        self._version += 1
        self._due_at = None
        self._stale = self._reload = False

    @property
    def index(self) -> Index:
        """The working set, to be read only; it changes with the next commit."""
        return self._index

    @property
    def version(self) -> int:
        """Counts what concerns scheduling: while it stays, so do the answers."""
        return self._version

    def snapshot(self) -> Snapshot:
        """The present moment; valid until the next commit."""
        return Snapshot.view(self._index, self._version)

    def snapshot_with(self, policies: Mapping[str, GroupPolicy]) -> Snapshot:
        """The present moment under other policies; independent, everything still to be decided."""
        index = self._index
        return Snapshot.of(
            version=self._version,
            tasks=index.tasks.values(),
            nodes=index.nodes.values(),
            limits=index.limits.values(),
            inventories=index.inventories.values(),
            policies=[*{**index.policies, **policies}.values()],
            books=index.books.values(),
            settings=self._policy,
            histories={group: pool.history for group, pool in index.pools.items()},
        )

    async def step(self, epoch: int) -> float | None:
        """One round; returns in how many seconds to make the next, if nothing wakes it before."""
        if self._stale or self._reload:
            await self._load()
        if self._ports.store.in_doubt:
            # Somebody's commit was not answered: whatever became of it shows here.
            async with self._ports.store.transaction(epoch=epoch):
                pass
        now = self._ports.clock.now()
        idle: bool = self._version == self._decided_version
        if idle and (self._due_at is None or now < self._due_at):
            return self._until_due(now)
        # What this plan is decided on; what changes while it is committed is for the next.
        version = self._version
        snapshot = self.snapshot()
        with DECIDE_SECONDS.time():
            plan = self._decide(snapshot, now)
        QUEUED.set(sum(pool.waiting_count() for pool in snapshot.pools.values()))
        sifted = self._sift(snapshot, plan)
        plan = sifted.plan
        acts = bool(plan.decisions or plan.books)
        # From here to the end of the commit memory is ahead of the rows: it takes for settled what
        # the commit has still to make true, so that the commit's own changes, which the observer
        # brings, are for the next round. Whatever ends the commit but success, a cancellation
        # included, leaves memory stale: it is thrown away, and the next round loads the rows.
        self._stale = acts
        self._index.settle(plan)
        if acts and not await self._commit(plan, epoch):
            return CONFLICT_PAUSE_SECONDS
        if sifted.violations:
            # What is left out is tried again in a tick, whether anything changes or not.
            self._decided_version = -1
        elif not acts:
            # After a commit this is not so: the next round, at the latest in a tick, confirms it.
            self._decided_version = version
        self._due_at = plan.due_at
        return self._until_due(now)

    def _until_due(self, now: datetime) -> float:
        """Until the next deadline, but never longer than a tick: a wake-up may get lost."""
        if self._due_at is None:
            return self._tick_seconds
        return min(self._tick_seconds, max(0.0, (self._due_at - now).total_seconds()))

    def _sift(self, snapshot: Snapshot, plan: Plan) -> Sifted:
        """The part of the plan with which nothing is wrong; the rest is counted and kept."""
        sifted = sound_part(snapshot, plan, check) if plan.decisions else Sifted(plan)
        if sifted.violations:
            self._refuse(snapshot, sifted)
        for group, refusal in self.refusals.passed(sifted.plan.looks).items():
            self._log.warning("decisions of a group pass again", group=group, rounds=refusal.count)
        return sifted

    def _refuse(self, snapshot: Snapshot, sifted: Sifted) -> None:
        """Count and tell what is wrong; after so many refusals in a row memory is not trusted."""
        REFUSED.labels("violation").inc()
        for violation in sifted.violations:
            VIOLATIONS.labels(violation.fault.name.lower()).inc()
        held_up = self.refusals.note(sifted.refused, sifted.plan.decided_at)
        for group, refusal in held_up.items():
            self._reload = True
            self._log.error(
                "decisions of a group are held up: the check refuses them again and again",
                group=group,
                rounds=refusal.count,
                since=refusal.since.isoformat(),
                faults=refusal.faults,
            )
        if not (held_up or self.refusals.first(sifted.refused) or not sifted.refused):
            # The same again, a moment later.
            return
        kept = None
        if self._dumps is not None:
            now = sifted.plan.decided_at
            kept = write_dump(self._dumps, snapshot, now, files_max=self._dumps_max)
        self._log.error(
            "plan refused",
            groups=sorted(sifted.refused),
            violations=[str(violation) for violation in sifted.violations[:20]],
            count=len(sifted.violations),
            snapshot=str(kept) if kept else None,
        )

    async def _commit(self, plan: Plan, epoch: int) -> bool:
        """Commit the plan if the tables are still those it was made for.

        Dying before the commit leaves nothing of it; dying after it leaves all, which the next
        leader loads.
        """
        try:
            async with self._ports.store.transaction(epoch=epoch) as tx:
                await store.commit(tx, plan, version=self._version)
        except (store.StalePlanError, ConflictError) as problem:
            # The working set may differ from the tables: believe the tables.
            self._stale = True
            REFUSED.labels("conflict").inc()
            self._log.warning("plan not committed", problem=str(problem))
            return False
        self._stale = False
        for decision in plan.decisions:
            DECIDED.labels(decision.kind).inc()
        return True

    async def learn(self, epoch: int) -> float | None:
        """Keep what the disciplines learned since the last time."""
        learned = self._index.learned()
        if learned:
            async with self._ports.store.transaction(epoch=epoch) as tx:
                await store.save_learned(tx, learned)
            # Only now: what was not committed is saved the next time.
            self._index.saved(learned)
        return None
