"""Train a small network on the digits data set, checkpoint, leave when asked, resume bit for bit.

    python digits.py --steps 400 --out /tmp/digits
    shiftwork submit --name digits -f -- python examples/digits.py --out /tmp/digits

Every step is a function of the seed and the state: weights, optimizer moments, the generator
behind dropout and shuffling, and the place in the data. A checkpoint holds all of it, so a run
that was interrupted ends with the same bits as one that was not. Runs unchanged off the platform.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import shiftwork

SHAPES = {"w1": (64, 48), "b1": (48,), "w2": (48, 10), "b2": (10,)}
BATCH = 64
DROPOUT = 0.1
RATE, BETA1, BETA2, EPSILON = 2e-3, 0.9, 0.999, 1e-8
CHECKPOINTS_KEPT = 3


@dataclass
class State:
    """All that the next step depends on."""

    rng: np.random.Generator
    step: int = 0
    # The order of this epoch, and how far into it training has come.
    order: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    position: int = 0
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    mean: dict[str, np.ndarray] = field(default_factory=dict)
    variance: dict[str, np.ndarray] = field(default_factory=dict)


def fresh(seed: int) -> State:
    """The state before the first step."""
    state = State(np.random.default_rng(seed))
    for name, shape in SHAPES.items():
        scale = np.sqrt(2.0 / shape[0]) if len(shape) > 1 else 0.0
        state.weights[name] = state.rng.standard_normal(shape) * scale
        state.mean[name] = np.zeros(shape)
        state.variance[name] = np.zeros(shape)
    return state


def product(pattern: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A matrix product that adds in one order, whatever the environment sets.

    BLAS would be faster and choose its kernels and threads by variables and by load, and with
    them the last bit. Your own training may have other ways to be reproducible, or not need it.
    """
    return np.einsum(pattern, a, b, order="C")


def train_step(state: State, images: np.ndarray, labels: np.ndarray) -> float:
    """One step of Adam on the next batch; the loss before it."""
    if state.position + BATCH > len(state.order):
        state.order, state.position = state.rng.permutation(len(images)), 0
    batch = state.order[state.position : state.position + BATCH]
    state.position += BATCH
    x, y, w = images[batch], labels[batch], state.weights
    pre = product("bi,ij->bj", x, w["w1"]) + w["b1"]
    mask = (state.rng.random(pre.shape) >= DROPOUT) / (1.0 - DROPOUT)
    hidden = np.maximum(pre, 0.0) * mask
    scores = product("bi,ij->bj", hidden, w["w2"]) + w["b2"]
    scores -= scores.max(axis=1, keepdims=True)
    likely = np.exp(scores)
    likely /= likely.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(-np.log(likely[rows, y]).mean())
    likely[rows, y] -= 1.0
    back = likely / len(y)
    behind = product("bj,ij->bi", back, w["w2"]) * mask * (pre > 0)
    gradient = {
        "w1": product("bi,bj->ij", x, behind),
        "b1": behind.sum(axis=0),
        "w2": product("bi,bj->ij", hidden, back),
        "b2": back.sum(axis=0),
    }
    state.step += 1
    for name, slope in gradient.items():
        mean = state.mean[name] = BETA1 * state.mean[name] + (1 - BETA1) * slope
        variance = state.variance[name] = BETA2 * state.variance[name] + (1 - BETA2) * slope**2
        mean_unbiased = mean / (1 - BETA1**state.step)
        variance_unbiased = variance / (1 - BETA2**state.step)
        w[name] = w[name] - RATE * mean_unbiased / (np.sqrt(variance_unbiased) + EPSILON)
    return loss


def accuracy(state: State, images: np.ndarray, labels: np.ndarray) -> float:
    """The share of images that the network classifies correctly."""
    w = state.weights
    hidden = np.maximum(images @ w["w1"] + w["b1"], 0.0)
    return float(((hidden @ w["w2"] + w["b2"]).argmax(axis=1) == labels).mean())


