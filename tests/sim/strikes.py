"""The faults by name: each function injects one, and ``heal_all`` ends them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from libs.bus.command_replies import RequestQueue
from libs.contracts.messages import Reemit
from libs.service.loop import pause
from libs.store.memory_database import BadCommits, Point
from libs.store.port import StoreUnavailableError
from tests.sim.plan import Strike

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


COMMITS_FAIL_SHARE = 0.6
COMMIT_SECONDS_MAX = 3.0
# Of the commits of commands that go wrong, so many fail; the others are cancelled.
CUT_SHARE = 0.5


def _later(sim: Simulation, seconds: float, effect: Callable[[], None]) -> None:
    """After a while, unless everything was healed before."""

    def unless_healed() -> None:
        if not sim.healed:
            effect()

    asyncio.get_running_loop().call_later(seconds, unless_healed)


def _crash(sim: Simulation, strike: Strike) -> None:
    for process in sim.of(strike.target):
        process.crash()
    if strike.target == "log_collector" and strike.extra:
        # The host died with it: what was not synced is gone.
        sim.archive.crash(torn=strike.extra > 10)


def _crash_all(sim: Simulation, strike: Strike) -> None:
    for process in sim.processes:
        process.crash()


def _partition(sim: Simulation, strike: Strike) -> None:
    sim.broker.partition(strike.target)
    _later(sim, strike.seconds, lambda: sim.broker.heal(strike.target))


def _bus_restarts(sim: Simulation, strike: Strike) -> None:
    if sim.broker.running:
        sim.broker.restart(strike.extra)


def _bus_stops(sim: Simulation, strike: Strike) -> None:
    def start() -> None:
        if not sim.broker.running:
            sim.broker.start(strike.extra)

    sim.broker.stop()
    _later(sim, strike.seconds, start)


def _database_stops(sim: Simulation, strike: Strike) -> None:
    sim.database.stop()
    _later(sim, strike.seconds, sim.database.start)


def _leader_cut(sim: Simulation, strike: Strike) -> None:
    sim.database.cut_leader(strike.target)


class _CutCommits(BadCommits):
    """Some of the commits that are not answered are cancelled: those of commands, whose connection
    to the bus is lost midway while the leader leads on."""

    async def reach(self, point: Point) -> None:
        try:
            await super().reach(point)
        except StoreUnavailableError:
            task = asyncio.current_task()
            assert task is not None, "it is awaited"
            work = getattr(task.get_coro(), "__qualname__", "")
            if work != RequestQueue._in_turn.__qualname__ or self.rng.random() < CUT_SHARE:
                raise
            task.cancel()
            await asyncio.sleep(0)
            raise


def _commits_fail(sim: Simulation, strike: Strike) -> None:
    """Commits of a service fail, take long, or take effect without an answer."""
    rng = Random(f"commits {sim.plan.seed} {strike.at}")
    bad = _CutCommits(rng, COMMITS_FAIL_SHARE, COMMIT_SECONDS_MAX, pause)
    sim.database.bad_commits[strike.target] = bad

    def over() -> None:
        if sim.database.bad_commits.get(strike.target) is bad:
            del sim.database.bad_commits[strike.target]

    _later(sim, strike.seconds, over)


def _leader_deposed(sim: Simulation, strike: Strike) -> None:
    """Another process may lead for up to ``strike.seconds`` before the old leader knows."""
    sim.database.cut_leader(strike.target, notice_seconds=strike.seconds)


def _clock_jumps(sim: Simulation, strike: Strike) -> None:
    for process in sim.of(strike.target):
        process.clock.skew_seconds += strike.extra
    sim.note_clocks()


def _clock_is_hours_off(sim: Simulation, strike: Strike) -> None:
    def jump(seconds: float) -> None:
        for process in sim.of(strike.target):
            process.clock.skew_seconds += seconds
        sim.note_clocks()

    jump(strike.extra)
    _later(sim, strike.seconds, lambda: jump(-strike.extra))


def _node_off(sim: Simulation, strike: Strike) -> None:
    sim.cluster.power_off(strike.target)
    _later(sim, strike.seconds, lambda: sim.cluster.heal(strike.target))


def _node_silent(sim: Simulation, strike: Strike) -> None:
    sim.cluster.silence(strike.target)
    _later(sim, strike.seconds, lambda: sim.cluster.heal(strike.target))


def _node_leaves(sim: Simulation, strike: Strike) -> None:
    """Taken out of the inventory; what runs there goes on."""
    sim.cluster.retire(strike.target)
    _later(sim, strike.seconds, lambda: sim.join(strike.target))


def _node_deleted(sim: Simulation, strike: Strike) -> None:
    """The machine is gone, and the runtime knows it."""
    sim.cluster.delete(strike.target)
    _later(sim, strike.seconds, lambda: sim.join(strike.target))


def _node_joins(sim: Simulation, strike: Strike) -> None:
    sim.join(strike.target)


def _supervisor_dies(sim: Simulation, strike: Strike) -> None:
    sim.cluster.lose_ranks(strike.target)
    sim.cluster.changed()


def _facts_again(sim: Simulation, strike: Strike) -> None:
    """Publish old facts under new ids: no inbox knows them, so each service has to ignore them."""
    sim.aside(sim.people.insist(Reemit(service=strike.target)))


STRIKES: dict[str, Callable[[Simulation, Strike], None]] = {
    "crash": _crash,
    "crash all": _crash_all,
    "partition": _partition,
    "bus restarts": _bus_restarts,
    "bus stops": _bus_stops,
    "database stops": _database_stops,
    "leader cut": _leader_cut,
    "commits fail": _commits_fail,
    "leader deposed": _leader_deposed,
    "clock jumps": _clock_jumps,
    "clock is hours off": _clock_is_hours_off,
    "node leaves": _node_leaves,
    "node deleted": _node_deleted,
    "node joins": _node_joins,
    "node off": _node_off,
    "node silent": _node_silent,
    "supervisor dies": _supervisor_dies,
    "facts again": _facts_again,
}


def strike(sim: Simulation, what: Strike) -> None:
    """Let it happen now."""
    sim.note(f"strike: {what.kind} {what.target} ({what.seconds:.1f} s, {what.extra:.1f})")
    STRIKES[what.kind](sim, what)


def heal_all(sim: Simulation) -> None:
    """End all faults; processes that crashed are restarting already.

    Where clocks were hours off, a deadline may lie as many hours ahead. Every clock jumps to the
    furthest one, so that these hours need not be simulated second by second.
    """
    sim.database.start()
    sim.database.bad_commits.clear()
    if not sim.broker.running:
        sim.broker.start()
    sim.broker.heal()
    for number in range(sim.plan.nodes):
        sim.join(f"node-{number}")
    for node in sorted(sim.cluster.nodes):
        sim.cluster.heal(node)
    if any(each.kind == "clock is hours off" for each in sim.plan.strikes):
        for process in sim.processes:
            process.clock.skew_seconds = sim.furthest_skew
