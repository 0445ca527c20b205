"""A program that hands its nodes over on its own while it has nothing to compute.

    shiftwork submit --name rounds -f -- python examples/hand_over.py --out /tmp/rounds

It works in rounds, and keeps in its life state which round comes next. After each round it saves,
hands the nodes over and leaves; its next attempt does the next round, while other tasks use the
nodes in between. When all rounds are done, `shiftwork continue rounds` begins another lap: the new
task finds the sum of the one before. Off the platform it does all rounds in one process.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import shiftwork


def save(out: Path, state: dict[str, int]) -> str:
    """Write a checkpoint, durably. Task and attempt are part of the name, so that neither another
    attempt nor a task that goes on with this one writes over it."""
    out.mkdir(parents=True, exist_ok=True)
    task, attempt = (os.environ.get(f"SHIFTWORK_{name}", "local") for name in ("TASK", "ATTEMPT"))
    path = (out / f"{task}-{attempt}-{state['step']}.json").resolve()
    half = path.with_suffix(".writing")
    with half.open("w") as stream:
        json.dump(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    half.replace(path)
    return str(path)


def main() -> None:
    """Do the rounds that are left."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("rounds"))
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    saved = shiftwork.resume_from()
    state = json.loads(Path(saved.uri).read_text()) if saved else {"step": 0, "sum": 0}
    kept = shiftwork.life_state() or {"next_round": 0}
    for number in range(kept["next_round"], arguments.rounds):
        state = {"step": state["step"] + 1, "sum": state["sum"] + number}
        print(f"round {number}: sum {state['sum']}", flush=True)
        shiftwork.checkpoint_saved(state["step"], save(arguments.out, state))
        if number + 1 < arguments.rounds:
            shiftwork.set_life_state({"next_round": number + 1})
            shiftwork.yield_now("until the next round")
            shiftwork.exit_preempted()
    shiftwork.set_life_state({"next_round": 0})
    print(f"all rounds done: sum {state['sum']}", flush=True)


if __name__ == "__main__":
    main()