def save(state: State, folder: Path) -> tuple[str, str]:
    """Write a checkpoint that is durable when this returns: its address and its digest."""
    attempt = os.environ.get("SHIFTWORK_ATTEMPT", "0")
    path = folder / f"attempt-{attempt}-step-{state.step:08d}.npz"
    half = path.with_suffix(".writing")
    with half.open("wb") as stream:
        np.savez(
            stream,
            step=state.step,
            order=state.order,
            position=state.position,
            rng=json.dumps(state.rng.bit_generator.state),
            **{f"weights.{name}": value for name, value in state.weights.items()},
            **{f"mean.{name}": value for name, value in state.mean.items()},
            **{f"variance.{name}": value for name, value in state.variance.items()},
        )
        stream.flush()
        os.fsync(stream.fileno())
    digest = "sha256:" + hashlib.sha256(half.read_bytes()).hexdigest()
    half.replace(path)
    handle = os.open(folder, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    for old in sorted(folder.glob(f"attempt-{attempt}-step-*.npz"))[:-CHECKPOINTS_KEPT]:
        old.unlink()
    return path.as_uri(), digest


def load(checkpoint: shiftwork.Checkpoint) -> State:
    """The state of a checkpoint, its digest checked."""
    data = Path(unquote(urlsplit(checkpoint.uri).path))
    digest = "sha256:" + hashlib.sha256(data.read_bytes()).hexdigest()
    if checkpoint.digest not in (None, digest):
        raise SystemExit(f"{data} is not what was saved: {digest}, not {checkpoint.digest}")
    with np.load(data, allow_pickle=False) as held:
        state = State(np.random.default_rng(), int(held["step"]))
        state.rng.bit_generator.state = json.loads(str(held["rng"]))
        state.order, state.position = held["order"], int(held["position"])
        for name in SHAPES:
            state.weights[name] = held[f"weights.{name}"]
            state.mean[name] = held[f"mean.{name}"]
            state.variance[name] = held[f"variance.{name}"]
    return state


def fingerprint(state: State) -> str:
    """The SHA-256 of every bit of the weights."""
    found = hashlib.sha256()
    for name in sorted(state.weights):
        found.update(name.encode() + np.ascontiguousarray(state.weights[name]).tobytes())
    return found.hexdigest()


def data() -> tuple[np.ndarray, np.ndarray]:
    """1797 images of 8x8 pixels, and what they show."""
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise SystemExit("the digits come with scikit-learn: pip install scikit-learn")
    # The file that load_digits reads, without the second or two that importing it takes.
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.exists():
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1] / 16.0, table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # noqa: PLC0415 - see above

    digits = load_digits()
    return digits.data / 16.0, digits.target


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("digits-out"))
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow each step down")
    parser.add_argument("--checkpoint-every", type=int, default=0, help="steps; 0: when asked")
    return parser.parse_args()


def main() -> None:
    """Train to the end, or until the platform requests the nodes."""
    given = arguments()
    shiftwork.should_preempt()  # begin to poll while the data loads
    given.out.mkdir(parents=True, exist_ok=True)
    folder = given.out.resolve()
    begun = shiftwork.resume_from()
    state = load(begun) if begun else fresh(given.seed)
    print(f"from step {state.step} of {given.steps}", flush=True)
    images, labels = data()
    leader = shiftwork.rank() == 0
    while state.step < given.steps:
        loss = train_step(state, images, labels)
        shiftwork.report(step=state.step, loss=loss)
        if state.step % 50 == 0:
            print(f"step {state.step} loss {loss:.6f}", flush=True)
        time.sleep(given.step_seconds)
        leaving = shiftwork.should_preempt() and state.step < given.steps
        due = given.checkpoint_every and state.step % given.checkpoint_every == 0
        if leader and (leaving or due):
            uri, digest = save(state, folder)
            shiftwork.checkpoint_saved(state.step, uri, digest)
        if leaving:
            print(f"leaving at step {state.step}", flush=True)
            shiftwork.exit_preempted()
    result = {"steps": state.step, "sha256": fingerprint(state)}
    if leader:
        (folder / "final.json").write_text(json.dumps(result) + "\n")
    print(f"accuracy {accuracy(state, images, labels):.4f}")
    print(f"weights sha256 {result['sha256']}", flush=True)


if __name__ == "__main__":
    main()
