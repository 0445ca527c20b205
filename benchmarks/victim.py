"""The task that P5 preempts: steps of a millisecond, a checkpoint that costs nothing.

    python victim.py NOTES

Every line of NOTES: what, the attempt, the time of day, the step. Its state is its number of
steps, so a checkpoint is written as soon as it is asked for, and what is lost can be counted.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

BEGAN = time.time()

import shiftwork  # noqa: E402 - the time before it counts


def main() -> None:
    """Step until asked to go."""
    notes, attempt = Path(sys.argv[1]), os.environ["SHIFTWORK_ATTEMPT"]
    saved = shiftwork.resume_from()
    step = saved.step if saved else 0

    def note(what: str, at: float) -> None:
        with notes.open("a") as file:
            file.write(f"{what} {attempt} {at} {step}\n")

    note("began", BEGAN)
    shiftwork.should_preempt()
    note("steps", time.time())
    while not shiftwork.should_preempt():
        time.sleep(0.001)
        step += 1
    shiftwork.checkpoint_saved(step, f"none:{step}")
    note("acked", time.time())
    shiftwork.exit_preempted()


if __name__ == "__main__":
    main()
