"""The end of a simulation: has everything ended, and does everything agree?

``tests.kit.checkers`` checks what crossed the bus and what the processes did. The functions here
check tables, projections and what the programs computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from libs.contracts import messages as m
from libs.contracts.ids import RunId, TaskId
from libs.store.tables import Tables
from services.gateway import rows as gateway
from services.gateway.tables import TABLES as GATEWAY
from services.launcher.domain import model as launcher
from services.launcher.tables import TABLES as LAUNCHER
from services.log_collector import store as logs
from services.log_collector.domain import TIMESTAMP_BYTES, OutputKey, unpacked
from services.log_collector.tables import TABLES as LOGS
from services.quota import store as quota
from services.quota.tables import TABLES as QUOTA
from services.scheduler import store as scheduler
from services.scheduler.domain.facts.snapshot import Snapshot
from services.scheduler.domain.model.rows import Inventory, Limit, Task
from services.scheduler.domain.model.rows import Node as SchedulerNode
from services.scheduler.tables import TABLES as SCHEDULER
from services.submit import store as submit
from services.submit.store import TaskRow as SubmittedRow
from services.submit.tables import TABLES as SUBMIT
from tests.kit.checkers import ENDED, LIVENESS, SAFETY, verdict
from tests.kit.clock import START
from tests.sim.plan import NODE_CPUS, NODE_MEMORY_BYTES, SILENT_SECONDS
from tests.sim.programs import computed

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


def rows(sim: Simulation, tables: Tables, kind: type[Any]) -> list[Any]:
    """What one service keeps."""
    return list(sim.database.schema(tables.schema).table(tables.shape(kind)).rows.values())


def unfinished(sim: Simulation) -> list[str]:
    """What is still under way; empty when the simulation is over."""
    return [text for part in _UNFINISHED for text in part(sim)]


def _tasks(sim: Simulation) -> Iterator[str]:
    ended = {row.task_id for row in rows(sim, SCHEDULER, scheduler.EndedTask)}
    for task in rows(sim, SCHEDULER, Task):
        yield f"task {task.id} is {task.state} since its version {task.version}"
    for task_id in sim.accepted:
        if task_id not in ended:
            yield f"task {task_id} was accepted and has not ended"


def _expiring(sim: Simulation) -> Iterator[str]:
    """What was granted for a while goes by itself."""
    for row in rows(sim, QUOTA, quota.QuotaRow):
        if row.expires_at is not None and not row.removed:
            yield f"the row {row.scope} expires at {row.expires_at}"


def _queues(sim: Simulation) -> Iterator[str]:
    for name, durable in sim.broker._durables.items():
        left = len(durable.pending) + len(durable.echoes)
        left += len(sim.broker._stream) - durable.position
        if left:
            yield f"{name} has {left} events to receive"
    for name in sorted(sim.database._schemas):
        left = len(sim.database.schema(name).unpublished)
        if left:
            yield f"{name} has {left} events to publish"


def _runs(sim: Simulation) -> Iterator[str]:
    for run in rows(sim, LAUNCHER, launcher.Run):
        if run.state is not launcher.RunState.EARLY_REQUEST:
            yield f"run {run.id} is {run.state} at the launcher"
    for run_id in sim.cluster.runs:
        yield f"run {run_id} is kept by the runtime"
    for run in rows(sim, LOGS, logs.RunRow):
        if not run.collected:
            yield f"the output of {run.task_id}.{run.attempt} is not collected"


_UNFINISHED: tuple[Callable[[Simulation], Iterator[str]], ...] = (
    _tasks,
    _expiring,
    _queues,
    _runs,
)


def check_all(sim: Simulation) -> None:
    """Run every check; their complaints are added to the simulation's."""
    for text in verdict(sim.history(), (*SAFETY, *LIVENESS)):
        sim.complain(text)
    for part in CHECKS:
        for text in part(sim):
            sim.complain(f"{part.__name__}: {text}")


def nothing_was_dead_lettered(sim: Simulation) -> Iterator[str]:
    """No event of ours is one that its receiver cannot handle."""
    for letter in sim.broker.dead_letters:
        yield f"{letter.subject}: {letter.reason}"


