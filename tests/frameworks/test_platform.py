"""The examples on the platform itself: pushed out by a higher priority, resumed to the bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.frameworks.local_gang import BIN, ROOT, final

if TYPE_CHECKING:
    from tests.e2e.conftest import Shiftwork

# Each line of the agent's log names its source.
EXIT_BARRIER = "torch/distributed/elastic/agent/server/api.py"

pytestmark = [pytest.mark.frameworks, pytest.mark.server]


def without_exit_barrier(output: str) -> str:
    """The output without what torchrun's agent logs about its barrier at the end.

    The agents of several nodes wait for each other there, in the store of the first one, which may
    leave before the others have the answer (docs/frameworks.md).
    """
    return "\n".join(line for line in output.splitlines() if EXIT_BARRIER not in line)


@pytest.mark.parametrize(
    ("script", "per_node", "launcher"),
    [
        ("torch_ddp.py", 1, ["python"]),
        ("torch_ddp.py", 2, ["torchrun"]),
        ("lightning_fit.py", 1, ["torchrun"]),
    ],
    ids=["ddp-2-nodes", "ddp-2-nodes-of-2-ranks", "lightning-2-nodes"],
)
def test_a_gang_makes_way_for_a_higher_priority_and_ends_with_the_same_bits(
    platform: Shiftwork, script: str, per_node: int, launcher: list[str]
) -> None:
    def gang(name: str, *arguments: str) -> str:
        command = [str(BIN / launcher[0]), *launcher[1:], str(ROOT / "examples" / script)]
        size = ("--nodes", "2", "--gpus-per-node", str(per_node), "--env", "OMP_NUM_THREADS=1")
        out = str(platform.home / name)
        return platform.submit("--name", name, *size, "--", *command, "--out", out, *arguments)

    whole = f"whole-{script[:-3].replace('_', '-')}-{per_node}"
    shared = whole.replace("whole", "shared")
    task = gang(whole)
    assert platform("wait", task).code == 0

    task = gang(shared, "--step-seconds", "0.1")
    # The program prints its first line once the ranks are connected.
    follow = platform.start("logs", task, "-f")
    assert follow.stdout is not None
    for line in follow.stdout:
        if "from " in line:
            break
    urgent = ("--priority", "very_high", "--nodes", "2", "--", "sleep", "2")
    pusher = platform.submit("--name", f"pusher-{shared}", *urgent)
    assert platform("wait", pusher).code == 0
    assert platform("wait", task).code == 0
    follow.kill()
    follow.communicate()

    shown = platform.task(task)
    assert (shown["state"], shown["attempt"]) == ("succeeded", 2)
    steps = final(platform.home / whole)["step"]
    assert 0 < shown["checkpoint"]["step"] < steps
    assert final(platform.home / shared) == final(platform.home / whole)
    output = platform.good("logs", task, "--attempt", "1").out
    assert "Traceback" not in without_exit_barrier(output)
    assert "ChildFailedError" not in output
