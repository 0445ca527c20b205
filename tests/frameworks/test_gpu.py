"""The platform on a real GPU: found through NVML, given to one task at a time, free for the next.

Needs one GPU of NVIDIA with 2 GiB or more, and the frameworks: `make test-gpu`.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from libs.signals.gpus import find_gpus
from tests.frameworks.conftest import SlowShiftwork
from tests.frameworks.local_gang import BIN, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import Shiftwork

pytestmark = [pytest.mark.frameworks, pytest.mark.gpu, pytest.mark.server]

# Takes most of the GPU's memory, and leaves only when it is killed.
HOLDS = """
import signal, sys, time, torch
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = torch.empty(int(torch.cuda.mem_get_info()[1] * 0.9), dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("holds", held.numel(), flush=True)
time.sleep(float(sys.argv[1]))
"""
# What makes each library compute the same bits twice on a GPU.
DETERMINISTIC = {
    "OMP_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "XLA_FLAGS": "--xla_gpu_deterministic_ops=true",
    "HF_HUB_OFFLINE": "1",
}


@pytest.fixture(scope="session")
def machine(frameworks_python: Path) -> Iterator[Shiftwork]:
    """`shiftwork up` with the slots that it finds."""
    del frameworks_python
    if not find_gpus().gpus:
        pytest.fail(f"no GPU: {find_gpus().problem}")
    user = SlowShiftwork(Path(tempfile.mkdtemp(prefix="sw-gpu-")))
    try:
        user.good(
            *("up", "--data", str(user.data), "--detach", "--tasks-as-root", "--port", "0"),
        )
        yield user
        user.take_down()
    finally:
        shutil.rmtree(user.home, ignore_errors=True)


def output(machine: Shiftwork, task: str, *, code: int = 0) -> str:
    """Wait for the task; what its last attempt wrote."""
    assert machine("wait", task).code == code, machine("logs", task).out
    return machine.good("logs", task).out


def follow_until(machine: Shiftwork, task: str, text: str) -> None:
    """Wait until the running task writes the text."""
    follow = machine.start("logs", task, "-f")
    assert follow.stdout is not None
    try:
        assert any(text in line for line in follow.stdout), f"{task} never wrote {text!r}"
    finally:
        follow.kill()
        follow.communicate()


def test_the_nodes_have_the_gpus_of_the_driver(machine: Shiftwork) -> None:
    (node,) = machine.good("nodes", "--json").json["items"]
    found = find_gpus().gpus
    assert (node["gpus"], node["gpu_model"]) == (len(found), found[0].model)


@pytest.mark.parametrize(("gpus", "devices"), [("1", 1), ("0", 0)])
def test_a_task_sees_the_gpus_that_it_has_and_no_other(
    machine: Shiftwork, gpus: str, devices: int
) -> None:
    program = (
        "import os, torch; print(torch.cuda.device_count(), os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    task = machine.submit("--gpus-per-node", gpus, "--", str(BIN / "python"), "-c", program)
    count, _, visible = output(machine, task).strip().partition(" ")
    assert int(count) == devices
    assert visible in {gpu.uuid for gpu in find_gpus().gpus} if devices else not visible


def test_the_memory_of_a_killed_task_is_free_for_the_next(machine: Shiftwork) -> None:
    holds = machine.home / "holds.py"
    holds.write_text(HOLDS)
    command = ("--gpus-per-node", "1", "--", str(BIN / "python"), str(holds))
    held = machine.submit("--name", "held", *command, "600")
    follow_until(machine, held, "holds")
    newcomer = machine.submit("--name", "newcomer", "--priority", "very_high", *command, "0")
    assert "holds" in output(machine, newcomer)
    machine.good("stop", held, "--now")
    machine("wait", held)


@pytest.mark.parametrize(
    ("script", "launcher"),
    [
        ("torch_ddp.py", "torchrun"),
        ("torch_ddp.py", "python"),
        ("lightning_fit.py", "torchrun"),
        ("accelerate_loop.py", "python"),
        ("hf_trainer.py", "python"),
        ("jax_loop.py", "python"),
    ],
)
def test_training_is_preempted_and_ends_with_the_same_bits(
    machine: Shiftwork, script: str, launcher: str
) -> None:
    def submit(name: str, *arguments: str) -> str:
        env = [f"--env={key}={value}" for key, value in DETERMINISTIC.items()]
        command = [str(BIN / launcher), str(ROOT / "examples" / script)]
        out = ("--out", str(machine.home / f"{name}-{launcher}-{script}"))
        return machine.submit("--gpus-per-node", "1", *env, "--", *command, *out, *arguments)

    whole = output(machine, submit("whole"))
    shared = submit("shared", "--step-seconds", "0.1")
    follow_until(machine, shared, "from ")
    urgent = ("--priority", "very_high", "--gpus-per-node", "1", "--", "true")
    output(machine, machine.submit(*urgent))
    resumed = output(machine, shared)

    shown = machine.task(shared)
    assert (shown["state"], shown["attempt"]) == ("succeeded", 2)
    assert shown["checkpoint"]["step"] > 0
    digests = [re.findall(r"sha256 (\w{64})", text) for text in (whole, resumed)]
    assert digests[0]
    assert digests[0] == digests[1]
    assert "Traceback" not in resumed
    assert "destroy_process_group() was not called" not in resumed
