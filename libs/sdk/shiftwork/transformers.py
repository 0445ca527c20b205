"""The Hugging Face Trainer: save when asked, leave, resume. Needs ``transformers`` and ``torch``.

    trainer = Trainer(..., callbacks=[shiftwork.transformers.PreemptionCallback()])
    trainer.train(resume_from_checkpoint=shiftwork.transformers.resume_path())

The checkpoints are the Trainer's own, in its ``output_dir``; see docs/frameworks.md.
"""

# ruff: noqa: ANN401 - the signatures of callbacks are the Trainer's

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

import shiftwork
import shiftwork.torch
from shiftwork import durable, folders, training
from shiftwork.accelerate import check_world_size
from shiftwork.context import Checkpoint

__all__ = ["PreemptionCallback", "resume_path"]

_CHECKPOINTS = f"{PREFIX_CHECKPOINT_DIR}-*"


def resume_path() -> str | None:
    """What ``trainer.train(resume_from_checkpoint=...)`` takes; None at the first start.

    It is the stored checkpoint. If ``save_total_limit`` has removed that one, and the process died
    before the platform had stored its successor, it is the newest complete one of this task
    beside it.

    Raises:
        FileNotFoundError: the checkpoint is not there.
        ValueError: it is not what was saved, or another task has written over it.
    """
    found = shiftwork.resume_from()
    if found is None:
        return None
    try:
        return str(folders.stored(found, "the Trainer's output_dir"))
    except (FileNotFoundError, ValueError) as problem:
        stored = Path(found.uri)
        beside = [path for path in stored.parent.glob(_CHECKPOINTS) if _follows(found, path)]
        if not beside:
            raise
        newest = max(beside, key=_step)
        sys.stderr.write(f"shiftwork: {problem}; resuming from {newest}\n")
        return str(newest)


def _follows(saved: Checkpoint, path: Path) -> bool:
    """A complete checkpoint of this task, and a later one."""
    try:
        found = folders.manifest(path)
    except ValueError:
        return False
    return found.get("task") == training.task() and found.get("step", 0) > saved.step


class PreemptionCallback(TrainerCallback):
    """Leaves when asked: the Trainer saves a checkpoint of its own, and the process ends with 75.

    All ranks leave after the same step, in the middle of an epoch as well. An evaluation or a save
    that is due at that step comes first. Checkpoints that the Trainer saves by itself
    (``save_steps``) are made known to the platform, too, and what it logs is reported.

    Make it on every rank, in the main thread, before ``trainer.train``.
    """

    def __init__(self) -> None:
        self._preemption = shiftwork.torch.Preemption()
        self._leaving = False
        self._due = False
        self._acknowledged = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Refuse what could not be resumed."""
        if args.save_only_model:
            raise ValueError(
                "save_only_model: True saves nothing to resume from; set it to False for a task "
                "that can be preempted"
            )
        if state.is_hyper_param_search:
            raise ValueError(
                "PreemptionCallback: a hyperparameter search cannot be resumed in the middle; "
                "submit each trial as a task of its own"
            )
        check_world_size(args.world_size)
        if args.should_save:
            _unseal_later(_output(args), state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Ask; a step at the end of an epoch is saved at the end of the epoch."""
        if state.global_step < state.max_steps and self._preemption.should_leave(state.global_step):
            self._leaving = True
            control.should_training_stop = True
            self._due = not _epoch_is_over(state)
            control.should_save = control.should_save or self._due

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Leave out what is due at the end of an epoch only, unless it is the end."""
        if not self._leaving:
            return
        if not _epoch_is_over(state):
            control.should_evaluate = control.should_log = False
        if args.save_strategy == "best":
            # An evaluation would decide whether to save.
            args.save_strategy = type(args.save_strategy)("steps")
        self._due = True
        control.should_save = not self._acknowledged

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Make the checkpoint durable and known; wait for that only when leaving."""
        if self._leaving and not self._due:
            return  # what is due at the end of the epoch comes first
        path = _output(args) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        shiftwork.torch.gather(b"")  # every rank has written its part
        if args.local_process_index == 0:
            durable.sync(path)
        shiftwork.torch.gather(b"")  # every node has synced its part
        digest = folders.seal(path, state.global_step) if args.should_save else None
        if args.save_on_each_node:
            digest = None  # each node's folder holds other files
        if self._leaving:
            shiftwork.torch.acknowledge(state.global_step, str(path), digest)
            self._acknowledged = True
            # So that the end of train() neither loads the best model nor removes this checkpoint.
            state.best_model_checkpoint = None
        elif state.is_world_process_zero:
            shiftwork.checkpoint_saved(state.global_step, str(path), digest, wait=False)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Report loss, learning rate and whatever else the Trainer logs, with its step."""
        if state.is_world_process_zero and not self._acknowledged:
            shiftwork.report(**{**(logs or {}), "step": state.global_step})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """End the process, so that what follows ``trainer.train()`` waits for the real end."""
        if self._acknowledged:
            shiftwork.torch.exit_preempted()


def _epoch_is_over(state: TrainerState) -> bool:
    return state.epoch == int(state.epoch)


def _output(args: TrainingArguments) -> Path:
    return Path(args.output_dir or "").absolute()


def _unseal_later(output: Path, step: int) -> None:
    """What this task saved of later steps is about to be written over."""
    saved = shiftwork.resume_from()
    for path in output.glob(_CHECKPOINTS):
        if _step(path) > step and (saved is None or str(path) != saved.uri):
            with suppress(ValueError):
                if folders.unchecked_manifest(path).get("task") == training.task():
                    folders.unseal(path)


def _step(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
