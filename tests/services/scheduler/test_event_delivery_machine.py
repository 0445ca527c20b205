"""A rule machine over the real service: its messages compared with what happened on the nodes.

People, nodes and runs report events, and each event may arrive late, twice or out of order. The
leader restarts at any time. A naive model, which shares no code with the scheduler, knows the live
runs, their checkpoints and the newest revisions. At the end everything is delivered and obeyed;
then every task has ended and no slot is held.

Only this suite finds, in seconds, an event handler that accepts old news, or a change that is not
stored. The services around the scheduler, and their faults, are the simulation's (``tests/sim``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from libs.contracts.base import Message
from libs.contracts.messages import (
    Checkpoint,
    CheckpointSaved,
    ExitKind,
    Goal,
    GoalChanged,
    KillRequested,
    PreemptionRequested,
    Priority,
    PriorityChanged,
    RankExit,
    RunAssigned,
    RunExit,
    RunExited,
    RunResumed,
    RunStarted,
    TaskState,
    TaskStateChanged,
)
from libs.contracts.task_states import TERMINAL
from services.scheduler.domain.model.rows import Node
from services.scheduler.loop import REFUSED
from services.scheduler.store import SlotRow
from tests.kit.builders import a_node, a_spec, a_task, submitted_event
from tests.kit.clock import at
from tests.kit.strategies import GANG, PRIORITIES
from tests.services.scheduler.scheduler_harness import SchedulerHarness, inventory_of, node_changed

NODES = (a_node("n0", gpus=2), a_node("n1", gpus=2), a_node("n2", gpus=4))
TASKS_MAX = 8
ENDS = [ExitKind.LOST, ExitKind.PREEMPTED, ExitKind.KILLED, ExitKind.FAILED, ExitKind.OK]


@dataclass
class Run:
    """One attempt as the nodes know it."""

    asked: RunAssigned | RunResumed
    started: bool = False
    asked_to_leave: bool = False
    killed: bool = False


@dataclass
class Model:
    """What submit and the launcher know, without any of the scheduler's code."""

    revisions: dict[str, int] = field(default_factory=dict)
    goals: dict[str, Goal] = field(default_factory=dict)
    live: dict[str, Run] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    # The newest checkpoint of each task in the events that were delivered.
    reported: dict[str, Checkpoint] = field(default_factory=dict)
    states: dict[str, TaskState] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)

    def owners(self) -> list[tuple[str, int]]:
        """Every GPU that a run which has not ended was given."""
        return [
            (placement.node_id, gpu)
            for run in self.live.values()
            for placement in run.asked.placements
            for gpu in placement.gpus
        ]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model = Model()
        # Published and not delivered yet; delayed; and everything, for duplicate deliveries.
        self.wire: list[Message] = []
        self.late: list[Message] = []
        self.history: list[Message] = []
        self.seconds = 0.0
        self.nodes: dict[str, Node] = {node.id: node for node in NODES}
        self.refused = self._refused()

    def _refused(self) -> float:
        return sum(REFUSED.labels(why)._value.get() for why in ("violation", "conflict"))

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.scheduler: SchedulerHarness = self.do(
            SchedulerHarness(retry_delay_seconds=5.0).start()
        )
        self.wire += [node_changed(node) for node in NODES]
        self.wire.append(inventory_of(*NODES))

    # People.

    @precondition(lambda self: len(self.model.goals) < TASKS_MAX)
    @rule(
        **GANG,
        retries=st.sampled_from([0, 2]),
        limit=st.sampled_from([None, None, 30.0]),
    )
    def submit(
        self, nodes: int, gpus: int | None, priority: Priority, retries: int, limit: float | None
    ) -> None:
        task_id = f"t{len(self.model.goals)}"
        spec = a_spec(
            nodes=nodes, gpus=gpus, priority=priority, retries=retries, max_run_seconds=limit
        )
        task = a_task(task_id, spec=spec, submitted=self.seconds)
        self.model.goals[task_id], self.model.revisions[task_id] = Goal.RUN, 1
        self.wire.append(submitted_event(task))

    @precondition(lambda self: self.model.goals)
    @rule(data=st.data(), goal=st.sampled_from([Goal.RUN, Goal.PAUSE, Goal.STOP]))
    def change_goal(self, data: st.DataObject, goal: Goal) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.model.goals)))
        if self.model.states.get(task_id) not in TERMINAL:
            self.model.goals[task_id] = goal
            self.wire.append(
                GoalChanged(
                    task_id=task_id, goal=goal, revision=self._revision(task_id), changed_at=at(0)
                )
            )

    @precondition(lambda self: self.model.goals)
    @rule(data=st.data(), priority=st.sampled_from(PRIORITIES))
    def change_priority(self, data: st.DataObject, priority: Priority) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.model.goals)))
        self.wire.append(
            PriorityChanged(
                task_id=task_id,
                priority=priority,
                revision=self._revision(task_id),
                changed_at=at(0),
            )
        )

    def _revision(self, task_id: str) -> int:
        self.model.revisions[task_id] += 1
        return self.model.revisions[task_id]

    # The nodes.

    def _pick(self, data: st.DataObject) -> tuple[str, Run]:
        task_id = data.draw(st.sampled_from(sorted(self.model.live)))
        return task_id, self.model.live[task_id]

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self._start(*self._pick(data))

    def _start(self, task_id: str, run: Run) -> None:
        if run.started:
            return
        run.started = True
        self.wire.append(
            RunStarted(
                task_id=task_id,
                attempt=run.asked.attempt,
                started_at=at(self.seconds),
                placements=run.asked.placements,
            )
        )

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), late=st.booleans(), then=st.sampled_from([None, *ENDS]))
    def save(self, data: st.DataObject, late: bool, then: ExitKind | None) -> None:
        """Save, with the news on its way for long; the run may end at once."""
        task_id, run = self._pick(data)
        self._start(task_id, run)
        before = self.model.checkpoints.get(task_id)
        checkpoint = Checkpoint(
            no=(before.no if before else 0) + 1,
            attempt=run.asked.attempt,
            saved_at=at(self.seconds),
        )
        self.model.checkpoints[task_id] = checkpoint
        event = CheckpointSaved(task_id=task_id, attempt=run.asked.attempt, checkpoint=checkpoint)
        (self.late if late else self.wire).append(event)
        if then is not None:
            self._end(task_id, then)

    @precondition(lambda self: self.model.live)
    @rule(data=st.data(), kind=st.sampled_from(ENDS), bare=st.booleans())
    def end(self, data: st.DataObject, kind: ExitKind, bare: bool) -> None:
        self._end(self._pick(data)[0], kind, bare=bare)

    def _end(self, task_id: str, kind: ExitKind, *, bare: bool = False) -> None:
        """``bare``: the exit names no checkpoint; only the run's own events do."""
        run = self.model.live.pop(task_id)
        ranks = tuple(RankExit(rank=each.rank, code=0) for each in run.asked.placements)
        self.wire.append(
            RunExited(
                task_id=task_id,
                attempt=run.asked.attempt,
                exit=RunExit(
                    attempt=run.asked.attempt, kind=kind, ranks=ranks, exited_at=at(self.seconds)
                ),
                checkpoint=None if bare else self.model.checkpoints.get(task_id),
                placements=run.asked.placements,
            )
        )

    @rule(
        node_id=st.sampled_from(["n0", "n1", "n2"]),
        change=st.sampled_from([{"ready": False}, {"schedulable": False}, {"draining": True}, {}]),
    )
    def change_node(self, node_id: str, change: dict[str, bool]) -> None:
        self._node(node_id, **change)

    def _node(self, node_id: str, **change: bool) -> None:
        version = self.nodes[node_id].version + 1
        gpus = self.nodes[node_id].gpus
        self.nodes[node_id] = a_node(node_id, gpus=gpus, version=version, **change)
        self.wire.append(node_changed(self.nodes[node_id]))

    # The wire, the clock, the process.

    def _deliver(self, events: list[Message]) -> None:
        self.history += events
        for event in events:
            if isinstance(event, CheckpointSaved | RunExited) and event.checkpoint is not None:
                newest = self.model.reported.get(event.task_id)
                if newest is None or newest.no < event.checkpoint.no:
                    self.model.reported[event.task_id] = event.checkpoint
        self.do(self.scheduler.handle(*events))

    @precondition(lambda self: self.wire)
    @rule(data=st.data())
    def one_comes_late(self, data: st.DataObject) -> None:
        self.late.append(self.wire.pop(data.draw(st.integers(0, len(self.wire) - 1))))

    @precondition(lambda self: self.late)
    @rule()
    def the_late_come(self) -> None:
        self.wire, self.late = self.wire + self.late, []
        self.deliver(backwards=True)

    @precondition(lambda self: self.wire)
    @rule(backwards=st.booleans())
    def deliver(self, backwards: bool) -> None:
        batch, self.wire = self.wire, []
        self._deliver(batch[::-1] if backwards else batch)

    @precondition(lambda self: self.history)
    @rule(back=st.integers(0, 12))
    def deliver_again(self, back: int) -> None:
        self.do(self.scheduler.handle(self.history[-1 - back % len(self.history)]))

    @rule()
    def all_that_is_assigned_runs(self) -> None:
        """The ordinary sequence of events, so that there is something to disturb."""
        self.wire, batch = [], self.wire
        self._deliver(batch)
        self.tick(1.0)
        for task_id, run in sorted(self.model.live.items()):
            self._start(task_id, run)

    @precondition(lambda self: any(run.asked_to_leave for run in self.model.live.values()))
    @rule()
    def all_that_are_requested_leave(self) -> None:
        self._leave()
        self.wire, batch = [], self.wire
        self._deliver(batch)
        self._round()

    def _leave(self) -> None:
        for task_id, run in sorted(self.model.live.items()):
            if run.asked_to_leave:
                self._end(task_id, ExitKind.KILLED if run.killed else ExitKind.PREEMPTED)

    @rule(seconds=st.sampled_from([0.0, 1.0, 20.0, 61.0, 301.0]))
    def tick(self, seconds: float) -> None:
        self.seconds += seconds
        self.scheduler.clock.move_to(self.seconds)
        self._round()

    def _round(self) -> None:
        self.do(self.scheduler.settle())
        for message in self.do(self.scheduler.published()):
            self.handle(message)

    @rule()
    def restart(self) -> None:
        self.do(self.scheduler.restart())

    def handle(self, message: Message) -> None:
        """The launcher and the projections: they believe nothing that cannot be."""
        model = self.model
        if isinstance(message, RunAssigned | RunResumed):
            last = model.attempts.get(message.task_id, 0)
            assert message.attempt == last + 1
            assert isinstance(message, RunAssigned) == (message.attempt == 1)
            assert message.task_id not in model.live, "a second live run"
            assert message.resume_from == model.reported.get(message.task_id), "lost work"
            model.attempts[message.task_id] = message.attempt
            model.live[message.task_id] = Run(message)
        elif isinstance(message, PreemptionRequested | KillRequested):
            assert message.attempt == model.attempts[message.task_id]
            run = model.live.get(message.task_id)
            if run is not None:
                run.asked_to_leave = True
                run.killed = run.killed or isinstance(message, KillRequested)
        elif isinstance(message, TaskStateChanged):
            assert message.version > model.versions.get(message.task_id, 0)
            assert model.states.get(message.task_id) not in TERMINAL, "published after its end"
            model.versions[message.task_id] = message.version
            model.states[message.task_id] = message.state

    @invariant()
    def no_gpu_has_two_runs(self) -> None:
        owners = self.model.owners()
        assert len(owners) == len(set(owners))

    @invariant()
    def no_plan_was_refused(self) -> None:
        assert self._refused() == self.refused

    def teardown(self) -> None:
        """Heal: deliver, obey, start and finish; everything must come to its end."""
        try:
            if hasattr(self, "scheduler"):
                self._heal()
        finally:
            self.loop.close()

    def _heal(self) -> None:
        for node_id in self.nodes:
            self._node(node_id)
        paused = [t for t, goal in sorted(self.model.goals.items()) if goal is Goal.PAUSE]
        for task_id in paused:
            revision = self._revision(task_id)
            self.wire.append(
                GoalChanged(task_id=task_id, goal=Goal.RUN, revision=revision, changed_at=at(0))
            )
        self.wire += self.late
        never = {
            task_id
            for task_id, goal in self.model.goals.items()
            if goal is Goal.STOP and task_id not in self.model.attempts
        }
        for number in range(40):
            self._obey(number)
        assert not never & set(self.model.attempts), "a stopped task was started"
        assert self.do(self.scheduler.tasks()) == {}
        assert {task: s for task, s in self.model.states.items() if s not in TERMINAL} == {}
        assert set(self.model.states) == set(self.model.goals), "a task was lost"
        assert self.do(self._slots()) == []

    def _obey(self, number: int) -> None:
        """One round in which everything arrives and every run follows its requests."""
        if self.wire:
            self.deliver(backwards=number == 0)
        if number in (2, 5):
            # Everything once more, the newest first: old news changes nothing.
            self.do(self.scheduler.handle(*self.history[::-1]))
        self.tick(10.0)
        self._leave()
        for task_id, run in sorted(self.model.live.items()):
            if not run.started:
                self._start(task_id, run)
            elif number % 3 == 0:
                self._end(task_id, ExitKind.OK)
        self.no_gpu_has_two_runs()
        self.no_plan_was_refused()

    async def _slots(self) -> list[SlotRow]:
        async with self.scheduler.store.transaction() as tx:
            return await tx.select(SlotRow)


_SETTINGS = settings(
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class TestMachine(Machine.TestCase):
    settings = settings(_SETTINGS, max_examples=60)


@pytest.mark.slow
class TestMachineForLong(Machine.TestCase):
    """Rare defects take hundreds of histories."""

    settings = settings(_SETTINGS, max_examples=300)
