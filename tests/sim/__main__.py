"""``python -m tests.sim --simulations N [--seed n] [--verbose]``: the simulation as a program.

Without --seed each call draws new seeds. The exit status is 1, with the seed, if a simulation
fails, and 2 if the time was over before all of them were run.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Sequence

from tests.sim.swarm import Tally, one, run

SECONDS_MAX = 570.0
SEEDS = 1 << 40


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument(
        "--simulations", type=int, default=1000, help="how many (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, help="only the simulation of this seed")
    parser.add_argument("--first", type=int, help="the first of several seeds in a row")
    parser.add_argument(
        "--verbose", action="store_true", help="print what happened in the simulation"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS_MAX, help="stop after so long (%(default)s)"
    )
    arguments = parser.parse_args(words)
    if arguments.seed is not None:
        return _only(arguments.seed, verbose=arguments.verbose)
    first = secrets.randbelow(SEEDS) if arguments.first is None else arguments.first
    seeds = range(first, first + arguments.simulations)
    print(f"{len(seeds)} simulations, seeds {first} to {first + len(seeds) - 1}", flush=True)
    tally = run(seeds, seconds_max=arguments.seconds, progress=_progress)
    print(f"\r{tally}")
    if tally.failed is not None:
        _report(tally.failed, verbose=arguments.verbose)
        return 1
    if tally.simulations < arguments.simulations:
        left = arguments.simulations - tally.simulations
        print(
            f"stopped after {arguments.seconds:g} s: {left} of {arguments.simulations} were not run"
        )
        return 2
    print("nothing is wrong")
    return 0


def _only(seed: int, *, verbose: bool) -> int:
    outcome = one(seed)
    if verbose and not outcome.complaints:
        print(*outcome.lines, sep="\n")
    print(
        f"simulation {seed}: {outcome.tasks} tasks, {outcome.runs} runs, {outcome.events} events, "
        f"{outcome.virtual_seconds:.0f} simulated seconds, history {outcome.digest}"
    )
    if outcome.complaints:
        _report(outcome, verbose=verbose)
        return 1
    print("nothing is wrong")
    return 0


def _progress(tally: Tally) -> None:
    if sys.stdout.isatty():
        print(f"\r{tally}", end="", flush=True)
    elif tally.simulations % 100 == 0:
        print(tally, flush=True)


def _report(outcome: object, *, verbose: bool) -> None:
    complaints, seed = outcome.complaints, outcome.seed  # type: ignore[attr-defined]
    print(f"\nWRONG in the simulation of seed {seed}:")
    for text in complaints[:20]:
        print(f"  {text}")
    if len(complaints) > 20:
        print(f"  and {len(complaints) - 20} more")
    print(f"\nreproduce: python -m tests.sim --seed {seed} --verbose   (or: make sim SEED={seed})")
    if verbose:
        print(*outcome.lines, sep="\n")  # type: ignore[attr-defined]


if __name__ == "__main__":
    raise SystemExit(main())
