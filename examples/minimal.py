"""The least a script needs: three lines beside the import, marked below.

    shiftwork submit -f -- python examples/minimal.py

Any program that can save and load its state already has the rest. Runs unchanged off the
platform, where the three lines do nothing.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import shiftwork

STEPS = 100


def save(state: dict[str, float]) -> str:
    """Your own saving; durable when it returns. The attempt is part of the name."""
    attempt = os.environ.get("SHIFTWORK_ATTEMPT", "0")
    path = Path(f"minimal-attempt-{attempt}-step-{int(state['step'])}.json").resolve()
    half = path.with_suffix(".writing")
    with half.open("w") as stream:
        json.dump(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    half.replace(path)
    return str(path)


def main() -> None:
    """Count, slowly."""
    saved = shiftwork.resume_from()  # 1: where the last attempt left off, or None
    state = json.loads(Path(saved.uri).read_text()) if saved else {"step": 0, "sum": 0.0}
    while state["step"] < STEPS:
        state["step"] += 1
        state["sum"] += 1.0 / state["step"]
        time.sleep(0.1)
        if shiftwork.should_preempt():  # 2: at once, never the network
            shiftwork.checkpoint_saved(state["step"], save(state))  # 3: stored when it returns
            return  # after an acknowledged checkpoint, any way to leave is correct
    print(f"sum {state['sum']:.12f}")


if __name__ == "__main__":
    main()
