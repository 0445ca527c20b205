"""The SDK as people install it: the wheel of ``make sdk``, in an environment that has nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SDK = ROOT / "libs/sdk"
EXTRAS = {"cli", "torch", "lightning", "transformers", "accelerate", "jax"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("dist")
    line = ["make", "--silent", "sdk", f"DIST={dist}"]
    subprocess.run(line, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (found,) = dist.glob("shiftwork-*.whl")
    return found


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone, installed by pip; no network is needed."""
    venv = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=60)
    line = [venv / "bin/pip", "install", "--quiet", "--no-index", "--no-deps", wheel]
    subprocess.run(line, check=True, timeout=60)
    return venv


def in_bare(bare: Path, *line: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{bare}/bin:{os.environ['PATH']}"}
    return subprocess.run(
        line, env=env, cwd=bare, capture_output=True, text=True, timeout=30, check=False
    )


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    sources = {
        str(file.relative_to(SDK))
        for file in (SDK / "shiftwork").rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in names if ".dist-info/" not in name} == sources
    assert wheel.name.endswith("-py3-none-any.whl")


def test_the_wheel_needs_nothing_and_offers_the_extras(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel)
    (name,) = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = HeaderParser().parsestr(files.read(name).decode())
    assert (metadata["Name"], metadata["Requires-Python"]) == ("shiftwork", ">=3.8")
    assert set(metadata.get_all("Provides-Extra", [])) == EXTRAS
    wanted = metadata.get_all("Requires-Dist", [])
    assert [line for line in wanted if "extra ==" not in line] == []


@pytest.mark.timeout(120)
def test_a_bare_environment_has_the_training_api(bare: Path) -> None:
    program = "import shiftwork; print(shiftwork.should_preempt(), shiftwork.resume_from())"
    done = in_bare(bare, "python", "-c", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False None\n", "")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("line", [["shiftwork", "ls"], ["python", "-m", "shiftwork", "--help"]])
def test_the_command_line_without_its_extra_names_what_to_install(
    bare: Path, wheel: Path, line: list[str]
) -> None:
    done = in_bare(bare, *line)
    assert (done.returncode, done.stdout) == (1, "")
    (error,) = done.stderr.splitlines()
    assert error.startswith("shiftwork: the command line needs typer")
    assert f" -m pip install '{wheel}[cli]'" in error
