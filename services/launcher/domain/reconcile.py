"""Decides the next actions for one run from its row and the latest scan. Called by ``worklist.py``
for runs with changes; pure, so that stepping a run again after a crash yields the remaining work.

Silence proves nothing: a run is over when the end of each rank was observed, or when its nodes have
carried out the order to end it and none of it runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from libs.contracts import completion, restart_rules
from libs.contracts.ids import RunId
from libs.contracts.messages import ExitKind, FaultClass, Placement, PreemptMode, RankExit, RunExit
from services.launcher.domain import (
    debug_runs,
    exits,
    fault_classes,
    rank_faults,
    rank_restarts,
    role_order,
)
from services.launcher.domain.grace_periods import (
    STAGED,
    GracePeriods,
    grace_seconds,
    is_cut_short,
)
from services.launcher.domain.model import (
    EndCause,
    Fault,
    Listing,
    ObservedRank,
    ObservedRun,
    RankState,
    Refused,
    Run,
    RunState,
)
from services.launcher.domain.run_lifecycle import Trigger, move
from services.launcher.domain.verdicts import Verdicts


@dataclass(frozen=True, slots=True)
class Launch:
    """Start every rank that does not exist yet, or only these where others have to wait."""

    run_id: RunId
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to each rank's main process."""

    run_id: RunId
    signal: int


@dataclass(frozen=True, slots=True)
class End:
    """End every process of the run, and let none begin any more."""

    run_id: RunId
    # A kill leaves its ranks less time than they had.
    cut_short: bool = False


@dataclass(frozen=True, slots=True)
class EndRanks:
    """End the processes of these ranks, and let none of the run begin any more."""

    run_id: RunId
    ranks: tuple[int, ...]
    grace_seconds: float


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop the runtime's records of the run."""

    run_id: RunId


Action = Launch | Signal | End | EndRanks | Forget


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits of this module."""

    # How long a gang may take to exit after its acknowledgement.
    exit_grace: timedelta
    # How long a rank may be pending with a fault.
    pending_limits: rank_faults.PendingLimits = field(default_factory=rank_faults.PendingLimits)
    # How long processes have to leave that the launcher ends.
    grace: GracePeriods = field(default_factory=GracePeriods)


@dataclass(frozen=True, slots=True)
class Scan:
    """One listing, and the actions that all their nodes had carried out before it."""

    listing: Listing
    done: frozenset[Action] = frozenset()
    # Runs that the runtime will never launch as ordered.
    refused: Mapping[RunId, Refused] = field(default_factory=dict[RunId, Refused])
    # Nodes that answer, but could not start a run at the last try.
    unable: Mapping[RunId, frozenset[str]] = field(default_factory=dict[RunId, frozenset[str]])
    # Rank and start of processes that have answered the launcher's probes.
    probed: Mapping[RunId, frozenset[tuple[int, int]]] = field(
        default_factory=dict[RunId, frozenset[tuple[int, int]]]
    )


@dataclass(frozen=True, slots=True)
class RunView:
    """The input of one run's step, beside its row."""

    scan: Scan
    # Without ends after which a rank is started again.
    observed: ObservedRun
    # All that the runtime lists of it.
    listed: ObservedRun
    # An older attempt of the task is not over; a newer one is assigned.
    must_wait: bool
    superseded: bool
    # Rank and start of processes that have reported that they are ready.
    reported: frozenset[tuple[int, int]] = frozenset()
    # The leader has not observed the run on all its nodes before.
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """The new row of the run, the actions for it, and the latest time of its next evaluation. The
    row is None if only remains of the run exist."""

    run: Run | None
    actions: tuple[Action, ...] = ()
    due_at: datetime | None = None


def step(run: Run, view: RunView, now: datetime, policy: Policy) -> Step:
    """Advance a run by what was observed."""
    if run.state is RunState.EARLY_REQUEST:
        return Step(run)
    if not view.superseded:
        run = rank_restarts.note(run, view.listed, now)
    run = debug_runs.note(run, view.listed)
    view = replace(view, observed=rank_restarts.current(run, view.listed))
    if view.is_new:
        run = role_order.renew(rank_restarts.renew(run, view.observed, now), now)
    after = _advance(run, view, now, policy)
    due: list[datetime] = []
    if after.state in (RunState.ASSIGNED, RunState.RUNNING) and after.leaves_since is not None:
        due.append(after.leaves_since + policy.exit_grace)
    if _has_to_start(after):
        due += [at for _, at in _pending_faults(view.observed, policy) if at is not None]
        due += rank_restarts.due(after, view.observed, now)
        due += [limit.at for limit in role_order.limits(after, view.observed.ranks)]
    stage = _end_stage(after, view, now, policy)
    if stage is not None:
        due.append(stage.due_at)
    return Step(after, tuple(_actions(after, view, now, stage)), min(due, default=None))


