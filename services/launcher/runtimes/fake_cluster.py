"""A cluster in memory, for the simulation and for tests: real behaviour on the event loop's time,
nothing real behind it.

It is as hard as the hardest runtime: with ``pending_seconds_max`` ranks exist for a while before
their processes do, as pods do; with ``kill_seconds_max`` processes go on for a while after a kill,
as in a long system call; with ``refusal_rate`` launches are refused for good.

``FakeCluster`` stands for the machines: it outlives launchers; ``fake.py`` is one launcher's handle
on it. Ranks are played by a ``Script``; nodes can fall silent
with their processes alive (a partition) or dead (a power cut), calls can fail before or after they
take effect. Everything random comes from one seeded generator.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Protocol

from libs.contracts.ids import RunId
from libs.contracts.messages import Node
from libs.service.loop import pause
from services.launcher.domain.model import (
    Fault,
)
from services.launcher.runtimes.port import (
    RankOrder,
    RunOrder,
)

PREEMPTED_CODE, SUPERSEDED_CODE, KILL_SIGNAL = 75, 1, 9


@dataclass(frozen=True, slots=True)
class Script:
    """How a task behaves. Steps go on from the checkpoint that the run was given."""

    steps: int = 10
    step_seconds: float = 1.0
    # Save after every so many steps; 0: only on a preemption request.
    save_every: int = 0
    save_seconds: float = 0.0
    code: int = 0
    # The rank that ends with ``code``; None: all of them do.
    failing_rank: int | None = None
    # False: ignores preemption requests.
    obeys_preemption: bool = True
    # False: survives the preemption signal (signal mode).
    obeys_signal: bool = True


class Platform(Protocol):
    """The calls that a simulated program makes, as its SDK would."""

    def should_preempt(self, run_id: RunId) -> bool:
        """Whether preemption of the run was requested."""
        ...

    async def save(self, run_id: RunId, step: int) -> bool:
        """Acknowledge a checkpoint; False if this attempt is no longer the live one."""
        ...


@dataclass
class FakeRank:
    """One process."""

    order: RankOrder
    # None: it is pending, there is no process yet.
    started_at: datetime | None
    exited_at: datetime | None = None
    code: int | None = None
    signal: int | None = None
    lost: bool = False
    # Signals that were sent to it.
    signals: list[int] = field(default_factory=list[int])
    # It was sent SIGKILL, and goes on until that has its effect.
    dying: bool = False
    # Its program has reported that it is ready.
    ready: bool = False

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self.started_at is not None and self.exited_at is None


@dataclass
class FakeRun:
    """One gang as the cluster knows it."""

    run_id: RunId
    ended: set[str] = field(default_factory=set[str])
    ranks: dict[int, FakeRank] = field(default_factory=dict[int, FakeRank])
    world_size: int = 0
    to_play: bool = False
    played: asyncio.Task[None] | None = None


class FakeCluster:
    """The machines. ``run`` simulates the programs; the test has to keep it running."""

    def __init__(
        self,
        nodes: Iterable[Node],
        *,
        platform: Platform,
        script_of: Callable[[RunOrder], Script],
        now: Callable[[], datetime],
        rng: Random,
    ) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.platform = platform
        self.script_of = script_of
        self.now = now
        self.rng = rng
        self.epoch = 0
        self.runs: dict[RunId, FakeRun] = {}
        # Nodes that do not answer; those of them that are known to be cleared.
        self.silent: set[str] = set()
        # Nodes that are no longer in the inventory, but still run or remember something.
        self.retired: set[str] = set()
        self.fenced: set[str] = set()
        # Nodes that answer, but can start nothing.
        self.unable: set[str] = set()
        # How likely a call fails, before or after it took effect.
        self.failure_rate = 0.0
        # How likely a launch is refused for good, by the task's fault or by the site's.
        self.refusal_rate = 0.0
        self.refusals: tuple[Fault, ...] = (Fault.OVER_QUOTA, Fault.INVALID_POD)
        # Ranks take up to so long to begin, and to die or to leave.
        self.pending_seconds_max = 0.0
        # None: on every node.
        self.pending_nodes: frozenset[str] | None = None
        self.kill_seconds_max = 0.0
        # Ranks become ready up to so long after they began.
        self.ready_seconds_max = 0.0
        self.exit_seconds_max = 0.05
        # How far the clocks of the nodes are off: what they list has their times.
        self.node_skew = timedelta()
        self.hints: list[Callable[[], None]] = []
        # Every start of a process ever: (run, rank), for checkers.
        self.starts: list[tuple[RunId, int]] = []
        self._refusals: dict[RunId, Fault | None] = {}
        self._to_play: asyncio.Queue[tuple[FakeRun, RunOrder]] = asyncio.Queue()

    async def run(self) -> None:
        """Play programs until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                run, order = await self._to_play.get()
                run.played = group.create_task(self._play(run, order))

    # Faults

    def power_off(self, node_id: str) -> None:
        """The node is gone with all its processes; their ends were not observed."""
        self.silent.add(node_id)
        self.lose_ranks(node_id)
        self.changed()

    def lose_ranks(self, node_id: str) -> None:
        """Everything on a node is gone; how it ended is unknown."""
        for run in self.runs.values():
            for rank in run.ranks.values():
                if rank.order.node_id == node_id and rank.exited_at is None:
                    # What never began must not after this.
                    rank.exited_at, rank.lost = self.now(), True
                    run.ended.add(node_id)

    def silence(self, node_id: str) -> None:
        """The node does not answer; what runs there goes on."""
        self.silent.add(node_id)
        self.changed()

    def heal(self, node_id: str) -> None:
        """The node answers again."""
        self.silent.discard(node_id)
        self.fenced.discard(node_id)
        self.changed()

    def join(self, node: Node) -> None:
        """The node is in the inventory, perhaps again."""
        self.nodes[node.id] = node
        self.retired.discard(node.id)
        self.changed()

    def retire(self, node_id: str) -> None:
        """Take the node out of the inventory; what runs there goes on until it is over."""
        if node_id in self.nodes:
            self.retired.add(node_id)
            self.changed()

    def delete(self, node_id: str) -> None:
        """The machine is gone for good, with all its processes, and this is known."""
        self.lose_ranks(node_id)
        self._drop_node(node_id)
        self.changed()

    def _drop_node(self, node_id: str) -> None:
        for there in (self.silent, self.fenced, self.retired):
            there.discard(node_id)
        self.nodes.pop(node_id, None)

    def clear_retired(self) -> None:
        """Forget retired nodes of which nothing is left."""
        for node_id in sorted(self.retired):
            if not any(node_id in where_of(run) for run in self.runs.values()):
                self._drop_node(node_id)

    def accepts_launches(self, node_id: str) -> bool:
        """Whether a rank can be launched on the node now."""
        return node_id in self.nodes and node_id not in self.silent | self.retired

    def is_visible(self, node_id: str) -> bool:
        """Whether what is on the node can be known."""
        return node_id not in self.silent or node_id in self.fenced

    def changed(self) -> None:
        """Hint every launcher."""
        for hint in self.hints:
            hint()

    def refusal(self, run_id: RunId) -> Fault | None:
        """Whether a launch of this run is refused for good; the same whenever it is asked."""
        if run_id not in self._refusals:
            refused = self.refusal_rate > 0 and self.rng.random() < self.refusal_rate
            self._refusals[run_id] = self.rng.choice(self.refusals) if refused else None
        return self._refusals[run_id]

    # Programs

    def launch(self, order: RunOrder) -> None:
        """Start the ranks of the order that do not exist yet."""
        run = self.runs.setdefault(order.run_id, FakeRun(order.run_id))
        for rank in order.ranks:
            if is_new(run, rank):
                self.make(run, rank)
        run.world_size = max(run.world_size, order.size)
        self.play(run)
        self.changed()

    def make(self, run: FakeRun, order: RankOrder) -> None:
        """A rank exists from now on; its process begins now or later."""
        rank = run.ranks[order.rank] = FakeRank(order, None)
        quick = self.pending_nodes is not None and order.node_id not in self.pending_nodes
        if self.pending_seconds_max <= 0 or quick:
            self.begin(run, rank)
            return
        seconds = self.rng.uniform(0, self.pending_seconds_max)
        asyncio.get_running_loop().call_later(seconds, self._begin_late, run, rank)

    def _begin_late(self, run: FakeRun, rank: FakeRank) -> None:
        if run.ranks.get(rank.order.rank) is not rank or rank.exited_at is not None:
            return
        if rank.order.node_id in self.silent:
            # As a node that is cut off, and makes it when it is back.
            asyncio.get_running_loop().call_later(0.5, self._begin_late, run, rank)
            return
        self.begin(run, rank)
        self.play(run)
        self.changed()

    def begin(self, run: FakeRun, rank: FakeRank) -> None:
        """The rank's process begins."""
        rank.started_at = self.now()
        self.starts.append((run.run_id, rank.order.rank))
        if self.ready_seconds_max <= 0:
            rank.ready = True
            return
        seconds = self.rng.uniform(0, self.ready_seconds_max)
        asyncio.get_running_loop().call_later(seconds, self._become_ready, rank)

    def _become_ready(self, rank: FakeRank) -> None:
        if rank.running:
            rank.ready = True
            self.changed()

    def play(self, run: FakeRun) -> None:
        """Once the whole gang is there, its program begins."""
        whole = len(run.ranks) == run.world_size
        begun = all(rank.started_at is not None for rank in run.ranks.values())
        if run.played is None and not run.to_play and run.ranks and whole and begun:
            run.to_play = True
            order = RunOrder(run.run_id, tuple(rank.order for rank in run.ranks.values()))
            self._to_play.put_nowait((run, order))

    def kill(self, run: FakeRun, node_id: str, only: frozenset[int] | None = None) -> None:
        """SIGKILL to what runs of it on a node, or to some ranks, which may take its time to die;
        what is pending never begins."""
        for number, rank in list(run.ranks.items()):
            if rank.order.node_id != node_id or (only is not None and number not in only):
                continue
            if rank.started_at is None and rank.exited_at is None:
                del run.ranks[number]
            elif rank.running and self.kill_seconds_max <= 0:
                rank.exited_at, rank.signal = self.now(), KILL_SIGNAL
            elif rank.running and not rank.dying:
                rank.dying = True
                seconds = self.rng.uniform(0, self.kill_seconds_max)
                asyncio.get_running_loop().call_later(seconds, self._die_late, rank)
        self.changed()

    def _die_late(self, rank: FakeRank) -> None:
        if rank.running:
            rank.exited_at, rank.signal = self.now(), KILL_SIGNAL
            self.changed()

    async def _play(self, run: FakeRun, order: RunOrder) -> None:
        """One gang's program: rank 0 saves; a rank that was ended does no more."""
        script, step = self.script_of(order), _first_step(order)
        while step < script.steps:
            await pause(script.step_seconds)
            if not any(rank.running for rank in run.ranks.values()):
                return None
            step += 1
            if self._signalled(run, script):
                return await self._leave(run, lambda rank: (None, rank.signals[-1]))
            asked = script.obeys_preemption and self.platform.should_preempt(run.run_id)
            if asked or (script.save_every and step % script.save_every == 0):
                await pause(script.save_seconds)
                if not run.ranks[0].running:
                    continue
                if not await self.platform.save(run.run_id, step):
                    return await self._leave(run, lambda _: (SUPERSEDED_CODE, None))
            if asked:
                return await self._leave(run, lambda _: (PREEMPTED_CODE, None))
        return await self._leave(run, lambda rank: (_code(script, rank), None))

    def _signalled(self, run: FakeRun, script: Script) -> bool:
        return script.obeys_signal and any(rank.signals for rank in run.ranks.values())

    async def _leave(
        self, run: FakeRun, ending: Callable[[FakeRank], tuple[int | None, int | None]]
    ) -> None:
        for rank in list(run.ranks.values()):
            await pause(self.rng.uniform(0, self.exit_seconds_max))
            if rank.running:
                rank.exited_at = self.now()
                rank.code, rank.signal = ending(rank)
                self.changed()


def is_new(run: FakeRun, order: RankOrder) -> bool:
    """Whether the order is for a process that does not exist yet."""
    known = run.ranks.get(order.rank)
    return known is None or (known.exited_at is not None and known.order.start < order.start)


def where_of(run: FakeRun) -> set[str]:
    """The nodes on which something is known of a run."""
    return run.ended | {rank.order.node_id for rank in run.ranks.values()}


def _first_step(order: RunOrder) -> int:
    saved = json.loads(order.ranks[0].context).get("resume_from")
    return int(saved["step"]) if saved else 0


def _code(script: Script, rank: FakeRank) -> int:
    fails = script.failing_rank in (None, rank.order.rank)
    return script.code if fails else 0
