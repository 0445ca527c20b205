"""A rule machine: messages, crashes, failing calls and dying ranks in any order, against a model of
a runtime that follows its orders exactly. The invariants are the launcher's promises. In addition,
each round must agree with a launcher that starts with the same rows and the same scan.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from libs.contracts.ids import RunId
from libs.contracts.messages import PreemptMode
from services.launcher.domain.model import (
    Fault,
    Listing,
    ObservedRank,
    RankState,
    Refused,
    Run,
    RunState,
)
from services.launcher.domain.reconcile import (
    Action,
    End,
    Forget,
    Launch,
    Policy,
    Scan,
    Signal,
)
from services.launcher.domain.run_lifecycle import LIVE, Trigger, move
from services.launcher.domain.worklist import Worklist
from tests.kit.clock import at
from tests.kit.launcher_builders import (
    a_listing,
    a_spec,
    exited,
    lost,
    observed,
    pending,
    placements,
    reconcile,
    run_id,
)

RANKS = 2
POLICY = Policy(exit_grace=timedelta(seconds=3))


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0
        self.rows: dict[RunId, Run] = {}
        self.published_exited: list[RunId] = []
        self.published_started: list[RunId] = []
        # Ordered to end, and not gone yet.
        self.dying: set[RunId] = set()
        # The runtime: what exists, what may not begin any more, every process ever begun.
        self.ranks: dict[RunId, dict[int, ObservedRank]] = {}
        self.ended: set[RunId] = set()
        self.begun: list[tuple[RunId, int]] = []
        # Launches that are always refused.
        self.refusing: dict[RunId, Refused] = {}
        self.refused: dict[RunId, Refused] = {}
        # The launcher's memory.
        self.scan: Scan | None = None
        self.work = Worklist()
        # The rows that it received, and the last scan of the runtime.
        self.applied: dict[RunId, Run] = {}
        self.last = Listing()
        self.asked: dict[RunId, Action] = {}
        self.doing: list[Action] = []
        self.done: set[Action] = set()
        self.newest = 0

    # What other services publish

    @precondition(lambda self: len(set(self.published_exited)) == self.newest)
    @rule(mode=st.sampled_from([PreemptMode.SDK, PreemptMode.SIGNAL, PreemptMode.KILL]))
    def assign(self, mode: PreemptMode) -> None:
        """The scheduler assigns the next attempt only after the exit of the last one."""
        self.newest += 1
        run = run_id(attempt=self.newest)
        row = self.rows.get(run, Run("task", self.newest, RunState.EARLY_REQUEST))
        state = move(row.state, Trigger.ASSIGNED)
        spec = a_spec(RANKS, mode=mode)
        self.rows[run] = replace(row, state=state, spec=spec, placements=placements(RANKS))

    @rule(early=st.booleans(), kill=st.booleans())
    def request(self, early: bool, kill: bool) -> None:
        """A kill or a preemption, also before its assignment."""
        attempt = self.newest + (1 if early else 0)
        run = run_id(attempt=attempt)
        row = self.rows.get(run)
        if row is None:
            if not early:
                return
            row = Run("task", attempt, RunState.EARLY_REQUEST)
        if row.state not in (*LIVE, RunState.EARLY_REQUEST):
            return
        now = at(self.seconds)
        if kill:
            row = replace(row, kill_requested_at=row.kill_requested_at or now)
        else:
            row = replace(row, preempt_requested_at=row.preempt_requested_at or now)
        self.rows[run] = row

    @precondition(lambda self: any(run.preempt_requested_at for run in self.rows.values()))
    @rule()
    def acknowledge(self) -> None:
        run = run_id(attempt=self.newest)
        row = self.rows.get(run)
        if row is not None and row.state in LIVE and row.preempt_requested_at:
            self.rows[run] = replace(row, acked_at=row.acked_at or at(self.seconds))

    # What happens to processes

    @precondition(lambda self: any(self.ranks.values()))
    @rule(
        rank=st.integers(0, RANKS - 1),
        how=st.sampled_from([exited(0), exited(0, 1), exited(0, 75), exited(0, None, 10), lost(0)]),
    )
    def leave(self, rank: int, how: ObservedRank) -> None:
        ranks = self.ranks.get(run_id(attempt=self.newest), {})
        if rank in ranks and ranks[rank].state is RankState.RUNNING:
            ranks[rank] = replace(how, rank=rank, node_id=f"local-{rank}")

    @precondition(lambda self: any(self.ranks.values()))
    @rule(rank=st.integers(0, RANKS - 1))
    def start(self, rank: int) -> None:
        """A pending rank's process begins."""
        run = run_id(attempt=self.newest)
        found = self.ranks.get(run, {}).get(rank)
        if found is not None and found.state is RankState.PENDING:
            self.ranks[run][rank] = observed(rank)
            self.begun.append((run, rank))

    @precondition(lambda self: any(self.ranks.values()))
    @rule(
        rank=st.integers(0, RANKS - 1), fault=st.sampled_from([Fault.IMAGE_PULL, Fault.BEING_MADE])
    )
    def falter(self, rank: int, fault: Fault) -> None:
        """A pending rank cannot start, or takes its time."""
        ranks = self.ranks.get(run_id(attempt=self.newest), {})
        if rank in ranks and ranks[rank].state is RankState.PENDING:
            ranks[rank] = pending(rank, fault=fault, fault_since=at(self.seconds))

    @rule(fault=st.sampled_from([Fault.OVER_QUOTA, Fault.INVALID_POD]))
    def refuse(self, fault: Fault) -> None:
        """The next launch is refused."""
        self.refusing[run_id(attempt=self.newest)] = Refused(fault, "refused")

    @rule(seconds=st.sampled_from([0.5, 2.0, 5.0]))
    def wait(self, seconds: float) -> None:
        self.seconds += seconds

    # The launcher

    def take_dirty(self) -> None:
        """Begin to carry out what was asked: decisions may fall in between."""
        if not self.doing:
            self.doing, self.asked = list(self.asked.values()), {}

    @rule(fails=st.sets(st.integers(0, 3)), half=st.booleans(), hints=st.booleans())
    def act(self, fails: set[int], half: bool, hints: bool = False) -> None:
        """Carry out the actions (some calls fail, some only half reach), then scan."""
        for number, action in enumerate(self.doing):
            if number not in fails:
                self.carry_out(action)
            elif half and isinstance(action, Launch):
                self.make(action.run_id, 0)
        self.doing = []
        listing, before = self.listing(), self.last
        if hints:
            # A runtime that knows what changed reports so.
            every = before.runs.keys() | listing.runs.keys()
            changed = tuple(r for r in every if before.runs.get(r) != listing.runs.get(r))
            listing = replace(listing, number=before.number + 1, changed=changed)
        self.last = listing
        self.scan = Scan(listing, frozenset(self.done), dict(self.refused))
        self.work.update_scan(self.scan)

    @precondition(lambda self: self.dying)
    @rule()
    def die(self) -> None:
        """What was ordered to end is gone at last."""
        for run in self.dying:
            for rank, found in list(self.ranks.get(run, {}).items()):
                if found.state is RankState.RUNNING:
                    self.ranks[run][rank] = exited(rank, None, 9)
                elif found.state is RankState.PENDING:
                    del self.ranks[run][rank]
        self.dying = set()

    @rule(times=st.integers(1, 3))
    def turn(self, times: int) -> None:
        """The loops undisturbed."""
        for _ in range(times):
            self.take_dirty()
            self.act(fails=set(), half=False)
            self.decide()

    @rule(take_dirty=st.booleans(), commits=st.booleans())
    def decide(self, take_dirty: bool = False, commits: bool = True) -> None:
        if self.scan is None:
            return
        self.apply_commits()
        dirty = self.work.take_dirty()
        outcome = self.work.step(dirty, self.scan, at(self.seconds), POLICY)
        rebuilt = reconcile(self.rows.values(), self.scan, at(self.seconds), POLICY)
        assert {run.id: run for run in outcome.runs} == {run.id: run for run in rebuilt.runs}
        assert sorted(outcome.actions, key=str) == sorted(rebuilt.actions, key=str)
        assert outcome.due_at == rebuilt.due_at
        if not commits:
            self.work.restore_dirty(dirty)
            return
        self.work.commit(outcome)
        for run in outcome.runs:
            before = self.rows[run.id]
            if before.started_at is None and run.started_at is not None:
                self.published_started.append(run.id)
            if before.exit is None and run.exit is not None:
                self.published_exited.append(run.id)
                running = [r for r in self.ranks.get(run.id, {}).values() if not r.over]
                assert running == [], "published that a run is over, and it runs"
            if run.state is RunState.FORGOTTEN:
                del self.rows[run.id]
            else:
                self.rows[run.id] = run
        for action in outcome.actions:
            self.asked.pop(action.run_id, None)
            if action not in self.doing:
                self.asked[action.run_id] = action
        self.apply_commits()
        if take_dirty:
            self.take_dirty()

    def apply_commits(self) -> None:
        """Committed rows, as the store reports them."""
        put = [row for run, row in self.rows.items() if self.applied.get(run) is not row]
        gone = [(Run, (run.task_id, run.attempt)) for run in self.applied if run not in self.rows]
        self.work.apply(put, gone)
        self.applied = dict(self.rows)

    @rule()
    def crash(self) -> None:
        """A launcher dies: rows and processes stay, everything else is gone."""
        self.scan, self.asked, self.doing, self.done = None, {}, [], set()
        self.refused = {}
        self.work, self.applied = Worklist(self.rows.values()), dict(self.rows)

    # The runtime follows its orders

    def make(self, run: RunId, rank: int) -> None:
        ranks = self.ranks.setdefault(run, {})
        if run not in self.ended and rank not in ranks:
            ranks[rank] = pending(rank)

    def carry_out(self, action: Action) -> None:
        run = action.run_id
        match action:
            case Launch():
                if run in self.refusing:
                    self.make(run, 0)
                    self.refused[run] = self.refusing[run]
                    return
                for rank in range(RANKS):
                    self.make(run, rank)
            case Signal():
                self.done.add(action)
            case End():
                self.ended.add(run)
                self.ranks.setdefault(run, {})
                self.dying.add(run)
                self.done.add(action)
            case Forget():
                found = self.ranks.get(run, {}).values()
                if not all(rank.over for rank in found):
                    return
                self.ranks.pop(run, None)
                self.ended.discard(run)

    def listing(self) -> Listing:
        return a_listing({run: list(ranks.values()) for run, ranks in self.ranks.items()})

    # Promises

    @invariant()
    def every_run_ends_once(self) -> None:
        assert len(self.published_exited) == len(set(self.published_exited))
        assert len(self.published_started) == len(set(self.published_started))

    @invariant()
    def no_process_begins_twice(self) -> None:
        assert len(self.begun) == len(set(self.begun))

    @invariant()
    def one_attempt_runs_at_a_time(self) -> None:
        running = {
            run
            for run, ranks in self.ranks.items()
            if any(not rank.over for rank in ranks.values())
        }
        assert len(running) <= 1

    @invariant()
    def what_is_over_stays_over(self) -> None:
        for run in self.published_exited:
            ranks = self.ranks.get(run, {}).values()
            assert all(rank.over for rank in ranks)

    def teardown(self) -> None:
        """Without faults, a kill ends everything within a few turns, and nothing is left."""
        self.request(early=False, kill=True)
        for _ in range(8):
            self.take_dirty()
            self.die()
            self.act(fails=set(), half=False)
            self.decide()
        live = [run for run in self.rows.values() if run.state is not RunState.EARLY_REQUEST]
        assert live == []
        assert self.ranks == {}


Machine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestReconcile = Machine.TestCase
