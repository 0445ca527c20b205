"""The victim of ``preempt_to_newcomer`` (P5): it steps each millisecond and its checkpoint is free.

    python victim.py NOTES

Each line of NOTES has four fields: the kind of entry, the attempt, the time in seconds since the
epoch, and the step. The number of steps is the task's whole state, so a checkpoint is complete as
soon as it is requested, and the benchmark can count the steps that are lost.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

BEGAN = time.time()

import shiftwork  # noqa: E402 - BEGAN includes the time of this import


def main() -> None:
    """Count steps until a preemption is requested, then leave."""
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
