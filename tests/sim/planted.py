"""Defects of the kinds that this platform must not have, each switched on for a while.

``test_planted.py`` proves with them that the simulation would find such a defect. Each context
manager breaks one promise in the services' own code, the way a plausible mistake would.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from libs.bus import command_replies
from libs.contracts import completion, grants
from libs.contracts.envelope import Envelope
from libs.contracts.grants import SITE
from libs.contracts.messages import (
    AckCheckpoint,
    InventoryListed,
    ModeChanged,
    NodeChanged,
    ReasonCode,
    RunListened,
    SetPolicy,
    TaskSpec,
    TaskState,
)
from libs.service import command_batches
from libs.service.command_batches import CommandBatches
from libs.service.consume import Consumption
from libs.service.loop import pause
from libs.service.relay import Relay
from libs.service.runner import DOWN, Runner
from libs.store import memory
from libs.store.memory import MemoryStore
from libs.store.port import NotLeaderError, Tx
from services.launcher import handlers as launcher_handlers
from services.launcher.domain import exits, reconcile, role_order
from services.launcher.domain.model import Listing, Run
from services.launcher.domain.run_lifecycle import LIVE
from services.launcher.loop import Launcher
from services.launcher.runtimes.fake import FakeRuntime
from services.launcher.runtimes.fake_cluster import FakeRank, FakeRun
from services.launcher.runtimes.port import RankOrder
from services.log_collector import domain as logs
from services.log_collector.archives.memory import MemoryArchive
from services.scheduler import handlers as scheduler_handlers
from services.scheduler import loop as scheduler_loop
from services.scheduler import set_apart
from services.scheduler import store as scheduler_store
from services.scheduler.domain import decide
from services.scheduler.domain.check import isolate
from services.scheduler.domain.explain import explanation
from services.scheduler.domain.explain.explanation import explain
from services.scheduler.domain.explain.group_simulation import Bounds, GroupSimulation
from services.scheduler.domain.facts.index import Index
from services.scheduler.domain.facts.pool import Pool
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.limits import quota_usage
from services.scheduler.domain.limits.quota_usage import QuotaUsage
from services.scheduler.domain.model import decisions, observations
from services.scheduler.domain.model.decisions import Assign, Kill, Preempt
from services.scheduler.domain.model.lifecycle import ExitVerdict, RunEnd, Trigger
from services.scheduler.domain.model.rows import Limit, Node, Task
from services.scheduler.domain.placement.capacity import Capacity
from services.scheduler.domain.placement.free_nodes import FreeNodes
from services.scheduler.domain.placement.packing import Packing
from tests.services.scheduler.domain.explain.copies import Copies, copy_of
from tests.sim import people
from tests.sim.bends import OUTBOX_KEPT_SECONDS
from tests.sim.plan import Job, Plan
from tests.sim.simulation import Simulation


@contextlib.contextmanager
def replaced(*places: tuple[Any, str, Any]) -> Generator[None]:
    """Other functions in these places."""
    with contextlib.ExitStack() as undo:
        for owner, name, other in places:
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, other)
        yield


def double_assignment() -> contextlib.AbstractContextManager[None]:
    """Placement forgets what is taken; neither the check nor the slots of the tables object."""
    return replaced(
        (Capacity, "take", lambda _self, _slots, _each=None: None),
        (scheduler_loop, "check", lambda _snapshot, _plan: []),
        (scheduler_store, "_slots", lambda _task: iter(())),
    )


def ranks_of_one_gang_overlap() -> contextlib.AbstractContextManager[None]:
    """Packing forgets which GPUs of a node it gave to the ranks before."""

    def free(packing: Packing, position: int) -> int:
        return packing.free_nodes.free(position)

    return replaced(
        (Packing, "free", free),
        (scheduler_loop, "check", lambda _snapshot, _plan: []),
        (scheduler_store, "_slots", lambda _task: iter(())),
    )


def debug_ends_judged() -> contextlib.AbstractContextManager[None]:
    """The exit rule takes the end of an attempt in debug mode for that of its program."""
    honest = observations.exit_rule

    def exit_rule(end: RunEnd, *, has_limit: bool) -> ExitVerdict:
        return honest(replace(end, debugging=False), has_limit=has_limit)

    return replaced((observations, "exit_rule", exit_rule))


def old_modes_win() -> contextlib.AbstractContextManager[None]:
    """The last change of a mode to arrive wins, instead of the one with the highest revision."""
    honest = scheduler_handlers.on_mode_changed

    async def on_mode_changed(tx: Tx, event: ModeChanged) -> None:
        task = await tx.get(Task, event.task_id)
        if task is not None and task.mode_revision > event.revision:
            tx.put(replace(task, mode_revision=event.revision - 1))
        await honest(tx, event)

    table = {**scheduler_handlers.HANDLERS, ModeChanged: on_mode_changed}
    return replaced((scheduler_handlers, "HANDLERS", table))


def rules_end_too_early() -> contextlib.AbstractContextManager[None]:
    """The first rank of a role that succeeds counts for all of them."""
    read = completion.rules_of

    def rules_of(spec: TaskSpec) -> completion.Rules:
        rules = read(spec)
        early = tuple(
            tuple(
                condition._replace(which="any") if condition.which == "all" else condition
                for condition in rule
            )
            for rule in rules.success
        )
        return rules._replace(success=early)

    return replaced((completion, "rules_of", rules_of))


def roles_start_too_early() -> contextlib.AbstractContextManager[None]:
    """A rank counts as running, and as ready, as soon as it was ordered."""

    def holds_for(condition: Any, number: int) -> bool:
        return number in condition._ranks

    return replaced((role_order._Condition, "_holds_for", holds_for))


def limits_of_ready_roles() -> contextlib.AbstractContextManager[None]:
    """The time to become ready is computed also for a role that is ready, while what waits for it
    waits for another one: the evaluation of its run fails."""
    honest = role_order.limits

    def limits(run: Run, ranks: Any) -> list[role_order.Limit]:
        warming = role_order.awaited(run)
        for start in run.role_starts:
            if start.role in warming and start.warms_since is not None:
                own = [place.rank for place in run.placements if place.role == start.role]
                next(rank for rank in own if rank not in run.ready_ranks)
        return honest(run, ranks)

    return replaced((role_order, "limits", limits))


def waiting_ranks_taken_for_lost() -> contextlib.AbstractContextManager[None]:
    """A rank that does not exist has vanished, also one that waits for other roles."""
    honest = reconcile._vanished

    def vanished(run: Run, observed: Any, listing: Listing) -> bool:
        whole = replace(run, role_starts=()) if run.started_at is not None else run
        return honest(whole, observed, listing)

    return replaced((reconcile, "_vanished", vanished))


@contextlib.contextmanager
def roles_start_while_the_run_leaves() -> Generator[None]:
    """What waits starts although the run was requested to leave."""
    honest_note, honest_launch = role_order.note, reconcile._launch_more
    honest_awaited = role_order.awaited

    def staying(run: Run) -> Run:
        return replace(run, preempt_requested_at=None, yield_requested_at=None)

    def note(run: Run, ranks: Any, now: datetime) -> Run:
        found = honest_note(staying(run), ranks, now)
        return replace(run, role_starts=found.role_starts)

    def awaited(run: Run) -> frozenset[str]:
        return honest_awaited(staying(run))

    def launch_more(run: Run, view: Any, now: datetime) -> Any:
        return honest_launch(staying(run), view, now)

    with replaced(
        (role_order, "note", note),
        (role_order, "awaited", awaited),
        (reconcile, "_launch_more", launch_more),
    ):
        yield


def limits_by_the_clocks_of_nodes() -> contextlib.AbstractContextManager[None]:
    """The time to become ready counts from the start that the node has noted."""
    honest = role_order.note

    def note(run: Run, ranks: Any, now: datetime) -> Run:
        found = honest(run, ranks, now)
        begun = [rank.started_at for rank in ranks.values() if rank.started_at is not None]
        return replace(
            found,
            role_starts=tuple(
                replace(each, warms_since=min(begun)) if each.warms_since and begun else each
                for each in found.role_starts
            ),
        )

    return replaced((role_order, "note", note))


def class_counters_shared() -> contextlib.AbstractContextManager[None]:
    """The retries of all classes count together, against the limit of each."""
    honest = scheduler_handlers.observations.retry_count

    def retry_count(task: Any, ended: Any) -> Any:
        found = honest(task, ended)
        used = task.class_retries
        if found is None or not found.field or used is None:
            return found
        return replace(found, used=used.user + used.transient + used.platform + used.unknown)

    return replaced((scheduler_handlers.observations, "retry_count", retry_count))


def class_counters_not_advanced() -> contextlib.AbstractContextManager[None]:
    """The counter of a class is not advanced, so that its limit never binds."""
    honest = scheduler_handlers.observations.with_retry

    def with_retry(task: Any, count: Any) -> Any:
        return honest(task, replace(count, field=""))

    return replaced((scheduler_handlers.observations, "with_retry", with_retry))


def restart_rules_ignored() -> contextlib.AbstractContextManager[None]:
    """Retries that are left are used whatever the rule of the failed rank's role says."""
    return replaced((reconcile, "_is_final", lambda _run, _failed, _class: False))


