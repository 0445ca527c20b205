"""XGBoost on several ranks: each holds a part of the rows, and all build the same trees.

    shiftwork submit --contract rank --nodes 2 -f -- python examples/xgboost_train.py --out DIR

The contract `rank` gives the address of the master, at which the ranks meet. What Shiftwork needs
is marked below.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from pathlib import Path

import numpy as np
import shiftwork
import xgboost as xgb
from xgboost import collective
from xgboost.tracker import RabitTracker

ROWS, FEATURES = 500, 8


def agree(mine: bool) -> bool:
    """True on every rank if it is true on any."""
    return bool(collective.allreduce(np.array([int(mine)]), collective.Op.MAX)[0])


class Leave(xgb.callback.TrainingCallback):
    """Saves and ends the training when the platform asks."""

    def __init__(self, out: Path, step_seconds: float) -> None:
        super().__init__()
        self.out, self.step_seconds, self.left = out, step_seconds, False

    def after_iteration(self, model: xgb.Booster, epoch: int, evals_log: object) -> bool:
        """Returns True to end the training."""
        del epoch, evals_log
        time.sleep(self.step_seconds)
        rounds = model.num_boosted_rounds()
        shiftwork.report(step=rounds)
        if not shiftwork.should_preempt(agree=agree):  # 1: the same answer on every rank
            return False
        if shiftwork.rank() == 0:
            shiftwork.checkpoint_saved(rounds, self.save(model, rounds))  # 2: stored
        self.left = True
        return True

    def save(self, model: xgb.Booster, rounds: int) -> str:
        """Durable when it returns; the attempt is part of the name."""
        self.out.mkdir(parents=True, exist_ok=True)
        attempt = os.environ.get("SHIFTWORK_ATTEMPT", "0")
        path = self.out / f"attempt-{attempt}-round-{rounds}.ubj"
        half = path.with_suffix(".writing")
        with half.open("wb") as stream:
            stream.write(model.save_raw("ubj"))
            stream.flush()
            os.fsync(stream.fileno())
        half.replace(path)
        return str(path.resolve())


def data(rank: int) -> xgb.DMatrix:
    """The rows of this rank."""
    source = np.random.default_rng(rank)
    rows = source.normal(size=(ROWS, FEATURES))
    return xgb.DMatrix(rows, label=(rows[:, 0] * rows[:, 1] > 0).astype(int))


def main() -> None:
    """Train to the end, or until asked to leave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("xgboost-out"))
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow each round down")
    given = parser.parse_args()

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    master = socket.gethostbyname(os.environ.get("MASTER_ADDR", "127.0.0.1"))
    port = int(os.environ.get("MASTER_PORT", "9999"))
    tracker = RabitTracker(n_workers=ranks, host_ip=master, port=port) if rank == 0 else None
    if tracker is not None:
        tracker.start()
    with collective.CommunicatorContext(
        dmlc_communicator="rabit",
        dmlc_tracker_uri=master,
        dmlc_tracker_port=port,
        dmlc_task_id=str(rank),
        dmlc_retry=30,
    ):
        saved = shiftwork.resume_from()  # 3: the last checkpoint, or None
        model = xgb.Booster(model_file=saved.uri) if saved else None
        start = saved.step if saved else 0
        print(f"rank {rank} from round {start} of {given.rounds}", flush=True)
        leave = Leave(given.out, given.step_seconds)
        trained = xgb.train(
            {"objective": "binary:logistic", "nthread": 1, "seed": 1},
            data(rank),
            num_boost_round=given.rounds - start,
            xgb_model=model,
            callbacks=[leave],
        )
        if rank == 0 and not leave.left:
            print(f"trees {trained.num_boosted_rounds()}", flush=True)
    if tracker is not None:
        tracker.wait_for()


if __name__ == "__main__":
    main()