def step_orphan(observed: ObservedRun | None) -> Step:
    """Remove a run without a row (its row was dropped, or the tables were restored)."""
    if observed is None:
        return Step(None)
    return Step(
        None, (Forget(observed.run_id) if _nothing_left(observed) else End(observed.run_id),)
    )


def answers(node_id: str, listing: Listing) -> bool:
    """Whether a listing is complete for a node. True also for a node that the runtime no longer
    has."""
    node = listing.nodes.get(node_id)
    return node is None or node.node.ready


def _advance(run: Run, view: RunView, now: datetime, policy: Policy) -> Run:
    """The run after this scan; each step is one transition of the lifecycle."""
    run = _note_ready(_note_signal(run, view, now), view)
    run = role_order.note(run, view.observed.ranks, now)
    if run.state is RunState.ASSIGNED and _first_exist(run, view):
        run = _started(run, view.observed, now)
    if run.state is RunState.RUNNING and _all_ended(run, view):
        return _exited(run, view.listed, now)
    if run.state in (RunState.ASSIGNED, RunState.RUNNING):
        why = _why_end(run, view, now, policy)
        if why is not None:
            # Once the run is ended, the ranks that have not begun are no longer listed.
            failed = _hanging_nodes(run, view) if run.start_expired else why.nodes
            state = move(run.state, Trigger.END_ORDERED)
            run = _requested_before(run, now)
            run = replace(run, state=state, end_cause=why.cause, end_note=why.note, ending_at=now)
            run = replace(run, end_rank=why.rank, end_fault=why.fault, failed_nodes=failed)
    if run.state is RunState.ENDING and _is_over(run, view):
        return _exited(run, view.listed, now)
    if run.state is RunState.EXITED and _is_forgotten(run, view):
        return replace(run, state=move(run.state, Trigger.FORGOTTEN))
    return run


class _WhyEnd(NamedTuple):
    """Why a run has to end now, with what the runtime may forget until its end is recorded."""

    cause: EndCause
    note: str = ""
    rank: RankExit | None = None
    fault: Fault | None = None
    # On which nodes a start hangs.
    nodes: tuple[str, ...] = ()


def _why_end(run: Run, view: RunView, now: datetime, policy: Policy) -> _WhyEnd | None:
    """Why the run has to end now; None: it goes on."""
    ranks = view.observed.ranks.values()
    verdicts = Verdicts(run, view.observed)
    match end_cause(verdicts, view.scan.listing, now, policy):
        case EndCause.SUCCEEDED:
            decided = verdicts.decided
            assert decided is not None, "a rule was met"
            return _WhyEnd(EndCause.SUCCEEDED, exits.success_of(decided, verdicts.failures))
        case EndCause.RANK_FAILED:
            failed = verdicts.failed_rank
            exit_ = exits.rank_exit(failed) if failed else None
            return _WhyEnd(EndCause.RANK_FAILED, verdicts.failure, exit_)
        case EndCause.RANK_LOST:
            fault = exits.fault_of_loss(ranks)
            return _WhyEnd(EndCause.RANK_LOST, exits.first_loss(ranks), fault=fault)
        case None:
            pass
        case cause:
            return _WhyEnd(cause)
    if _has_to_start(run):
        found = _why_not_startable(run, view, now, policy) or _why_not_restarted(run, view, now)
        if found is not None:
            return found
    return _WhyEnd(EndCause.SUPERSEDED) if view.superseded else None


def _has_to_start(run: Run) -> bool:
    """Whether ranks of the run have to start in their times. Once it leaves, none may start, and
    the others save for as long as they may, whatever a rank that has not begun waits for."""
    if run.state not in (RunState.ASSIGNED, RunState.RUNNING) or run.is_leaving:
        return False
    starts = run.state is RunState.ASSIGNED or run.restarts or role_order.waiting_roles(run)
    return bool(starts)


