"""A program without the SDK: a signal asks it to save and leave.

    shiftwork submit --preempt signal:USR1 -f -- python examples/signal_mode.py --out DIR

Nothing is acknowledged in this mode, so the program keeps its own checkpoint at a place of its
own and finds it again by itself. It leaves with code 75; exit code 0 would mean that it is done.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

LEAVE = 75


def main() -> int:
    """Iterate a map whose every value depends on the one before."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("signal-out"))
    parser.add_argument("--step-seconds", type=float, default=0.1)
    given = parser.parse_args()
    signals: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _frame: signals.append(number))

    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "state.json"
    state = json.loads(kept.read_text()) if kept.exists() else {"step": 0, "x": 0.4}
    print(f"from step {state['step']} of {given.steps}", flush=True)
    while state["step"] < given.steps:
        state = {"step": state["step"] + 1, "x": 3.9 * state["x"] * (1.0 - state["x"])}
        time.sleep(given.step_seconds)
        if signals and state["step"] < given.steps:
            half = kept.with_suffix(".writing")
            with half.open("w") as stream:
                json.dump(state, stream)
                stream.flush()
                os.fsync(stream.fileno())
            half.replace(kept)
            print(f"leaving at step {state['step']}", flush=True)
            return LEAVE
    print(f"result {state['x'].hex()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
