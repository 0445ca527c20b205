"""JAX with Orbax: it separates two spirals, the batch split over all processes.

    shiftwork submit -f -- python examples/jax_loop.py --out DIR
    shiftwork submit --nodes 2 -f -- python examples/jax_loop.py --out DIR

What Shiftwork needs is marked below. Saved are weights, optimizer, the key of the random numbers
and each process's place in its data: a run that was preempted ends with the same bits as one that
was not.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import shiftwork
import shiftwork.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

BATCH_PER_PROCESS = 16
Tree = dict[str, Any]


class Spirals:
    """Batches without end; each process has its own, and knows its place in them."""

    def __init__(self, seed: int) -> None:
        self._source = np.random.default_rng(seed)

    def __next__(self) -> Tree:
        along = np.sqrt(self._source.random(BATCH_PER_PROCESS))
        kind = self._source.integers(2, size=BATCH_PER_PROCESS)
        angle = along * 3 * np.pi + kind * np.pi
        points = np.stack([along * np.cos(angle), along * np.sin(angle)], axis=1)
        return {"points": points.astype(np.float32), "kind": kind.astype(np.int32)}

    def get_state(self) -> object:
        """What JSON can hold."""
        return self._source.bit_generator.state

    def set_state(self, state: Tree) -> None:
        """Go on from there."""
        self._source.bit_generator.state = state


optimizer = optax.adam(1e-2)


def fresh(key: jax.Array) -> Tree:
    """The state at the start."""
    first, second, key = jax.random.split(key, 3)
    weights = {
        "first": jax.random.normal(first, (2, 64)),
        "bias": jnp.zeros(64),
        "second": jax.random.normal(second, (64, 2)) / 8,
    }
    return {"weights": weights, "optimizer": optimizer.init(weights), "key": key}


def loss_of(weights: Tree, batch: Tree, key: jax.Array) -> jax.Array:
    """Cross entropy, with units dropped at random."""
    hidden = jnp.tanh(batch["points"] @ weights["first"] + weights["bias"])
    hidden = hidden * jax.random.bernoulli(key, 0.9, hidden.shape) / 0.9
    logits = hidden @ weights["second"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["kind"]).mean()


@jax.jit
def train(state: Tree, batch: Tree) -> tuple[Tree, jax.Array]:
    """One step."""
    key, now = jax.random.split(state["key"])
    loss, slopes = jax.value_and_grad(loss_of)(state["weights"], batch, now)
    updates, moments = optimizer.update(slopes, state["optimizer"])
    weights = optax.apply_updates(state["weights"], updates)
    return {"weights": weights, "optimizer": moments, "key": key}, loss


def main() -> None:
    """Train to the end, or until asked to leave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("jax-out"))
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow each step down")
    given = parser.parse_args()

    shiftwork.jax.initialize()  # 1: before any other call of JAX
    mesh = Mesh(np.array(jax.devices()), ("all",))
    everywhere, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("all",)))
    state = jax.jit(fresh, out_shardings=everywhere)(jax.random.key(1))
    data = Spirals(jax.process_index())

    checkpoints = shiftwork.jax.Checkpoints(given.out)  # 2
    start, state = checkpoints.resume(state, data)  # 3: 0 and the state itself, at first
    print(f"rank {jax.process_index()} from step {start} of {given.steps}", flush=True)
    for step in range(start, given.steps):
        batch = jax.tree.map(
            lambda rows: jax.make_array_from_process_local_data(split, rows), next(data)
        )
        state, loss = train(state, batch)
        if step % 10 == 0:
            shiftwork.report(step=step, loss=loss)
        time.sleep(given.step_seconds)
        checkpoints.leave_if_asked(step + 1, state, data)  # 4
    if jax.process_index() == 0:
        weights = b"".join(
            np.asarray(value).tobytes() for value in jax.tree.leaves(state["weights"])
        )
        print(f"weights sha256 {hashlib.sha256(weights).hexdigest()}", flush=True)


if __name__ == "__main__":
    main()