def default_limits_named_users() -> contextlib.AbstractContextManager[None]:
    """The site's default applies to everybody, also where a more specific grant decides."""

    def default_first(find: Any, *names: Any) -> Any:
        return find(SITE) or grants.deciding(find, *names)

    return replaced((quota_usage, "deciding", default_first))


def expired_rows_count() -> contextlib.AbstractContextManager[None]:
    """A row whose time is over goes on applying, although it is known that it was removed."""
    honest = QuotaUsage._follow

    def _follow(self: QuotaUsage, row: Limit) -> bool:
        return not (row.removed and row.expires_at is not None) and honest(self, row)

    return replaced((QuotaUsage, "_follow", _follow))


def amounts_not_added_up() -> contextlib.AbstractContextManager[None]:
    """Each rank's CPUs and memory are compared with what the whole node has."""
    return replaced(
        (FreeNodes, "add_resources", lambda _self, _there, _resources, _times: None),
        (scheduler_loop, "check", lambda _snapshot, _plan: []),
    )


class _PeekError(Exception):
    """The reply is known; nothing is stored yet."""


def reply_before_storing() -> contextlib.AbstractContextManager[None]:
    """The launcher answers a checkpoint at once and stores it a little later."""
    honest = Runner._endpoint

    def endpoint(self: Runner, kind: type, answering: CommandBatches) -> Callable[[Any], Any]:
        answer, epoch = honest(self, kind, answering), answering.epoch
        if kind is not AckCheckpoint:
            return answer

        async def later(command: Any) -> None:
            await pause(0.3)
            with contextlib.suppress(NotLeaderError, *DOWN):
                await answer(command)

        async def hasty(command: Any) -> Any:
            replies: list[Any] = []
            with contextlib.suppress(_PeekError):
                async with self.turn, self.service.ports.store.transaction(epoch=epoch) as tx:
                    replies.append(await self.service.commands[kind](tx, command))
                    raise _PeekError
            # It dies with its process, as a queue in memory does.
            _OF_PROCESS.add(asyncio.get_running_loop().create_task(later(command)))
            return replies[0]

        return hasty

    return replaced((Runner, "_endpoint", endpoint))