def all_capacity_is_free(sim: Simulation) -> Iterator[str]:
    """Nothing is held when nothing runs: in the tables and in the leader's memory."""
    for slot in rows(sim, SCHEDULER, scheduler.SlotRow):
        yield f"slot {slot.node_id}/{slot.gpu} is held by {slot.task_id}.{slot.attempt}"
    for lease in rows(sim, LAUNCHER, launcher.PortLease):
        yield f"port {lease.port} is leased to {lease.task_id}.{lease.attempt}"
    kinds = (Task, SchedulerNode, Limit)
    kept = [row for kind in kinds for row in rows(sim, SCHEDULER, kind)]
    for process in sim.of("scheduler"):
        brain = process.service.loops[0].step.__self__  # type: ignore[attr-defined]
        # A deposed leader may hold old state until it notices that another one leads.
        leader = sim.database.schema("scheduler").leader
        if process.alive and leader is not None and leader in process.store._leaderships:
            held = brain.snapshot()
            truth = Snapshot.of(
                tasks=[row for row in kept if isinstance(row, Task)],
                nodes=[row for row in kept if isinstance(row, SchedulerNode)],
                settings=held.settings,
            )
            free, true = dict(held.capacity.free), dict(truth.capacity.free)
            waiting = sum(pool.waiting_count() for pool in held.pools.values())
            if free != true or held.held or waiting:
                yield f"the leader believes {free}, it is {true}"


def projections_agree(sim: Simulation) -> Iterator[str]:
    """Gateway and submit show the state of each task that the scheduler has."""
    shown = {row.task_id: row for row in rows(sim, GATEWAY, gateway.TaskRow)}
    submitted = {row.task_id: row for row in rows(sim, SUBMIT, SubmittedRow)}
    for ended in rows(sim, SCHEDULER, scheduler.EndedTask):
        last, row = ended.last, shown.get(ended.task_id)
        state = last.state.name.lower()
        if row is None or (row.state, row.state_version, row.attempt, row.observed_revision) != (
            state,
            last.version,
            last.attempt,
            last.observed_revision,
        ):
            yield f"{ended.task_id} ended as {state} v{last.version}, the gateway shows {row}"
        known = submitted.get(ended.task_id)
        if known is None or not known.ended or known.state is not last.state:
            yield f"{ended.task_id} ended as {state}, submit keeps {known}"
        if row is not None and known is not None:
            wanted = known.revision, known.goal.name.lower(), known.debug
            if (row.revision, row.goal, row.debug) != wanted:
                yield f"{row.task_id}: the gateway shows {row.revision} {row.goal} {row.debug}"
            if last.observed_revision != known.revision and known.state not in ENDED:
                yield f"{row.task_id}: revision {known.revision} was never observed"
    for run in rows(sim, GATEWAY, gateway.RunRow):
        if run.live or (run.assigned_at is not None and run.exit is None):
            yield f"the gateway shows {run.task_id}.{run.attempt} as live"


def nodes_and_limits_agree(sim: Simulation) -> Iterator[str]:
    """Every service has the launcher's nodes and inventory, and quota's limits."""
    nodes = rows(sim, LAUNCHER, launcher.NodeRow)
    truth = {row.node_id: row.version for row in nodes}
    for name, known in (
        ("gateway", {r.node_id: r.version for r in rows(sim, GATEWAY, gateway.NodeRow)}),
        ("scheduler", {r.id: r.version for r in rows(sim, SCHEDULER, SchedulerNode)}),
        ("submit", {r.node_id: r.version for r in rows(sim, SUBMIT, submit.NodeRow)}),
    ):
        if known != truth:
            yield f"the launcher has nodes {truth}, {name} has {known}"
    listed = sorted(row.node_id for row in nodes if not row.removed)
    for inventory in rows(sim, SCHEDULER, Inventory):
        if sorted(inventory.node_ids) != listed:
            yield f"the launcher lists {listed}, the scheduler {inventory}"
    for first in rows(sim, SUBMIT, submit.InventoryRow):
        if first.missing:
            yield f"submit waits for nodes of {first}"
    if sum(row.nodes for row in rows(sim, SUBMIT, submit.ShapeRow)) != len(listed):
        yield f"the launcher lists {listed}, submit {rows(sim, SUBMIT, submit.ShapeRow)}"
    limits = {_said_of(row) for row in rows(sim, QUOTA, quota.QuotaRow)}
    for name, known in (
        ("scheduler", rows(sim, SCHEDULER, Limit)),
        ("submit", rows(sim, SUBMIT, submit.QuotaRow)),
    ):
        if {_said_of(row) for row in known} != limits:
            yield f"quota has {limits}, {name} has {known}"