def _why_not_startable(run: Run, view: RunView, now: datetime, policy: Policy) -> _WhyEnd | None:
    """Why ranks will never start, or never again: a refusal, a fault that has lasted too long, or a
    role for which another one waits in vain."""
    refused = view.scan.refused.get(run.id)
    for rank, at in _pending_faults(view.observed, policy):
        if refused is None and at is not None and now >= at:
            assert rank.fault is not None, "only a rank with a fault is due"
            refused = Refused(rank.fault, f"rank {rank.rank} on {rank.node_id}: {rank.note}")
    if refused is not None:
        own = rank_faults.is_own_fault(refused.fault)
        cause = EndCause.CANNOT_START if own else EndCause.REJECTED_BY_SITE
        return _WhyEnd(cause, refused.text, fault=refused.fault)
    plan = role_order.start_plan(run, view.observed.ranks)
    if plan is not None and plan.never:
        return _WhyEnd(EndCause.CANNOT_START, plan.never)
    for limit in role_order.limits(run, view.observed.ranks):
        if now < limit.at:
            continue
        if not limit.absent:
            return _WhyEnd(EndCause.CANNOT_START, limit.text)
        nodes = _hanging_nodes(run, view, limit.absent)
        return _WhyEnd(EndCause.REJECTED_BY_SITE, limit.text, nodes=nodes)
    return None


def _why_not_restarted(run: Run, view: RunView, now: datetime) -> _WhyEnd | None:
    """Why a rank that is to be restarted counts as lost: its time is over, and its node, which
    answers, does not run it. Silent nodes prove nothing: they are fenced."""
    places = {place.rank: place.node_id for place in run.placements}
    for each in rank_restarts.overdue(run, view.observed, now):
        if answers(places.get(each.rank, ""), view.scan.listing):
            limit = f"{run.start_limit.total_seconds():.0f} s"
            note = f"rank {each.rank} was not restarted within {limit}"
            return _WhyEnd(EndCause.RANK_LOST, note)
    return None


def _pending_faults(
    observed: ObservedRun, policy: Policy
) -> list[tuple[ObservedRank, datetime | None]]:
    """Ranks that are pending with a fault, and the time at which that ends the run."""
    found: list[tuple[ObservedRank, datetime | None]] = []
    for rank in observed.ranks.values():
        if rank.state is RankState.PENDING and rank.fault is not None and rank.fault_since:
            pending_limit = rank_faults.pending_limit(rank.fault, policy.pending_limits)
            found.append(
                (rank, None if pending_limit is None else rank.fault_since + pending_limit)
            )
    return found


def end_cause(
    verdicts: Verdicts, listing: Listing, now: datetime, policy: Policy
) -> EndCause | None:
    """Why this run's processes have to be ended now, or None. The first reason decides."""
    run, observed = verdicts.run, verdicts.observed
    requests = (run.kill_requested_at, run.preempt_requested_at, run.yield_requested_at)
    if any(at is not None for at in requests):
        kill = run.kill_requested_at is not None
        cause = EndCause.KILL if kill else _leaving_cause(run, observed, now, policy)
        running = run.state is RunState.RUNNING
        starting = role_order.waiting_roles(run) if running else frozenset[str]()
        if cause is None and rank_restarts.only_waits(run, observed, starting):
            # What was to be started can neither save nor leave.
            cause = EndCause.KILL
        # It finished while it was requested to leave.
        done = verdicts.succeeded and run.leaves_since is None and (kill or cause is None)
        return EndCause.SUCCEEDED if done else cause
    if verdicts.succeeded:
        return EndCause.SUCCEEDED
    if any(rank.state is RankState.LOST for rank in observed.ranks.values()):
        return EndCause.RANK_LOST
    if verdicts.decided is not None:
        return EndCause.RANK_FAILED
    lost = run.state is RunState.RUNNING and _vanished(run, observed, listing)
    return EndCause.RANK_LOST if lost else None


def _leaving_cause(
    run: Run, observed: ObservedRun, now: datetime, policy: Policy
) -> EndCause | None:
    """Why a run that is to leave, or wants to, is ended. A rank that left early is no reason:
    another one may still be saving, until the acknowledgement or the scheduler's deadline."""
    assert run.spec is not None, "an assigned run has its specification"
    if run.preempt_requested_at is not None:
        if run.state is RunState.ASSIGNED or role_order.leader_waits(run, observed.ranks):
            return EndCause.PREEMPTED_BEFORE_START
        if run.spec.preemption.mode is PreemptMode.KILL:
            return EndCause.KILL
    if run.acked_at is not None and len(role_order.end_stages(run)) > 1:
        # Its roles are asked to end one after the other, within the exit grace.
        return EndCause.GRACE_OVER
    over = run.leaves_since is not None and now >= run.leaves_since + policy.exit_grace
    return EndCause.GRACE_OVER if over else None


