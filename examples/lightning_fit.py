"""Lightning that leaves in the middle of an epoch and ends with the same bits: shiftwork.lightning.

    shiftwork submit --nodes 2 -f -- torchrun examples/lightning_fit.py --out DIR
    python examples/lightning_fit.py --out DIR

Lines marked with a number are what a plain script adds. DIR must be where each node finds it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import time
import warnings
from pathlib import Path

import shiftwork.lightning  # 1
import shiftwork.torch
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import TensorDataset

POINTS = 2048
BATCH = 16


def rings(seed: int) -> TensorDataset:
    """Points of the plane, and in which of three rings each one lies."""
    source = torch.Generator().manual_seed(seed)
    points = torch.randn(POINTS, 2, generator=source)
    return TensorDataset(points, points.norm(dim=1).mul(1.5).long().clamp(max=2))


class Rings(LightningModule):
    """A small network with dropout."""

    def __init__(self, step_seconds: float) -> None:
        super().__init__()
        self.step_seconds = step_seconds
        self.network = nn.Sequential(
            nn.Linear(2, 256),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(256, 256),
            nn.ReLU(),
            nn.Linear(256, 3),
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a batch."""
        time.sleep(self.step_seconds)
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        """How much of a batch is right."""
        right = (self.network(batch[0]).argmax(dim=1) == batch[1]).float().mean()
        self.log("right", right, sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        """Adam with a falling rate."""
        optimizer = torch.optim.Adam(self.parameters(), lr=0.003)
        falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": falling, "interval": "step"}}


def main() -> None:
    """Train to the end, or until all ranks are asked to leave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("lightning-out"))
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow each step down")
    given = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
    torch.set_num_threads(1)
    seed_everything(given.seed, verbose=False)

    # A loader that knows its place in the epoch: Lightning keeps it in the checkpoint.
    loader = shiftwork.torch.DataLoader(
        rings(given.seed), BATCH, shuffle=True, seed=given.seed
    )  # 2
    trainer = Trainer(
        accelerator="auto",
        # From torchrun, which has it from the platform.
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        # Keeps DDP from regrouping its buckets after the first step of a process.
        strategy=DDPStrategy(find_unused_parameters=True) if "RANK" in os.environ else "auto",
        max_epochs=given.epochs,
        accumulate_grad_batches=given.accumulate,
        log_every_n_steps=1,
        callbacks=[shiftwork.lightning.Preemption(given.out)],  # 3
        default_root_dir=given.out,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Rings(given.step_seconds)
    start = shiftwork.resume_from()
    if trainer.is_global_zero:
        print(f"{trainer.world_size} ranks from step {start.step if start else 0}", flush=True)
    trainer.fit(
        module,
        loader,
        shiftwork.torch.DataLoader(rings(given.seed + 1), 256),
        ckpt_path=shiftwork.lightning.ckpt_path(),  # 4
    )
    if trainer.is_global_zero:
        weights = b"".join(value.cpu().numpy().tobytes() for value in module.state_dict().values())
        found = hashlib.sha256(weights).hexdigest()
        result = {"step": trainer.global_step, "sha256": found}
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "final.json").write_text(json.dumps(result) + "\n")
        right = float(trainer.callback_metrics["right"])
        print(f"step {trainer.global_step} right {right:.3f} weights sha256 {found}", flush=True)


if __name__ == "__main__":
    main()
