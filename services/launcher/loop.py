"""The launcher's loops. ``reconcile`` never runs at the same time as a handler: it compares the
rows with the last scan of the runtime, records the facts and enqueues actions, in one transaction
and without other I/O. ``act`` runs concurrently: it carries out the actions and scans again. Wired
in ``main.py``. ``probe`` asks ranks whether they are ready, beside both. The next scan restores
everything that is only in memory here.
"""

from __future__ import annotations

import asyncio
import errno
import operator
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cache

from libs.contracts.ids import RunId
from libs.contracts.messages import InventoryListed
from libs.service import observability
from libs.service.loop import Loop, Wake
from libs.service.metrics import Metrics
from libs.store.port import Delta, Store, Tx
from services.launcher import store as tables
from services.launcher.domain import (
    exits,
    inventory,
    rank_restarts,
    role_order,
    start_delays,
)
from services.launcher.domain.grace_periods import STAGED, grace_seconds, is_asked
from services.launcher.domain.inventory import LeasePolicy, QuarantinePolicy
from services.launcher.domain.master_ports import PortRange
from services.launcher.domain.model import (
    Listing,
    PortLease,
    ReadyReport,
    Refused,
    Run,
)
from services.launcher.domain.reconcile import (
    Action,
    End,
    EndRanks,
    Launch,
    Policy,
    Scan,
    Signal,
)
from services.launcher.domain.start_delays import DelayPolicy
from services.launcher.domain.worklist import Outcome, Worklist
from services.launcher.hosts import Host, Leased, Network, PortKey, leased_ports, port_keys
from services.launcher.probes import Prober, probe_targets
from services.launcher.recording import record
from services.launcher.run_masks import RunMasks
from services.launcher.run_orders import Site, build_order
from services.launcher.run_traces import RunTraces, Traceparents, run_traceparent
from services.launcher.runtimes.port import (
    LaunchRefusedError,
    Runtime,
    RuntimeDeniedError,
    RuntimeUnavailableError,
    StartFailedError,
)

# Timers may end early by the clock's error. A pause for the rest would end at once, again and again
# while anything else keeps the event loop busy.
PAUSE_SECONDS_MIN = 0.001
# Between two scans, each of the parallel actions may be followed by up to this many others.
ROUNDS_PER_SCAN = 4


