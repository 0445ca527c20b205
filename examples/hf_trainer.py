"""The Hugging Face Trainer: a small GPT-2 that learns to count, without a download.

    shiftwork submit -f -- python examples/hf_trainer.py --out DIR
    shiftwork submit --nodes 2 -f -- torchrun examples/hf_trainer.py --out DIR

What Shiftwork needs is two lines, marked below. Preempted in the middle of an epoch, it ends with
the same bits as one that was not.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import shiftwork
import shiftwork.transformers
import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

WORDS = 32
LENGTH = 16


def counting() -> list[dict[str, torch.Tensor]]:
    """Each example counts on from some number, in some stride."""
    rows = [
        (start + stride * torch.arange(LENGTH)) % WORDS
        for start in range(WORDS)
        for stride in range(1, 6)
    ]
    return [{"input_ids": row, "labels": row} for row in rows]


class Slow(TrainerCallback):
    """Makes each step last, so that there is something to preempt."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def on_step_end(self, *_: object, **__: object) -> None:
        """Called after each optimizer step."""
        time.sleep(self._seconds)


def main() -> None:
    """Train to the end, or until asked to leave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("hf-trainer-out"))
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow each step down")
    given = parser.parse_args()

    torch.set_num_threads(1)  # on every machine the same order of additions
    transformers.logging.set_verbosity_error()
    transformers.set_seed(1)
    config = GPT2Config(vocab_size=WORDS, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2)
    arguments = TrainingArguments(
        output_dir=str(given.out),
        num_train_epochs=given.epochs,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        logging_steps=10,
        save_strategy="no",
        seed=1,
        full_determinism=True,
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        report_to="none",
    )
    model = GPT2LMHeadModel(config)
    trainer = Trainer(
        model,
        arguments,
        train_dataset=counting(),
        callbacks=[shiftwork.transformers.PreemptionCallback(), Slow(given.step_seconds)],  # 1
    )
    start = shiftwork.resume_from()
    print(f"rank {shiftwork.rank()} from step {start.step if start else 0}", flush=True)
    trainer.train(resume_from_checkpoint=shiftwork.transformers.resume_path())  # 2
    if trainer.is_world_process_zero():
        weights = b"".join(value.cpu().numpy().tobytes() for value in model.state_dict().values())
        print(f"weights sha256 {hashlib.sha256(weights).hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
