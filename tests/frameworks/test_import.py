"""The SDK beside each framework, in one interpreter."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.frameworks


@pytest.mark.parametrize("library", ["torch", "lightning", "transformers", "accelerate", "jax"])
def test_each_framework_imports_with_the_sdk(frameworks_python: Path, library: str) -> None:
    script = f"import {library}, shiftwork; print(shiftwork.should_preempt())"
    done = subprocess.run(
        [frameworks_python, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
