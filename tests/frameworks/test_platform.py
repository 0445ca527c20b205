"""The examples on the platform itself: pushed out by a higher priority, resumed to the bit."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import Done, Shiftwork
from tests.frameworks.local_gang import BIN, ROOT, final

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.frameworks, pytest.mark.server, pytest.mark.timeout(900)]


class Patient(Shiftwork):
    """Gangs that start keep a small machine busy."""

    def __call__(self, *arguments: str, seconds: float = 300.0) -> Done:
        return super().__call__(*arguments, seconds=seconds)


@pytest.fixture(scope="module")
def shiftwork() -> Iterator[Shiftwork]:
    """Two nodes of two slots each."""
    user = Patient(Path(tempfile.mkdtemp(prefix="sw-frameworks-")))
    try:
        user.bring_up()
        yield user
    finally:
        user("down", "--data", str(user.data), "--now")
        shutil.rmtree(user.home, ignore_errors=True)


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
    shiftwork: Shiftwork, script: str, per_node: int, launcher: list[str]
) -> None:
    def gang(name: str, *arguments: str) -> str:
        command = [str(BIN / launcher[0]), *launcher[1:], str(ROOT / "examples" / script)]
        size = ("--nodes", "2", "--gpus-per-node", str(per_node), "--env", "OMP_NUM_THREADS=1")
        out = str(shiftwork.home / name)
        return shiftwork.submit("--name", name, *size, "--", *command, "--out", out, *arguments)

    whole = f"whole-{script[:-3].replace('_', '-')}-{per_node}"
    shared = whole.replace("whole", "shared")
    task = gang(whole)
    assert shiftwork("wait", task, "--timeout", "280").code == 0

    task = gang(shared, "--step-seconds", "0.1")
    # The first line of output says that the ranks have met.
    follow = shiftwork.start("logs", task, "-f")
    assert follow.stdout is not None
    for line in follow.stdout:
        if "from " in line:
            break
    urgent = ("--priority", "very_high", "--nodes", "2", "--", "sleep", "2")
    pusher = shiftwork.submit("--name", f"pusher-{shared}", *urgent)
    assert shiftwork("wait", pusher, "--timeout", "280").code == 0
    assert shiftwork("wait", task, "--timeout", "280").code == 0
    follow.kill()
    follow.communicate()

    shown = shiftwork.task(task)
    assert (shown["state"], shown["attempt"]) == ("succeeded", 2)
    steps = final(shiftwork.home / whole)["step"]
    assert 0 < shown["checkpoint"]["step"] < steps
    assert final(shiftwork.home / shared) == final(shiftwork.home / whole)
    told = shiftwork.good("logs", task, "--attempt", "1").out
    assert "Traceback" not in told
    assert "ChildFailedError" not in told