_OF_PROCESS: set[asyncio.Task[None]] = set()


def unfenced_attempts() -> contextlib.AbstractContextManager[None]:
    """The scheduler takes the end of any attempt for the end of the live one."""
    honest = scheduler_handlers.observations.on_run_exited

    def on_run_exited(task: Any, event: Any, *more: Any) -> Any:
        if task.live_attempt is not None:
            event = event.model_copy(update={"attempt": task.live_attempt})
        return honest(task, event, *more)

    return replaced((scheduler_handlers.observations, "on_run_exited", on_run_exited))


class InterleavedStore(MemoryStore):
    """Some events become visible later than others with higher ids, as they do when a slower
    transaction drew its number first."""

    HIDDEN_SHARE, HIDDEN_SECONDS = 0.1, 0.4

    async def outgoing(self, limit: int, *, query: bool = True) -> list[tuple[int, Envelope]]:  # noqa: ARG002 - every time
        found = await super().outgoing(limit * 2)
        now, seen = asyncio.get_running_loop().time(), self._seen_at()
        shown: list[tuple[int, Envelope]] = []
        for row_id, envelope in found:
            first = seen.setdefault(row_id, now)
            slow = Random(f"{envelope.source} {row_id}").random() < self.HIDDEN_SHARE
            if not slow or now >= first + self.HIDDEN_SECONDS:
                shown.append((row_id, envelope))
        return shown[:limit]

    def _seen_at(self) -> dict[int, float]:
        # Kept with the schema, for it is a matter of the database.
        return self._schema.__dict__.setdefault("seen_at", {})


