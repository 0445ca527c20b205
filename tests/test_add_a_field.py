"""A new field of a task needs three edits: ``proto/``, the code that uses it, its test.

This test makes the first edit in a copy of the sources and finds the field on its whole way.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SPEC = "proto/shiftwork/task/v1/task.proto"
FIELD = """
  // How much it yields to other programs of its node.
  optional int32 niceness = 99 [(shiftwork.bus.v1.shown) = {
    options: "--niceness"
    min: 0
    max: 19
  }];
"""
ROUND_TRIP = """
from libs.contracts import messages as m
from services.gateway.api.app import shapes
from services.gateway.auth import Identity
from services.gateway.bodies import TaskBody
from services.gateway.command_client import create_task
from services.gateway.conversion import to_json
from services.submit.domain.spec_fields import check_fields
from services.submit.domain.fill import fill_in
from services.submit.domain.facts import Rules
from shiftwork.cli.task_fields import set_field
from shiftwork.cli.task_options import TASK_OPTIONS

option = next(each for each in TASK_OPTIONS if "--niceness" in each.flags)
document = {"command": ["true"]}
set_field(document, option, 7)
body = TaskBody(**document)
spec = create_task(body, Identity("ada", "member", "", "id"), "key").spec
assert m.TaskSpec.model_validate_json(spec.to_json()).niceness == 7, "it travels"
assert to_json(spec, secrets=False)["niceness"] == 7, "it is shown"
assert shapes.Task.__annotations__["niceness"], "the answer's type has it"
schema = TaskBody.model_json_schema()["properties"]["niceness"]
assert schema["description"].startswith("How much it yields"), schema
rules = Rules()
much = fill_in(spec.model_copy(update={"niceness": 20}), task_id="t" * 26, defaults=rules)
(error,) = check_fields(much, rules)
assert (error.field, error.value) == ("niceness", "20"), error
assert "between 0 and 19" in error.message, error
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources with one more field, after what ``make gen`` does."""
    there = tmp_path_factory.mktemp("copy")
    without = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "node_modules")
    for folder in ("proto", "libs", "services", "tools", "benchmarks", "deploy", "docker", "docs"):
        shutil.copytree(ROOT / folder, there / folder, ignore=without)
    spec = there / SPEC
    head, mark, rest = spec.read_text().partition("message TaskSpec {\n")
    assert mark, "TaskSpec is declared there"
    spec.write_text(head + mark + FIELD + rest)
    generator = there / "proto" / "buf.gen.yaml"
    generator.write_text(generator.read_text().replace("../.venv/bin/python", sys.executable))
    run([str(Path(sys.executable).with_name("buf")), "generate"], there / "proto")
    for tool in ("task_forms", "generate_docs"):
        run([sys.executable, "-m", f"tools.{tool}"], there)
    return there


def run(command: list[str], where: Path) -> str:
    done = subprocess.run(
        command,
        cwd=where,
        env={"PYTHONPATH": f"{where}:{where / 'libs' / 'sdk'}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_declared_field_travels_is_checked_and_is_shown(copy: Path) -> None:
    run([sys.executable, "-c", ROUND_TRIP], copy)


def test_a_declared_field_is_an_option_of_the_command_line(copy: Path) -> None:
    output = run([sys.executable, "-m", "shiftwork", "submit", "--help"], copy)
    assert "--niceness" in output
    assert "How much it yields" in " ".join(output.split())


def test_a_declared_field_is_documented(copy: Path) -> None:
    page = (copy / "docs" / "generated" / "task.md").read_text()
    assert "| `niceness` | number | `--niceness` | How much it yields" in page