def _said_of(row: Any) -> tuple[object, ...]:
    return row.version, row.removed, row.grant, row.unlimited, row.limit, row.level_max


def amounts_are_never_overbooked(sim: Simulation) -> Iterator[str]:
    """The processes on a node never request more CPUs or memory together than it has."""
    by_node: dict[str, list[tuple[float, int, float, int]]] = {}
    for span in sim.cluster.spans():
        job = sim.accepted.get(span.task_id)
        if job is None:
            continue
        cpus, memory = job.cpus or 0.0, job.memory_bytes or 0
        changes = by_node.setdefault(span.node_id, [])
        # Where an end and a start fall together, the end is first.
        changes.append((span.start, 1, cpus, memory))
        if span.end is not None:
            changes.append((span.end, 0, -cpus, -memory))
    for node_id, changes in by_node.items():
        cpus, memory = 0.0, 0
        for at, _, more_cpus, more_memory in sorted(changes):
            cpus, memory = cpus + more_cpus, memory + more_memory
            if cpus > NODE_CPUS or memory > NODE_MEMORY_BYTES:
                yield f"{node_id} is asked for {cpus} CPUs and {memory} bytes at {at}"


def the_ledger_is_complete(sim: Simulation) -> Iterator[str]:
    """Each run that started has its use entered once."""
    history = sim.history()
    started = {(e.task_id, e.attempt) for e in history.of(m.RunStarted)}
    used: dict[tuple[str, int], set[float]] = {}
    for event in history.of(m.UsageRecorded):
        used.setdefault((event.task_id, event.attempt), set()).add(event.gpu_seconds)
    for key in sorted(started - used.keys()):
        yield f"the use of {key[0]}.{key[1]} was never entered"
    for key in sorted(used.keys() - started):
        yield f"use of {key[0]}.{key[1]} was entered, which never started"
    for key, amounts in used.items():
        if len(amounts) > 1:
            yield f"the use of {key[0]}.{key[1]} was entered as {sorted(amounts)}"


def the_event_log_is_whole(sim: Simulation) -> Iterator[str]:
    """Positions have no gap and no fact is missing or there twice."""
    kept = sorted(rows(sim, GATEWAY, gateway.EventRow), key=lambda row: row.position)
    if [row.position for row in kept] != list(range(1, len(kept) + 1)):
        yield f"positions have gaps: {len(kept)} rows up to {kept[-1].position}"
    facts: set[str] = set()
    for row in kept:
        if row.fact in facts:
            yield f"{row.fact} is there twice"
        facts.add(row.fact)
    for event in sim.history().of(m.TaskStateChanged):
        if f"task.state_changed/{event.task_id}/{event.version}" not in facts:
            yield f"version {event.version} of {event.task_id} is missing"


def output_is_kept(sim: Simulation) -> Iterator[str]:
    """Every byte that a rank wrote is kept."""
    for key, data in sim.source.outputs.items():
        kept = bytes(sim.archive._written.get(key, b""))
        if kept != bytes(data):
            yield f"{key}: {len(kept)} of {len(data)} bytes are kept"


def output_has_its_times(sim: Simulation) -> Iterator[str]:
    """Every kept byte has a time, and within a rank times never go backwards."""
    for row in rows(sim, LOGS, logs.OutputRow):
        key = OutputKey(row.task_id, row.attempt, row.rank)
        kept = sim.archive._times.get(key, bytearray())
        found = unpacked(kept[: row.timestamps * TIMESTAMP_BYTES])
        offsets, times = [each.offset for each in found], [each.at for each in found]
        if len(found) != row.timestamps:
            yield f"{key}: {len(found)} of {row.timestamps} time stamps are kept"
        if row.size and offsets[:1] != [0]:
            yield f"{key}: the first byte of {row.size} has no time"
        if offsets != sorted(set(offsets)) or max(offsets, default=0) >= max(1, row.size):
            yield f"{key}: time stamps out of order: {offsets} of {row.size} bytes"
        if times != sorted(times):
            yield f"{key}: times go backwards: {times}"


