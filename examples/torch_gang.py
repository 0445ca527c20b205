"""PyTorch across nodes: one replica a rank, DistributedDataParallel over gloo, on CPUs.

    shiftwork submit --nodes 2 -f -- python3 examples/torch_gang.py --out DIR
    shiftwork submit --nodes 2 -f -- torchrun examples/torch_gang.py --out DIR
    torchrun --standalone --nproc-per-node 2 examples/torch_gang.py --out DIR

The platform gives every rank the others' address (MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE),
as torchrun does. Each step is a function of the seed, the weights and
the number of the step, so that a run which was interrupted ends with the same bits as one which
was not. Rank 0 saves for all and reads for all: DIR must be where each node finds it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import shiftwork
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

POINTS = 512
ROUNDS = 1.5
HIDDEN = 32
BATCH_PER_RANK = 32
RATE = 0.01
# How long a rank waits for the others, at the meeting and in a step.
TIMEOUT = timedelta(seconds=120)


def spirals(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two spirals, wound into one another: points of the plane, and which spiral each is of."""
    source = torch.Generator().manual_seed(seed)
    along = torch.rand(POINTS, generator=source).sqrt()
    kind = torch.arange(POINTS) % 2
    angle = along * ROUNDS * 2 * math.pi + kind * math.pi
    points = torch.stack([along * angle.cos(), along * angle.sin()], dim=1)
    return points + 0.01 * torch.randn(points.shape, generator=source), kind


def network(seed: int) -> torch.nn.Module:
    """A small network, the same for each rank."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(2, HIDDEN),
        torch.nn.Tanh(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.Tanh(),
        torch.nn.Linear(HIDDEN, 2),
    )


def batch_of(step: int, seed: int, rank: int, ranks: int) -> torch.Tensor:
    """Which points this rank takes at this step; no two ranks take the same."""
    source = torch.Generator().manual_seed(seed * 1_000_003 + step)
    order = torch.randperm(POINTS, generator=source)
    return order[rank : BATCH_PER_RANK * ranks : ranks]


def agree(mine: bool) -> bool:
    """True on every rank if it is true on any."""
    word = torch.tensor([int(mine)])
    dist.all_reduce(word, op=dist.ReduceOp.MAX)
    return bool(word.item())


def save(folder: Path, state: dict[str, Any]) -> tuple[str, str]:
    """Write a checkpoint that is durable when this returns: its path and its digest."""
    attempt = os.environ.get("SHIFTWORK_ATTEMPT", "0")
    path = folder / f"torch-attempt-{attempt}-step-{state['step']:08d}.pt"
    half = path.with_suffix(".writing")
    with half.open("wb") as stream:
        torch.save(state, stream)
        stream.flush()
        os.fsync(stream.fileno())
    digest = hashlib.sha256(half.read_bytes()).hexdigest()
    half.replace(path)
    return str(path), f"sha256:{digest}"


def load(checkpoint: shiftwork.Checkpoint) -> dict[str, Any]:
    """A checkpoint, its digest checked."""
    found = hashlib.sha256(Path(checkpoint.uri).read_bytes()).hexdigest()
    if checkpoint.digest not in (None, f"sha256:{found}"):
        raise SystemExit(f"{checkpoint.uri} is not what was saved")
    return torch.load(checkpoint.uri, map_location="cpu", weights_only=True)


def begin(rank: int) -> dict[str, Any] | None:
    """What to resume from, the same on every rank; None: from the start."""
    begun = shiftwork.resume_from()
    held = [load(begun) if begun and rank == 0 else None]
    dist.broadcast_object_list(held, src=0)
    return held[0]


def digest_of(model: torch.nn.Module) -> str:
    """All weights as one number, to the bit."""
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.contiguous().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    """Train to the end, or until all ranks agree to leave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("torch-gang-out"))
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow each step down")
    given = parser.parse_args()
    folder = given.out.resolve()

    # The same order of additions on every machine.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=True)
    # On the platform and under torchrun all four are set; a rank alone sets them itself.
    for name, alone in (("RANK", 0), ("WORLD_SIZE", 1), ("MASTER_PORT", 29500)):
        os.environ.setdefault(name, str(alone))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", timeout=TIMEOUT)
    try:
        train(given, folder)
    finally:
        dist.destroy_process_group()


def train(given: argparse.Namespace, folder: Path) -> None:
    """The loop of one rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if BATCH_PER_RANK * ranks > POINTS:
        raise SystemExit(f"{ranks} ranks are more than {POINTS // BATCH_PER_RANK}: too little data")
    if rank == 0:
        folder.mkdir(parents=True, exist_ok=True)
    points, kinds = spirals(given.seed)
    own_network = network(given.seed)
    optimizer = torch.optim.Adam(own_network.parameters(), lr=RATE)
    step, held = 0, begin(rank)
    if held is not None:
        step = held["step"]
        own_network.load_state_dict(held["network"])
        # The moments alone: rates are the program's, and tensors can be read without running code.
        optimizer.load_state_dict({**optimizer.state_dict(), "state": held["moments"]})
    model = DistributedDataParallel(own_network)
    print(f"rank {rank} of {ranks} from step {step} of {given.steps}", flush=True)
    while step < given.steps:
        chosen = batch_of(step, given.seed, rank, ranks)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(points[chosen]), kinds[chosen])
        loss.backward()
        optimizer.step()
        step += 1
        shiftwork.report(loss=loss.item(), step=step)
        time.sleep(given.step_seconds)
        if shiftwork.should_preempt(agree) and step < given.steps:
            if rank == 0:
                state = {
                    "step": step,
                    "network": own_network.state_dict(),
                    "moments": optimizer.state_dict()["state"],
                }
                shiftwork.checkpoint_saved(step, *save(folder, state))
            print(f"rank {rank} leaves at step {step}", flush=True)
            dist.barrier()  # no rank leaves while another still trains or saves
            shiftwork.exit_preempted()
    with torch.no_grad():
        right = (own_network(points).argmax(dim=1) == kinds).float().mean().item()
    found = digest_of(own_network)
    if rank == 0:
        result = {"steps": step, "ranks": ranks, "accuracy": right, "sha256": found}
        (folder / "final.json").write_text(json.dumps(result) + "\n")
    print(f"accuracy {right:.3f} weights sha256 {found}", flush=True)


if __name__ == "__main__":
    main()