def _vanished(run: Run, observed: ObservedRun, listing: Listing) -> bool:
    """Whether a node that answers does not know a rank that once existed. Of a role whose start is
    not complete, ranks that do not exist are started."""
    awaited = {each.rank for each in rank_restarts.waiting(run, observed)}
    starting = role_order.waiting_roles(run)
    return any(
        place.rank not in observed.ranks
        and place.rank not in awaited
        and place.role not in starting
        and answers(place.node_id, listing)
        for place in run.placements
    )


def _first_exist(run: Run, view: RunView) -> bool:
    """Whether the process of each rank that waits for nothing exists or existed."""
    ranks = view.observed.ranks
    return all(role_order.exists(ranks.get(rank)) for rank in role_order.first_ranks(run))


def failed_nodes_of(run: Run, kind: ExitKind, ranks: Iterable[ObservedRank]) -> tuple[str, ...]:
    """The nodes that are at fault for a failed start of a run, or of a role of it."""
    if kind is not ExitKind.LOST:
        return ()
    begun = role_order.begun_ranks(run)
    return tuple(
        sorted(
            rank.node_id
            for rank in ranks
            if rank.rank not in begun
            and role_order.lost_at_its_start(rank)
            and (rank.fault is None or rank.fault in rank_faults.NODE_FAULTS)
        )
    )


def _hanging_nodes(
    run: Run, view: RunView, ranks: Collection[int] | None = None
) -> tuple[str, ...]:
    """The nodes on which the start of a run hangs, or of these ranks: a rank there does not begin,
    or cannot be created."""
    if ranks is None and run.state is not RunState.ASSIGNED:
        return ()
    unable = view.scan.unable.get(run.id, frozenset())

    def hangs(place: Placement) -> bool:
        rank = view.observed.ranks.get(place.rank)
        if rank is None:
            return place.node_id in unable
        return rank.state is RankState.PENDING and rank.fault in (None, Fault.BEING_MADE)

    places = (place for place in run.placements if ranks is None or place.rank in ranks)
    return tuple(sorted({place.node_id for place in places if hangs(place)}))


def _all_ended(run: Run, view: RunView) -> bool:
    ranks = view.observed.ranks
    return all(place.rank in ranks and ranks[place.rank].over for place in run.placements)


def _is_over(run: Run, view: RunView) -> bool:
    if _all_ended(run, view):
        return True
    return _is_ordered_to_end(run, view) and _all_answer(run, view) and _nothing_left(view.listed)


def _is_ordered_to_end(run: Run, view: RunView) -> bool:
    return End(run.id) in view.scan.done or End(run.id, cut_short=True) in view.scan.done


def _all_answer(run: Run, view: RunView) -> bool:
    """Whether the listing is complete for all nodes of the run: on a silent node, ranks that are
    not listed may still run. A fenced node reports that nothing is left."""
    listing, listed = view.scan.listing, view.observed.node_ids
    return view.observed.whole or all(
        place.node_id in listed or answers(place.node_id, listing) for place in run.placements
    )


def _nothing_left(observed: ObservedRun) -> bool:
    return all(rank.over for rank in observed.ranks.values())


def _is_forgotten(run: Run, view: RunView) -> bool:
    return run.id not in view.scan.listing.runs and all(
        answers(place.node_id, view.scan.listing) for place in run.placements
    )


def _note_signal(run: Run, view: RunView, now: datetime) -> Run:
    action = _signal(run)
    if action is not None and action in view.scan.done:
        return replace(run, signalled_at=now)
    return run


def _note_ready(run: Run, view: RunView) -> Run:
    probed = view.scan.probed.get(run.id, ())
    starts = rank_restarts.counts(run)
    reported = (rank for rank, start in view.reported if start == starts.get(rank, 0))
    found = role_order.newly_ready(run, view.observed.ranks, probed)
    return role_order.with_ready(run, (*found, *reported))


def _signal(run: Run) -> Signal | None:
    """The preemption signal, while it is still to be sent."""
    if (
        run.state is not RunState.RUNNING
        or run.spec is None
        or run.spec.preemption.mode is not PreemptMode.SIGNAL
        or run.preempt_requested_at is None
        or run.signalled_at is not None
    ):
        return None
    return Signal(run.id, exits.signal_number(run.spec.preemption.signal))


