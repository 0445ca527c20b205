"""Many worlds over the cores of this machine, until one is wrong or the time is over."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.sim.plan import Plan
from tests.sim.world import Outcome, World, run_world

GARBAGE_EVERY = 25


@dataclass
class Tally:
    """What was run."""

    worlds: int = 0
    tasks: int = 0
    runs: int = 0
    events: int = 0
    virtual_seconds: float = 0.0
    wall_seconds: float = 0.0
    failed: Outcome | None = None

    def add(self, outcome: Outcome) -> None:
        self.worlds += 1
        self.tasks += outcome.tasks
        self.runs += outcome.runs
        self.events += outcome.events
        self.virtual_seconds += outcome.virtual_seconds
        if outcome.complaints and self.failed is None:
            self.failed = outcome

    def __str__(self) -> str:
        return (
            f"{self.worlds} worlds, {self.tasks} tasks, {self.runs} runs, {self.events} events, "
            f"{self.virtual_seconds / 3600:.1f} simulated hours in {self.wall_seconds:.0f} s"
        )


def one(
    seed: int, world: type[World] = World, bend: Callable[[Plan], Plan] = lambda plan: plan
) -> Outcome:
    """A world; whatever breaks the simulation itself is a complaint, too."""
    if seed % GARBAGE_EVERY == 0:
        gc.collect()
    try:
        return run_world(seed, world, bend)
    except Exception as error:  # noqa: BLE001 - the seed must be told, whatever it is
        return Outcome(seed, (f"the world broke: {error!r}",), "", 0, 0, 0, 0.0)


def outcomes(seeds: Iterable[int], processes: int) -> Iterator[Outcome]:
    """Each world's outcome, as they come."""
    if processes == 1:
        yield from map(one, seeds)
        return
    # Forked, so that each worker has the services imported already.
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=200) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=4)


def run(
    seeds: Iterable[int],
    *,
    seconds_max: float,
    processes: int | None = None,
    progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Run worlds until one is wrong, all are done, or the time is over."""
    begin, tally = time.monotonic(), Tally()
    for outcome in outcomes(seeds, processes or min(2, os.cpu_count() or 1)):
        tally.add(outcome)
        tally.wall_seconds = time.monotonic() - begin
        progress(tally)
        if tally.failed is not None or tally.wall_seconds > seconds_max:
            break
    return tally