class CursorStore(InterleavedStore):
    """The outbox is read from a moving position instead of by what is not published."""

    async def outgoing(self, limit: int, *, query: bool = True) -> list[tuple[int, Envelope]]:  # noqa: ARG002 - every time
        cursor = self._schema.__dict__.get("cursor", 0)
        return [row for row in await super().outgoing(limit) if row[0] > cursor]

    async def published(self, row_ids: Sequence[int]) -> None:
        await super().published(row_ids)
        if row_ids:
            self._schema.__dict__["cursor"] = max(row_ids)


class InterleavedSimulation(Simulation):
    """Every service on such a store."""

    def store_of(self, reach: object, tables: object, **more: object) -> MemoryStore:
        return InterleavedStore(reach, tables, **more)  # type: ignore[arg-type]


class CursorSimulation(Simulation):
    """Every service with such a relay."""

    def store_of(self, reach: object, tables: object, **more: object) -> MemoryStore:
        return CursorStore(reach, tables, **more)  # type: ignore[arg-type]


def silent_runs_waited_for() -> contextlib.AbstractContextManager[None]:
    """A run gets the whole deadline, even if its program never called ``should_preempt``."""
    return replaced((Task, "forced_at", lambda self, _seconds: self.ack_deadline_at))


def listening_runs_cut_short() -> contextlib.AbstractContextManager[None]:
    """The scheduler ignores the event that a run listens."""

    async def nothing(_tx: Tx, _event: Any) -> None:
        return

    table = {**scheduler_handlers.HANDLERS, RunListened: nothing}
    return replaced((scheduler_handlers, "HANDLERS", table))


def late_requests_carried_out() -> contextlib.AbstractContextManager[None]:
    """A request is carried out even if its requester no longer waits for the reply."""
    return replaced(
        (command_batches, "expired", lambda _until: False),
        (command_replies, "expired", lambda _until: False),
    )


class PoisonError(Exception):
    """What a planted defect raises for one task or group."""


class PoisonedSimulation(Simulation):
    """A simulation in which the platform's own code fails for one task or group and logs it."""

    EXPECTED = ("PoisonError", "faults=RAISED")

    def complain(self, text: str) -> None:
        dies = "died by itself" in text
        if dies or not any(each in text for each in self.EXPECTED):
            super().complain(text)

    def poison(self) -> contextlib.AbstractContextManager[None]:
        """What fails while the simulation lasts."""
        raise NotImplementedError

    async def run(self) -> None:
        with self.poison():
            await super().run()


class PoisonedRowSimulation(PoisonedSimulation):
    """The first task cannot be taken into the scheduler's memory while it runs."""

    def poison(self) -> contextlib.AbstractContextManager[None]:
        honest = Pool.enter

        def enter(self: Pool, task: Task) -> None:
            if task.spec.name == "job-0" and task.state is TaskState.RUNNING:
                raise PoisonError("PoisonError")
            honest(self, task)

        return replaced((Pool, "enter", enter))


