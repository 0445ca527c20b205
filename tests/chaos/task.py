"""A task of the chaos tests: counts steps, saves, leaves when asked, and writes down what is true.

Every line of its record is one ``write`` to a file opened with O_APPEND, so a SIGKILL cuts no line
in two. The record shows when the process certainly lived (each line has the machine's monotonic
clock), from which step it resumed, which checkpoints the platform acknowledged, and how many lines
of output it wrote.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import shiftwork

PADDING = "x" * 80
LEFT_SECONDS_MAX = 20.0


class Record:
    """What is true of this process, for ``invariants.py``."""

    def __init__(self, folder: Path) -> None:
        self.identity = {
            "task": os.environ["SHIFTWORK_TASK"],
            "attempt": int(os.environ["SHIFTWORK_ATTEMPT"]),
            "rank": int(os.environ["SHIFTWORK_RANK"]),
            "node": os.environ["SHIFTWORK_NODE"],
            "gpus": [int(gpu) for gpu in os.environ["SHIFTWORK_GPUS"].split(",") if gpu],
            "pid": os.getpid(),
        }
        path = folder / f"{self.identity['task']}.jsonl"
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.lines = 0

    def write(self, kind: str, **values: object) -> None:
        line = {**self.identity, "t": kind, "at": time.monotonic(), **values}
        os.write(self.fd, json.dumps(line).encode() + b"\n")
        if kind in ("start", "ack", "end"):
            os.fsync(self.fd)

    def output(self) -> None:
        """One numbered line of output; recorded by the next beat."""
        self.lines += 1
        identity = self.identity
        name = f"{identity['task']} {identity['attempt']} {identity['rank']}"
        os.write(1, f"chaos {name} {self.lines} {PADDING}\n".encode())


def save(folder: Path, step: int) -> None:
    """Durable on disk, then acknowledged."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"attempt-{os.environ['SHIFTWORK_ATTEMPT']}-step-{step}"
    text = f"{step}\n".encode()
    with path.with_suffix(".writing").open("wb") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    path.with_suffix(".writing").replace(path)
    shiftwork.checkpoint_saved(step, path.as_uri(), "sha256:" + hashlib.sha256(text).hexdigest())


def load() -> int:
    """The step to go on from; a checkpoint that cannot be read is an error, never a fresh start."""
    found = shiftwork.resume_from()
    if found is None:
        return 0
    data = Path(found.uri.removeprefix("file://")).read_bytes()
    assert found.digest == "sha256:" + hashlib.sha256(data).hexdigest(), (
        "another checkpoint's bytes"
    )
    assert int(data) == found.step, "another step's checkpoint"
    return found.step


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--step-seconds", type=float, default=0.05)
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--listen", choices=("sdk", "signal", "never"), default="sdk")
    parser.add_argument("--failures", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    given = arguments()
    signalled: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: signalled.append(number))
    record = Record(given.record)
    work: Path = given.work / str(record.identity["task"])
    step = load()
    record.write("start", step=step)
    leader = record.identity["rank"] == 0
    left = work / f"left-{record.identity['attempt']}"

    def wanted() -> bool:
        if given.listen == "never":
            return False
        return bool(signalled) if given.listen == "signal" else shiftwork.should_preempt()

    while step < given.steps:
        time.sleep(given.step_seconds)
        step += 1
        record.output()
        shiftwork.report(step=step)
        leaving = wanted()
        if leader and (leaving or (given.save_every and step % given.save_every == 0)):
            save(work, step)
            record.write("ack", step=step)
        record.write("beat", step=step, lines=record.lines)
        if leaving:
            if leader:
                left.parent.mkdir(parents=True, exist_ok=True)
                left.touch()
            else:
                wait_for(left)
            record.write("end", lines=record.lines)
            shiftwork.exit_preempted()
    failing = leader and has_to_fail(work, given.failures)
    record.write("end", lines=record.lines)
    return 3 if failing else 0


def wait_for(left: Path) -> None:
    """A rank leaves after the one that saves for all."""
    ends_at = time.monotonic() + LEFT_SECONDS_MAX
    while not left.exists() and time.monotonic() < ends_at:
        time.sleep(0.02)


def has_to_fail(work: Path, failures: int) -> bool:
    """Fail so many times in all; the count is on disk before the failure."""
    work.mkdir(parents=True, exist_ok=True)
    done = len(list(work.glob("failed-*")))
    if done >= failures:
        return False
    (work / f"failed-{done + 1}").touch()
    return True


if __name__ == "__main__":
    sys.exit(main())
