"""Each contract with the framework that it is for: the examples find each other, leave for a higher
priority and go on from their checkpoint."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.frameworks.local_gang import BIN, ROOT

if TYPE_CHECKING:
    from tests.e2e.conftest import Shiftwork

pytestmark = [pytest.mark.frameworks, pytest.mark.server]

# What each example prints once its ranks are connected.
BEGINS = re.compile(r"from (step|round) \d")


def xgboost() -> dict[str, Any]:
    """Two ranks of one slot each."""
    command = ["python", "examples/xgboost_train.py"]
    return {"contract": "rank", "roles": [{"replicas": 2, "gpus": 1, "command": command}]}


def of_file(name: str) -> dict[str, Any]:
    """The task of an example's file."""
    return yaml.safe_load((ROOT / "examples" / name).read_text())


CASES = {
    # The last line of the rank that decides, which is the same in every undisturbed run.
    "tensorflow": (lambda: of_file("tf_parameter_server.yaml"), r"weights [0-9a-f]{16}"),
    "mpi": (lambda: of_file("mpi_reduce.yaml"), r"sum [0-9.]+"),
    # Trees that were built after a break differ in the last bits: XGBoost computes the margins of
    # the rows again.
    "xgboost": (xgboost, r"trees 50"),
}


def filled_in(spec: dict[str, Any], name: str, *arguments: str) -> dict[str, Any]:
    """The task with this machine's programs and folder, and more arguments for the example."""
    for role in spec["roles"]:
        words = [
            str(BIN / word) if word in {"python", "mpirun"} else word for word in role["command"]
        ]
        role["command"] = [*words, *(arguments if words[-1].endswith(".py") else ())]
    env = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", **spec.get("env", {})}
    return {**spec, "name": name, "working_directory": str(ROOT), "env": env}


@pytest.mark.parametrize("framework", CASES)
def test_ranks_find_each_other_and_go_on_after_a_preemption(
    platform: Shiftwork, framework: str
) -> None:
    make, result = CASES[framework]

    def submit(name: str, *arguments: str) -> str:
        out = ("--out", str(platform.home / name))
        path = platform.home / f"{name}.yaml"
        path.write_text(yaml.safe_dump(filled_in(make(), name, *out, *arguments)))
        return platform.submit("--file", str(path))

    def last_line(task: str) -> str:
        found = re.search(result, platform.good("logs", task).out)
        assert found is not None, platform.good("logs", task).out
        return found.group()

    task = submit(f"whole-{framework}")
    assert platform("wait", task).code == 0, platform("show", task).out
    whole = last_line(task)

    task = submit(f"shared-{framework}", "--step-seconds", "0.1")
    follow = platform.start("logs", task, "-f")
    assert follow.stdout is not None
    for line in follow.stdout:
        if BEGINS.search(line):
            break
    urgent = ("--priority", "very_high", "--nodes", "2", "--", "sleep", "2")
    pusher = platform.submit("--name", f"pusher-{framework}", *urgent)
    assert platform("wait", pusher).code == 0
    assert platform("wait", task).code == 0, platform("show", task).out
    follow.kill()
    follow.communicate()

    shown = platform.task(task)
    assert (shown["state"], shown["attempt"]) == ("succeeded", 2)
    assert shown["checkpoint"]["step"] > 0
    output = platform.good("logs", task).out
    assert f" {shown['checkpoint']['step']} of " in output
    assert last_line(task) == whole
