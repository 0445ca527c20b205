"""A gang: N ranks that train one model together and leave together, standard library only.

    shiftwork submit --nodes 2 --gpus-per-node 1 -f -- python examples/gang.py --out DIR

Data-parallel least squares: each rank takes the gradient of its share of the data, all-reduce
adds the shares in the order of ranks (so that every bit is the same each time), and every rank
takes the same step. The same all-reduce is ``agree``: the ranks receive a preemption request at
different times and still leave at the same step. Rank 0 saves for all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import socket
import struct
import time
from pathlib import Path

import shiftwork

FEATURES = 8
SAMPLES_PER_RANK = 64
RATE = 0.05
MEET_SECONDS = 60.0
STEP_SECONDS_MAX = 120.0


class Gang:
    """All ranks, joined in a star at MASTER_ADDR:MASTER_PORT."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        address = (os.environ.get("MASTER_ADDR", "127.0.0.1"), _port())
        # On rank 0 one connection for each other rank, in their order; elsewhere one to rank 0.
        self._others: list[socket.socket] = []
        if size > 1:
            self._others = self._gather(address) if rank == 0 else [self._join(address)]

    def all_reduce(self, values: list[float]) -> list[float]:
        """Element-wise sums over all ranks, added in the order of ranks; the same on each."""
        layout = f"<{len(values)}d"
        if self.rank != 0:
            self._others[0].sendall(struct.pack(layout, *values))
            return list(struct.unpack(layout, _receive(self._others[0], struct.calcsize(layout))))
        total = list(values)
        for other in self._others:
            share = struct.unpack(layout, _receive(other, struct.calcsize(layout)))
            total = [sum_so_far + value for sum_so_far, value in zip(total, share, strict=True)]
        for other in self._others:
            other.sendall(struct.pack(layout, *total))
        return total

    def agree(self, mine: bool) -> bool:
        """True on every rank if it is true on any."""
        return self.all_reduce([float(mine)])[0] > 0

    def close(self) -> None:
        """Leave the gang."""
        for other in self._others:
            other.close()

    def _gather(self, address: tuple[str, int]) -> list[socket.socket]:
        ranks: dict[int, socket.socket] = {}
        with contextlib.closing(_listen(address)) as door:
            door.settimeout(MEET_SECONDS)
            while len(ranks) < self.size - 1:
                other, _ = door.accept()
                other.settimeout(STEP_SECONDS_MAX)
                (peer,) = struct.unpack("<i", _receive(other, 4))
                ranks[peer] = other
        return [ranks[peer] for peer in sorted(ranks)]

    def _join(self, address: tuple[str, int]) -> socket.socket:
        until = time.monotonic() + MEET_SECONDS
        while True:
            try:
                found = socket.create_connection(address, timeout=STEP_SECONDS_MAX)
            except OSError as error:
                if time.monotonic() > until:
                    raise SystemExit(f"rank 0 is not at {address}: {error}") from error
                time.sleep(0.05)
                continue
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.sendall(struct.pack("<i", self.rank))
            return found


def _port() -> int:
    return int(os.environ.get("MASTER_PORT", "29500"))


def _listen(address: tuple[str, int]) -> socket.socket:
    """Bind to that address if it is this machine's own, else to all (behind a service's name)."""
    for host in (address[0], ""):
        try:
            return socket.create_server((host, address[1]), reuse_port=False)
        except OSError:
            if not host:
                raise
    raise AssertionError("the loop returns or raises")


def _receive(other: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = other.recv(length - len(data))
        if not piece:
            raise SystemExit("another rank has gone")
        data += piece
    return data


def share(rank: int, seed: int) -> list[tuple[list[float], float]]:
    """This rank's data: points of a noisy plane."""
    source = random.Random(seed * 1_000_003 + rank)  # noqa: S311 - data, not secrets
    truth = random.Random(seed)  # noqa: S311 - data, not secrets
    slopes = [truth.uniform(-1, 1) for _ in range(FEATURES)]
    points = []
    for _ in range(SAMPLES_PER_RANK):
        x = [source.uniform(-1, 1) for _ in range(FEATURES)]
        y = sum(a * b for a, b in zip(slopes, x, strict=True)) + source.gauss(0, 0.01)
        points.append((x, y))
    return points


def gradient(weights: list[float], points: list[tuple[list[float], float]]) -> list[float]:
    """The gradient of the squared error over these points, and the error itself behind it."""
    slopes, error = [0.0] * FEATURES, 0.0
    for x, y in points:
        off = sum(a * b for a, b in zip(weights, x, strict=True)) - y
        error += off * off
        slopes = [slope + off * value for slope, value in zip(slopes, x, strict=True)]
    return [*slopes, error]


def save(folder: Path, step: int, weights: list[float]) -> tuple[str, str]:
    """Write a checkpoint that is durable when this returns: its path and its digest."""
    attempt = os.environ.get("SHIFTWORK_ATTEMPT", "0")
    path = folder / f"gang-attempt-{attempt}-step-{step:08d}.json"
    data = json.dumps({"step": step, "weights": [value.hex() for value in weights]}).encode()
    half = path.with_suffix(".writing")
    with half.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    half.replace(path)
    return str(path), "sha256:" + hashlib.sha256(data).hexdigest()


def load(checkpoint: shiftwork.Checkpoint) -> tuple[int, list[float]]:
    """Step and weights of a checkpoint, its digest checked."""
    data = Path(checkpoint.uri).read_bytes()
    if checkpoint.digest not in (None, "sha256:" + hashlib.sha256(data).hexdigest()):
        raise SystemExit(f"{checkpoint.uri} is not what was saved")
    held = json.loads(data)
    return held["step"], [float.fromhex(value) for value in held["weights"]]


def main() -> None:
    """Train to the end, or until all ranks agree to leave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("gang-out"))
    parser.add_argument("--step-seconds", type=float, default=0.0, help="slow each step down")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    folder = given.out.resolve()

    gang = Gang(shiftwork.rank(), shiftwork.world_size())
    begun = shiftwork.resume_from()
    step, weights = load(begun) if begun else (0, [0.0] * FEATURES)
    points = share(gang.rank, given.seed)
    print(f"rank {gang.rank} of {gang.size} from step {step} of {given.steps}", flush=True)
    error = 0.0
    while step < given.steps:
        *slopes, error = gang.all_reduce(gradient(weights, points))
        count = gang.size * SAMPLES_PER_RANK
        weights = [
            value - RATE * slope / count for value, slope in zip(weights, slopes, strict=True)
        ]
        step += 1
        time.sleep(given.step_seconds)
        if shiftwork.should_preempt(gang.agree) and step < given.steps:
            if gang.rank == 0:
                uri, digest = save(folder, step, weights)
                shiftwork.checkpoint_saved(step, uri, digest)
            print(f"rank {gang.rank} leaves at step {step}", flush=True)
            gang.close()
            shiftwork.exit_preempted()
    report_end(gang, folder, step, weights, error)
    gang.close()


def report_end(gang: Gang, folder: Path, step: int, weights: list[float], error: float) -> None:
    """Print the result, to the bit; rank 0 also writes it to a file."""
    found = hashlib.sha256("".join(value.hex() for value in weights).encode()).hexdigest()
    if gang.rank == 0:
        result = {"steps": step, "sha256": found}
        (folder / "final.json").write_text(json.dumps(result) + "\n")
        print(f"error {error:.9f}")
    print(f"weights sha256 {found}", flush=True)


if __name__ == "__main__":
    main()