declare = Metrics("launcher")
FAILED_STEPS = declare.counter(
    "shiftwork_launcher_failed_steps_total",
    "Evaluations of single runs that failed by a defect; the other runs go on",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers of the loops."""

    policy: Policy
    leases: LeasePolicy
    ports: PortRange
    actions_parallel_max: int
    retry_first_seconds: float
    retry_most_seconds: float
    quarantine: QuarantinePolicy
    delays: DelayPolicy = field(default_factory=DelayPolicy)


@dataclass(frozen=True, slots=True)
class PendingAction:
    """An action and the values needed to carry it out."""

    action: Action
    node_ids: frozenset[str]
    run: Run | None = None
    # The ports that a launch may use, where they are leased.
    ports: Leased = field(default_factory=dict[PortKey, int])
    # The span of the run's assignment.
    traceparent: str = ""


@dataclass
class Launcher:
    """One leader's work. If all of this memory is lost, one scan restores it."""

    store: Store
    runtime: Runtime
    site: Site
    limits: Limits
    traces: RunTraces = field(default_factory=RunTraces)
    act_wake: Wake = field(default_factory=Wake)
    reconcile_wake: Wake = field(default_factory=Wake)
    probe_wake: Wake = field(default_factory=Wake)

    def __post_init__(self) -> None:
        self.log = observability.log("launcher")
        self.network = Network(self.runtime.shares_ports, self.site.master_addr, self.limits.ports)
        self._scan: Scan | None = None
        self._pending: dict[RunId, PendingAction] = {}
        self._doing: set[Action] = set()
        self._done: set[Action] = set()
        self._fences: set[str] = set()
        # Failed tries in a row, and when to try again, in the event loop's seconds.
        self._failed: dict[Action, tuple[int, float]] = {}
        # Why the last try of an action failed, and which launches are refused for good.
        self._problems: dict[Action, str] = {}
        self._node_problems: dict[str, str] = {}
        self._refused: dict[RunId, Refused] = {}
        # Why the runtime obeys another launcher, how often in a row it refused, and when to try
        # again (in the event loop's seconds).
        self.problem = ""
        self._denials, self._retry_at_s = 0, 0.0
        # Nodes that could not start a run at the last try.
        self._unable: dict[RunId, frozenset[str]] = {}
        self._prober = Prober()
        self._masks = RunMasks(self.site)
        # Why each run that waits to start does not, and the problem that was known then.
        self._delays: dict[RunId, KnownDelay] = {}
        # Rank and start of processes that have answered a probe, until their runs have started.
        self._probed: dict[RunId, frozenset[tuple[int, int]]] = {}
        self._busy_ports: set[int] = set()
        self._last_port = 0
        self._published_nodes: frozenset[str] | None = None
        # Rows and listed nodes that agree: with many nodes, nearly every scan finds the same.
        self._agreed: tuple[Sequence[object], ...] | None = None
        self._work = Worklist()
        self.store.observe(self._observe)
        self.runtime.on_change(self.act_wake.set)

    def _observe(self, delta: Delta) -> None:
        self._work.apply(delta.put, delta.deleted)

    def loops(self, act_tick_seconds: float, reconcile_tick_seconds: float) -> tuple[Loop, ...]:
        """All loops."""
        return (
            Loop(
                name="reconcile",
                step=self.reconcile,
                tick_seconds=reconcile_tick_seconds,
                wake=self.reconcile_wake,
                exclusive=True,
            ),
            Loop(
                name="act",
                step=self.act,
                tick_seconds=act_tick_seconds,
                wake=self.act_wake,
                wake_on_commit=False,
            ),
            Loop(
                name="probe",
                step=self.probe,
                tick_seconds=reconcile_tick_seconds,
                wake=self.probe_wake,
                wake_on_commit=False,
            ),
        )

    async def on_lead(self, epoch: int) -> None:
        """Start as a new leader with the tables and without an earlier scan."""
        self._work = await tables.load(self.store)
        self._scan, self._published_nodes, self._agreed = None, None, None
        self.problem, self._denials, self._retry_at_s = "", 0, 0.0
        for memory in (self._pending, self._doing, self._done, self._fences, self._failed):
            memory.clear()
        for memory in (self._problems, self._refused, self._unable):
            memory.clear()
        self._probed.clear()
        self._delays.clear()
        self._prober.clear()
        await self.runtime.lead(epoch)

    async def hold(self) -> None:
        """Run the runtime, and close it when the service stops. The tasks keep running."""
        try:
            await self.runtime.run()
        finally:
            await self.runtime.close()

    # Recording

    async def reconcile(self, epoch: int) -> float | None:
        """Record the facts of the last scan and enqueue the actions that follow from them."""
        scan, work = self._scan, self._work
        if self.problem:
            return await self._report_denial(epoch)
        if scan is None:
            return None
        scan = replace(scan, probed=self._probed)
        dirty = work.take_dirty()
        try:
            async with self.store.transaction(epoch=epoch) as tx:
                now = tx.now
                outcome = work.step(dirty, scan, now, self.limits.policy)
                await record(
                    tx,
                    work.runs,
                    outcome.runs,
                    self.limits.quarantine,
                    network=self.network,
                )
                for report in outcome.reports:
                    tx.delete(ReadyReport, report.task_id, report.attempt, report.rank)
                changed = {run.id: run for run in outcome.runs}
                changes = await self._update_inventory(tx, scan.listing)
                await self.traces.record_ends(tx, work.runs, outcome.runs)
                ports = await self._lease(tx, outcome.actions, scan.listing)
                launched = [each.run_id for each in outcome.actions if isinstance(each, Launch)]
                traceparents = await self.traces.of(tx, launched)
                held_up = report_delays(
                    tx,
                    (
                        changed.get(run.id, run)
                        for run in work.starting()
                        if run.id not in outcome.failed and not work.fails(run.id)
                    ),
                    scan.listing,
                    problems={action.run_id: why for action, why in self._problems.items()},
                    policy=self.limits.delays,
                    known={
                        run_id: each
                        for run_id, each in self._delays.items()
                        if run_id not in outcome.steps
                    },
                )
        except BaseException:
            work.restore_dirty(dirty)
            raise
        # Nothing was published before the commit.
        work.commit(outcome)
        self._report_failed_steps(outcome)
        self._published_nodes = _nodes_in_service(scan.listing)
        self._forget_done()
        # A failure determines when to try again, as long as the action is wanted.
        wanted = set(outcome.actions)
        self._failed = {each: when for each, when in self._failed.items() if each in wanted}
        self._problems = {each: why for each, why in self._problems.items() if each in wanted}
        self._delays = held_up.known
        self._fences |= set(changes.fence)
        for action in outcome.actions:
            self._enqueue(action, scan, ports, traceparents)
        if self._pending or self._fences:
            self.act_wake.set()
        return self._due_seconds([outcome.due_at, changes.due_at, held_up.due_at], now)

    def _report_failed_steps(self, outcome: Outcome) -> None:
        """Log each run whose step failed: it stays as it is until a step succeeds."""
        for run_id, failed in outcome.failed.items():
            FAILED_STEPS.inc()
            self.log.error(
                "a run cannot be evaluated, the others go on",
                run=str(run_id),
                failures=failed.failures,
                again_at=str(failed.again_at),
                fix="report this defect with the trace",
                exc_info=failed.problem,
            )

    async def _report_denial(self, epoch: int) -> float | None:
        """Report why runs do not start. Nothing else can be done: earlier scans are out of date."""
        starting = list(self._work.starting())
        async with self.store.transaction(epoch=epoch) as tx:
            now = tx.now
            held_up = report_delays(
                tx,
                starting,
                Listing(),
                problems={run.id: self.problem for run in starting},
                policy=self.limits.delays,
            )
        return self._due_seconds([held_up.due_at], now)

    async def _update_inventory(self, tx: Tx, listing: Listing) -> inventory.InventoryChanges:
        rows = await tables.nodes(tx)
        compared = (rows, tuple(listing.nodes), tuple(listing.nodes.values()))
        if self._agreed is not None and all(map(_same, self._agreed, compared)):
            return inventory.InventoryChanges((), ())
        self._agreed = None
        busy = self._work.is_busy
        changes = inventory.update_inventory(
            rows,
            listing,
            busy,
            tx.now,
            self.limits.leases,
            version=tx.version,
            unreadable=tables.unreadable_nodes(tx),
        )
        for row in changes.rows:
            tx.put(row)
        for message in inventory.changed_events({row.node_id: row for row in rows}, changes.rows):
            tx.emit(message)
        node_ids = _nodes_in_service(listing)
        if node_ids != self._published_nodes:
            # Not known until the commit is: it may take place without an answer.
            self._published_nodes = None
            tx.emit(
                InventoryListed(
                    runtime=self.runtime.name,
                    node_ids=tuple(sorted(node_ids)),
                    listed_at=tx.now,
                    version=tx.version,
                )
            )
        settled = not (
            changes.rows or any(row.silent_since or row.quarantined_until for row in rows)
        )
        if settled and node_ids == self._published_nodes:
            self._agreed = compared
        return changes

    async def _lease(
        self, tx: Tx, actions: Iterable[Action], listing: Listing
    ) -> dict[RunId, Leased]:
        """Lease the ports of every run that is to be launched, unless it has them; none where
        ranks have their own network. A run of which something exists keeps its ports: its ranks
        know them. A run that is absent from the answer has to wait."""
        wanted = [action.run_id for action in actions if isinstance(action, Launch)]
        if not wanted or not self.runtime.shares_ports:
            return {run_id: {} for run_id in wanted}
        leased = await tables.leases(tx)
        taken = {lease.port for lease in leased} | tables.unreadable_ports(tx)
        held = leased_ports(leased)
        found: dict[RunId, Leased] = {}
        for run_id in wanted:
            keys, ports = port_keys(self._work.runs[run_id]), held.get(run_id, {})
            useless = {0} if run_id in listing.runs else {0, *self._busy_ports}
            missing = [key for key in keys if ports.get(key, 0) in useless]
            fresh = self._free_ports(len(missing), taken | self._busy_ports)
            if len(fresh) < len(missing):
                self.log.warning("no free port for a gang", run=str(run_id))
                # Ports that other programs held earlier may be free again.
                self._busy_ports.clear()
                continue
            for key, port in zip(missing, fresh, strict=True):
                if key in ports:
                    tx.delete(PortLease, ports[key])
                tx.put(PortLease(port, run_id.task_id, run_id.attempt, key.rank, key.name))
                self._last_port = port
            taken.update(fresh)
            found[run_id] = {**ports, **dict(zip(missing, fresh, strict=True))}
        return found

    def _free_ports(self, count: int, taken: set[int]) -> list[int]:
        """So many ports that nobody has, or fewer if there are no more."""
        found, last = list[int](), self._last_port
        while len(found) < count:
            port = self.limits.ports.next_free(last, taken)
            if port is None:
                break
            found.append(port)
            taken.add(port)
            last = port
        return found

    def _forget_done(self) -> None:
        """Forget completed actions of runs that are not live any more."""
        is_live = self._work.is_live
        self._done = {action for action in self._done if is_live(action.run_id)}
        for run_id in [run_id for run_id in self._pending if run_id not in self._work.runs]:
            del self._pending[run_id]
        for run_id in [run_id for run_id in self._refused if not is_live(run_id)]:
            del self._refused[run_id]
        for run_id in [run_id for run_id in self._unable if not is_live(run_id)]:
            del self._unable[run_id]
        waiting = {run.id for run in self._work.starting()} if self._probed else set[RunId]()
        for run_id in [run_id for run_id in self._probed if run_id not in waiting]:
            del self._probed[run_id]

    def _enqueue(
        self,
        action: Action,
        scan: Scan,
        ports: Mapping[RunId, Leased],
        traceparents: Traceparents,
    ) -> None:
        """Enqueue an action, unless it is in progress or has just failed."""
        run_id, run = action.run_id, self._work.runs.get(action.run_id)
        observed = scan.listing.runs.get(run_id)
        part = action.ranks if isinstance(action, EndRanks) else None
        placed = {
            place.node_id
            for place in (run.placements if run else ())
            if part is None or place.rank in part
        }
        known = frozenset(placed & scan.listing.nodes.keys())
        if observed is not None and part is None:
            known |= observed.node_ids
        if isinstance(action, Launch) and run_id not in ports:
            return
        # The new action of a run replaces its former one.
        self._pending.pop(run_id, None)
        _, not_before = self._failed.get(action, (0, 0.0))
        if action in self._doing or not_before > asyncio.get_running_loop().time():
            return
        self._pending[run_id] = PendingAction(
            action, known, run, ports.get(run_id, {}), traceparents.get(run_id, "")
        )

    def _due_seconds(self, due: Iterable[datetime | None], now: datetime) -> float | None:
        seconds = [(at - now).total_seconds() for at in due if at is not None]
        loop_now = asyncio.get_running_loop().time()
        # Actions that are due already are in progress: waiting for them would be a busy loop.
        seconds += [at - loop_now for _, at in self._failed.values() if at > loop_now]
        return max(PAUSE_SECONDS_MIN, min(seconds)) if seconds else None

    # Acting

    async def act(self, _epoch: int) -> float | None:
        """Carry out a batch of the pending actions, then scan the runtime."""
        if (wait_s := self._retry_at_s - asyncio.get_running_loop().time()) > 0:
            return max(PAUSE_SECONDS_MIN, wait_s)
        tasks = self._take_batch()
        self._doing = {task.action for task in tasks}
        fences, self._fences = self._fences, set()
        gate = asyncio.Semaphore(self.limits.actions_parallel_max)

        async def one(task: PendingAction) -> Action | None:
            async with gate:
                with observability.log_about(task.action.run_id):
                    return await self._carry_out(task)

        await asyncio.gather(*(self._fence(node_id) for node_id in sorted(fences)))
        done = await asyncio.gather(*(one(task) for task in tasks))
        self._done |= {action for action in done if isinstance(action, End | EndRanks | Signal)}
        try:
            listing = self._masks.listing(await self.runtime.list(), self._work.runs)
        except RuntimeUnavailableError as problem:
            # Earlier scans justify nothing new: actions continue when the runtime answers.
            self.log.warning("cannot scan the runtime", problem=str(problem))
            self._doing = set()
            return self.limits.retry_most_seconds
        except RuntimeDeniedError as problem:
            self._doing = set()
            return self._note_denial(str(problem))
        self._report_nodes(listing)
        if self.problem:
            self.log.warning("the runtime obeys this launcher again")
        self.problem, self._denials = "", 0
        scan = Scan(listing, frozenset(self._done), dict(self._refused), dict(self._unable))
        self._doing = set()
        is_new = scan != self._scan
        self._scan = scan
        self._work.update_scan(scan)
        if is_new or tasks:
            self.reconcile_wake.set()
            self.probe_wake.set()
        return 0.0 if self._pending else None

    # Probing

    async def probe(self, _epoch: int) -> float | None:
        """Probe the ranks for whose readiness other roles wait, where the runtime does not. If the
        process dies after a probe that succeeded, its successor probes again."""
        if self.runtime.probes or self._scan is None:
            return None
        targets = probe_targets(self._work.starting(), self._scan.listing, self._hosts_of())
        ready, again_s = await self._prober.round(targets)
        for target in ready:
            known = self._probed.get(target.run_id, frozenset())
            self._probed[target.run_id] = known | {(target.rank, target.start)}
            self._work.mark_dirty(target.run_id)
        if ready:
            self.reconcile_wake.set()
        return again_s

    def _hosts_of(self) -> Callable[[Run], tuple[Host, ...]]:
        """The host table of each run by the leases of now, which are read once."""
        leases = cache(lambda: leased_ports(self.store.resident(PortLease).values()))
        return lambda run: self.network.hosts(run, leases().get(run.id, {}))

    def _report_nodes(self, listing: Listing) -> None:
        """Log each problem of a node when it begins."""
        problems = {name: node.problem for name, node in listing.nodes.items() if node.problem}
        for node_id, problem in sorted(problems.items()):
            if self._node_problems.get(node_id) != problem:
                self.log.warning("a node has a problem", node=node_id, problem=problem)
        self._node_problems = problems

    def _note_denial(self, problem: str) -> float:
        """Note that the runtime obeys another launcher, until a person intervenes. Returns a pause
        in seconds: nothing that wakes the loops earlier causes another try."""
        if problem != self.problem:
            self.log.error("the runtime obeys another launcher", problem=problem)
            self.reconcile_wake.set()
        self.problem = problem
        pause_s = self._pause_after(self._denials)
        self._denials += 1
        self._retry_at_s = asyncio.get_running_loop().time() + pause_s
        return pause_s

    def _take_batch(self) -> list[PendingAction]:
        """The actions to carry out before the next scan: ends before launches, and few enough that
        a flood of launches delays no scan."""
        wanted = sorted(self._pending.values(), key=lambda task: isinstance(task.action, Launch))
        tasks = wanted[: self.limits.actions_parallel_max * ROUNDS_PER_SCAN]
        for task in tasks:
            del self._pending[task.action.run_id]
        return tasks

    async def _carry_out(self, task: PendingAction) -> Action | None:
        """Carry out one action. Returns None if it failed; it is tried again later."""
        action, run = task.action, task.run
        try:
            match action:
                case Launch():
                    assert run is not None, "only a known run is launched"
                    with self.traces.launch(run, task.traceparent):
                        await self._launch(run, task, action.ranks)
                case Signal():
                    await self.runtime.signal(action.run_id, task.node_ids, action.signal)
                case End():
                    policy = self.limits.policy
                    grace = grace_seconds(run, policy.grace, policy.exit_grace)
                    if run is not None and run.end_cause in STAGED:
                        # The last stage: those before it had their shares.
                        grace /= len(role_order.end_stages(run))
                    await self.runtime.end(
                        action.run_id, task.node_ids, grace_seconds=grace, asks=is_asked(run)
                    )
                case EndRanks():
                    await self.runtime.end(
                        action.run_id,
                        task.node_ids,
                        grace_seconds=action.grace_seconds,
                        ranks=frozenset(action.ranks),
                        asks=is_asked(run),
                    )
                case _:
                    keep = exits.is_kept(run.exit if run is not None else None)
                    await self.runtime.forget(action.run_id, task.node_ids, keep=keep)
        except LaunchRefusedError as problem:
            assert run is not None, "only a known run is launched"
            refused = replace(problem.refused, text=self._masks.text(run, problem.refused.text))
            self.log.warning("launch refused", run=str(action.run_id), problem=refused.text)
            self._refused[action.run_id] = refused
            # Not at once again, where something delays the end that this leads to.
            self._try_later(action)
            return None
        except (RuntimeUnavailableError, RuntimeDeniedError) as problem:
            text = str(problem) if run is None else self._masks.text(run, str(problem))
            self._note_failure(action, problem, text)
            return None
        self._problems.pop(action, None)
        if isinstance(action, Launch):
            self._unable.pop(action.run_id, None)
        if isinstance(action, End) and not self._work.is_live(action.run_id):
            # No row records this order, so it is repeated until nothing is left. A process may take
            # long to die: without a pause the loops would spin meanwhile.
            self._try_later(action)
        else:
            self._failed.pop(action, None)
        return action

    async def _launch(self, run: Run, task: PendingAction, ranks: tuple[int, ...] | None) -> None:
        ports = task.ports
        observed = self._scan.listing.runs.get(run.id) if self._scan is not None else None
        busy = [port for port in ports.values() if observed is None and not is_free(port)]
        if busy:
            self._busy_ports.update(busy)
            raise RuntimeUnavailableError(f"port {busy[0]} is taken by another program")
        hosts = self.network.hosts(run, ports)
        await self.runtime.launch(
            build_order(
                run,
                hosts,
                self.site,
                None if ranks is None else frozenset(ranks),
                traceparent=run_traceparent(run.id, task.traceparent),
            )
        )

    async def _fence(self, node_id: str) -> None:
        try:
            await self.runtime.fence(node_id)
            self.log.warning("node fenced", node=node_id)
        except (RuntimeUnavailableError, RuntimeDeniedError) as problem:
            # Denied: another launcher leads, as this one will soon learn from its store.
            self.log.warning("node cannot be fenced", node=node_id, problem=str(problem))

    def _try_later(self, action: Action) -> None:
        count, _ = self._failed.get(action, (0, 0.0))
        pause_s = self._pause_after(count)
        self._failed[action] = (count + 1, asyncio.get_running_loop().time() + pause_s)

    def _pause_after(self, failures: int) -> float:
        doubled = self.limits.retry_first_seconds * 2.0 ** min(failures, 16)
        return min(self.limits.retry_most_seconds, doubled)

    def _note_failure(self, action: Action, problem: Exception, text: str) -> None:
        self._try_later(action)
        self._problems[action] = text
        if isinstance(problem, StartFailedError):
            self._unable[action.run_id] = problem.node_ids
        self.log.warning(
            "not done, trying again",
            action=type(action).__name__.lower(),
            run=str(action.run_id),
            problem=text,
        )


def _same(before: Sequence[object], now: Sequence[object]) -> bool:
    """Whether both hold the same objects in the same order."""
    return len(before) == len(now) and all(map(operator.is_, before, now))


def _nodes_in_service(listing: Listing) -> frozenset[str]:
    return frozenset(node_id for node_id, node in listing.nodes.items() if not node.retired)


def is_free(port: int) -> bool:
    """Whether a rank could listen on this port now, under each of the loopback addresses."""
    families = [(socket.AF_INET, "127.0.0.1")]
    if socket.has_dualstack_ipv6():
        families.append((socket.AF_INET6, "::1"))
    for family, address in families:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as problem:
                # A machine may have IPv6 without this address.
                if problem.errno != errno.EADDRNOTAVAIL:
                    return False
    return True


@dataclass(frozen=True, slots=True)
class KnownDelay:
    """Why a run waited to start when it was last evaluated, and the problem that was known then."""

    delay: tuple[int, str] | None
    problem: str


@dataclass(frozen=True, slots=True)
class DelayReport:
    """When the next report may be due, and why each run waited when it was last evaluated."""

    due_at: datetime | None
    known: dict[RunId, KnownDelay]


def report_delays(
    tx: Tx,
    runs: Iterable[Run],
    listing: Listing,
    *,
    problems: Mapping[RunId, str],
    policy: DelayPolicy,
    known: Mapping[RunId, KnownDelay] | None = None,
) -> DelayReport:
    """Publish why launched runs, or roles of them, have not started, if that changed. ``known``:
    runs of which nothing changed since they were last evaluated, but perhaps the problem."""
    due, delays = list[datetime](), dict[RunId, KnownDelay]()
    for run in runs:
        problem = problems.get(run.id, "")
        before = known.get(run.id) if known is not None else None
        if before is None or before.problem != problem:
            observed = listing.runs.get(run.id)
            if observed is not None:
                observed = rank_restarts.current(run, observed)
            before = KnownDelay(start_delays.delay_of(run, observed, problem), problem)
        delays[run.id] = before
        nodes = start_delays.nodes_of(listing.runs.get(run.id))
        event = start_delays.next_delay_event(run, before.delay, tx.now, policy, nodes)
        if isinstance(event, datetime):
            due.append(event)
        elif event is not None:
            tx.emit(event)
            tx.put(start_delays.reported(run, event))
    return DelayReport(min(due, default=None), delays)