class ExplainedSimulation(Simulation):
    """A simulation under ``rotation`` that keeps calling ``explain`` and checks the answer: the
    task that it calls the first starts when nodes for one more task join."""

    ASK_EVERY_SECONDS = 2.0

    async def run(self) -> None:
        document = "groups: {default: {policy: rotation}}"
        self.aside(self.people.insist(SetPolicy(document=document, asked_by="root")))
        asking = asyncio.get_running_loop().create_task(self._ask())
        try:
            await super().run()
        finally:
            asking.cancel()

    async def _ask(self) -> None:
        while True:
            await pause(self.ASK_EVERY_SECONDS)
            for process in self.of("scheduler"):
                if process.alive:
                    brain = process.service.loops[0].step.__self__  # type: ignore[attr-defined]
                    self._compare(brain.index, process.clock.now())

    def _compare(self, index: Index, now: datetime) -> None:
        for task in [each for each in index.tasks.values() if each.state is TaskState.QUEUED]:
            bounds = Bounds(trials_max=0, rounds_max=1)
            reply = explain(copy_of(index), task, now, Copies(), bounds).reply
            first = reply.position == 1 and not reply.promised
            if first and reply.reason.code is ReasonCode.WAITS_FOR_CAPACITY:
                started = self._started_on_more_nodes(copy_of(index), task, now)
                if task.id not in started:
                    self.complain(f"explain calls {task.id} the first, and {started} start")

    def _started_on_more_nodes(self, index: Index, task: Task, now: datetime) -> list[str]:
        index.unsettle(task.id)
        play = GroupSimulation(index, task.id, now)
        play.settle()
        more = [
            replace(node, id=f"more-{number}", version=1, schedulable=True, ready=True)
            for number, node in enumerate([*index.nodes.values()][:1] * task.spec.nodes)
        ]
        more = [replace(each, draining=False, removed=False, unusable_gpus=()) for each in more]
        index.apply(put=more)
        plan = decide.decide(Snapshot.view(index), now)
        return [each.task_id for each in plan.decisions if isinstance(each, Assign)]


def explained_by_submission() -> contextlib.AbstractContextManager[None]:
    """``explain`` uses the order of submissions, whatever the group's policy is."""
    honest = explanation._place

    def place(index: Index, task: Task, now: datetime) -> explanation._Place:
        found = honest(index, task, now)
        waiting = (index.tasks[task_id] for _, task_id in found.pool.unserved)
        before = [each.id for each in waiting if each.submitted_at < task.submitted_at]
        return replace(found, before=tuple(before), above=0)

    return replaced((explanation, "_place", place))


class PoisonedGroupSimulation(PoisonedSimulation):
    """Deciding about a second group of nodes fails; the last task is in it."""

    GROUP = "poisoned"

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        node = self.cluster.nodes["node-0"]
        self.cluster.join(node.model_copy(update={"id": "node-p", "group": self.GROUP}))

    def poison(self) -> contextlib.AbstractContextManager[None]:
        honest_share, honest_spec = decide.allocate, people.spec_of
        last = self.plan.jobs[-1].name

        def share(round_: Any, pool: Pool, *more: Any) -> None:
            if pool.group == self.GROUP:
                raise PoisonError("PoisonError")
            honest_share(round_, pool, *more)

        def spec_of(job: Job) -> TaskSpec:
            spec = honest_spec(job)
            return spec.model_copy(update={"group": self.GROUP}) if job.name == last else spec

        return replaced((decide, "allocate", share), (people, "spec_of", spec_of))


def bad_rows_not_set_apart() -> contextlib.AbstractContextManager[None]:
    """One row that cannot be loaded keeps every leader from leading."""

    def sift(settings: Any, rows: Any) -> Any:
        return rows, []

    return replaced((scheduler_store, "sift", sift))


def nodes_of_bad_rows_given_away() -> contextlib.AbstractContextManager[None]:
    """The nodes of a task whose row is set apart count as free, and the slots are off."""
    honest = set_apart.Apart.of

    def of(problems: Any, held: Any = ()) -> set_apart.Apart:
        return replace(honest(problems, held), withheld=frozenset())

    return replaced(
        (set_apart.Apart, "of", staticmethod(of)),
        (scheduler_store, "_slots", lambda _task: iter(())),
    )


def faults_not_isolated() -> contextlib.AbstractContextManager[None]:
    """An exception or a violation in one group's plan fails the whole round."""

    def decide_checked(
        snapshot: Any, now: datetime, decide: Any, check: Any
    ) -> isolate.CheckedPlan:
        plan = decide(snapshot, now)
        found = check(snapshot, plan)
        if found:
            raise ValueError(found)
        return isolate.CheckedPlan(plan)

    return replaced((scheduler_loop, "decide_checked", decide_checked))


def failed_commits_forgotten() -> contextlib.AbstractContextManager[None]:
    """The tasks that a plan evaluated count as handled although its commit failed."""
    honest = scheduler_loop.Brain.step

    async def step(self: Any, epoch: int) -> float | None:
        self._stale = False
        return await honest(self, epoch)

    return replaced((scheduler_loop.Brain, "step", step))


