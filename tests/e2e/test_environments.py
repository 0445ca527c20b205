"""Tests with the real program that a task runs in the Python environment of its submitter."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.conftest import PROGRAM, Shiftwork

pytestmark = [pytest.mark.server, pytest.mark.slow, pytest.mark.timeout(120)]

PREFIX = ("python", "-c", "import sys; print(sys.prefix)")
# These options request no GPUs and follow the task until it ends.
SMALL = ("--gpus-per-node", "0", "-f")


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without the SDK."""
    folder = tmp_path_factory.mktemp("mine") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder


def prefix(done: object) -> str:
    """Return ``sys.prefix`` as the task printed it: the last line of its output."""
    return str(getattr(done, "out", "")).splitlines()[-1]


def test_the_activated_environment_runs_the_command(shiftwork: Shiftwork, venv: Path) -> None:
    activated = {"VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin:/usr/bin:/bin"}
    inside = replace(shiftwork, environ=activated)
    assert prefix(inside.good("submit", *SMALL, "--", *PREFIX)) == str(venv)
    assert prefix(shiftwork.good("submit", *SMALL, "--", *PREFIX)) == str(PROGRAM.parents[1])


def test_the_venv_option_selects_the_environment(shiftwork: Shiftwork, venv: Path) -> None:
    assert prefix(shiftwork.good("submit", "--venv", str(venv), *SMALL, "--", *PREFIX)) == str(venv)


def test_a_missing_module_is_reported_with_the_pip_command(
    shiftwork: Shiftwork, venv: Path
) -> None:
    command = ("python", "-c", "import shiftwork")
    done = shiftwork("submit", "--venv", str(venv), *SMALL, "--", *command)
    assert done.code == 1
    assert "ModuleNotFoundError: No module named 'shiftwork'" in done.out
    assert f"warning: {venv}/bin/python ran the task and has no module 'shiftwork'" in done.err
    assert f"{venv}/bin/python -m pip install " in done.err
    shown = shiftwork.good("show", done.out.splitlines()[0]).out
    assert f"hint: {venv}/bin/python ran the task and has no module 'shiftwork'" in shown
    assert shiftwork.good("submit", *SMALL, "--", *command).code == 0
