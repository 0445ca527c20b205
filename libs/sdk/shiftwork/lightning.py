"""Lightning: leaves in the middle of an epoch, and resumes to the bit. docs/frameworks.md has more.

trainer = Trainer(callbacks=[shiftwork.lightning.Preemption("out")], ...)
trainer.fit(model, loader, ckpt_path=shiftwork.lightning.ckpt_path())
"""

from __future__ import annotations

import io
import os
import signal
import threading
from pathlib import Path
from typing import Any, Mapping

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import shiftwork
from shiftwork import durable, folders
from shiftwork import torch as ranks

__all__ = ["Preemption", "ckpt_path"]

_RNG = "shiftwork_rng"
_FILE = "lightning.ckpt"


class Preemption(Callback):
    """Saves and ends the process at a preemption request; reports ``step`` and logged values.

    All ranks leave after the same optimizer step. A validation that is due, and the end of an
    epoch, come first: what they write is then complete, and they are not run twice. The process
    ends by SystemExit from within ``fit``; what follows ``fit`` in the program is not run.

    Every checkpoint of this trainer holds the states of all ranks' random generators.

    Args:
        folder: where checkpoints lie; each node must find it there.
        keep: how many stay, the acknowledged one always among them.
    """

    def __init__(self, folder: str | os.PathLike[str], *, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep must be 1 or more, not {keep}")
        self._folder = Path(folder).resolve()
        self._keep = keep
        self._guard = ranks.Preemption()
        self._on_sigterm = signal.getsignal(signal.SIGTERM)
        self._step = -1
        self._rng: list[bytes] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take SIGTERM back from Lightning, which would end the process at once."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._on_sigterm)
        if self._rng:
            if len(self._rng) != trainer.world_size:
                raise ValueError(
                    f"{trainer.ckpt_path} was saved by {len(self._rng)} ranks, this trainer has "
                    f"{trainer.world_size}: start it with as many"
                )
            state = io.BytesIO(self._rng[trainer.global_rank])
            ranks.restore_rng_state(torch.load(state, weights_only=True))
            self._rng = []

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,  # noqa: ANN401 - Lightning's
        batch: Any,  # noqa: ANN401
        batch_idx: int,
    ) -> None:
        """Report, and leave if asked, after an optimizer step."""
        step = trainer.global_step
        if step == self._step:
            return  # gradients are being accumulated
        self._step = step
        if trainer.is_global_zero and step % _log_every(trainer) == 0:
            shiftwork.report(**_metrics(trainer, outputs), step=step)
        if not _ends_something(trainer, batch_idx) and self._guard.should_leave(step):
            self._save(trainer, step)
            ranks.exit_preempted()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Add the generators of all ranks; Lightning keeps none."""
        own = io.BytesIO()
        torch.save(ranks.rng_state(), own)
        checkpoint[_RNG] = ranks.gather(own.getvalue())

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep them until training starts: what comes before draws from them."""
        self._rng = checkpoint.get(_RNG, [])

    def _save(self, trainer: Trainer, step: int) -> None:
        folder = ranks.new_folder(self._folder, step)
        target = folder / _FILE
        trainer.save_checkpoint(target)  # on every rank, and returns when all have written
        digest = None
        if trainer.is_global_zero:
            durable.sync(folder)
            digest = durable.digest(target)
            folders.seal(folder, step)
        ranks.acknowledge(step, str(target), digest)
        if trainer.is_global_zero:
            folders.prune(folder, self._keep)


def ckpt_path() -> str | None:
    """What to give ``Trainer.fit`` as ``ckpt_path``: the checkpoint to resume from, or None.

    Raises ValueError if it is not what was saved.
    """
    start = shiftwork.resume_from()
    if start is None:
        return None
    durable.check(start.uri, start.digest)
    return start.uri


def _log_every(trainer: Trainer) -> int:
    return getattr(trainer, "log_every_n_steps", 0) or 50  # an attribute that is set elsewhere


def _ends_something(trainer: Trainer, batch_idx: int) -> bool:
    """True after the last batch of an epoch or of all, and where a validation follows."""
    if trainer.is_last_batch or trainer.global_step == trainer.max_steps:
        return True
    every = trainer.val_check_batch if trainer.enable_validation else None
    if trainer.check_val_every_n_epoch is None:  # validations are counted across epochs
        batch_idx = trainer.fit_loop.total_batch_idx
    return isinstance(every, int) and (batch_idx + 1) % every == 0


def _metrics(trainer: Trainer, outputs: Any) -> dict[str, Any]:  # noqa: ANN401
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return {"loss": loss, **trainer.callback_metrics}