def forgotten_republishing() -> contextlib.AbstractContextManager[None]:
    """A bus server that lost its last seconds is taken for the one it was."""

    async def nothing(_self: Any, _server_id: str, _periods: int) -> int:
        return 0

    return replaced((MemoryStore, "meet_bus_server", nothing))


def inbox_apart() -> contextlib.AbstractContextManager[None]:
    """The inbox is committed by itself: what was rolled back is never handled again."""
    honest = memory._MemorySession._close

    def close(self: Any, *, undo: bool) -> None:
        self._entered = []
        honest(self, undo=undo)

    return replaced((memory._MemorySession, "_close", close))


def mark_before_publishing() -> contextlib.AbstractContextManager[None]:
    """The relay marks rows as published before it publishes them."""

    async def once(self: Relay, *, query: bool = True) -> int:
        ports = self.service.ports
        await ports.store.meet_bus_server(ports.bus.server_id, 10)
        rows = await ports.store.outgoing(self.settings.relay_rows_max)
        await ports.store.published([row_id for row_id, _ in rows])
        await ports.bus.publish([envelope for _, envelope in rows])
        return len(rows)

    return replaced((Relay, "once", once))


def ack_before_commit() -> contextlib.AbstractContextManager[None]:
    """Deliveries are acknowledged, then recorded."""
    honest = Consumption._record

    async def record(self: Any, deliveries: Any) -> None:
        await asyncio.gather(*(delivery.ack() for delivery in deliveries))
        await honest(self, deliveries)

    return replaced((Consumption, "_record", record))


def deadlines_in_memory() -> contextlib.AbstractContextManager[None]:
    """A deadline is a timer of the leader that asked, instead of a column."""
    honest = scheduler_loop.Brain._commit

    async def commit(self: Any, plan: decisions.Plan, epoch: int, **more: Any) -> bool:
        timers = self.__dict__.setdefault("timers", set())
        timers |= {each.task_id for each in plan.decisions if isinstance(each, Preempt)}
        kept = tuple(
            each
            for each in plan.decisions
            if not (
                isinstance(each, Kill)
                and each.trigger is Trigger.ACK_EXPIRED
                and each.task_id not in timers
            )
        )
        if len(kept) < len(plan.decisions):
            self._decided_version = plan.version
            if not kept:
                await pause(0.5)
                return True
        return await honest(self, replace(plan, decisions=kept), epoch, **more)

    return replaced((scheduler_loop.Brain, "_commit", commit))


def unfenced_epochs() -> contextlib.AbstractContextManager[None]:
    """A transaction of a leader is accepted even if another process leads now."""
    return replaced((MemoryStore, "_fence", lambda _self, _epoch: None))


def yields_counted_as_failures() -> contextlib.AbstractContextManager[None]:
    """The end of a run that handed its nodes over is classified by its exit codes."""
    rules = tuple(rule for rule in exits.RULES if rule.holds is not exits._yielded)
    return replaced((exits, "RULES", rules))


def nodes_free_at_the_wish() -> contextlib.AbstractContextManager[None]:
    """A run that hands its nodes over is over when it says so, instead of when nothing runs."""
    honest = reconcile._all_ended

    def all_ended(run: Run, view: reconcile.RunView) -> bool:
        return run.yield_requested_at is not None or honest(run, view)

    return replaced((reconcile, "_all_ended", all_ended))


def end_declared_when_ordered() -> contextlib.AbstractContextManager[None]:
    """A run is over when every node has the order to end it, instead of when nothing runs."""

    def is_over(run: Run, view: reconcile.RunView) -> bool:
        return reconcile._all_ended(run, view) or reconcile.End(run.id) in view.scan.done

    return replaced((reconcile, "_is_over", is_over))


def dropped_early_requests() -> contextlib.AbstractContextManager[None]:
    """A request that comes before the assignment of its run leaves nothing behind."""

    async def requested(tx: Tx, task_id: str, attempt: int) -> Run | None:
        run = await tx.get(Run, task_id, attempt)
        return run if run is not None and run.state in LIVE else None

    return replaced((launcher_handlers, "_requested", requested))


