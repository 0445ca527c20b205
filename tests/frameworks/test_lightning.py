"""shiftwork.lightning with the real Trainer: leaves in mid-epoch and resumes to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.frameworks.local_gang import BIN, ROOT, Gang, final, run_alone, torchrun

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("frameworks_python")]

PER_EPOCH = 2048 // 16


@pytest.fixture
def gang(tmp_path: Path) -> Iterator[Gang]:
    """One replica; several ranks are torchrun's."""
    with Gang(tmp_path) as made:
        yield made


def command(ranks: int, *arguments: object) -> list[object]:
    if ranks > 1:
        return torchrun(ranks, "lightning_fit.py", *arguments)
    return [BIN / "python", ROOT / "examples/lightning_fit.py", *arguments]


@pytest.mark.parametrize(("ranks", "accumulate"), [(2, 3), (4, 1)])
def test_a_fit_resumes_in_mid_epoch_to_the_bit(
    gang: Gang, tmp_path: Path, ranks: int, accumulate: int
) -> None:
    options = ["--epochs", 3, "--accumulate", accumulate, "--out"]
    alone, shared = tmp_path / "alone", tmp_path / "shared"
    run_alone(tmp_path, *command(ranks, *options, alone))

    per_epoch = -(-PER_EPOCH // ranks // accumulate)
    for after in (per_epoch // 2, per_epoch):
        slow = command(ranks, *options, shared, "--step-seconds", 0.05)
        code, out = gang.preempt(*slow, after=after)
        # Of one process, 75 is the code to leave with; torchrun would take it for a failure.
        assert (code, "Traceback" in out, "ChildFailedError" in out) == (
            (75 if ranks == 1 else 0),
            False,
            False,
        )
        assert gang.saved is not None
        assert gang.saved["step"] % per_epoch, "not in the middle of an epoch"
    first, second = (saved["step"] for saved in gang.server.checkpoints)
    assert first < second < final(alone)["step"]
    assert {"step", "loss"} <= set(gang.server.samples[0]["values"])
    assert sorted(shared.glob("*-step-*/*.ckpt")) == [
        shared / f"ta-attempt-{number:04d}-step-{step:012d}" / "lightning.ckpt"
        for number, step in ((1, first), (2, second))
    ]

    code, out = gang.run(*command(ranks, *options, shared))
    assert (code, f"from step {second}" in out) == (0, True)
    assert final(shared) == final(alone)


def test_a_checkpoint_that_is_not_what_was_saved_is_refused(gang: Gang, tmp_path: Path) -> None:
    path = tmp_path / "broken.ckpt"
    path.write_bytes(b"other bytes")
    gang.saved = {"step": 5, "uri": str(path), "digest": "sha256:00", "attempt": 1}
    code, out = gang.run(*command(1, "--out", "out"))
    assert (code, "broken.ckpt is not what was saved" in out) == (1, True)


def test_sigterm_leaves_as_the_platform_asks(gang: Gang) -> None:
    # Lightning's own handler would end the process before it has saved.
    gang.start(*command(1, "--out", "out", "--step-seconds", 0.05))
    gang.wait_for_reports(6)
    gang.terminate()
    assert (gang.end().codes, len(gang.server.checkpoints)) == ([75], 1)
