"""shiftwork.lightning with the real Trainer: leaves in mid-epoch and resumes to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.gang import BIN, ROOT, Gang, end, final, torchrun
from tests.libs.sdk.run_server import RunServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.frameworks

PER_EPOCH = 2048 // 16


@pytest.fixture
def server() -> Iterator[RunServer]:
    running = RunServer()
    yield running
    running.stop()


def command(ranks: int, *arguments: object) -> list[object]:
    if ranks > 1:
        return torchrun(ranks, "lightning_fit.py", *arguments)
    return [BIN / "python", ROOT / "examples/lightning_fit.py", *arguments]


@pytest.mark.parametrize(("ranks", "accumulate"), [(2, 3), (4, 1)])
def test_a_fit_resumes_in_mid_epoch_to_the_bit(
    server: RunServer, tmp_path: Path, ranks: int, accumulate: int
) -> None:
    options = ["--epochs", 3, "--accumulate", accumulate, "--out"]
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    code, out = end(Gang(server, tmp_path).start(command(ranks, *options, alone)))
    assert code == 0, out

    gang = Gang(server, tmp_path)
    per_epoch = -(-PER_EPOCH // ranks // accumulate)
    for after in (per_epoch // 2, per_epoch):
        slow = command(ranks, *options, shared, "--step-seconds", 0.05)
        code, out = gang.leave(gang.start(slow), after)
        # Of one process, 75 is the code to leave with; torchrun would take it for a failure.
        assert (code, "Traceback" in out, "ChildFailedError" in out) == (
            (75 if ranks == 1 else 0),
            False,
            False,
        )
        assert gang.saved is not None
        assert gang.saved["step"] % per_epoch, "not in the middle of an epoch"
    first, second = (saved["step"] for saved in server.checkpoints)
    assert first < second < final(alone)["step"]
    assert {"step", "loss"} <= set(server.samples[0]["values"])
    assert sorted(shared.glob("*-step-*/*.ckpt")) == [
        shared / f"ta-attempt-{number:04d}-step-{step:012d}" / "lightning.ckpt"
        for number, step in ((1, first), (2, second))
    ]

    code, out = end(gang.start(command(ranks, *options, shared)))
    assert (code, f"from step {second}" in out) == (0, True)
    assert final(shared) == final(alone)


def test_a_checkpoint_that_is_not_what_was_saved_is_refused(
    server: RunServer, tmp_path: Path
) -> None:
    path = tmp_path / "broken.ckpt"
    path.write_bytes(b"other bytes")
    gang = Gang(server, tmp_path)
    gang.saved = {"step": 5, "uri": str(path), "digest": "sha256:00", "attempt": 1}
    code, out = end(gang.start(command(1, "--out", "out")))
    assert (code, "broken.ckpt is not what was saved" in out) == (1, True)


def test_sigterm_leaves_as_the_platform_asks(server: RunServer, tmp_path: Path) -> None:
    # Lightning's own handler would end the process before it has saved.
    gang = Gang(server, tmp_path)
    running = gang.start(command(1, "--out", "out", "--step-seconds", 0.05))
    server.wait_for(lambda: len(server.samples) > 5, 240)
    running.terminate()
    code, _ = end(running)
    assert (code, len(server.checkpoints)) == (75, 1)