def no_inbox() -> contextlib.AbstractContextManager[None]:
    """Every delivery is handled, as if it had not come before."""

    async def enter(self: Any, event_ids: Sequence[str], _now: datetime) -> set[str]:
        self._alive()
        return set(event_ids)

    return replaced((memory._MemorySession, "enter", enter))


def unanswered_orders_count() -> contextlib.AbstractContextManager[None]:
    """An order to the runtime that got no answer is taken for carried out."""
    honest = Launcher._carry_out

    async def carry_out(self: Launcher, task: Any) -> Any:
        await honest(self, task)
        return task.action

    return replaced((Launcher, "_carry_out", carry_out))


def nodes_leave_with_their_runs() -> contextlib.AbstractContextManager[None]:
    """A node that left the inventory is not asked any more what still runs there."""
    honest = FakeRuntime.list

    async def listed(self: FakeRuntime) -> Listing:
        found = await honest(self)
        gone = {node_id for node_id, node in found.nodes.items() if node.retired}
        runs = {
            run_id: replace(
                run,
                ranks={n: rank for n, rank in run.ranks.items() if rank.node_id not in gone},
                node_ids=run.node_ids - gone,
            )
            for run_id, run in found.runs.items()
            if run.node_ids - gone
        }
        return Listing({n: node for n, node in found.nodes.items() if n not in gone}, runs)

    return replaced((FakeRuntime, "list", listed))


def former_leaders_write() -> contextlib.AbstractContextManager[None]:
    """A log-collector that does not know that it no longer leads goes on writing its outputs."""
    return replaced((MemoryArchive, "_check", lambda _self, _epoch: None))


def times_follow_the_clock() -> contextlib.AbstractContextManager[None]:
    """Output is stamped with the reader's clock, even if that is earlier than the last stamp."""
    honest = logs.stamped

    def stamped(offset: int, size: int, found: Any, _last: Any, now: datetime) -> Any:
        return honest(offset, size, found, None, now)

    return replaced((logs, "stamped", stamped))


def outbox_pruned_by_age() -> contextlib.AbstractContextManager[None]:
    """Old rows of the outbox are dropped, published or not."""
    honest = MemoryStore.prune_outbox

    async def prune_outbox(self: MemoryStore, periods: int) -> int:
        before = self._clock.now() - timedelta(seconds=OUTBOX_KEPT_SECONDS)
        schema = self._schema
        for each, row in list(schema.outbox.items()):
            if row.envelope.time < before:
                del schema.outbox[each]
                schema.unpublished.pop(each, None)
        return await honest(self, periods)

    return replaced((MemoryStore, "prune_outbox", prune_outbox))


class DarkNodeSimulation(Simulation):
    """On the first node ranks never begin, even when everything else is healed."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        honest = self.cluster.make

        def make(run: FakeRun, order: RankOrder) -> None:
            if order.node_id == "node-0":
                run.ranks[order.rank] = FakeRank(order, None)
            else:
                honest(run, order)

        self.cluster.make = make  # type: ignore[method-assign]


def bad_nodes_forgotten() -> contextlib.AbstractContextManager[None]:
    """A task whose start failed is tried again on whatever node comes first."""
    return replaced((scheduler_handlers.observations, "_avoids", lambda _task, _event: ()))


def last_arrival_wins() -> contextlib.AbstractContextManager[None]:
    """The last event of a node to arrive wins, instead of the one with the highest version."""
    honest = scheduler_handlers.on_node_changed

    async def on_node_changed(tx: Tx, event: NodeChanged) -> None:
        tx.delete(Node, event.node_id)
        await honest(tx, event)

    table = {**scheduler_handlers.HANDLERS, NodeChanged: on_node_changed}
    return replaced((scheduler_handlers, "HANDLERS", table))


def inventories_by_time() -> contextlib.AbstractContextManager[None]:
    """Of two lists of nodes the one with the later time wins, instead of the higher version."""

    def is_old(event: InventoryListed, *, kept_version: int, kept_at: datetime) -> bool:
        del kept_version
        return kept_at >= event.listed_at

    return replaced((scheduler_handlers, "is_old", is_old))
