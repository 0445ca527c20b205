"""Trains with PyTorch DDP and shiftwork.torch; preemption in an epoch does not change the result.

    shiftwork submit --nodes 2 -f -- torchrun examples/torch_ddp.py --out DIR
    torchrun --standalone --nproc-per-node 2 examples/torch_ddp.py --out DIR

Lines marked with a number are what a plain DDP script adds. Every node must reach DIR by this path.
Each rank trains on the GPU of its local rank and uses NCCL; without GPUs it uses the CPU and gloo.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import shiftwork.torch  # 1
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

POINTS = 2048
BATCH = 16


def rings(seed: int) -> TensorDataset:
    """Return random points of the plane, each labelled with its ring (one of three)."""
    source = torch.Generator().manual_seed(seed)
    points = torch.randn(POINTS, 2, generator=source)
    return TensorDataset(points, points.norm(dim=1).mul(1.5).long().clamp(max=2))


def main() -> None:
    """Train to the end, or until all ranks are asked to leave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("torch-ddp-out"))
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow each step down")
    given = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(given.seed)
    device = torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    rank = dist.get_rank()
    network = nn.Sequential(
        nn.Linear(2, 256),
        nn.ReLU(),
        nn.Dropout(0.1),
        nn.Linear(256, 256),
        nn.ReLU(),
        nn.Linear(256, 3),
    ).to(device)
    # find_unused_parameters keeps DDP from regrouping its buckets after the first step: a
    # resumed run would do so at a different step than an uninterrupted run.
    model = DistributedDataParallel(network, find_unused_parameters=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)

    loader = shiftwork.torch.DataLoader(
        rings(given.seed), BATCH, shuffle=True, seed=given.seed
    )  # 2
    guard = shiftwork.torch.Preemption()  # 3
    checkpoints = shiftwork.torch.Checkpoints(  # 4
        given.out, model=model, optimizer=optimizer, scheduler=scheduler, loader=loader
    )
    step = checkpoints.load()  # 5
    if rank == 0:
        print(f"{dist.get_world_size()} ranks from epoch {loader.epoch}, step {step}", flush=True)
    loss = torch.tensor(0.0)
    for epoch in range(loader.epoch, given.epochs):
        for batch in loader:
            points, labels = (part.to(device) for part in batch)
            loss = nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            shiftwork.report(step=step, epoch=epoch, loss=loss.item())
            time.sleep(given.step_seconds)
            if guard.should_leave(step):  # 6
                checkpoints.save(step)  # 7
                print(f"rank {rank} leaves in epoch {epoch} at step {step}", flush=True)
                shiftwork.torch.exit_preempted()  # 8
    weights = b"".join(value.cpu().numpy().tobytes() for value in network.state_dict().values())
    if rank == 0:
        result = {"step": step, "loss": loss.item(), "sha256": hashlib.sha256(weights).hexdigest()}
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "final.json").write_text(json.dumps(result) + "\n")
        print(
            f"step {step} loss {result['loss']:.4f} weights sha256 {result['sha256']}", flush=True
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