def one_submission_is_one_task(sim: Simulation) -> Iterator[str]:
    """The same client key never makes two tasks."""
    by_name: dict[tuple[str, str], set[str]] = {}
    for event in sim.history().of(m.TaskSubmitted):
        by_name.setdefault((event.owner, event.spec.name), set()).add(event.task_id)
    for name, ids in by_name.items():
        if len(ids) > 1:
            yield f"{name} became {sorted(ids)}"


def programs_computed_the_same(sim: Simulation) -> Iterator[str]:
    """A task that succeeded has done each of its steps, once, as if never interrupted."""
    for ended in rows(sim, SCHEDULER, scheduler.EndedTask):
        if ended.last.state is not m.TaskState.SUCCEEDED:
            continue
        job = sim.accepted.get(ended.task_id)
        result = sim.cluster.results.get((ended.task_id, ended.last.attempt))
        if job is not None and result != computed(job.program.steps):
            yield f"{ended.task_id}.{ended.last.attempt} succeeded with the result {result}"


# Without faults a service receives an event, and notices a deadline, within so many seconds.
NOTICED_SECONDS = 5.0


def _forced(sim: Simulation) -> Iterator[tuple[RunId, m.KillRequested, float]]:
    """Runs of a calm simulation that were asked to leave and ended by force, and how long after the
    first request."""
    asked: dict[RunId, datetime] = {}
    for event in sim.history().events() if sim.plan.is_calm else ():
        if isinstance(event, m.PreemptionRequested):
            asked.setdefault(RunId(TaskId(event.task_id), event.attempt), event.requested_at)
        elif isinstance(event, m.KillRequested):
            run = RunId(TaskId(event.task_id), event.attempt)
            if run in asked:
                yield run, event, (event.requested_at - asked[run]).total_seconds()


def silent_runs_are_not_waited_for(sim: Simulation) -> Iterator[str]:
    """A run whose program never asked whether to leave is soon ended."""
    for run, _, seconds in _forced(sim):
        job = sim.accepted[run.task_id]
        silent = run not in sim.listened and job.mode is m.PreemptMode.SDK
        if silent and seconds > SILENT_SECONDS + NOTICED_SECONDS:
            yield f"{run} never asked, and was waited for {seconds:.1f} s"


def listening_runs_are_not_cut_short(sim: Simulation) -> Iterator[str]:
    """A run that has asked is never treated as one that cannot be asked."""
    for run, event, seconds in _forced(sim):
        at = sim.listened.get(run)
        ended = (event.requested_at - START).total_seconds()
        silently = event.reason.code is m.ReasonCode.NEVER_ASKED
        if silently and at is not None and at + NOTICED_SECONDS < ended:
            yield f"{run} asked {ended - at:.1f} s before it was ended, which was after {seconds} s"


def roles_have_their_time(sim: Simulation) -> Iterator[str]:
    """No run fails because a role was not ready in time: all are ready long before, and where no
    clock of a service jumps, those of nodes do not count."""
    for event in sim.history().events() if sim.plan.is_calm else ():
        if isinstance(event, m.RunExited) and "was not ready within" in event.exit.detail:
            yield f"{event.task_id}.{event.attempt}: {event.exit.detail}"


CHECKS: tuple[Callable[[Simulation], Iterable[str]], ...] = (
    silent_runs_are_not_waited_for,
    listening_runs_are_not_cut_short,
    roles_have_their_time,
    nothing_was_dead_lettered,
    all_capacity_is_free,
    projections_agree,
    nodes_and_limits_agree,
    amounts_are_never_overbooked,
    the_ledger_is_complete,
    the_event_log_is_whole,
    output_is_kept,
    output_has_its_times,
    one_submission_is_one_task,
    programs_computed_the_same,
)


def story(sim: Simulation) -> Iterator[str]:
    """What happened, for ``--verbose``: strikes and logs, then the events of affected tasks."""
    yield from sim.notes
    text = " ".join(sim.complaints)
    affected = {task_id for task_id in sim.accepted if task_id in text}
    seen: set[str] = set()
    for envelope in sim.broker.history:
        task_id = getattr(envelope.message, "task_id", "")
        if task_id in affected and envelope.id not in seen:
            seen.add(envelope.id)
            yield f"{envelope.time:%H:%M:%S.%f} {envelope.id} {envelope.message!r}"[:600]
