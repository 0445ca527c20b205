"""Trainer, Accelerate and JAX: the examples, preempted in the middle, end with the same bits."""

from __future__ import annotations

import functools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.conftest import Shiftwork
from tests.frameworks.local_gang import BIN, PLAIN, ROOT, Gang, weights

pytestmark = [pytest.mark.frameworks, pytest.mark.server]


@dataclass(frozen=True)
class Example:
    script: str
    launcher: str
    length: tuple[str, int]

    @property
    def path(self) -> Path:
        return ROOT / "examples" / self.script

    def command(self, out: Path, *more: object) -> list[object]:
        return [BIN / "python", self.path, *self.length, "--out", out, *more]


EXAMPLES = [
    Example("hf_trainer.py", "torchrun", ("--epochs", 12)),
    Example("accelerate_loop.py", "torchrun", ("--epochs", 8)),
    Example("jax_loop.py", "python", ("--steps", 300)),
]
each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.script)


@functools.cache
def uninterrupted(example: Example, ranks: int) -> str:
    with tempfile.TemporaryDirectory() as folder, Gang(Path(folder), ranks) as alone:
        alone.start(*example.command(Path(folder)))
        codes, outputs = alone.end()
        assert codes == [0] * ranks, outputs
        assert list(Path(folder).rglob("*attempt*")) == []
        return weights(outputs[0])


@pytest.mark.usefixtures("frameworks_python")
@each_example
# Two ranks: on the platform, below.
@pytest.mark.parametrize("ranks", [4])
def test_a_gang_leaves_in_the_middle_and_ends_with_the_same_bits(
    example: Example, ranks: int, tmp_path: Path
) -> None:
    with Gang(tmp_path, ranks) as shared:
        shared.start(*example.command(tmp_path, "--step-seconds", 0.3))
        shared.wait_for_step(7)
        # Only the last rank hears of it.
        shared.servers[-1].ask_to_leave()
        codes, outputs = shared.end()
        assert codes == [75] * ranks, outputs
        assert [len(server.checkpoints) for server in shared.servers] == [1] + [0] * (ranks - 1)
        assert shared.saved is not None
        assert str(tmp_path) in shared.saved["uri"]

        shared.start(*example.command(tmp_path))
        codes, outputs = shared.end()
        assert codes == [0] * ranks, outputs
        for output in outputs:
            assert f" from step {shared.saved['step']}" in output
    assert weights(outputs[0]) == uninterrupted(example, ranks)


@each_example
def test_a_gang_on_two_nodes_is_preempted_by_a_higher_priority_and_resumes(
    example: Example, platform: Shiftwork
) -> None:
    out = platform.home / example.script
    environ = [f"--env={name}={value}" for name, value in PLAIN.items()]
    options = ["--nodes", "2", "--gpus-per-node", "1", "--priority", "low", *environ]
    command = [BIN / example.launcher, *example.command(out)[1:]]
    # Slow until it is preempted, so that there is time to preempt it on a busy machine.
    slow = 'exec "$@" --step-seconds $((SHIFTWORK_ATTEMPT == 1))'
    task = platform.submit(*options, "--", "bash", "-c", slow, "-", *map(str, command))
    while "from step 0" not in platform.good("logs", task).out:
        assert platform.task(task)["state"] in ("queued", "starting", "running")
        time.sleep(0.5)
    urgent = platform.submit("--nodes", "2", "--priority", "high", "--", "true")
    for each in (urgent, task):
        platform("wait", each)

    found, printed = platform.task(task), platform.good("logs", task).out
    assert (found["state"], found["attempt"]) == ("succeeded", 2), printed
    assert found["checkpoint"]["attempt"] == 1
    assert f"from step {found['checkpoint']['step']}" in printed
    assert weights(printed) == uninterrupted(example, 2)