def _started(run: Run, observed: ObservedRun, now: datetime) -> Run:
    first = role_order.first_ranks(run)
    ranks = (rank for rank in observed.ranks.values() if rank.rank in first)
    times = [rank.started_at for rank in ranks if rank.started_at is not None]
    return replace(run, state=move(run.state, Trigger.STARTED), started_at=max(times, default=now))


def _exited(run: Run, observed: ObservedRun, now: datetime) -> Run:
    assert run.spec is not None, "an assigned run has its specification"
    ranks = tuple(observed.ranks[rank] for rank in sorted(observed.ranks))
    mode, own_rules = run.spec.preemption.mode, completion.has_own(run.spec)
    current = rank_restarts.current(run, observed)
    verdicts = Verdicts(run, current)
    failed, failure = _rank_at_fault(run, current)
    ending = exits.Ending(
        mode=mode,
        signal=exits.signal_number(run.spec.preemption.signal) if mode is PreemptMode.SIGNAL else 0,
        preempt_requested=_requested_in_time(run),
        acked=run.acked_at is not None,
        end_cause=run.end_cause,
        world_size=len(run.placements),
        waited=_waited(run, observed),
        ranks=ranks,
        note=run.end_note or (verdicts.failure if own_rules else ""),
        decided=verdicts.decided,
        own_rules=own_rules,
        failure=failure,
        unfinished=run.yield_requested_at is not None or run.acked_at is not None,
        yielded=_yielded_in_time(run),
        yield_reason=run.yield_reason,
        debug=run.debugs,
    )
    kind = exits.classify(ending)
    if kind is not ExitKind.FAILED:
        failed = None
    fault = fault_classes.fault_of(kind, run.end_fault or exits.fault_of_loss(ranks), failed)
    fault_class = fault_classes.class_of_run(kind, fault, failed)
    times = [rank.exited_at for rank in ranks if rank.exited_at is not None]
    exited_at = max(times, default=now)
    return replace(
        run,
        state=move(run.state, Trigger.EXITED),
        exited_at=exited_at,
        failed_nodes=failed_nodes_of(run, kind, ranks) or run.failed_nodes,
        exit=RunExit(
            attempt=run.attempt,
            kind=kind,
            ranks=tuple(exits.rank_exit(rank) for rank in ranks),
            exited_at=exited_at,
            detail=exits.detail(ending, kind),
            failed_rank=failed.rank if failed else None,
            fault_class=fault_class,
            fault=fault,
            final=failed is not None and _is_final(run, failed, fault_class),
            start_failed=kind is ExitKind.LOST and _start_failed(run, ranks),
            yielded=kind is ExitKind.PREEMPTED and ending.yielded and not ending.preempt_requested,
            debug=run.debugs,
        ),
    )


def _waited(run: Run, observed: ObservedRun) -> int:
    """How many ranks of a run that has started never began because their roles waited."""
    begun = role_order.begun_ranks(run)
    ranks = {place.rank for place in run.placements} - begun - observed.ranks.keys()
    return len(ranks) if run.started_at is not None else 0


def _start_failed(run: Run, ranks: Iterable[ObservedRank]) -> bool:
    """Whether a run was lost because ranks of it could not start."""
    begun = role_order.begun_ranks(run)
    return (
        run.started_at is None
        or run.end_cause is EndCause.REJECTED_BY_SITE
        or any(r.rank not in begun and role_order.lost_at_its_start(r) for r in ranks)
    )


def _rank_at_fault(run: Run, observed: ObservedRun) -> tuple[RankExit | None, str]:
    """How the rank ended that decided a failure, and the same as a text.

    Ranks that ended because the launcher ended the run decide nothing, in whatever way they ended.
    Where the runtime has forgotten the others, the row has what was known before.
    """
    if run.end_cause is EndCause.CANNOT_START:
        return None, ""
    ranks = {
        rank: each
        for rank, each in observed.ranks.items()
        if run.ending_at is None or (each.exited_at and each.exited_at <= run.ending_at)
    }
    # What was found when the end was decided: the times of nodes cannot be compared with ours.
    if run.end_rank is not None:
        return run.end_rank, run.end_note
    failed = Verdicts(run, replace(observed, ranks=ranks)).failed_rank
    failed = failed or Verdicts(run, observed).failed_rank
    return (exits.rank_exit(failed), exits.failure_text(failed)) if failed else (None, "")


