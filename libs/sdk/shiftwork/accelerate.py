"""Loops with Hugging Face Accelerate: save when asked, leave, resume. Needs ``accelerate``.

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    checkpoints = shiftwork.accelerate.Checkpoints(accelerator, "out")
    checkpoints.load()
    for epoch in checkpoints.epochs(3):
        for batch in checkpoints.batches(loader):
            ...  # a step, as before

``batches`` saves and leaves between two batches, and begins in mid-epoch when resumed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Iterator

import torch
from accelerate import Accelerator

import shiftwork
import shiftwork.torch
from shiftwork import durable, folders

__all__ = ["Checkpoints"]


def check_world_size(seen: int) -> None:
    """Raise RuntimeError if each rank of the task would train by itself."""
    if seen == 1 and shiftwork.world_size() > 1:
        raise RuntimeError(
            f"this task has {shiftwork.world_size()} ranks, but Accelerate sees one process: "
            "start it by torchrun, as in `shiftwork submit --nodes 2 -- torchrun train.py`"
        )


class Checkpoints:
    """Saves with ``accelerator.save_state``, and the place in the data with it.

    Saved are: all that was prepared or registered for checkpointing, the generators of random
    numbers of every rank, epoch and batch. Make it on every rank, in the main thread, after
    ``accelerator.prepare``.

    Args:
        accelerator: the program's own.
        folder: where checkpoints lie; every rank of every node must find it there.
        every: also save every so many optimizer steps, so that a node that dies costs no more.
        keep: how many stored checkpoints stay; older ones are removed.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        folder: str | os.PathLike[str],
        *,
        every: int | None = None,
        keep: int = 2,
    ) -> None:
        for name, value in (("every", every), ("keep", keep)):
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value} must be 1 or more")
        check_world_size(accelerator.num_processes)
        self.step = 0
        """Optimizer steps done."""
        self._accelerator = accelerator
        self._folder = Path(folder).resolve()
        self._every = every
        self._keep = keep
        self._preemption = shiftwork.torch.Preemption()
        self._epoch = 0
        self._batch = 0
        # Of all generators: at the start of the epoch, and when the checkpoint was saved.
        self._epoch_rng: dict[str, Any] = {}
        self._saved_rng: dict[str, Any] | None = None

    def load(self) -> int:
        """Load the stored checkpoint, if there is one; returns the optimizer steps done.

        Raises:
            FileNotFoundError: the checkpoint is not there.
            ValueError: it is not what was saved, or is of another task or number of processes.
        """
        found = shiftwork.resume_from()
        if found is None:
            return 0
        path = folders.stored(found)
        if not self._place(path).exists():
            raise ValueError(
                f"the checkpoint {path} is of another number of processes than "
                f"{self._accelerator.num_processes}"
            )
        self._accelerator.load_state(str(path))
        held = torch.load(self._place(path), map_location="cpu", weights_only=True)
        self.step, self._epoch, self._batch = held["step"], held["epoch"], held["batch"]
        self._epoch_rng, self._saved_rng = held["epoch_rng"], held["rng"]
        return self.step

    def epochs(self, count: int) -> Iterator[int]:
        """Numbers of the epochs that are left, of 0 to ``count``."""
        while self._epoch < count:
            yield self._epoch
            self._epoch, self._batch = self._epoch + 1, 0

    def batches(self, loader: Any) -> Iterator[Any]:  # noqa: ANN401 - a prepared DataLoader
        """Yield the remaining batches of this epoch; between them check for a preemption request,
        and save and leave if there is one.

        The check is skipped while gradients are being accumulated.

        Raises:
            shiftwork.Superseded: this attempt is no longer the live one; stop.
        """
        if getattr(loader, "use_stateful_dataloader", False):
            raise ValueError("use_stateful_dataloader: must be False; batches() skips by itself")
        generator = getattr(loader, "synchronized_generator", None) or loader.generator
        if self._saved_rng is None:
            self._epoch_rng = {"all": shiftwork.torch.rng_state()}
            if generator is not None:
                self._epoch_rng["sampler"] = generator.get_state()
        else:
            # The order of the data, as this epoch began.
            shiftwork.torch.restore_rng_state(self._epoch_rng["all"])
            if generator is not None:
                generator.set_state(self._epoch_rng["sampler"])
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(self._epoch)
        left = self._accelerator.skip_first_batches(loader, self._batch) if self._batch else loader
        for batch in left:
            self._restore_rng()
            yield batch
            self._batch += 1
            if self._accelerator.sync_gradients:
                self.step += 1
                self._between_steps()
        self._restore_rng()

    def _between_steps(self) -> None:
        if self._preemption.should_leave(self.step):
            self._save()
            shiftwork.torch.exit_preempted()
        if self._every and self.step % self._every == 0:
            self._save()

    def _restore_rng(self) -> None:
        """Once, behind the first batch: making the iterator has drawn random numbers."""
        saved, self._saved_rng = self._saved_rng, None
        if saved is not None:
            shiftwork.torch.restore_rng_state(saved)

    def _save(self) -> None:
        path = shiftwork.torch.new_folder(self._folder, self.step)
        self._accelerator.save_state(str(path))
        place = {
            "step": self.step,
            "epoch": self._epoch,
            "batch": self._batch,
            "epoch_rng": self._epoch_rng,
            "rng": shiftwork.torch.rng_state(),
        }
        torch.save(place, self._place(path))
        shiftwork.torch.gather(b"")  # every rank has written its part
        if self._accelerator.is_local_main_process:
            durable.sync(path)
        shiftwork.torch.gather(b"")  # every node has synced its part
        main = self._accelerator.is_main_process
        digest = folders.seal(path, self.step) if main else None
        shiftwork.torch.acknowledge(self.step, str(path), digest)
        if main:
            folders.prune(path, self._keep)

    def _place(self, path: Path) -> Path:
        ranks = self._accelerator
        return path / f"rank-{ranks.process_index}-of-{ranks.num_processes}.pt"
