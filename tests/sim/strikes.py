"""What can go wrong at one moment, by name, and how everything is healed."""

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
    from tests.sim.world import World


COMMITS_FAIL_SHARE = 0.6
COMMIT_SECONDS_MAX = 3.0
# Of the commits of commands that go wrong, so many fail; the others are cancelled.
CUT_SHARE = 0.5


def _later(world: World, seconds: float, effect: Callable[[], None]) -> None:
    """After a while, unless everything was healed before."""

    def unless_healed() -> None:
        if not world.healed:
            effect()

    asyncio.get_running_loop().call_later(seconds, unless_healed)


def _crash(world: World, strike: Strike) -> None:
    for process in world.of(strike.target):
        process.crash()
    if strike.target == "log_collector" and strike.extra:
        # The host died with it: what was not synced is gone.
        world.archive.crash(torn=strike.extra > 10)


def _crash_all(world: World, strike: Strike) -> None:
    for process in world.processes:
        process.crash()


def _partition(world: World, strike: Strike) -> None:
    world.broker.partition(strike.target)
    _later(world, strike.seconds, lambda: world.broker.heal(strike.target))


def _bus_restarts(world: World, strike: Strike) -> None:
    if world.broker.running:
        world.broker.restart(strike.extra)


def _bus_stops(world: World, strike: Strike) -> None:
    def start() -> None:
        if not world.broker.running:
            world.broker.start(strike.extra)

    world.broker.stop()
    _later(world, strike.seconds, start)


def _database_stops(world: World, strike: Strike) -> None:
    world.database.stop()
    _later(world, strike.seconds, world.database.start)


def _leader_cut(world: World, strike: Strike) -> None:
    world.database.cut_leader(strike.target)


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


def _commits_fail(world: World, strike: Strike) -> None:
    """Commits of a service fail, take long, or take effect without an answer."""
    rng = Random(f"commits {world.plan.seed} {strike.at}")
    bad = _CutCommits(rng, COMMITS_FAIL_SHARE, COMMIT_SECONDS_MAX, pause)
    world.database.bad_commits[strike.target] = bad

    def over() -> None:
        if world.database.bad_commits.get(strike.target) is bad:
            del world.database.bad_commits[strike.target]

    _later(world, strike.seconds, over)


def _leader_deposed(world: World, strike: Strike) -> None:
    """Another process may lead for up to ``strike.seconds`` before the old leader knows."""
    world.database.cut_leader(strike.target, notice_seconds=strike.seconds)


def _clock_jumps(world: World, strike: Strike) -> None:
    for process in world.of(strike.target):
        process.clock.skew_seconds += strike.extra
    world.note_clocks()


def _clock_is_hours_off(world: World, strike: Strike) -> None:
    def jump(seconds: float) -> None:
        for process in world.of(strike.target):
            process.clock.skew_seconds += seconds
        world.note_clocks()

    jump(strike.extra)
    _later(world, strike.seconds, lambda: jump(-strike.extra))


def _node_off(world: World, strike: Strike) -> None:
    world.cluster.power_off(strike.target)
    _later(world, strike.seconds, lambda: world.cluster.heal(strike.target))


def _node_silent(world: World, strike: Strike) -> None:
    world.cluster.silence(strike.target)
    _later(world, strike.seconds, lambda: world.cluster.heal(strike.target))


def _node_leaves(world: World, strike: Strike) -> None:
    """Taken out of the inventory; what runs there goes on."""
    world.cluster.retire(strike.target)
    _later(world, strike.seconds, lambda: world.join(strike.target))


def _node_deleted(world: World, strike: Strike) -> None:
    """The machine is gone, and the runtime knows it."""
    world.cluster.delete(strike.target)
    _later(world, strike.seconds, lambda: world.join(strike.target))


def _node_joins(world: World, strike: Strike) -> None:
    world.join(strike.target)


def _supervisor_dies(world: World, strike: Strike) -> None:
    world.cluster.lose_ranks(strike.target)
    world.cluster.changed()


def _facts_again(world: World, strike: Strike) -> None:
    """Old facts under new ids: no inbox knows them, each service has to."""
    world.aside(world.people.insist(Reemit(service=strike.target)))


STRIKES: dict[str, Callable[[World, Strike], None]] = {
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


def strike(world: World, what: Strike) -> None:
    """Let it happen now."""
    world.note(f"strike: {what.kind} {what.target} ({what.seconds:.1f} s, {what.extra:.1f})")
    STRIKES[what.kind](world, what)


def heal_all(world: World) -> None:
    """Everything works again from now on; the dead are being restarted.

    A deadline is a moment of a clock. Where clocks were hours off, a deadline may lie as many hours
    ahead; these hours pass now at once, instead of being simulated second by second.
    """
    world.database.start()
    world.database.bad_commits.clear()
    if not world.broker.running:
        world.broker.start()
    world.broker.heal()
    for number in range(world.plan.nodes):
        world.join(f"node-{number}")
    for node in sorted(world.cluster.nodes):
        world.cluster.heal(node)
    if any(each.kind == "clock is hours off" for each in world.plan.strikes):
        for process in world.processes:
            process.clock.skew_seconds = world.furthest_skew