def _is_final(run: Run, failed: RankExit, fault_class: FaultClass) -> bool:
    """Whether the restart rule of the failed rank's role allows no further attempt. A program that
    was requested to leave may fail for that reason: then the rule does not apply."""
    assert run.spec is not None, "an assigned run has its specification"
    if _requested_in_time(run):
        return False
    roles = {role.name: role for role in run.spec.roles}
    role = next((roles.get(p.role) for p in run.placements if p.rank == failed.rank), None)
    return role is not None and not restart_rules.wants_restart(
        restart_rules.rule_of(role), failed.code, failed.signal, fault_class
    )


def _yielded_in_time(run: Run) -> bool:
    """Whether its program handed the nodes over on its own before the platform ended the run."""
    at = run.yield_requested_at
    ended = (run.kill_requested_at, run.ending_at)
    return at is not None and all(other is None or at <= other for other in ended)


def _requested_before(run: Run, now: datetime) -> Run:
    """The run with its requests not after ``now``, at which its end is decided: an earlier leader,
    whose clock may be ahead by hours, may have recorded them."""
    requested_at, yielded_at = run.preempt_requested_at, run.yield_requested_at
    if requested_at is not None:
        run = replace(run, preempt_requested_at=min(requested_at, now))
    if yielded_at is not None and _yielded_in_time(run):
        run = replace(run, yield_requested_at=min(yielded_at, now))
    return run


def _requested_in_time(run: Run) -> bool:
    """Whether the run was requested to leave before it was decided to end it. A later request
    changes no decision. ``model.ordered_after`` and ``_requested_before`` keep the order of the
    two, which leaders with different clocks may have recorded."""
    requested_at = run.preempt_requested_at
    return requested_at is not None and (run.ending_at is None or requested_at <= run.ending_at)


def _end_stage(
    run: Run, view: RunView, now: datetime, policy: Policy
) -> role_order.EndStage | None:
    """The stage of a run that ends role by role; None: everything of it ends at once."""
    if run.state is not RunState.ENDING or run.end_cause not in STAGED or is_cut_short(run):
        return None
    if _is_ordered_to_end(run, view):
        return None
    seconds = grace_seconds(run, policy.grace, policy.exit_grace)
    return role_order.end_stage(run, view.listed.ranks, now, seconds)


def _actions(
    run: Run, view: RunView, now: datetime, stage: role_order.EndStage | None
) -> list[Action]:
    """The actions that the new state of a run requires."""
    if run.state is RunState.ASSIGNED and not view.must_wait:
        return _launch(run, view, now)
    if run.state is RunState.RUNNING:
        signal = _signal(run)
        return [signal] if signal is not None else _launch_more(run, view, now)
    if run.state is RunState.ENDING and stage is not None:
        part = EndRanks(run.id, stage.ranks, stage.grace_seconds)
        return [] if part in view.scan.done else [part]
    if run.state is RunState.ENDING:
        end = End(run.id, is_cut_short(run))
        return [] if end in view.scan.done else [end]
    if run.state is RunState.EXITED and run.id in view.scan.listing.runs:
        # Orders of an earlier leader may take effect only now.
        return [Forget(run.id) if _nothing_left(view.listed) else End(run.id)]
    return []


def _launch(run: Run, view: RunView, now: datetime) -> list[Action]:
    """Start the ranks that do not exist yet, if their roles may start and no pause before a restart
    is left."""
    ranks = view.observed.ranks
    if run.is_leaving:
        return []
    plan = role_order.start_plan(run, ranks)
    everyone = frozenset(place.rank for place in run.placements)
    may = everyone if plan is None else plan.ranks
    pausing = {each.rank for each in run.restarts if each.not_before > now}
    may -= pausing - ranks.keys()
    if may <= ranks.keys():
        return []
    return [Launch(run.id, None if may == everyone else tuple(sorted(may)))]


def _launch_more(run: Run, view: RunView, now: datetime) -> list[Action]:
    """Start the ranks whose pause before a restart is over, and those of later roles."""
    if run.is_leaving:
        return []
    known, observed = view.observed.ranks, view.observed
    again = rank_restarts.waiting(run, observed)
    pausing = {each.rank: each.not_before > now for each in again}
    plan = role_order.start_plan(run, known)
    begun = role_order.begun_ranks(run) if plan is not None else frozenset[int]()
    more = plan.ranks - begun - known.keys() if plan is not None else frozenset[int]()
    ranks = (more - pausing.keys()) | {rank for rank, pauses in pausing.items() if not pauses}
    return [Launch(run.id, tuple(sorted(ranks)))] if ranks else []
