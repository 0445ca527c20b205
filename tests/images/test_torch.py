"""Runs the PyTorch example on two ranks in its image: preemption does not change the final bits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.images.conftest import Containers
from tests.libs.sdk.run_server import TOKEN, RunServer
from tools.images.catalog import ROOT

pytestmark = pytest.mark.containers

STEPS = 120
RANKS = 2


@pytest.fixture
def server() -> Iterator[RunServer]:
    running = RunServer()
    yield running
    running.stop()


class Gang:
    """Starts the example's ranks as the platform does, each in its own container."""

    def __init__(self, containers: Containers, image: str, out: Path) -> None:
        self.containers, self.image, self.out = containers, image, out

    def _options(self) -> tuple[str, ...]:
        return (
            "--read-only",
            "--tmpfs=/tmp",
            "--cap-drop=ALL",
            "--network=host",
            f"--volume={self.out}:/out",
            f"--volume={ROOT / 'libs' / 'sdk'}:/sdk:ro",
            "--env=PYTHONPATH=/sdk",
        )

    def start(self, port: int, variables: dict[str, str], *options: str) -> list[str]:
        return [
            self.containers.start(
                *self._options(),
                *(
                    f"--env={name}={value}"
                    for name, value in {
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(port),
                        "WORLD_SIZE": str(RANKS),
                        "RANK": str(rank),
                        **variables,
                        **({"SHIFTWORK_RANK": str(rank)} if variables else {}),
                    }.items()
                ),
                self.image,
                "python3",
                "examples/torch_gang.py",
                f"--steps={STEPS}",
                "--out=/out",
                *options,
            )
            for rank in range(RANKS)
        ]

    def wait(self, ranks: list[str]) -> list[tuple[int, str]]:
        codes = [int(self.containers.call("wait", each).stdout) for each in ranks]
        return [(code, self.containers.logs(each)) for code, each in zip(codes, ranks, strict=True)]

    def final(self) -> Any:
        return json.loads((self.out / "final.json").read_text())


@pytest.fixture
def gang(containers: Containers, image: Callable[[str], str], tmp_path: Path) -> Gang:
    tmp_path.chmod(0o777)
    return Gang(containers, image("task-torch"), tmp_path)


def attempt_variables(
    server: RunServer, number: int, saved: dict[str, Any] | None
) -> dict[str, str]:
    return {
        "SHIFTWORK_TASK": "ta",
        "SHIFTWORK_ATTEMPT": str(number),
        "SHIFTWORK_WORLD_SIZE": str(RANKS),
        "SHIFTWORK_URL": server.url,
        "SHIFTWORK_RUN_TOKEN": TOKEN,
        "SHIFTWORK_RESUME_FROM": json.dumps(saved) if saved else "",
    }


def test_a_preempted_gang_resumes_and_ends_with_the_same_bits(
    gang: Gang, server: RunServer
) -> None:
    assert [code for code, _ in gang.wait(gang.start(29611, {}))] == [0, 0]
    uninterrupted = gang.final()
    assert (uninterrupted["steps"], uninterrupted["ranks"]) == (STEPS, RANKS)
    assert uninterrupted["accuracy"] > 0.6  # the training learns: guessing gives 0.5

    first = gang.start(29612, attempt_variables(server, 1, None), "--step-seconds=0.05")
    server.wait_for(lambda: len(server.samples) > 3, 30)
    server.ask_to_leave()
    ended = gang.wait(first)
    assert [code for code, _ in ended] == [75, 75]
    leave_steps = {log.split("leaves at step ")[1].split()[0] for _, log in ended}
    assert len(leave_steps) == 1
    saved = server.checkpoints[-1]
    assert 0 < saved["step"] < STEPS
    assert {str(saved["step"])} == leave_steps

    server.preempt = False
    resume = {"step": saved["step"], "uri": saved["uri"], "digest": saved["digest"], "attempt": 1}
    ended = gang.wait(gang.start(29613, attempt_variables(server, 2, resume)))
    assert [code for code, _ in ended] == [0, 0], ended
    assert all(f"from step {saved['step']} of" in log for _, log in ended)
    assert gang.final() == uninterrupted


def test_torchrun_produces_the_same_bits_as_separate_ranks(
    gang: Gang, containers: Containers, tmp_path: Path
) -> None:
    assert [code for code, _ in gang.wait(gang.start(29614, {}))] == [0, 0]
    plain = gang.final()
    (tmp_path / "final.json").unlink()
    done = containers.run(
        *gang._options(),
        gang.image,
        "torchrun",
        "--standalone",
        f"--nproc_per_node={RANKS}",
        "examples/torch_gang.py",
        f"--steps={STEPS}",
        "--out=/out",
    )
    assert done.returncode == 0, done.stderr
    assert gang.final() == plain
