"""Runs many simulations on the cores of this machine, until one fails or the time is over."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.sim.plan import Plan
from tests.sim.simulation import Outcome, Simulation, run_simulation

GARBAGE_EVERY = 25


@dataclass
class Tally:
    """What was run."""

    simulations: int = 0
    tasks: int = 0
    runs: int = 0
    events: int = 0
    virtual_seconds: float = 0.0
    wall_seconds: float = 0.0
    failed: Outcome | None = None

    def add(self, outcome: Outcome) -> None:
        self.simulations += 1
        self.tasks += outcome.tasks
        self.runs += outcome.runs
        self.events += outcome.events
        self.virtual_seconds += outcome.virtual_seconds
        if outcome.complaints and self.failed is None:
            self.failed = outcome

    def __str__(self) -> str:
        return (
            f"{self.simulations} simulations, {self.tasks} tasks, {self.runs} runs, "
            f"{self.events} events, {self.virtual_seconds / 3600:.1f} simulated hours "
            f"in {self.wall_seconds:.0f} s"
        )


def one(
    seed: int, sim: type[Simulation] = Simulation, bend: Callable[[Plan], Plan] = lambda plan: plan
) -> Outcome:
    """Run one simulation; an exception in the simulation itself is a complaint, too."""
    if seed % GARBAGE_EVERY == 0:
        gc.collect()
    try:
        return run_simulation(seed, sim, bend)
    except Exception as error:  # noqa: BLE001 - the seed must be reported, whatever it is
        return Outcome(seed, (f"the simulation broke: {error!r}",), "", 0, 0, 0, 0.0)


def outcomes(seeds: Iterable[int], processes: int) -> Iterator[Outcome]:
    """Each simulation's outcome, as they come."""
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
    """Run simulations until one is wrong, all are done, or the time is over."""
    begin, tally = time.monotonic(), Tally()
    for outcome in outcomes(seeds, processes or min(2, os.cpu_count() or 1)):
        tally.add(outcome)
        tally.wall_seconds = time.monotonic() - begin
        progress(tally)
        if tally.failed is not None or tally.wall_seconds > seconds_max:
            break
    return tally
