"""MPI: mpirun starts one process in each slot of the task's workers, and they add up a series.

    shiftwork submit -f --file examples/mpi_reduce.yaml

The contract `mpi` gives the launcher its file of hosts. What Shiftwork needs is marked below.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import shiftwork
from mpi4py import MPI

world = MPI.COMM_WORLD


def agree(mine: bool) -> bool:
    """True on every process if it is true on any."""
    return bool(world.allreduce(int(mine), MPI.MAX))


def save(out: Path, step: int, total: float) -> str:
    """Durable when it returns; the attempt is part of the name."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"attempt-{os.environ.get('SHIFTWORK_ATTEMPT', '0')}-step-{step}.json"
    half = path.with_suffix(".writing")
    with half.open("w") as stream:
        json.dump(total, stream)
        stream.flush()
        os.fsync(stream.fileno())
    half.replace(path)
    return str(path.resolve())


def main() -> None:
    """Add up to the end, or until asked to leave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("mpi-out"))
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow each step down")
    given = parser.parse_args()

    saved = shiftwork.resume_from()  # 1: the last checkpoint, or None
    start = saved.step if saved else 0
    total = json.loads(Path(saved.uri).read_text()) if saved else 0.0
    print(f"process {world.rank} of {world.size} from step {start} of {given.steps}", flush=True)
    for step in range(start + 1, given.steps + 1):
        total += world.allreduce(1.0 / (step * world.size + world.rank))
        time.sleep(given.step_seconds)
        if world.rank == 0:
            shiftwork.report(step=step)
        if shiftwork.should_preempt(agree=agree):  # 2: the same answer on every process
            if world.rank == 0:
                shiftwork.checkpoint_saved(step, save(given.out, step, total))  # 3: stored
            return
    if world.rank == 0:
        print(f"sum {total!r}", flush=True)


if __name__ == "__main__":
    main()
