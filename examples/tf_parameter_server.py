"""TensorFlow with a parameter server: a chief schedules steps that workers compute.

    shiftwork submit -f --file examples/tf_parameter_server.yaml

The contract `tf_config` gives every rank its TF_CONFIG. The chief alone decides: workers and the
parameter server serve until the platform ends them. What Shiftwork needs is marked below.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from pathlib import Path

import numpy as np
import shiftwork
import tensorflow as tf

FEATURES, ROWS, RATE = 8, 64, 0.1


def save(out: Path, step: int, weights: np.ndarray) -> str:
    """Durable when it returns; the attempt is part of the name."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"attempt-{os.environ.get('SHIFTWORK_ATTEMPT', '0')}-step-{step}.npy"
    half = path.with_suffix(".writing")
    with half.open("wb") as stream:
        np.save(stream, weights)
        stream.flush()
        os.fsync(stream.fileno())
    half.replace(path)
    return str(path.resolve())


def share(worker: int) -> tuple[np.ndarray, np.ndarray]:
    """The data of one worker: points of a plane."""
    source = np.random.default_rng(worker)
    points = source.normal(size=(ROWS, FEATURES)).astype(np.float32)
    return points, points @ np.linspace(-1, 1, FEATURES, dtype=np.float32)


def main() -> None:
    """Train to the end, or until asked to leave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("tf-out"))
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow each step down")
    given = parser.parse_args()

    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type in {"worker", "ps"}:
        server = tf.distribute.Server(
            cluster.cluster_spec(),
            job_name=cluster.task_type,
            task_index=cluster.task_id,
            protocol="grpc",
        )
        print(f"{cluster.task_type} {cluster.task_id} serves", flush=True)
        server.join()

    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    workers = cluster.cluster_spec().num_tasks("worker")
    saved = shiftwork.resume_from()  # 1: the last checkpoint, or None
    start, first = (saved.step, np.load(saved.uri)) if saved else (0, np.zeros(FEATURES, "f4"))
    with strategy.scope():
        weights = tf.Variable(first)

    @tf.function
    def slopes(points: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
        off = tf.linalg.matvec(points, weights) - values
        return tf.linalg.matvec(points, off, transpose_a=True) / ROWS

    shares = [share(worker) for worker in range(workers)]
    print(f"from step {start} of {given.steps}", flush=True)
    for step in range(start + 1, given.steps + 1):
        found = [coordinator.schedule(slopes, args=each) for each in shares]
        coordinator.join()
        weights.assign_sub(RATE * sum(each.fetch() for each in found) / workers)
        time.sleep(given.step_seconds)
        shiftwork.report(step=step)
        if shiftwork.should_preempt():  # 2: at once, never the network
            shiftwork.checkpoint_saved(step, save(given.out, step, weights.numpy()))  # 3: stored
            return
    print(f"weights {hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
