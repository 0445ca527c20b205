"""A loop with Hugging Face Accelerate: it separates two spirals.

    shiftwork submit -f -- python examples/accelerate_loop.py --out DIR
    shiftwork submit --nodes 2 -f -- torchrun examples/accelerate_loop.py --out DIR

What Shiftwork needs is marked below. The data are shuffled again in each epoch, gradients are
accumulated over two batches, and the network drops units at random: preempted in the middle of an
epoch, it ends with the same bits as one that was not.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from pathlib import Path

import shiftwork
import shiftwork.accelerate
import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset

POINTS = 480


def spirals() -> TensorDataset:
    """Points of the plane, and which of two spirals each is of."""
    along = torch.rand(POINTS).sqrt()
    kind = torch.arange(POINTS) % 2
    angle = along * 3 * math.pi + kind * math.pi
    return TensorDataset(torch.stack([along * angle.cos(), along * angle.sin()], dim=1), kind)


def main() -> None:
    """Train to the end, or until asked to leave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("accelerate-out"))
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow each step down")
    given = parser.parse_args()

    torch.set_num_threads(1)  # on every machine the same order of additions
    # Keeps DDP from adding in another order after its first step; see docs/frameworks.md.
    same_order = DistributedDataParallelKwargs(find_unused_parameters=True)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=2,
        kwargs_handlers=[same_order],
    )
    set_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(64, 2),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(spirals(), batch_size=8, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    checkpoints = shiftwork.accelerate.Checkpoints(accelerator, given.out)  # 1
    start = checkpoints.load()  # 2: steps done, 0 at first
    print(f"rank {accelerator.process_index} from step {start}", flush=True)
    for epoch in checkpoints.epochs(given.epochs):  # 3: instead of range(epochs)
        for points, kinds in checkpoints.batches(loader):  # 4: instead of loader
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(points), kinds)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            shiftwork.report(step=checkpoints.step, epoch=epoch, loss=loss.item())
            time.sleep(given.step_seconds)
    if accelerator.is_main_process:
        weights = b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())
        print(f"weights sha256 {hashlib.sha256(weights).hexdigest()}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
